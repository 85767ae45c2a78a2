"""Circuits of an adapter in the folder that PEFT writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checks, words
from qnnkit.adapters.sources import SOURCES, Circuits

WEIGHTS = "adapter_model.safetensors"
"""PEFT's: the weights that circuits gave, under LoRA's names."""
CIRCUIT = "circuit.safetensors"
"""Beside it: the circuits' angles, and what is needed to train them on."""


def plain(model: Any) -> dict[str, Tensor]:
    """The model's state with LoRA's weights in place of what gives them."""
    found = {
        key: value for key, value in model.state_dict().items() if ".parametrizations.weight.0." not in key
    }
    for name, circuits in model.circuits.items():
        for source in circuits.sources:
            found[f"base_model.model.{source.layer}.{source.side}.{name}.weight"] = source()
    return found


def save(circuits: Circuits, path: Path) -> None:
    """Writes angles, settings, and the sizes of the adapted layers in the order of the model."""
    from safetensors.torch import save_file

    [name] = [name for name, cls in SOURCES.items() if cls is type(circuits.config)]
    about = {"adapter": name, "settings": vars(circuits.config), "layers": circuits.sizes}
    text = json.dumps(about, default=sorted)  # PEFT makes sets of targets
    save_file(nn.ModuleList(circuits.sources).state_dict(), path, {"circuit": text})


def read(folder: Path) -> Circuits:
    """The circuits beside a saved adapter, if they give its weights."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(folder / CIRCUIT, framework="pt") as file:
            about = json.loads(file.metadata()["circuit"])
        weights, angles = load_file(folder / WEIGHTS), load_file(folder / CIRCUIT)
        config = SOURCES[about["adapter"]](**about["settings"])
        circuits = Circuits(config, about["layers"], next(iter(angles.values())))
        nn.ModuleList(circuits.sources).load_state_dict(angles)
        with torch.no_grad(), circuits.once():
            for source in circuits.sources:
                weight = weights[f"base_model.model.{source.layer}.{source.side}.weight"]
                if not torch.allclose(source(), weight, rtol=1e-3, atol=1e-4 * float(weight.abs().max())):
                    raise ValueError(f"it does not give {source.side} of {source.layer}")
    except Exception as error:  # safetensors, json and torch each have errors of their own
        rule = f"hold in {CIRCUIT} the circuits of its weights"
        step = "Copy the folder again, or remove the file: then LoRA's weights train on by themselves."
        raise ValueError(
            checks.message("folder", rule, f"{folder} ({words.first_line(error)})", step)
        ) from None
    return circuits

"""Several adapters on one base: loaded under names, switched by name, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from qnnkit import checks, workspace

BASE = "base"
"""The name by which the net without any adapter is asked for."""


def load_adapters(folders: Mapping[str, str | Path], base: str | Path | None = None) -> nn.Module:
    """The base once, with the adapters of several run folders on it: `for_each_adapter` plays them in turn.

    All must be of one kind, for PEFT holds one kind in a model; those from circuits are of LoRA's.

    Args:
        folders: Name here -> finished run of `music_adapter`, or its `adapter/`. A relative one is meant from
            the workspace.
        base: Folder of the base model; by default the one that the first adapter was made for.

    Returns:
        A PEFT model, for use and not for training, with the first adapter active.

    Raises:
        FileNotFoundError: A folder has no adapter.
        ValueError: The adapters are of several kinds, or one does not fit the base.
    """
    from qnnkit import adapters
    from qnnkit.models.causal_lm import causal_lm

    if not folders:
        step = "Give names and folders, such as {'bach': 'runs/bach'}."
        raise ValueError(checks.message("folders", "name one adapter at least", dict(folders), step))
    places = {name: workspace.place(folder) for name, folder in folders.items()}
    places = {
        name: place / "adapter" if (place / "adapter").is_dir() else place for name, place in places.items()
    }
    written: dict[str, dict[str, Any]] = {}
    for name, place in places.items():
        found = workspace.read_json(place / "adapter_config.json")
        if found is None:
            step = "Finish its run: 04_analyze writes adapter/ there."
            raise FileNotFoundError(checks.message("folders", "hold adapters", str(place), step))
        places[name], written[name] = place, found
    kinds = {name: str(found.get("peft_type")).lower() for name, found in written.items()}
    if len(set(kinds.values())) > 1:
        step = "PEFT holds one kind in a model: load each kind by a call of its own."
        raise ValueError(checks.message("folders", "hold adapters of one kind", kinds, step))
    model: Any = causal_lm(base or next(iter(written.values()))["base_model_name_or_path"])
    for name, place in places.items():
        model = adapters.load(model, place, name=name)
    return model.requires_grad_(False).eval()


def adapter_names(model: nn.Module) -> tuple[str, ...]:
    """The adapters that a PEFT model holds; none for any other net."""
    found = getattr(model, "peft_config", None)
    return tuple(found) if found and hasattr(model, "disable_adapter") else ()


@contextlib.contextmanager
def using_adapter(model: nn.Module, name: str | None) -> Iterator[nn.Module]:
    """The model with one of its adapters active, or with none ("base"); None leaves it as it is.

    Afterwards the same adapter is active as before, and the same weights are trainable.

    Raises:
        ValueError: The model has no adapter of this name; those it has are listed.
    """
    if name is None:
        yield model
        return
    names = adapter_names(model)
    if not names:
        if name == BASE:
            yield model
            return
        step = "Load it by PeftModel.from_pretrained(model, folder, adapter_name=...)."
        raise ValueError(checks.message("adapter", "be left out for a net without adapters", name, step))
    if name not in names:
        checks.choice("adapter", name, (*names, BASE))
    peft: Any = model
    trainable = [weight.requires_grad for weight in model.parameters()]  # PEFT changes it with the adapter
    active = peft.active_adapter
    try:
        if name in names:
            peft.set_adapter(name)
            yield model
        else:
            with peft.disable_adapter():
                yield model
    finally:
        if name in names:
            peft.set_adapter(active)
        for weight, was in zip(model.parameters(), trainable, strict=True):
            weight.requires_grad_(was)

"""A table of a net: its layers, their weights, and the number of circuits per sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from qnnkit.layers import QuantumLayer, Quanv2d, called, circuit_inputs, count_parameters, evaluating

if TYPE_CHECKING:
    import pandas as pd


def table(model: nn.Module, image: Tensor) -> pd.DataFrame:
    """A table with one row per layer and a total: output shape, weights by kind, circuits per sample.

    The columns are `kind` (the class), `gives` (the shape without the batch), `quantum` and `classical`
    (trained weights), `frozen` and `circuits / sample`.

    Args:
        model: Any module, which is not changed and runs on its own device.
        image: A batch of one, as the model takes it, of shape (1, ...).

    Example:
        >>> import torch
        >>> from qnnkit import circuits
        >>> layer = QuantumLayer(*circuits.build("data_reuploading", n_qubits=2))
        >>> rows = table(nn.Sequential(layer, nn.Linear(2, 3)), torch.zeros(1, 2))
        >>> print(rows[["gives", "quantum", "circuits / sample"]].to_string(index_names=False))
            gives  quantum  circuits / sample
        0       2       12                  1
        1       3        0                  0
        all     3       12                  1
    """
    import pandas as pd

    circuits: dict[Any, int] = {layer: len(rows) for layer, rows in circuit_inputs(model, image).items()}
    layers = [*_layers(model), ("all", model)]
    shapes: dict[nn.Module, str] = {}

    def note(layer: nn.Module, given: Any, values: Any) -> None:
        if isinstance(values, Tensor):
            shapes[layer] = " x ".join(map(str, values.shape[1:]))

    with contextlib.ExitStack() as hooks, evaluating(model):
        for _, layer in layers:
            hooks.enter_context(layer.register_forward_hook(note))
        called(model, image)
    rows = [
        {
            "layer": name,
            "kind": getattr(layer, "origin", type(layer).__name__),
            "gives": shapes.get(layer, ""),
            **count_parameters(layer),
            "circuits / sample": sum(circuits.get(each, 0) for each in layer.modules()),
        }
        for name, layer in layers
    ]
    return pd.DataFrame(rows).set_index("layer")


def _layers(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The named parts of a model; parts around a circuit are split, with their own weights as a row."""
    direct = nn.ParameterList(model.parameters(recurse=False))
    if len(direct) and not isinstance(model, QuantumLayer):
        yield f"{prefix}(own)", direct
    for name, child in model.named_children():
        inside = any(isinstance(each, QuantumLayer) for each in child.modules())
        if inside and not isinstance(child, QuantumLayer | Quanv2d):
            yield from _layers(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child

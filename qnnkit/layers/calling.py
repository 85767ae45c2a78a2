"""Calling a model with what its kind takes: one tensor, or several by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

Given = Tensor | Mapping[str, Tensor]
"""What a model takes: a tensor, or several by name."""


def called(model: nn.Module, given: Given) -> Any:
    """What a model gives, on its own device, for a tensor or for several by name."""
    weight = next((tensor for tensor in (*model.parameters(), *model.buffers())), None)
    device = None if weight is None else weight.device
    if isinstance(given, Mapping):
        return model(**{name: tensor.to(device) for name, tensor in given.items()})
    return model(given.to(device))

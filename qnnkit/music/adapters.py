"""Which adapter of a PEFT model is active: switched by name, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from qnnkit import checks

BASE = "base"
"""The name by which the net without any adapter is asked for."""


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

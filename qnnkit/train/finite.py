"""Which layer first makes a number that is not finite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


def not_finite(
    what: str, where: str, model: nn.Module, compute: Callable[[Any], Any], batch: Any
) -> FloatingPointError:
    """The error that names the layer: the batch is computed once more, and every layer watched."""
    entered, guilty = {}, []

    def enter(layer: nn.Module, args: Any, kwargs: Any) -> None:
        entered[layer] = _all_finite((args, kwargs))

    def leave(layer: nn.Module, args: Any, output: Any) -> None:
        if entered[layer] and not _all_finite(output):
            guilty.append(layer)  # what is inside a layer leaves before it

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for layer in model.modules():
            hooks.enter_context(layer.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(layer.register_forward_hook(leave))
        compute(batch)
    if guilty:
        name = next(name for name, layer in model.named_modules() if layer is guilty[0])
        why = f"layer `{name or 'model'}` ({type(guilty[0]).__name__}) makes such numbers of finite ones"
        step = "Look at its weights and at what it is given; a lower learning rate or a clip_norm may help."
    elif not _all_finite(batch):
        why, step = "the data of that batch are not finite", "Mend these samples or leave them out."
    else:
        why, step = "every layer's output is, so the fault is in the task", "Look at the labels and the loss."
    return FloatingPointError(f"The {what} is not finite at {where}: {why}. {step}")


def _all_finite(values: Any) -> bool:
    """Whether every number is, in tensors inside tuples, lists and dictionaries."""
    return all(bool(leaf.isfinite().all()) for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))

"""The gradient of a loss on one batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qnnkit.checkpoint import own_generators
from qnnkit.tasks import Task


def of_batch(model: nn.Module, task: Task, batch: Any) -> dict[str, Tensor]:
    """The gradient of the task's loss on one batch, by parameter; frozen ones are left out.

    What a pass in training mode changes is put back: running means of a normalisation, generators.

    Args:
        model: In training mode or not, as it is given; it is left as it was.
        task: Gives the loss.
        batch: As the task takes it, on the model's device.

    Returns:
        Name of the parameter -> its gradient in float64 on the CPU; zeros where the loss does not
        depend on it.
    """
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with own_generators(), torch.enable_grad():
            loss = task(model, batch).loss
            found: Any = [torch.zeros_like(weight) for weight in named.values()]
            if named and loss.requires_grad:
                found = torch.autograd.grad(
                    loss, list(named.values()), allow_unused=True, materialize_grads=True
                )
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
    return {name: gradient.cpu().double() for name, gradient in zip(named, found, strict=True)}

"""One training step, as the loop takes it, to be timed or traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit.settings import Settings
from qnnkit.tasks import Task
from qnnkit.train.groups import Group, optimizer_of, trainable
from qnnkit.train.pieces import passes
from qnnkit.train.recompute import recomputing

PRECISIONS = ("float32", "bfloat16", "float16")
"""Of the classical layers."""


class Stepper:
    """Updates a model on batches that are given, without schedule, clipping and checkpoints.

    Args:
        model: Trained in place; moved to `device`.
        task: Gives the loss.
        config: Optimizer, micro_batch, precision, gradient checkpointing. A float16 scaler is left out.
        groups: Parameters by step size; all in one by default.
        device: Where to compute.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: Settings,
        groups: Sequence[Group] | None = None,
        device: torch.device | str = "cpu",
    ):
        self.device = torch.device(device)
        if any(weight.device != self.device for weight in model.parameters()):  # fake ones cannot be moved
            model.to(self.device)
        self.model, self.task, self.config = model.train(), task, config
        groups = trainable(groups or [Group("all", list(model.parameters()), config.learning_rate)])
        self.optimizer = optimizer_of(groups, config) if groups else None

    def passes(self, batch: Any) -> list[Callable[[], Tensor]]:
        """What computes the loss of a batch, which is moved to the device, piece by piece: a share each."""
        from accelerate.utils import send_to_device

        found = passes(self.task, self.model, send_to_device(batch, self.device), self.config.micro_batch)
        again = recomputing if self.config.gradient_checkpointing else contextlib.nullcontext

        def loss(compute: Callable[[], Any]) -> Tensor:
            with again(self.model), autocast(self.config.precision, self.device):
                return compute().loss / len(found)

        return [lambda compute=compute: loss(compute) for compute in found]

    def backward(self, loss: Tensor) -> None:
        if loss.requires_grad:
            loss.backward()

    def update(self) -> None:
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def __call__(self, batch: Any) -> None:
        """One update."""
        for compute in self.passes(batch):
            self.backward(compute())
        self.update()


def autocast(precision: str, device: torch.device) -> Any:
    """The surroundings in which a model computes in `precision`."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))

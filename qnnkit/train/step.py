"""One training step, as the loop takes it, to be timed or traced."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from qnnkit.settings import Settings
from qnnkit.tasks import Task
from qnnkit.train.groups import Group, optimizer_of, trainable
from qnnkit.train.recompute import recomputing


class Stepper:
    """Updates a model on batches that are given, without schedule, clipping and checkpoints.

    Args:
        model: Trained in place; moved to `device`.
        task: Gives the loss.
        config: Optimizer, accumulation, precision, gradient checkpointing. A float16 scaler is left out.
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

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss of a batch, which is moved to the device."""
        from accelerate.utils import send_to_device

        with (
            recomputing(self.model) if self.config.gradient_checkpointing else contextlib.nullcontext(),
            autocast(self.config.precision, self.device),
        ):
            return self.task(self.model, send_to_device(batch, self.device)).loss

    def backward(self, loss: torch.Tensor) -> None:
        if loss.requires_grad:
            (loss / self.config.accumulation).backward()

    def update(self) -> None:
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def __call__(self, batch: Any) -> None:
        """One update: as many passes over `batch` as are accumulated."""
        for _ in range(self.config.accumulation):
            self.backward(self.forward(batch))
        self.update()


def autocast(precision: str, device: torch.device) -> Any:
    """The surroundings in which a model computes in `precision`."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))

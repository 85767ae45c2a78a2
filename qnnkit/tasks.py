"""What a net is trained for: its loss and the numbers it is judged by, per kind of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Step:
    """What one batch gives."""

    loss: Tensor
    """Mean over the batch, to differentiate."""
    sums: dict[str, Tensor]
    """Numbers to report, summed over the batch, without a graph."""
    count: int
    """Samples in the batch."""


class Task(Protocol):
    """What the training loop asks of a task."""

    @property
    def monitor(self) -> str:
        """The reported number by which the best epoch is chosen; larger is better."""
        ...

    def __call__(self, model: nn.Module, batch: Any) -> Step: ...


@dataclass(frozen=True)
class Classification:
    """Cross-entropy of logits against labels; reports `loss` and `accuracy`.

    A batch is (images, labels); the model gives logits of shape (batch, n_classes).
    """

    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes, in training only."""
    monitor: str = "accuracy"
    augment: Callable[[Tensor], Tensor] | None = None
    """What is done to the images first, in training only."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Step:
        images, labels = batch
        if self.augment is not None and model.training:
            images = self.augment(images)
        logits = model(images)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        smoothing = self.label_smoothing if model.training else 0.0
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        correct = (logits.argmax(-1) == labels).sum()
        return Step(loss, {"loss": loss.detach() * len(labels), "accuracy": correct}, len(labels))

"""What the training loop asks of a task, and what a task gives for a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from qnnkit.stats import Score


@dataclass(frozen=True)
class Step:
    """What one batch gives."""

    loss: Tensor
    """Mean over what the batch counts, to differentiate."""
    sums: dict[str, Tensor]
    """Numbers to report, summed over the batch, without a graph."""
    count: int
    """What the loss is a mean over, and the batch weighs by in updates and means: samples, or tokens."""


class Task(Protocol):
    """What the training loop asks of a task."""

    @property
    def monitor(self) -> str:
        """The reported number by which the best epoch is chosen; larger is better."""
        ...

    @property
    def score(self) -> Score:
        """The number that nets are compared by, and how people read it."""
        ...

    def __call__(self, model: nn.Module, batch: Any) -> Step:
        """What a batch gives.

        A task with a true attribute `whole`, whose loss looks at the batch as a whole, is also given
        `micro_batch`, how many samples to compute at once: batches of other tasks are cut before.
        """
        ...

    def judge(self, outputs: Any, truth: Any, /) -> dict[str, float]:
        """Numbers that need all of a split at once: what the model gives for it, beside what is right."""
        ...

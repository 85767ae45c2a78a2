"""Sums over samples, or tokens, from which the means of an epoch and of an update come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from qnnkit.tasks import Step
from qnnkit.train.processes import summed


class Totals:
    """Sums over samples, kept on the device: no wait per batch."""

    def __init__(self, sums: dict[str, torch.Tensor] | None = None, count: float = 0) -> None:
        self.sums, self.count = sums or {}, count

    def add(self, step: Step) -> None:
        self.count += step.count
        for name, value in step.sums.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def over_processes(self, accelerator: Any) -> Totals:
        """What all processes have added up, the same in each."""
        if accelerator.num_processes == 1:
            return self
        *sums, count = summed(accelerator, [*map(float, self.sums.values()), self.count])
        return Totals({name: torch.tensor(value) for name, value in zip(self.sums, sums, strict=True)}, count)

    def means(self) -> dict[str, float]:
        return {name: float(value) / self.count for name, value in self.sums.items()}


class Counted:
    """What the batches of one update count, so that its gradient is the mean over all of it.

    How much that is shows when the last of them is there, and gradients are added before: each batch is
    weighed as if all were like the first, and the sum is mended in the end. So numbers stay of the size that
    a float16 scaler expects, and nothing is mended where batches are alike.
    """

    def __init__(self) -> None:
        self.total, self.expected = 0.0, 0.0

    def weight(self, count: float, n: int) -> float:
        """Weight of one sample, or token, of a batch that counts `count`, the next of about `n` such."""
        self.expected = self.expected or n * count
        self.total += count
        return 1 / self.expected

    def mend(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Gradients as they would be had the total been known from the beginning; the next update begins."""
        if self.total != self.expected:
            for weight in weights:
                if weight.grad is not None:
                    weight.grad *= self.expected / self.total
        self.total = self.expected = 0.0

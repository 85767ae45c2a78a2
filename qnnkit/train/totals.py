"""Sums over samples, from which an epoch's means come."""

from __future__ import annotations

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

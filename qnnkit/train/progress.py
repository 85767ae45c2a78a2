"""How far a training has come, and what it has added up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from qnnkit.tasks import Step
from qnnkit.train.processes import Processes


class Totals:
    """Sums over samples, or tokens, kept on the device: no wait per batch."""

    def __init__(self, sums: dict[str, torch.Tensor] | None = None, count: float = 0) -> None:
        self.sums, self.count = sums or {}, count

    def add(self, step: Step, own: bool = True) -> None:
        """Adds what a batch gives; of one that is not this process's own, the names alone."""
        self.count += own * step.count
        for name, value in step.sums.items():
            self.sums[name] = self.sums.get(name, 0) + (value if own else torch.zeros_like(value))

    def over(self, processes: Processes) -> Totals:
        """What all processes have added up, the same in each."""
        if processes.world == 1:
            return self
        *sums, count = processes.sums(*map(float, self.sums.values()), self.count)
        return Totals({name: torch.tensor(value) for name, value in zip(self.sums, sums, strict=True)}, count)

    def means(self) -> dict[str, float]:
        return {name: float(value) / (self.count or 1) for name, value in self.sums.items()}


@dataclass
class Progress:
    """How far a training has come; kept in every checkpoint."""

    epoch: int = 0
    """Epochs finished."""
    updates: int = 0
    """Optimizer steps taken."""
    best_epoch: int = 0
    best_score: list[float] = field(default_factory=list)
    """(monitored number, minus the loss) of the best epoch on the validation split."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each epoch's training, without validation and writing."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """What was logged of each epoch."""

    @property
    def seconds_per_epoch(self) -> float:
        """Median over the epochs, without the first where there are more: it warms up."""
        return statistics.median(self.seconds[1:] or self.seconds)


@dataclass
class Part:
    """How far an unfinished epoch has come, always between two updates."""

    batch: int = 0
    """Batches done."""
    totals: Totals = field(default_factory=Totals)
    norms: dict[str, list[float]] = field(default_factory=dict)
    """Group -> sum and number of its finite gradient norms; a step that a scaler skips has none."""
    seconds: float = 0.0
    random: dict[str, Any] | None = None
    """State of the generators where a resumed epoch continues; None at its beginning."""
    watched: dict[str, Any] | None = None
    """What `watch` had kept where a resumed epoch continues; None at its beginning."""

    def add(self, step: Step, own: bool, norms: Mapping[str, float]) -> None:
        """Adds an update: what its batch gave, whether it counts here, and the norms of its gradient."""
        self.batch += 1
        self.totals.add(step, own)
        for name, norm in norms.items():
            total, count = self.norms.get(name, [0.0, 0])
            self.norms[name] = [total + norm, count + 1] if math.isfinite(norm) else [total, count]

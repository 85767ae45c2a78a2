"""The progress of a training, and sums over its samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from qnnkit import checks
from qnnkit.tasks import Step
from qnnkit.train.processes import Processes


class Totals:
    """Sums over samples or tokens, kept on the device to avoid waiting for each batch."""

    def __init__(self, sums: dict[str, torch.Tensor] | None = None, count: float = 0) -> None:
        self.sums, self.count = sums or {}, count

    def add(self, step: Step, counts: bool = True) -> None:
        """Adds a batch's sums; for a batch that does not count here, only their names."""
        if self.sums and self.sums.keys() != step.sums.keys():
            rule, remedy = "report the same numbers for every batch", "Report 0, or compute it in `judge`."
            raise ValueError(checks.message("task", rule, [*step.sums], f"Before: {[*self.sums]}. {remedy}"))
        self.count += counts * step.count
        for name, value in step.sums.items():
            self.sums[name] = self.sums.get(name, 0) + (value if counts else torch.zeros_like(value))

    def over(self, processes: Processes) -> Totals:
        """The sums over all processes, the same in each."""
        if processes.world == 1:
            return self
        *sums, count = processes.sums(*map(float, self.sums.values()), self.count)
        return Totals({name: torch.tensor(value) for name, value in zip(self.sums, sums, strict=True)}, count)

    def means(self) -> dict[str, float]:
        return {name: float(value) / (self.count or 1) for name, value in self.sums.items()}


@dataclass
class Progress:
    """The progress of a training; stored in every checkpoint.

    Attributes:
        epoch: Number of finished epochs.
        updates: Number of optimizer steps.
        best_epoch: Number of the best epoch, counted from 1; 0 before the first has ended.
        best_score: (monitored number, minus the loss) of the best epoch on the validation split.
        seconds: Seconds of training in each epoch, without validation and writing.
        rows: The logged row of each epoch: `epoch`, `updates`, `seconds`, the task's numbers after `train_`
            and `validation_`, the mean `gradient_norm_<group>`, the last `learning_rate`, and whether it is
            the `best` so far.
    """

    epoch: int = 0
    updates: int = 0
    best_epoch: int = 0
    best_score: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds_per_epoch(self) -> float:
        """Median over the epochs; the first, which includes warm-up, is skipped if there are more."""
        return statistics.median(self.seconds[1:] or self.seconds)


@dataclass
class Part:
    """The progress within an unfinished epoch, always between two updates."""

    batch: int = 0
    """Number of finished batches."""
    totals: Totals = field(default_factory=Totals)
    norms: dict[str, list[float]] = field(default_factory=dict)
    """Sum and number of each group's finite gradient norms; a step that a scaler skips has none."""
    seconds: float = 0.0
    random: dict[str, Any] | None = None
    """State of the generators at the position where an epoch resumes; None at its beginning."""
    watched: dict[str, Any] | None = None
    """State of `watch` at the position where an epoch resumes; None at its beginning."""

    def add(self, step: Step, counts: bool, norms: Mapping[str, float]) -> None:
        """Adds an update: its batch's sums, whether it counts here, and its gradient norms."""
        self.batch += 1
        self.totals.add(step, counts)
        for name, norm in norms.items():
            total, count = self.norms.get(name, [0.0, 0])
            self.norms[name] = [total + norm, count + 1] if math.isfinite(norm) else [total, count]

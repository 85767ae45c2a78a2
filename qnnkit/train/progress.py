"""How far a training has come."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from qnnkit.train.totals import Totals


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
    at_once: int | None = None
    """Most samples of a batch that are computed at once, since memory ran out; None computes all."""

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
    """State of the generators where a resumed epoch goes on; None at its beginning."""
    watched: dict[str, Any] | None = None
    """What the observer had kept where a resumed epoch goes on; None at its beginning."""


@dataclass(frozen=True)
class Moment:
    """An update that has just been made."""

    epoch: int
    """Which epoch it belongs to, counted from 1."""
    epochs: int
    """How many there will be, at most."""
    step: int
    """Updates of this epoch so far."""
    steps: int
    """Updates of an epoch."""
    updates: int
    """Updates in all."""
    samples: int
    """Samples, or tokens, that it was made from, on this process (`Step.count`)."""
    loss: float
    """Mean over these."""
    learning_rate: float
    """Of the first group of weights."""
    seconds: float
    """What it took, loading included; validation and checkpoints are not."""
    at_once: int | None
    """As in `Progress`."""

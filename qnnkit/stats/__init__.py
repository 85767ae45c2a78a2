"""Intervals over seeds, and what may be said of a difference: rows of numbers, and one sentence of each."""

from qnnkit.stats.intervals import (
    ALPHA,
    Comparison,
    Interval,
    clopper_pearson,
    compare,
    holm,
    judge,
    mean_interval,
    power,
)
from qnnkit.stats.score import ACCURACY, LOSS, RECALL, SCORES, Score, direction
from qnnkit.stats.verdicts import decide, format_p, sentence, verdicts

__all__ = [
    "ACCURACY", "ALPHA", "Comparison", "Interval", "LOSS", "RECALL", "SCORES", "Score", "clopper_pearson",
    "compare", "decide", "direction", "format_p", "holm", "judge", "mean_interval", "power", "sentence",
    "verdicts",
]  # fmt: skip

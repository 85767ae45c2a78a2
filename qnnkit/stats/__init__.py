"""Intervals over seeds, and comparisons of nets: rows of numbers, with one sentence for each."""

from qnnkit.stats.intervals import clopper_pearson, mean_interval
from qnnkit.stats.score import ACCURACY, LOSS, RECALL, SCORES, Score, direction
from qnnkit.stats.verdicts import ALPHA, compare, decide, detectable, format_p, sentence

__all__ = [
    "ACCURACY", "ALPHA", "LOSS", "RECALL", "SCORES", "Score", "clopper_pearson", "compare", "decide",
    "detectable", "direction", "format_p", "mean_interval", "sentence",
]  # fmt: skip

"""Intervals over seeds, and comparisons of nets: rows of numbers, with one sentence for each.

A comparison, from `compare` or `decide`, is a row with these columns:

- `seeds`, the number of seeds, or of splits if each seed has its own, as `unit` says;
- `difference`, the mean of first minus second, with its 95 % t-interval, `low` to `high`;
- `effect_size`, the mean in standard deviations of the differences (Hedges' g_z);
- `p`, two-sided and uncorrected, and `p_holm`, corrected for the number of comparisons, `family`;
- `min_difference`, the margin, and `p_equivalent`, the larger p of the two one-sided t-tests that the
  difference is within it;
- `detectable`, the smallest true difference that this number of seeds, with this spread, detects in 80 of
  100 studies, and `seeds_needed`, the number of seeds that detects the margin as often: infinite if 10,000
  are not enough. If each seed has its own split, no number detects every difference.

`SCORES` has the scores of qnnkit's tasks by name: `ACCURACY`, `RECALL` and `LOSS`. `ALPHA` is the
significance level, 0.05.
"""

from qnnkit.stats.intervals import clopper_pearson, mean_interval
from qnnkit.stats.score import ACCURACY, LOSS, RECALL, SCORES, Score, direction
from qnnkit.stats.verdicts import ALPHA, compare, decide, detectable, format_p, sentence

__all__ = [
    "ACCURACY", "ALPHA", "LOSS", "RECALL", "SCORES", "Score", "clopper_pearson", "compare", "decide",
    "detectable", "direction", "format_p", "mean_interval", "sentence",
]  # fmt: skip

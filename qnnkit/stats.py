"""Intervals over seeds, and what may be said of a difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from qnnkit import checks


@dataclass(frozen=True)
class Interval:
    """A mean with a confidence interval; infinite bounds where one value says nothing of the spread."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean and t-interval of independent values (Student 1908).

    Args:
        values: One number per seed.
        level: Confidence level.

    Raises:
        ValueError: There is no value, one is not finite, or `level` is not between 0 and 1.

    Example:
        >>> interval = mean_interval([1.0, 2.0, 3.0])
        >>> interval.mean, round(interval.half_width, 3)
        (2.0, 2.484)
    """
    checks.positive("the number of values", len(values), "Give at least one value.")
    if not all(map(math.isfinite, values)):
        raise ValueError(checks.message("values", "be finite", list(values), "Repeat the failed runs."))
    if not 0 < level < 1:
        raise ValueError(checks.message("level", "lie between 0 and 1", level, "0.95 is usual."))
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, n)
    from scipy.stats import t

    half = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def verdict(name: str, values: Sequence[float], other: str, others: Sequence[float]) -> str:
    """One honest sentence on two nets that share their seeds: which did better, if that can be said.

    The interval is of the paired differences, seed by seed, for one comparison; it is not corrected for
    how many are made.

    Args:
        name: The first net.
        values: Its accuracies, as fractions.
        other: The second net.
        others: Its accuracies, by the same seeds in the same order.

    Raises:
        ValueError: The two have not as many values as one another, or none, or one is not finite.

    Example:
        >>> print(verdict("hybrid", [0.95, 0.96, 0.94], "classical", [0.98, 0.98, 0.97]))
        classical did better than hybrid: 2.7 points, 95 % interval 1.2 to 4.1 over 3 seeds.
    """
    if len(values) != len(others):
        rule = f"have one value per seed, as `values` has {len(values)}"
        raise ValueError(checks.message("others", rule, list(others), "Train both nets on the same seeds."))
    if len(values) == 1:
        gap = 100 * (values[0] - others[0])
        return (
            f"{name} and {other} differ by {gap:+.1f} points on one seed, which shows nothing about which is "
            "better; train more seeds."
        )
    differences = [100 * (a - b) for a, b in zip(values, others, strict=True)]
    gap = mean_interval(differences)
    if gap.mean and gap.high - gap.low < 1e-9:
        return (
            f"{name} and {other} differ by {gap.mean:+.1f} points on each of {gap.n} seeds, which says "
            "nothing of how seeds differ; train more seeds."
        )
    if gap.low <= 0 <= gap.high:
        return (
            f"No difference is shown between {name} and {other}: {gap.mean:+.1f} points, 95 % interval "
            f"{gap.low:+.1f} to {gap.high:+.1f} over {gap.n} seeds."
        )
    if gap.mean < 0:
        return verdict(other, others, name, values)
    return (
        f"{name} did better than {other}: {gap.mean:.1f} points, 95 % interval {gap.low:.1f} to "
        f"{gap.high:.1f} over {gap.n} seeds."
    )

"""Intervals of means and shares, and paired comparisons with their power: numbers alone."""

from __future__ import annotations

import bisect
import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qnnkit import checks

ALPHA = 0.05
"""A difference, or an equivalence, is shown where its corrected p is below this."""
POWER = 0.8
"""How often seeds must find a difference that is there, to be called enough for it."""
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean with a confidence interval; infinite bounds where nothing is known of the spread."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def known(self) -> bool:
        return math.isfinite(self.low)

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def mean_interval(
    values: Sequence[float],
    level: float = 0.95,
    *,
    samples: int | None = None,
    logarithmic: bool = False,
) -> Interval:
    """Mean of independent values, and how far from it the true one may lie: never an interval of width zero.

    Over seeds it is the t-interval; infinite for one seed, and for values that are all the same, which say
    nothing of the spread. Two kinds of values have intervals of their own:

    - Shares of `samples` test samples: the interval covers those as well as the seeds, as other test samples
      would give another share. The distances of its ends from the mean are the roots of the summed squares of
      the t-interval's and of Clopper and Pearson's, and it stays within 0 and 1. As the seeds share their
      test samples this is rather too wide than too narrow.
    - Positive values that spread by a factor (losses): `logarithmic` takes Cox's interval for the mean of a
      log-normal variable, exp(m + s^2 / 2 -+ t sqrt(s^2 / n + s^4 / (n - 1))) with m and s those of the
      logarithms. Its last term is twice the usual one, which is too short for few seeds.

    `python -m benchmarks.coverage` simulates how often each holds the true mean.

    Args:
        values: One number per seed.
        level: Confidence level.
        samples: In the test split, of which each value is the share that was right; None for other scores.
        logarithmic: Whether the values, all above zero, spread by a factor.

    Raises:
        ValueError: There is no value, one is not finite, or `level` is not between 0 and 1.

    Example:
        >>> interval = mean_interval([1.0, 2.0, 3.0])
        >>> interval.mean, round(interval.half_width, 3)
        (2.0, 2.484)
        >>> same = mean_interval([0.9, 0.9, 0.9], samples=100)
        >>> round(same.low, 3), round(same.high, 3)
        (0.824, 0.951)

    Reference:
        Student 1908; Clopper and Pearson 1934; Zou and Donner 2008, doi:10.1002/sim.3095 (intervals of a
        sum); Olsson 2005, doi:10.1080/10691898.2005.11910638 (Cox's interval).
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

    spread, quantile = statistics.stdev(values), float(t.ppf((1 + level) / 2, n - 1))
    half = quantile * spread / math.sqrt(n)
    if samples is not None:
        low, high = clopper_pearson(mean * samples, samples, level)
        below, above = math.hypot(half, mean - low), math.hypot(half, high - mean)
        return Interval(mean, max(0.0, mean - below), min(1.0, mean + above), n)
    if spread <= 1e-12 * max(map(abs, values)):  # nothing but rounding
        return Interval(mean, -math.inf, math.inf, n)
    if logarithmic:
        logs = [math.log(value) for value in values]
        variance = statistics.variance(logs)
        middle = statistics.fmean(logs) + variance / 2
        half = quantile * math.sqrt(variance / n + variance**2 / (n - 1))
        low, high = math.exp(middle - half), math.exp(min(700.0, middle + half))  # a float ends at exp(709)
        return Interval(mean, min(mean, low), max(mean, high), n)
    return Interval(mean, mean - half, mean + half, n)


def clopper_pearson(right: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Ends of the exact interval of a share, when `right` of `n` were; a mean over seeds need not be whole.

    Example:
        >>> low, high = clopper_pearson(9, 10)
        >>> round(low, 3), round(high, 3)
        (0.555, 0.997)

    Reference:
        Clopper and Pearson 1934, Biometrika 26(4), 404-413.
    """
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = float(beta.ppf(tail, right, n - right + 1)) if right > 0 else 0.0
    high = float(beta.ppf(1 - tail, right + 1, n - right)) if right < n else 1.0
    return low, high


@dataclass(frozen=True)
class Comparison:
    """Two nets next to each other, seed by seed; NaN where the seeds cannot tell."""

    difference: float
    """Mean of first minus second."""
    low: float
    high: float
    """The 95 % t-interval of the difference; infinite where the spread is not known."""
    effect: float
    """Cohen's d_z (mean over standard deviation of the differences), with Hedges' small-sample correction."""
    p: float
    """Two-sided, of the paired t-test; of this comparison alone."""
    n: int
    """Seeds."""
    spread: float = math.nan
    """Standard deviation of the differences."""
    ratio: float = 0.0
    """Test samples by training samples, where each difference is of a split of its own."""

    @property
    def error(self) -> float:
        """Standard error of the mean difference."""
        return self.spread * math.sqrt(1 / self.n + self.ratio)


def compare(values: Sequence[float], others: Sequence[float], ratio: float = 0.0) -> Comparison:
    """First minus second, seed by seed: mean, 95 % t-interval, effect size, paired t-test.

    Where every seed has a split of its own, the splits share most of their samples, so that the differences
    spread less than fresh data would make them. Nadeau and Bengio's corrected t-test takes
    s sqrt(1 / n + n_test / n_train) for the standard error in place of s / sqrt(n).

    The effect size is g_z = J d_z, with d_z = mean / standard deviation of the differences and
    J = Gamma(m/2) / (sqrt(m/2) Gamma((m-1)/2)), m = n - 1 (Hedges 1981): d_z is too large for few seeds.
    It is NaN for fewer than three. Where all differences are the same number, as happens with a handful of
    test images, nothing is known of how seeds differ: interval infinite, effect and p NaN (0 and 1 where that
    number is zero).

    Args:
        values: One number per seed.
        others: Those of the other net, by the same seeds in the same order.
        ratio: Test samples by training samples of a split; 0 where all seeds share one split.

    Raises:
        ValueError: The two have not as many values as one another, or none, or one is not finite.

    Example:
        >>> found = compare([0.93, 0.95, 0.97], [0.90, 0.91, 0.92])
        >>> round(found.difference, 4), round(found.effect, 3), round(found.p, 4)
        (0.04, 2.257, 0.0202)

    Reference:
        Lakens 2013, doi:10.3389/fpsyg.2013.00863 (d_z and its correction); Student 1908; Nadeau and Bengio
        2003, doi:10.1023/A:1024068626366 (splits that share samples).
    """
    if len(values) != len(others):
        rule = f"have one value per seed, as `values` has {len(values)}"
        raise ValueError(checks.message("others", rule, list(others), "Train both nets on the same seeds."))
    for name, numbers in (("values", values), ("others", others)):
        if not all(map(math.isfinite, numbers)):
            raise ValueError(checks.message(name, "be finite", list(numbers), "Repeat the failed runs."))
    differences = [float(a - b) for a, b in zip(values, others, strict=True)]
    gap = mean_interval(differences)
    if gap.n == 1:
        return Comparison(gap.mean, -math.inf, math.inf, math.nan, math.nan, 1)
    spread = statistics.stdev(differences)
    if spread <= 1e-12 * max(map(abs, [*values, *others])):  # nothing but rounding
        effect, p = (0.0, 1.0) if abs(gap.mean) <= spread else (math.nan, math.nan)
        return Comparison(gap.mean, -math.inf, math.inf, effect, p, gap.n)
    from scipy.stats import t

    d_z, m = gap.mean / spread, gap.n - 1
    error = spread * math.sqrt(1 / gap.n + ratio)
    p, half = 2 * float(t.sf(abs(gap.mean) / error, m)), float(t.ppf(0.975, m)) * error
    effect = math.nan
    if m > 1:
        effect = d_z * math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) / math.sqrt(m / 2)
    return Comparison(gap.mean, gap.mean - half, gap.mean + half, effect, p, gap.n, spread, ratio)


def judge(found: Comparison, margin: float, family: int = 1) -> dict[str, Any]:
    """What one comparison shows beside its p: equivalence within a margin, and what more seeds would show.

    Args:
        found: As `compare` gives it.
        margin: The least difference that matters, in the unit of the scores.
        family: How many comparisons are made: a corrected p must pass `ALPHA / family` to be sure to count.

    Returns:
        `min_difference`, the margin; `p_equivalent`, the larger p of the two one-sided t-tests that the
        difference lies within it; `detectable`, the smallest true difference that as many seeds of this
        spread find in 80 of 100 studies; `seeds_needed`, how many seeds find one of `margin` as often. NaN
        where the spread is not known; infinite where 10,000 seeds are not enough.

    Example:
        >>> row = judge(compare([0.93, 0.95, 0.97], [0.90, 0.91, 0.92]), 0.01)
        >>> round(row["detectable"], 3), row["seeds_needed"]
        (0.033, 10)

    Reference:
        Schuirmann 1987, doi:10.1007/BF01068419 (two one-sided tests); Cohen 1988 (power).
    """
    row: dict[str, Any] = dict.fromkeys(("p_equivalent", "detectable", "seeds_needed"), math.nan)
    row["min_difference"] = margin
    if math.isnan(found.spread):
        return row
    from scipy.optimize import brentq
    from scipy.stats import t

    alpha, ratio = ALPHA / family, found.ratio
    row["p_equivalent"] = float(t.sf((margin - abs(found.difference)) / found.error, found.n - 1))
    most = 4 * (float(t.ppf(1 - alpha / 2, found.n - 1)) + 1) * found.error / found.spread
    effect: Any = brentq(lambda effect: power(effect, found.n, alpha, ratio) - POWER, 0, most)
    row["detectable"] = effect * found.spread

    needed = 1 + bisect.bisect_left(
        range(1, MOST_SEEDS + 1), POWER, key=lambda n: power(margin / found.spread, n, alpha, ratio)
    )
    return row | {"seeds_needed": needed if needed <= MOST_SEEDS else math.inf}


def power(effect: float, n: int, alpha: float = ALPHA, ratio: float = 0.0) -> float:
    """How often a paired t-test of `n` seeds finds a difference of `effect` standard deviations.

    `ratio` as in `compare`: with splits of their own, no number of seeds finds every difference.

    The noncentral t-distribution, as a mean over 128 quantiles of the spread that is measured.

    Example:
        >>> round(power(1.0, 10), 3)  # tables of Cohen: 0.80
        0.803
    """
    from scipy.special import ndtr

    bound, shift = _bounds(n, alpha), effect / math.sqrt(1 / n + ratio)
    return float((ndtr(shift - bound) + ndtr(-bound - shift)).mean())


@functools.lru_cache(maxsize=1024)
def _bounds(n: int, alpha: float) -> Any:
    """What a mean must exceed to be found, in standard errors, at 128 quantiles of the measured spread."""
    import numpy as np
    from scipy.stats import chi2, t

    squares = chi2.ppf((np.arange(128) + 0.5) / 128, n - 1) / (n - 1)
    return t.ppf(1 - alpha / 2, n - 1) * np.sqrt(squares)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of a family, corrected so that none is called shown by chance in 19 of 20 families.

    The k-th smallest of m is multiplied by m - k + 1, and is no smaller than those before it. A NaN, of a
    comparison that could not be tested, stays NaN and still counts in m: it was asked as well.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    Reference:
        Holm 1979, Scandinavian Journal of Statistics 6(2), 65-70.
    """
    corrected, least = [math.nan] * len(p_values), 0.0
    known = [index for index, p in enumerate(p_values) if not math.isnan(p)]
    for rank, index in enumerate(sorted(known, key=lambda index: p_values[index])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected

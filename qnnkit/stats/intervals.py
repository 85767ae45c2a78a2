"""Confidence intervals of means: over seeds, of shares and of losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from qnnkit import checks

LEVEL = 0.95
"""Confidence level of every interval."""


class Interval(NamedTuple):
    """A mean with the ends of its confidence interval, which are NaN if the spread is unknown."""

    mean: float
    low: float = math.nan
    high: float = math.nan


def mean_interval(values: Sequence[float], ratio: float = 0.0) -> Interval:
    """Returns the mean of one number per seed with its 95 % t-interval, mean -+ t s sqrt(1 / n + ratio).

    The ends are unknown for a single seed, and for equal values, which tell nothing about the spread.

    Args:
        values: One number per seed.
        ratio: Test samples divided by training samples, if each seed has its own split: such splits share
            most samples, so values spread less than with fresh data. 0 if all seeds share one split.

    Raises:
        ValueError: There is no value, or one is not finite.

    Example:
        >>> mean, low, high = mean_interval([1.0, 2.0, 3.0])
        >>> mean, round(high - mean, 3)
        (2.0, 2.484)

    Reference:
        Student 1908; Nadeau and Bengio 2003, doi:10.1023/A:1024068626366 (`ratio`).
    """
    checks.positive("the number of values", len(values), "Give at least one value.")
    if not all(map(math.isfinite, values)):
        raise ValueError(checks.message("values", "be finite", list(values), "Repeat the failed runs."))
    mean, n = statistics.fmean(values), len(values)
    spread = statistics.stdev(values) if n > 1 else 0.0
    if spread <= 1e-12 * max(map(abs, values)):  # equal up to rounding
        return Interval(mean)
    half = quantile(n) * spread * math.sqrt(1 / n + ratio)
    return Interval(mean, mean - half, mean + half)


def share_interval(values: Sequence[float], samples: int, ratio: float = 0.0) -> Interval:
    """Returns the mean of shares of `samples` test samples; its interval covers seeds and test samples.

    The distance of each end from the mean is the root of the summed squares of those of the t-interval and
    of Clopper and Pearson's interval; the ends stay within 0 and 1. Equal values have an interval, too. The
    seeds share their test samples, so the interval is rather too wide than too narrow.

    Example:
        >>> mean, low, high = share_interval([0.9, 0.9, 0.9], samples=100)
        >>> round(low, 3), round(high, 3)
        (0.824, 0.951)

    Reference:
        Zou and Donner 2008, doi:10.1002/sim.3095 (intervals of a sum).
    """
    mean, low, high = mean_interval(values, ratio)
    if len(values) == 1:
        return Interval(mean)
    half = 0.0 if math.isnan(high) else high - mean
    low, high = clopper_pearson(mean * samples, samples)
    below, above = math.hypot(half, mean - low), math.hypot(half, high - mean)
    return Interval(mean, max(0.0, mean - below), min(1.0, mean + above))


def loss_interval(values: Sequence[float], ratio: float = 0.0) -> Interval:
    """Returns the mean of positive values that vary by a factor, with Cox's interval for log-normal values.

    It is exp(m + s^2 / 2 -+ t sqrt(s^2 / n + s^4 / (n - 1))), with mean m and standard deviation s of the
    logarithms. Its last term is twice the usual one, which is too small for few seeds.
    `ratio` is that of `mean_interval`.

    Reference:
        Olsson 2005, doi:10.1080/10691898.2005.11910638.
    """
    mean, low, _ = mean_interval(values, ratio)
    if math.isnan(low):
        return Interval(mean)
    logs, n = [math.log(value) for value in values], len(values)
    variance = statistics.variance(logs)
    middle = statistics.fmean(logs) + variance / 2
    half = quantile(n) * math.sqrt(variance * (1 / n + ratio) + variance**2 / (n - 1))
    low, high = math.exp(middle - half), math.exp(min(700.0, middle + half))  # a float ends at exp(709)
    return Interval(mean, min(mean, low), max(mean, high))


def clopper_pearson(right: float, n: int) -> tuple[float, float]:
    """Returns the exact 95 % interval of a share of `right` out of `n`, as two numbers from 0 to 1.

    `right` lies in 0 to `n`, which is above 0, and need not be an integer.

    Example:
        >>> low, high = clopper_pearson(9, 10)
        >>> round(low, 3), round(high, 3)
        (0.555, 0.997)

    Reference:
        Clopper and Pearson 1934, Biometrika 26(4), 404-413.
    """
    from scipy.special import betaincinv

    tail = (1 - LEVEL) / 2
    low = float(betaincinv(right, n - right + 1, tail)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, n - right, 1 - tail)) if right < n else 1.0
    return low, high


def quantile(n: int, level: float = LEVEL) -> float:
    """Returns the half-width, in standard errors, of a two-sided t-interval of `n` values."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + level) / 2))

"""Paired comparisons of nets over shared seeds: a row of numbers, a verdict and a sentence for each."""

from __future__ import annotations

import bisect
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from qnnkit import checks
from qnnkit.stats.intervals import mean_interval, quantile
from qnnkit.stats.score import Score

ALPHA = 0.05
"""Significance level: a difference, or an equivalence, is significant if its corrected p is below it."""
POWER = 0.8
"""How often seeds must detect a true difference to count as enough for it."""
MOST_SEEDS = 10_000
ROW = (
    *("seeds", "unit", "difference", "low", "high", "effect_size", "p", "p_holm"),
    *("min_difference", "p_equivalent", "detectable", "seeds_needed", "family"),
)
"""Columns of a comparison; the docstring of `qnnkit.stats` explains them."""


def compare(
    values: Sequence[float], others: Sequence[float], ratio: float = 0.0, margin: float = 0.0, family: int = 1
) -> dict[str, Any]:
    """Compares first minus second, seed by seed: a paired t-test, equivalence within a margin, and power.

    If each seed has its own split, the splits share most of their samples, so the differences spread less
    than with fresh data. Nadeau and Bengio's corrected t-test then uses s sqrt(1 / n + n_test / n_train) as
    the standard error instead of s / sqrt(n). If all differences are the same number, as happens with few
    test images, the spread over seeds is unknown (if that number is zero, p is 1 and the effect 0).

    Args:
        values: One number per seed.
        others: Values of the other net, for the same seeds in the same order.
        ratio: Test samples divided by training samples of a split; 0 if all seeds share one split.
        margin: The least difference that matters, in the unit of the scores.
        family: Number of comparisons. An uncorrected p below `ALPHA / family` is significant in any case.

    Returns:
        The columns in `help(stats)`. Unknown values are NaN, as is `p_holm`, which `decide` adds.

    Raises:
        ValueError: The nets have different numbers of values, or none, or one is not finite.

    Example:
        >>> row = compare([0.93, 0.95, 0.97], [0.90, 0.91, 0.92], margin=0.01)
        >>> round(row["difference"], 4), round(row["effect_size"], 3), round(row["p"], 4)
        (0.04, 2.257, 0.0202)
        >>> round(row["detectable"], 3), row["seeds_needed"]
        (0.033, 10)

    Reference:
        Student 1908; Nadeau and Bengio 2003, doi:10.1023/A:1024068626366; Schuirmann 1987,
        doi:10.1007/BF01068419 (two one-sided tests).
    """
    if len(values) != len(others):
        rule = f"have one value per seed, as `values` has {len(values)}"
        raise ValueError(checks.message("others", rule, list(others), "Train both nets on the same seeds."))
    differences, n = [float(a - b) for a, b in zip(values, others, strict=True)], len(values)
    mean, low, high = mean_interval(differences, ratio)
    unit = "splits" if ratio else "seeds"
    row: dict[str, Any] = dict.fromkeys(ROW, math.nan)
    row |= {"seeds": n, "unit": unit, "difference": mean, "min_difference": margin, "family": family}
    spread = statistics.stdev(differences) if n > 1 else 0.0
    if spread <= 1e-12 * max(map(abs, [*values, *others])):  # equal up to rounding, or a single seed
        return row | ({"effect_size": 0.0, "p": 1.0} if n > 1 and abs(mean) <= spread else {})
    from scipy.special import stdtr

    def findable(n: int) -> float:
        """Returns the difference that `n` seeds detect."""
        return spread * math.sqrt(1 / n + ratio) * least_shift(n, ALPHA / family)

    error, numbers = spread * math.sqrt(1 / n + ratio), range(2, MOST_SEEDS + 1)
    needed = 2 + bisect.bisect_left(numbers, True, key=lambda n: findable(n) <= margin)
    row |= {"low": low, "high": high, "effect_size": effect_size(mean / spread, n)}
    row |= {"p": 2 * float(stdtr(n - 1, -abs(mean) / error))}
    row |= {"p_equivalent": float(stdtr(n - 1, (abs(mean) - margin) / error))}
    return row | {"detectable": findable(n), "seeds_needed": needed if needed <= MOST_SEEDS else math.inf}


def effect_size(ratio: float, n: int) -> float:
    """Returns Hedges' g_z = J d_z for `n` differences whose mean is `ratio` (d_z) standard deviations.

    J = Gamma(m/2) / (sqrt(m/2) Gamma((m-1)/2)), m = n - 1, as d_z is too large for few seeds. NaN for n = 2.

    Reference:
        Hedges 1981; Lakens 2013, doi:10.3389/fpsyg.2013.00863.
    """
    m = n - 1
    gammas = math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) if m > 1 else math.nan
    return ratio * gammas / math.sqrt(m / 2)


@functools.lru_cache(maxsize=1024)
def least_shift(n: int, alpha: float = ALPHA) -> float:
    """Returns the true mean, in standard errors, that `n` seeds detect in 80 of 100 paired t-tests.

    The noncentral t-distribution is computed as a mean over 128 quantiles of the measured spread.

    Example:
        >>> round(least_shift(10) / math.sqrt(10), 2)  # tables of Cohen (1988): 1.0 standard deviations
        1.0
    """
    import numpy as np
    from scipy.optimize import brentq
    from scipy.special import gammaincinv, ndtr

    half = (n - 1) / 2
    spreads = np.sqrt(gammaincinv(half, (np.arange(128) + 0.5) / 128) / half)
    bounds, most = quantile(n, 1 - alpha) * spreads, 4 * (quantile(n, 1 - alpha) + 1)
    shift: Any = brentq(lambda at: (ndtr(at - bounds) + ndtr(-bounds - at)).mean() - POWER, 0, most)
    return shift


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values of a family, corrected so that 19 of 20 families have no false positive.

    The k-th smallest of m is multiplied by m - k + 1, and is no smaller than those before it. The NaN of a
    comparison that could not be tested stays NaN, but counts in m.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    Reference:
        Holm 1979, Scandinavian Journal of Statistics 6(2), 65-70.
    """
    import numpy as np

    p = np.array(p_values, dtype=float)
    order = np.argsort(p)  # sorts NaN last
    p[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return p.tolist()


def decide(
    rows: Sequence[Mapping[str, Any]], score: Score, min_difference: float | None = None
) -> list[dict[str, Any]]:
    """Returns the verdicts of a family of comparisons, corrected for their number (Holm 1979).

    A verdict is `better` or `worse` if the corrected p of the paired t-test shows a difference; else
    `equivalent` if the corrected p of the two one-sided tests shows that the difference is within the margin;
    else `undecided`.

    Args:
        rows: Any names of the nets, with `values` and `others`, their scores for the same seeds, and `ratio`
            if each seed has its own split: see `compare`.
        score: The score that is compared.
        min_difference: The least difference that matters; see `Score.margin`.

    Returns:
        The rows, with the columns of `compare` instead of the scores; p_holm and p_equivalent are corrected.

    Raises:
        ValueError: Two nets have different numbers of values, or none, or one is not finite.

    Example:
        >>> from qnnkit.stats import ACCURACY
        >>> nets = {"a": [0.90, 0.91, 0.92], "b": [0.90, 0.90, 0.90]}
        >>> rows = [{"other_net": name, "values": [0.93, 0.95, 0.97], "others": nets[name]} for name in nets]
        >>> rows = decide(rows, ACCURACY)
        >>> [(row["other_net"], row["verdict"], round(row["p_holm"], 3)) for row in rows]
        [('a', 'better', 0.04), ('b', 'better', 0.049)]
    """
    decided, scores = [], ("values", "others", "ratio")
    for given in rows:
        margin = score.margin(min_difference, given["others"])
        row = compare(given["values"], given["others"], given.get("ratio", 0.0), margin, len(rows))
        # No two shares differ by more than 1; NaN stays.
        if score.shares([*given["values"], *given["others"]]):
            row |= {"low": max(row["low"], -1.0), "high": min(row["high"], 1.0)}
            row["detectable"] = row["detectable"] if not row["detectable"] > 1 else math.inf
        decided.append({name: given[name] for name in given if name not in scores} | row)
    different, same = (holm([row[name] for row in decided]) for name in ("p", "p_equivalent"))
    for row, p, p_same in zip(decided, different, same, strict=True):
        row |= {"p_holm": p, "p_equivalent": p_same, "verdict": "undecided"}
        if p_same < ALPHA:
            row["verdict"] = "equivalent"
        if p < ALPHA:
            row["verdict"] = "better" if (row["difference"] > 0) is score.larger else "worse"
    return decided


def sentence(row: Mapping[str, Any], score: Score) -> str:
    """Returns a row of `decide` as one sentence, with `net` and `other_net` as the names of the two nets.

    Example:
        >>> from qnnkit.stats import ACCURACY
        >>> nets = {"net": "hybrid", "other_net": "classical"}
        >>> scores = {"values": [0.95, 0.96, 0.94], "others": [0.98, 0.98, 0.97]}
        >>> [row] = decide([nets | scores], ACCURACY)
        >>> print(sentence(row, ACCURACY))
        hybrid did worse than classical: -2.7 points (95 % interval -4.1 to -1.2, p = 0.015, 3 seeds).
    """
    name, other, many = row["net"], row["other_net"], f"{row['seeds']} {row['unit']}"
    gap = f"{score.signed(row['difference'])} {score.unit}".rstrip()
    if row["seeds"] == 1:
        return f"{name} minus {other}: {gap} on one seed, which shows nothing; train more seeds."
    if math.isnan(row["detectable"]):
        why = "which says nothing of how seeds differ; train more seeds."
        return f"{name} and {other} differ by {gap} on each of {many}, {why}"
    alone, corrected = ("uncorrected ", " after Holm's correction") if row["family"] > 1 else ("", "")
    low, high = row["low"], row["high"]
    ends = f"{score.signed(low, high)} to {score.signed(high, low)}"  # with digits that differ
    p = format_p(row["p_holm"]) + corrected
    numbers = f"{gap} ({alone}95 % interval {ends}, {p}, {many})."
    margin = _margin(row, score)
    if row["verdict"] == "equivalent":
        p = f"{format_p(row['p_equivalent'])} of the two one-sided tests"
        return f"{name} and {other} are equivalent within {margin}, {p}: {numbers}"
    if row["verdict"] == "undecided":
        return f"No significant difference between {name} and {other}: {numbers} {detectable(row, score)}"
    less = f" It is less than the {margin} that would matter." if row["p_equivalent"] < ALPHA else ""
    return f"{name} did {row['verdict']} than {other}: {numbers}{less}"


def detectable(row: Mapping[str, Any], score: Score) -> str:
    """Returns what the seeds of a comparison could detect, and how many detect the margin; "" if unknown.

    Two shares differ by at most 100 points, so two seeds with a large spread may detect no difference.

    Example:
        >>> row = {"detectable": 0.034, "seeds": 10, "unit": "seeds", "min_difference": 0.01}
        >>> from qnnkit.stats import ACCURACY
        >>> detectable(row | {"seeds_needed": 95}, ACCURACY)
        'Detectable with 80 % power: 3.4 points by 10 seeds, 1 point by 95.'
    """
    if math.isnan(row["detectable"]):
        return ""
    least = f"{score.tell(row['detectable'])} {score.unit}".rstrip()
    least = "no difference" if math.isinf(row["detectable"]) else least
    enough = f"{row['seeds_needed']:,.0f}" if row["seeds_needed"] < math.inf else f"more than {MOST_SEEDS:,}"
    many = f"{row['seeds']} {row['unit']}"
    return f"Detectable with 80 % power: {least} by {many}, {_margin(row, score)} by {enough}."


def _margin(row: Mapping[str, Any], score: Score) -> str:
    number = f"{score.factor * row['min_difference']:.3g}"
    return f"{number} {score.unit.removesuffix('s') if number == '1' else score.unit}".rstrip()


def format_p(p: float) -> str:
    """Returns a p-value as papers write it.

    Example:
        >>> format_p(0.0213), format_p(0.00004), format_p(float("nan"))
        ('p = 0.021', 'p < 0.001', 'p unknown')
    """
    return "p unknown" if math.isnan(p) else f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"

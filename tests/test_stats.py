"""Intervals against tables and against scipy's own; verdicts that never say more than the interval."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from scipy import stats as scipy_stats

from qnnkit.stats import mean_interval, verdict

ERROR = 1e-12


# Quantiles from a printed table of t: 95 % two-sided at 1, 2, 4 and 9 degrees of freedom, 99 % at 2.
@pytest.mark.parametrize(
    ("values", "level", "quantile"),
    [
        ([0.0, 1.0], 0.95, 12.706),
        ([1.0, 2.0, 3.0], 0.95, 4.3027),
        ([1.0, 2.0, 3.0], 0.99, 9.9248),
        ([1.0, 2.0, 3.0, 4.0, 10.0], 0.95, 2.7764),
        ([float(i) for i in range(10)], 0.95, 2.2622),
    ],
)
def test_interval_of_known_values(values, level, quantile):
    interval = mean_interval(values, level)
    n = len(values)
    assert interval.n == n and interval.mean == pytest.approx(np.mean(values), abs=ERROR)
    half = quantile * np.std(values, ddof=1) / math.sqrt(n)
    assert interval.half_width == pytest.approx(half, rel=1e-4)
    assert interval.low == pytest.approx(interval.mean - interval.half_width, abs=ERROR)
    low, high = scipy_stats.t.interval(level, n - 1, np.mean(values), scipy_stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=ERROR)


def test_intervals_hold_the_mean_as_often_as_they_say():
    generator = np.random.default_rng(0)
    samples = generator.normal(3.0, 2.0, (2000, 4))
    intervals = [mean_interval(list(values)) for values in samples]
    share = np.mean([interval.low <= 3.0 <= interval.high for interval in intervals])
    assert share == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 2000))


def test_one_value_says_nothing_of_the_spread():
    interval = mean_interval([0.9])
    assert (interval.mean, interval.low, interval.high, interval.n) == (0.9, -math.inf, math.inf, 1)


def test_identical_values_and_their_order():
    same = mean_interval([0.5] * 4)
    assert (same.low, same.mean, same.high) == (0.5, 0.5, 0.5)
    assert mean_interval([0.1, 0.5, 0.9]) == mean_interval([0.9, 0.1, 0.5])


@pytest.mark.parametrize(
    ("values", "level", "argument"),
    [
        ([], 0.95, "the number of values"),
        ([0.1, math.nan], 0.95, "values"),
        ([0.1, math.inf], 0.95, "values"),
        ([0.1, 0.2], 0.0, "level"),
        ([0.1, 0.2], 1.0, "level"),
        ([0.1, 0.2], 95, "level"),
        ([0.1, 0.2], math.nan, "level"),
    ],
)
def test_interval_of_bad_values(values, level, argument):
    with pytest.raises(ValueError) as caught:
        mean_interval(values, level)
    assert re.fullmatch(rf"Argument `{argument}` must .+, but is .+\. .+\.", str(caught.value))


def test_verdict_when_the_first_is_better():
    # Differences 3, 4, 5 points: mean 4, half width 4.3027 / sqrt(3) = 2.48.
    sentence = verdict("hybrid", [0.93, 0.95, 0.97], "classical", [0.90, 0.91, 0.92])
    assert sentence == "hybrid did better than classical: 4.0 points, 95 % interval 1.5 to 6.5 over 3 seeds."


def test_verdict_when_the_other_is_better():
    sentence = verdict("hybrid", [0.90, 0.91, 0.92], "classical", [0.93, 0.95, 0.97])
    assert sentence == "classical did better than hybrid: 4.0 points, 95 % interval 1.5 to 6.5 over 3 seeds."


def test_verdict_when_nothing_is_shown():
    # Differences 1, 2, 6: mean 3, standard deviation 2.6458, half width 6.57.
    sentence = verdict("hybrid", [0.91, 0.92, 0.96], "classical", [0.90] * 3)
    assert sentence == (
        "No difference is shown between hybrid and classical: +3.0 points, "
        "95 % interval -3.6 to +9.6 over 3 seeds."
    )


def test_verdict_pairs_the_seeds():
    # The same accuracies in another order: nothing but the pairing changes, and with it what is shown.
    hybrid = [0.93, 0.95, 0.97]
    assert "did better" in verdict("hybrid", hybrid, "classical", [0.90, 0.91, 0.92])
    assert "No difference" in verdict("hybrid", hybrid, "classical", [0.91, 0.92, 0.90])


def test_verdict_of_one_seed():
    sentence = verdict("hybrid", [0.9], "classical", [0.5])
    assert "+40.0 points on one seed, which shows nothing" in sentence and "better than" not in sentence


def test_verdict_of_equal_nets():
    sentence = verdict("hybrid", [0.9, 0.8], "classical", [0.9, 0.8])
    assert sentence.startswith("No difference is shown") and "+0.0 points" in sentence


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gap", [-0.02, 0.0, 0.002, 0.02])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_verdict_claims_only_what_the_interval_shows(n, gap, seed):
    generator = np.random.default_rng(seed)
    ours, theirs = generator.normal(0.9 + gap, 0.01, n), generator.normal(0.9, 0.01, n)
    interval = mean_interval(list(100 * (ours - theirs)))
    sentence = verdict("a", list(ours), "b", list(theirs))
    if interval.low > 0:
        assert sentence.startswith("a did better than b")
    elif interval.high < 0:
        assert sentence.startswith("b did better than a")
    else:
        assert sentence.startswith("No difference is shown between a and b")


@pytest.mark.parametrize(
    ("values", "others", "argument"),
    [
        ([0.9, 0.8], [0.9], "others"),
        ([0.9], [0.9, 0.8], "others"),
        ([], [], "the number of values"),
        ([0.9, math.nan], [0.9, 0.8], "values"),
    ],
)
def test_verdict_of_bad_values(values, others, argument):
    with pytest.raises(ValueError) as caught:
        verdict("a", values, "b", others)
    assert re.fullmatch(rf"Argument `{argument}` must .+, but is .+\. .+\.", str(caught.value))


def test_seeds_without_spread_show_no_winner():
    """One test image more on every seed is no interval of width zero."""
    sentence = verdict("hybrid", [1.0, 1.0], "classical", [0.9, 0.9])
    assert "which says nothing of how seeds differ" in sentence and "better" not in sentence

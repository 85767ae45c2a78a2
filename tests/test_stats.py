"""Intervals against tables and against scipy's own; verdicts that never say more than the interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from qnnkit.stats import (
    ACCURACY,
    LOSS,
    Score,
    compare,
    direction,
    holm,
    mean_interval,
    verdict,
    verdicts,
    wilson,
)
from tests.toys import refused

ERROR = 1e-12


# Quantiles from a printed table of t: 95 % two-sided at 1, 2, 4 and 9 degrees of freedom, 99 % at 2.
QUANTILES = [
    ([0.0, 1.0], 0.95, 12.706), ([1.0, 2.0, 3.0], 0.95, 4.3027), ([1.0, 2.0, 3.0], 0.99, 9.9248),
    ([1.0, 2.0, 3.0, 4.0, 10.0], 0.95, 2.7764), ([float(i) for i in range(10)], 0.95, 2.2622),
]  # fmt: skip


@pytest.mark.parametrize(("values", "level", "quantile"), QUANTILES)
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


def test_one_value_or_identical_ones_say_nothing_of_the_spread():
    interval = mean_interval([0.9])
    assert (interval.mean, interval.low, interval.high, interval.n) == (0.9, -math.inf, math.inf, 1)
    same = mean_interval([0.5] * 4)
    assert (same.low, same.mean, same.high) == (-math.inf, 0.5, math.inf) and not same.known
    assert mean_interval([0.1, 0.5, 0.9]) == mean_interval([0.9, 0.1, 0.5])


def test_an_interval_of_shares_by_hand():
    """Seeds: mean 0.9, half width 4.3027 * 0.01 / sqrt(3). Test samples: Wilson's interval of 90 in 100."""
    found, (low, high) = mean_interval([0.89, 0.9, 0.91], samples=100), wilson(90, 100)
    seeds = 4.302653 * 0.01 / math.sqrt(3)
    assert found.low == pytest.approx(0.9 - math.hypot(seeds, 0.9 - low), abs=1e-7)
    assert found.high == pytest.approx(0.9 + math.hypot(seeds, high - 0.9), abs=1e-7)


@pytest.mark.parametrize("samples", [3, 360, 10_000])
@pytest.mark.parametrize("values", [[1.0, 1.0], [0.0, 0.0, 0.0], [0.989] * 3, [0.9, 1.0], [0.0, 0.3]])
def test_an_interval_of_shares_is_never_of_width_zero_nor_beyond_them(values, samples):
    found = mean_interval(values, samples=samples)
    assert 0 <= found.low <= found.mean <= found.high <= 1 and found.high > found.low


def test_an_interval_of_shares_holds_what_other_seeds_and_other_test_samples_would_give():
    """Nets whose seeds differ little, on 100 test samples of very different difficulty, which all share."""
    generator, true, covered = np.random.default_rng(0), 2 / 2.4, []
    for _ in range(500):
        chance = np.clip(generator.beta(2, 0.4, 100) + generator.normal(0, 0.01, (3, 1)), 0, 1)
        scores = (generator.random((3, 100)) < chance).mean(1).tolist()
        found = mean_interval(scores, samples=100), mean_interval(scores)
        covered.append([each.low <= true <= each.high for each in found])
    whole, over_seeds = np.mean(covered, axis=0)
    assert whole > 0.94 and over_seeds < 0.93


@pytest.mark.parametrize(
    ("function", "given", "argument"),
    [
        (mean_interval, ([], 0.95), "the number of values"),
        (mean_interval, ([0.1, math.nan], 0.95), "values"),
        (mean_interval, ([0.1, math.inf], 0.95), "values"),
        *((mean_interval, ([0.1, 0.2], level), "level") for level in (0.0, 1.0, 95, math.nan)),
        (compare, ([0.9, 0.8], [0.9]), "others"),
        (compare, ([0.9], [0.9, 0.8]), "others"),
        (compare, ([], []), "the number of values"),
        (compare, ([0.9, math.nan], [0.9, 0.8]), "values"),
    ],
)
def test_what_nothing_can_be_said_of_is_refused(function, given, argument):
    with refused(argument):
        function(*given)


HIGH, LOW = [0.93, 0.95, 0.97], [0.90, 0.91, 0.92]
WON = "did better than {}: 4.0 points, 95 % interval 1.5 to 6.5 over 3 seeds."
NONE = "No difference is shown between hybrid and classical: "


@pytest.mark.parametrize(
    ("hybrid", "classical", "said"),
    [
        # Differences 3, 4, 5 points: mean 4, half width 4.3027 / sqrt(3) = 2.48.
        (HIGH, LOW, "hybrid " + WON.format("classical")),
        (LOW, HIGH, "classical " + WON.format("hybrid")),
        # The same accuracies in another order: nothing but the pairing changes, and with it what is shown.
        (HIGH, [0.91, 0.92, 0.90], NONE + "+4.0 points, 95 % interval -2.6 to +10.6 over 3 seeds."),
        # Differences 1, 2, 6: mean 3, standard deviation 2.6458, half width 6.57.
        ([0.91, 0.92, 0.96], [0.90] * 3, NONE + "+3.0 points, 95 % interval -3.6 to +9.6 over 3 seeds."),
        ([0.9, 0.8], [0.9, 0.8], NONE + "they score the same on each of 2 seeds, which says nothing of how "
                                        "seeds differ."),
        ([0.9], [0.5], "hybrid and classical differ by +40.0 points on one seed, which shows nothing about "
                       "which is better; train more seeds."),
        # One test image more on every seed is no interval of width zero.
        ([1.0, 1.0], [0.9, 0.9], "hybrid and classical differ by +10.0 points on each of 2 seeds, which says "
                                 "nothing of how seeds differ; train more seeds."),
    ],
)  # fmt: skip
def test_verdicts_by_hand(hybrid, classical, said):
    assert verdict("hybrid", hybrid, "classical", classical) == said


@pytest.mark.parametrize("gap", [-0.02, 0.0, 0.002, 0.02])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_verdict_claims_only_what_the_interval_shows(n, gap):
    for seed in range(5):
        generator = np.random.default_rng(seed)
        ours, theirs = generator.normal(0.9 + gap, 0.01, n), generator.normal(0.9, 0.01, n)
        interval = mean_interval(list(100 * (ours - theirs)))
        shown = (interval.low > 0) - (interval.high < 0)
        words = {1: "a did better than b", -1: "b did better than a", 0: "No difference is shown between a"}
        assert verdict("a", list(ours), "b", list(theirs)).startswith(words[shown])


# --- paired comparisons ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_compare_agrees_with_scipy(n):
    generator = np.random.default_rng(n)
    ours, theirs = generator.normal(0.91, 0.02, n).tolist(), generator.normal(0.90, 0.02, n).tolist()
    found, differences = compare(ours, theirs), np.subtract(ours, theirs)
    tested = scipy_stats.ttest_rel(ours, theirs)
    assert found.difference == pytest.approx(differences.mean(), abs=ERROR)
    assert found.p == pytest.approx(tested.pvalue, rel=1e-9)
    interval = tested.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=ERROR)
    assert found.n == n
    assert (found.p < 0.05) == (not found.low <= 0 <= found.high), "p and interval are one test"


def test_effect_size_by_hand():
    """Differences 1 to 5: mean 3, standard deviation 1.5811; J of 4 degrees is 0.7979 (Hedges 1981)."""
    found = compare([1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 5)
    assert found.effect == pytest.approx(3 / 1.58114 * 0.797885, rel=1e-5)
    approximate = 3 / 1.58114 * (1 - 3 / (4 * 4 - 1))
    assert found.effect == pytest.approx(approximate, rel=0.01), "the usual approximation"
    assert compare([0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]).effect == -found.effect
    assert math.isnan(compare([1.0, 2.0], [0.0, 0.0]).effect), "two seeds are too few"


def test_compare_where_the_spread_is_unknown():
    """One seed, or the same difference on each: nothing is shown, however large it is."""
    same = compare([0.9, 0.8, 0.7], [0.9, 0.8, 0.7])
    assert (same.difference, same.effect, same.p) == (0, 0, 1)
    unlike = ([0.9], [0.5]), ([0.9, 0.8], [0.8, 0.7]), ([0.3, 0.2, 0.1], [0.2, 0.1, 0.0])
    for found in (same, *(compare(*given) for given in unlike)):
        assert (found.low, found.high) == (-math.inf, math.inf), "no interval of width zero"
        assert found is same or (math.isnan(found.p) and math.isnan(found.effect))


# By hand, after Holm (1979): sorted, times m, m - 1, ..., none smaller than the one before, none above 1.
HOLM = [
    ([], []), ([0.04], [0.04]), ([0.01, 0.02, 0.03, 0.04], [0.04, 0.06, 0.06, 0.06]),
    ([0.04, 0.01, 0.03, 0.005], [0.06, 0.03, 0.06, 0.02]), ([0.5, 0.6, 0.001], [1.0, 1.0, 0.003]),
    ([0.02, 0.02], [0.04, 0.04]), ([0.01, math.nan, 0.04], [0.03, math.nan, 0.08]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), HOLM)
def test_holm_by_hand(given, expected):
    assert holm(given) == pytest.approx(expected, abs=ERROR, nan_ok=True)


def test_holm_finds_something_in_one_of_twenty_families_of_nothing():
    """Twelve comparisons of equal nets: uncorrected, about half of the families would show something."""
    pairs = np.random.default_rng(1).normal(0.9, 0.01, (150, 12, 2, 5)).tolist()
    families = [[compare(*pair).p for pair in family] for family in pairs]
    share = np.mean([min(holm(family)) < 0.05 for family in families])
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)
    assert np.mean([min(family) < 0.05 for family in families]) > 0.3


def test_verdicts_over_several_controls_are_corrected():
    """p = 0.0202 of one comparison is 0.0607 of three: what one would show, three do not."""
    alone = verdicts("hybrid", HIGH, {"classical": LOW})
    assert alone == [verdict("hybrid", HIGH, "classical", LOW)] and "did better" in alone[0]
    among = verdicts("hybrid", HIGH, {"classical": LOW, "b": HIGH, "c": [0.9, 0.99, 0.94]})
    assert among[0] == (
        "No difference is shown between hybrid and classical: +4.0 points, uncorrected 95 % interval +1.5 to "
        "+6.5 over 3 seeds; p = 0.061 after Holm's correction."
    )
    assert "b: they score the same on each of 3 seeds" in among[1]
    clear = verdicts("hybrid", HIGH, {"classical": [0.43, 0.45, 0.471], "b": HIGH})
    assert clear[0].startswith("hybrid did better") and "; p < 0.001 after Holm's correction." in clear[0]


ANY = math.inf
BOUNDS = [
    (LOSS, 0.1, 0.9, 0, ANY), (Score("perplexity", "perplexity", ""), 1.1, 3.0, 1, ANY),
    (Score("mse", "mse", ""), 0.1, 0.9, 0, ANY), (Score("r2", "r2", ""), 0.1, 0.9, -ANY, 1),
    (Score("test_f1", "F1", ""), 0.1, 0.9, 0, 1), (Score("energy_loss", "energy", ""), -1.5, -0.5, -ANY, ANY),
    (ACCURACY, 0.2, 0.9, 0, 1), (Score("auc", "AUC", "", unit="", factor=1), -0.5, 1.5, -ANY, ANY),
]  # fmt: skip


@pytest.mark.parametrize(("score", "one", "other", "least", "most"), BOUNDS)
def test_an_interval_and_a_difference_stay_within_what_the_score_can_be(score, one, other, least, most):
    """Of two seeds the t-interval reaches 6.35 differences to each side."""
    found, plain = score.interval([one, other], [None, None]), mean_interval([one, other])
    assert (found.low, found.high) == (max(least, plain.low), min(most, plain.high))
    gap, plain = score.compare([one, other], [other, one]), compare([one, other], [other, one])
    assert (gap.low, gap.high) == (max(least - most, plain.low), min(most - least, plain.high))
    assert (gap.p, gap.difference) == (plain.p, plain.difference)
    assert gap.effect == pytest.approx(plain.effect, nan_ok=True)
    assert not math.isfinite(score.compare([0.9], [0.1]).low), "one seed: nothing is known"


def test_wilson_is_what_tables_say():
    for right, expected in ((0, (0.0, 0.2775)), (5, (0.2366, 0.7634)), (10, (0.7225, 1.0))):
        assert wilson(right, 10) == pytest.approx(expected, abs=1e-4)


FALLING = (
    "loss cross_entropy error_rate brier_score bce hinge wer kl_divergence fid nll_per_token mse_total "
    "test_rmse validation-MAE neg_log_likelihood perplexity val_mape"
)
RISING = "accuracy r2 macro_f1 f1_score recall_10 accuracy_top5 minus_energy roc_auc state_fidelity mean_iou"


def test_the_name_of_a_number_tells_its_direction():
    assert not any(map(direction, FALLING.split())) and all(map(direction, RISING.split()))
    assert not Score("wer", "word error rate").larger and Score("wer", "words", larger=True).larger

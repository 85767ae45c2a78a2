"""Intervals against tables and scipy; verdicts that never claim more than the interval."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from benchmarks import coverage
from qnnkit.stats import ACCURACY, LOSS, Score, clopper_pearson, compare, decide, direction, sentence
from qnnkit.stats.intervals import loss_interval, mean_interval, share_interval
from qnnkit.stats.verdicts import holm, least_shift
from tests.toys import refused

ERROR = 1e-12


def decided(values, others, score=ACCURACY, margin=None):
    """Compares a net with others: `others` maps a name to the scores of the same seeds."""
    rows = [{"net": "hybrid", "other_net": name, "values": values, "others": others[name]} for name in others]
    return decide(rows, score, margin)


@pytest.mark.parametrize("values", [[0.9], [0.5] * 4, [0.1 + 0.2, 0.3]])
def test_a_single_value_or_identical_ones_give_no_interval(values):
    for interval in (mean_interval, loss_interval):
        mean, *ends = interval(values)
        assert mean == pytest.approx(values[0]) and all(map(math.isnan, ends))
    row = compare(values, [0.0] * len(values))
    assert all(math.isnan(row[name]) for name in ("low", "high", "p", "effect_size"))


def test_an_interval_of_shares_by_hand():
    """Mean 0.9; seeds: half width 4.3027 * 0.01 / sqrt(3); samples: Clopper and Pearson's of 90 in 100."""
    interval, (low, high) = share_interval([0.89, 0.9, 0.91], 100), clopper_pearson(90, 100)
    seeds = 4.302653 * 0.01 / math.sqrt(3)
    assert interval.low == pytest.approx(0.9 - math.hypot(seeds, 0.9 - low), abs=1e-7)
    assert interval.high == pytest.approx(0.9 + math.hypot(seeds, high - 0.9), abs=1e-7)
    for right, expected in ((0, (0.0, 0.3085)), (5, (0.1871, 0.8129)), (10, (0.6915, 1.0))):
        assert clopper_pearson(right, 10) == pytest.approx(expected, abs=1e-4), "values from a table"


@pytest.mark.parametrize("samples", [3, 360, 10_000])
@pytest.mark.parametrize("values", [[1.0, 1.0], [0.0, 0.0, 0.0], [0.989] * 3, [0.9, 1.0], [0.0, 0.3]])
def test_an_interval_of_shares_has_a_width_and_stays_within_0_and_1(values, samples):
    mean, low, high = share_interval(values, samples)
    assert 0 <= low <= mean <= high <= 1 and high > low


def test_an_interval_of_a_loss_by_hand():
    """Logarithms 0, 1, 2: mean 1, variance 1, so 1.5 -+ 4.3027 sqrt(1/3 + 1/2)."""
    half = 4.302653 * math.sqrt(1 / 3 + 1 / 2)
    expected = math.exp(1.5 - half), math.exp(1.5 + half)
    assert loss_interval([1.0, math.e, math.e**2])[1:] == pytest.approx(expected, rel=1e-6)
    mean, low, high = loss_interval([1e-300, 1e300])
    assert 0 <= low < mean < high < math.inf


T, COX, PERPLEXITY = mean_interval, loss_interval, Score("perplexity", "perplexity", "", least=1.0)
ENERGY = Score("energy_loss", "energy", "")


@pytest.mark.parametrize(
    ("score", "values", "kind", "least", "most"),
    [
        (ACCURACY, [0.2, 0.9], T, 0, 1), (ACCURACY, [1.0, 7.0], T, -math.inf, math.inf),
        (LOSS, [0.1, 0.9], COX, 0, math.inf), (LOSS, [0.0, 0.9], T, 0, math.inf),
        (PERPLEXITY, [1.1, 3.0], COX, 1, math.inf), (ENERGY, [-1.5, -0.5], T, -math.inf, math.inf),
        (Score("r2", "r2", ""), [0.1, 0.9], T, -math.inf, math.inf),
    ],
)  # fmt: skip
def test_an_interval_of_a_score_stays_in_its_range(score, values, kind, least, most):
    """For two seeds the t-interval extends 6.35 differences to each side; so does that of a difference."""
    _, low, high = kind(values)
    assert score.interval(values, [None, 5])[1:] == (max(least, low), min(most, high))
    [row] = decided(values, {"other": values[::-1]}, score)
    _, low, high = mean_interval(np.subtract(values, values[::-1]).tolist())
    bound = most if score.per == "%" else math.inf
    assert (row["low"], row["high"]) == (max(-bound, low), min(bound, high))


@pytest.mark.parametrize("studies", [50, pytest.param(2000, marks=pytest.mark.slow)])
def test_simulated_studies_confirm_intervals_and_verdicts(studies):
    """Up to three standard errors of the simulation; docs/seeds.md has the exact table."""
    recorded = pd.read_csv(coverage.record.RESULTS / "coverage.csv").to_dict("records")
    assert {row["studies"] for row in recorded} == {2000} and len(recorded) == len(coverage.KINDS) * 4
    slack = 3 * math.sqrt(0.06 * 0.94 / studies)
    for rows, aside in ((recorded, 0), (coverage.simulate(studies, seed=1), slack)):
        for row in rows:
            assert min(row["coverage"], row["of_difference"]) >= 0.93 - aside, row
            assert max(row["false_positives"], row["false_equivalents"]) <= 0.06 + aside, row


@pytest.mark.parametrize(
    ("function", "args", "argument"),
    [
        (mean_interval, ([],), "the number of values"), (mean_interval, ([0.1, math.inf],), "values"),
        (compare, ([0.9, 0.8], [0.9]), "others"), (compare, ([0.9, math.nan], [0.9, 0.8]), "values"),
        (direction, ("negative_mse",), "score"), (Score, ("f1", "F1", "%", 0), "factor"),
        (Score, ("f1", "F1", "%", 100, "points", -1), "digits"),
    ],
)  # fmt: skip
def test_unusable_values_raise_an_error(function, args, argument):
    with refused(argument):
        function(*args)


# --- paired comparisons ------------------------------------------------------------------------------------


def test_effect_size_by_hand():
    """Differences 1 to 5: mean 3, standard deviation 1.5811; J of 4 degrees is 0.7979 (Hedges 1981)."""
    effect = compare([1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 5)["effect_size"]
    assert effect == pytest.approx(3 / 1.58114 * 0.797885, rel=1e-5)
    assert compare([0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])["effect_size"] == -effect
    assert math.isnan(compare([1.0, 2.0], [0.0, 0.0])["effect_size"]), "two seeds are too few"


def test_splits_that_share_samples_widen_the_interval_by_hand():
    """Nadeau and Bengio: 10 differences of mean 1 and spread 2, a third as many test as training samples."""
    values = [1 + 2 * x for x in np.linspace(-1, 1, 10) / np.std(np.linspace(-1, 1, 10), ddof=1)]
    plain, shared = (compare(values, [0.0] * 10, ratio, margin=0.1) for ratio in (0, 1 / 3))
    error = 2 * math.sqrt(1 / 10 + 1 / 3)
    assert shared["p"] == pytest.approx(2 * scipy_stats.t.sf(1 / error, 9)) and plain["p"] < shared["p"]
    ends = 1 - 2.262157 * error, 1 + 2.262157 * error
    assert (shared["low"], shared["high"]) == pytest.approx(ends, abs=1e-5)
    assert shared["p_equivalent"] == pytest.approx(scipy_stats.t.sf((0.1 - 1) / error, 9))
    assert shared["detectable"] > plain["detectable"] and shared["unit"] == "splits"
    assert shared["seeds_needed"] == math.inf, "more splits of the same data add no power"
    for score, n_test in ((ENERGY, ()), (LOSS, ()), (ACCURACY, ()), (ACCURACY, [50] * 3)):
        narrow, wide = (score.interval([0.5, 0.6, 0.7], n_test, ratio) for ratio in (0, 1 / 3))
        assert wide.low < narrow.low < narrow.high < wide.high, score


@pytest.mark.parametrize("n", [2, 3, 10])
def test_the_power_equals_that_of_simulated_studies(n):
    """Also for two seeds, for which scipy has no noncentral t."""
    studies = np.random.default_rng(0).normal(least_shift(n) / math.sqrt(n), 1, (20_000, n))
    detected = scipy_stats.ttest_1samp(studies, 0, axis=1).pvalue < 0.05
    assert detected.mean() == pytest.approx(0.8, abs=3 * 0.4 / math.sqrt(20_000))


def test_seeds_needed_are_the_fewest_that_find_the_margin():
    """As needed in a family of three comparisons."""
    values = [0.03, 0.05, 0.04, 0.01]
    row, spread = compare(values, [0.0] * 4, margin=0.02, family=3), np.std(values, ddof=1)
    finds = {n: spread / math.sqrt(n) * least_shift(n, 0.05 / 3) for n in range(2, 20)}
    assert row["detectable"] == pytest.approx(finds[4])
    assert row["seeds_needed"] == next(n for n in finds if finds[n] <= 0.02)


# By hand, after Holm (1979): sorted, times m, m - 1, ..., none smaller than the one before, none above 1.
HOLM = [
    ([], []), ([0.04, 0.01, 0.03, 0.005], [0.06, 0.03, 0.06, 0.02]), ([0.5, 0.6, 0.001], [1.0, 1.0, 0.003]),
    ([0.02, 0.02], [0.04, 0.04]), ([0.01, math.nan, 0.04], [0.03, math.nan, 0.08]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "expected"), HOLM)
def test_holm_by_hand(values, expected):
    assert holm(values) == pytest.approx(expected, abs=ERROR, nan_ok=True)


# --- verdicts ----------------------------------------------------------------------------------------------

HIGH, LOW = [0.93, 0.95, 0.97], [0.90, 0.91, 0.92]
NONE = "No significant difference between hybrid and classical: "
SURE = "(95 % interval +1.5 to +6.5, p = 0.020, 3 seeds)."
SAME = "which says nothing of how seeds differ; train more seeds."


@pytest.mark.parametrize(
    ("hybrid", "classical", "margin", "verdict", "said"),
    [
        # Differences 3, 4, 5 points: mean 4, half width 4.3027 / sqrt(3) = 2.48.
        (HIGH, LOW, None, "better", "hybrid did better than classical: +4.0 points " + SURE),
        (HIGH, LOW, 9, "better", "hybrid did better than classical: +4.0 points " + SURE + " It is less than "
                                 "the 9 points that would matter."),
        # The same accuracies in another order: only the pairing changes, and with it the verdict.
        (HIGH, [0.91, 0.92, 0.90], None, "undecided", NONE + "+4.0 points (95 % interval -2.6 to +10.6, "
            "p = 0.120, 3 seeds). Detectable with 80 % power: 8.6 points by 3 seeds, 1 point by 57."),
        # Shares differ by at most 100 points, so two seeds with this spread show nothing.
        ([0.5, 0.75], [0.5, 0.5], None, "undecided", NONE + "+12.5 points (95 % interval -100.0 to +100.0, "
            "p = 0.500, 2 seeds). Detectable with 80 % power: no difference by 2 seeds, 1 point by 2,455."),
        ([0.901, 0.9, 0.899], [0.9, 0.901, 0.8995], None, "equivalent", "hybrid and classical are equivalent "
            "within 1 point, p = 0.002 of the two one-sided tests: +0.0 points (95 % interval -0.3 to +0.2, "
            "p = 0.808, 3 seeds)."),
        # Differences that round to the same number, or by one test image, still give an interval.
        ([0.9, 0.9, 0.900001], [0.8, 0.8, 0.8], None, "better", "hybrid did better than classical: "
            "+10.0 points (95 % interval +9.9999 to +10.0002, p < 0.001, 3 seeds)."),
        ([1.0, 1.0], [0.9, 0.9], None, "undecided", "hybrid and classical differ by +10.0 points on each "
                                                    "of 2 seeds, " + SAME),
        ([0.9], [0.5], None, "undecided", "hybrid minus classical: +40.0 points on one seed, which shows "
                                          "nothing; train more seeds."),
    ],
)  # fmt: skip
def test_verdicts_and_their_sentences_by_hand(hybrid, classical, margin, verdict, said):
    [row] = decided(hybrid, {"classical": classical}, margin=margin)
    assert (row["verdict"], sentence(row, ACCURACY)) == (verdict, said)


@pytest.mark.parametrize("gap", [-0.02, 0.0, 0.002, 0.02])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_verdict_claims_only_what_its_interval_shows(n, gap):
    """Reversed for a loss; equivalence uses the 90 % interval, as the two one-sided tests do."""
    for seed in range(5):
        generator = np.random.default_rng(seed)
        ours, theirs = generator.normal(0.9 + gap, 0.01, n), generator.normal(0.9, 0.01, n)
        tested = scipy_stats.ttest_rel(ours, theirs)
        wide, narrow = (tested.confidence_interval(level) for level in (0.95, 0.9))
        shown = "better" if wide.low > 0 else "worse" if wide.high < 0 else "undecided"
        if shown == "undecided" and narrow.low > -0.01 and narrow.high < 0.01:
            shown = "equivalent"
        other_way = {"better": "worse", "worse": "better"}
        for score, expected in ((ACCURACY, shown), (LOSS, other_way.get(shown, shown))):
            [row] = decided(list(ours), {"b": list(theirs)}, score, 0.01 * score.factor)
            assert row["verdict"] == expected
            assert (row["low"], row["high"]) == pytest.approx((wide.low, wide.high), abs=ERROR)
            assert row["p"] == pytest.approx(tested.pvalue, rel=1e-9) and row["seeds"] == n


def test_verdicts_over_several_controls_are_corrected():
    """p = 0.0202 for one comparison is 0.0607 for three: one would be significant, three are not."""
    first, second, _ = decided(HIGH, {"classical": LOW, "b": HIGH, "c": [0.9, 0.99, 0.94]})
    assert (first["verdict"], first["family"]) == ("undecided", 3)
    assert first["p_holm"] == pytest.approx(0.0607, abs=1e-4)
    p = "(uncorrected 95 % interval +1.5 to +6.5, p = 0.061 after Holm's correction, 3 seeds)"
    assert p in sentence(first, ACCURACY)
    assert "differ by +0.0 points on each of 3 seeds" in sentence(second, ACCURACY)
    assert (second["difference"], second["effect_size"], second["p"]) == (0, 0, 1)


FALLING = "cross_entropy error_rate brier_score bce kl_divergence nll_per_token minus_auc validation-MAE"
RISING = "accuracy r2 macro_f1 f1_score recall_10 accuracy_top5 minus_energy roc_auc state_fidelity"


def test_the_direction_of_a_number_follows_from_its_name():
    assert not any(map(direction, FALLING.split())) and all(map(direction, RISING.split()))
    assert not Score("wer", "word error rate").larger and Score("wer", "words", larger=True).larger

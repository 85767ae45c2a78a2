"""qnnkit.plan: verdicts, the largest batch, and time on machines that are not here."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnkit.plan import machines
from qnnkit.plan.elsewhere import (
    FARTHEST,
    MEASURED,
    PUBLISHED,
    UNCALIBRATED,
    Figures,
    Range,
    calibration,
    estimate,
    published,
    roofline,
)
from qnnkit.plan.prediction import Work
from qnnkit.plan.verdict import FULL, Wish, judge, largest_batch

GB = 10**9
WORK = Work(flops=2e9, bytes=1e8, operations=1000)
CPU = Figures("cpu", {"float32": 1e11}, 1e10, 5e-6, measured=True)
GPU = Figures("cuda:0", {"float32": 1e13, "float16": 1e14}, 1e12, 1e-5, measured=True)


# --- elsewhere ---------------------------------------------------------------------------------------------


def test_a_cpu_adds_what_it_computes_moves_and_launches():
    assert roofline(WORK, CPU) == pytest.approx(2e9 / 1e11 + 1e8 / 1e10 + 1000 * 5e-6)


def test_a_gpu_hides_what_it_launches_behind_work_or_work_behind_launching():
    assert roofline(WORK, GPU) == pytest.approx(1000 * 1e-5)  # a small step waits for Python
    large = Work(flops=2e13, bytes=1e8, operations=1000)
    assert roofline(large, GPU) == pytest.approx(2e13 / 1e13 + 1e8 / 1e12)


def test_a_precision_without_hardware_counts_as_float32():
    large = Work(flops=1e14, bytes=0, operations=1)
    assert roofline(large, GPU, "float16") == pytest.approx(1.0)
    assert roofline(large, GPU, "bfloat16") == roofline(large, GPU) == pytest.approx(10.0)


def test_the_step_that_was_measured_here_is_carried_over():
    line = roofline(WORK, CPU)
    assert calibration(WORK, "float32", 2 * line, CPU) == pytest.approx(2)
    there = estimate(WORK, "float32", [GPU], 2.0)
    assert there.seconds.likely == pytest.approx(2 * roofline(WORK, GPU))


def test_on_this_very_machine_the_estimate_is_what_was_measured():
    seconds = 1.7 * roofline(WORK, CPU)
    found = estimate(WORK, "float32", [CPU], calibration(WORK, "float32", seconds, CPU))
    assert found.seconds.likely == pytest.approx(seconds)


def test_what_lies_far_from_the_roofline_is_not_carried_over():
    line = roofline(WORK, CPU)
    assert calibration(WORK, "float32", 100 * line, CPU) == FARTHEST
    assert calibration(WORK, "float32", line / 100, CPU) == 1 / FARTHEST
    assert calibration(WORK, "float32", None, CPU) is None
    assert calibration(WORK, "float32", 1.0, None) is None


def test_every_estimate_has_its_range_and_its_basis():
    row = machines.load().machines["T4"]
    for processors, calibrated, factor, basis in (
        (published(row), 1.0, PUBLISHED, "published"),
        ([GPU], 1.0, MEASURED, "from its survey"),
        (published(row), None, UNCALIBRATED, "published"),
        ([GPU], None, UNCALIBRATED, "from its survey"),
    ):
        found = estimate(WORK, "float32", processors, calibrated)
        assert found.seconds.high == pytest.approx(factor * found.seconds.likely)
        assert found.seconds.low == pytest.approx(found.seconds.likely / factor)
        assert found.basis == basis


def test_a_mac_takes_whichever_of_its_processors_is_quicker():
    mac = published(machines.load().machines["Mac 16 GB"])
    small, large = Work(1e6, 1e6, 3000), Work(1e12, 1e9, 3000)
    assert estimate(small, "float32", mac, 1.0).device == "cpu"
    assert estimate(large, "float32", mac, 1.0).device == "mps"


def test_published_figures_are_in_units_per_second():
    (t4,) = published(machines.load().machines["T4"])
    assert (t4.flops["float32"], t4.bytes_per_second) == (8.1e12, 320e9)
    assert t4.seconds_per_operation == pytest.approx(15e-6) and not t4.measured


def test_a_survey_is_taken_as_measured():
    found = {"device": "cuda:0", "flops": {"float32": 1e13, "bfloat16": None}, "bytes_per_second": 1e12}
    figures = Figures.of_survey(found | {"seconds_per_operation": 1e-5, "memory": 1, "name": "Tesla T4"})
    assert figures.measured and figures.flops == {"float32": 1e13}


# --- verdicts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "word", "fits"),
    [
        (1, "comfortable", True), (7.0, "comfortable", True), (7.01, "marginal", True),
        (9.5, "marginal", True),         (9.51, "not here", False), (17.2, "not here", False),
    ],
)  # fmt: skip
def test_memory_decides(needs, word, fits):
    found = judge(needs * GB, 10 * GB)
    assert (found.word, found.fits) == (word, fits)
    assert "of 10 GB" in found.reason


def test_reasons_are_sentences():
    assert judge(17.2 * GB, 15 * GB).reason == "It needs 17 GB of 15 GB."
    assert judge(8 * GB, 10 * GB).reason == "It needs 8.0 GB of 10 GB (little room is left)."
    late = judge(GB, 10 * GB, Range.within(9 * 3600, 2), wish=Wish(deadline=8 * 3600))
    assert late.reason == "It takes about 9.0 h, over the deadline of 8.0 h." and late.fits
    dear = judge(GB, 10 * GB, None, Range.within(12, 2), Wish(budget=10))
    assert dear.reason == "It costs about 12.00 USD, over the budget of 10.00 USD."


@pytest.mark.parametrize(
    ("hours", "word"), [(3.9, "comfortable"), (4.1, "marginal"), (8, "marginal"), (8.1, "not here")]
)
def test_a_deadline_that_the_range_reaches_is_marginal(hours, word):
    found = judge(GB, 10 * GB, Range.within(3600 * hours, 2), wish=Wish(deadline=8 * 3600))
    assert found.word == word


def test_a_budget_of_nothing_takes_what_costs_nothing():
    nothing, wish = Range(0, 0, 0), Wish(budget=0)
    assert judge(GB, 10 * GB, Range.within(10, 2), nothing, wish).word == "comfortable"
    assert judge(GB, 10 * GB, Range.within(10, 2), Range.within(0.01, 2), wish).word == "not here"


def test_a_time_or_price_that_is_not_known_is_a_doubt():
    assert judge(GB, 10 * GB, wish=Wish(deadline=60)).word == "marginal"
    told = judge(GB, 10 * GB, wish=Wish(deadline=60, budget=1)).reason
    assert told == "It has no known time and has no known price."
    assert judge(GB, 10 * GB).word == "comfortable"


@settings(derandomize=True, deadline=None)
@given(
    needs=st.floats(1, 1e12), usable=st.floats(1, 1e12), more=st.floats(1, 10),
    seconds=st.floats(0.1, 1e7), deadline=st.floats(0.1, 1e7),
)  # fmt: skip
def test_needing_more_or_taking_longer_never_helps(needs, usable, more, seconds, deadline):
    order = ("comfortable", "marginal", "not here")

    def rank(needs, seconds):
        return order.index(judge(needs, usable, Range.within(seconds, 2), wish=Wish(deadline)).word)

    assert rank(needs, seconds) <= rank(more * needs, seconds)
    assert rank(needs, seconds) <= rank(needs, more * seconds)


# --- the largest batch -------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None)
@given(
    fixed=st.integers(0, 10_000),
    each=st.integers(1, 500),
    usable=st.integers(1, 10**6),
    most=st.integers(1, 5000),
)
def test_the_largest_batch_fits_and_little_more_would(fixed, each, usable, most):
    asked = []

    def needs(size):
        asked.append(size)
        return fixed + each * size

    found = largest_batch(needs, usable, most)
    true = min(most, math.floor((FULL * usable - fixed) / each))
    if true < 1:
        assert found is None
    else:
        assert true - max(1, true / 8) <= found <= true
        assert needs(found) <= FULL * usable
    assert all(1 <= size <= most for size in asked)
    assert len(set(asked)) <= 5


@settings(derandomize=True, deadline=None)
@given(power=st.floats(0.3, 3), usable=st.integers(2, 10**7), most=st.integers(1, 5000))
def test_memory_that_bends_is_followed_too(power, usable, most):
    found = largest_batch(lambda size: size**power, usable, most)
    true = min(most, (FULL * usable) ** (1 / power))
    assert found is not None
    assert true - max(2, true / 7) <= found <= true + 1e-6 * true


def test_all_samples_are_enough():
    asked = []
    assert largest_batch(lambda size: asked.append(size) or size, 10**6, 1077) == 1077
    assert asked == [1, 1077]

"""Time and memory as measured: the clock, the race, what a device reaches, how busy the machine is."""

import psutil
import pytest
import torch

from qnnkit import measure
from qnnkit.device import machine
from qnnkit.measure import Lap, Step, clock, race, winner

CPU = torch.device("cpu")


# --- the race ----------------------------------------------------------------------------------------------


@pytest.fixture
def step(virtual):
    """Gives steps that take so many seconds; `step.calls` has their names."""

    def make(name, seconds, samples=1):
        def run():
            make.calls.append(name)
            virtual.now += seconds() if callable(seconds) else seconds

        return Step(run, samples=samples)

    make.calls = []
    return make


def test_steps_take_turns_and_are_compared_by_their_samples(step):
    found = race({"a": step("a", 0.1, 10), "b": step("b", 0.1, 5)}, rounds=4)
    assert {name: lap.seconds for name, lap in found.items()} == pytest.approx({"a": 0.01, "b": 0.02})
    assert [lap.rounds for lap in found.values()] == [4, 4] and winner(found) == "a"
    assert step.calls[:4] == ["a", "a", "b", "b"], "one to warm up, one timed"
    turns = [set(step.calls[i : i + 2]) for i in range(4, 12, 2)]
    assert turns == [{"a", "b"}] * 4 and step.calls[4:12:2] != ["a"] * 4, "in changing order"


def test_times_and_errors_are_those_of_undisturbed_rounds(step):
    took = iter([0.1, 0.1, 0.1, 0.9, 0.2, 0.8])  # one to warm up, one to see, four rounds
    found = race({"a": step("a", lambda: next(took)), "b": step("b", 0.1)}, rounds=4)
    assert found["a"].seconds == pytest.approx(0.15), "0.1 and 0.2; in the others, others ran"
    assert found["a"].error is not None and found["a"].error > 0
    steady = race({"a": step("a", 0.1), "b": step("b", 0.11)}, rounds=3)
    assert (steady["a"].error, steady["b"].error) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_what_is_far_slower_is_measured_once_and_what_would_take_too_long_not_at_all(step):
    steps = {"a": step("a", 0.1), "b": step("b", 0.9)}
    found = race(steps, seconds=1.0)
    assert step.calls.count("b") == 3, "one to warm up, one timed, one more in case that was a hiccup"
    assert (found["b"].seconds, found["b"].error, found["b"].rounds) == (pytest.approx(0.9), None, 1)
    assert race(steps, seconds=100.0)["b"].rounds > 1, "but where there is time, it may have been a hiccup"
    found = race({str(n): step(str(n), 0.01 * n, n) for n in (1, 100)}, longest=0.5)
    assert found["100"] == Lap(None, why="A step would take too long.") and "100" not in step.calls
    long = {"a": step("long", 6.0), "b": step("b", 1.0)}
    assert race(long, seconds=10.0, longest=99.0)["b"] == Lap(None, why="The time was up.")
    assert step.calls.count("long") == 2
    assert race({"a": long["a"]}, seconds=2.9)["a"].seconds == 6.0 and step.calls.count("long") == 3


def test_what_fails_says_why_and_what_all_fail_with_is_raised(step):
    def fails():
        raise RuntimeError("no such thing here\nmore")

    found = race({"a": step("a", fails), "b": step("b", 0.1)})
    assert (found["a"].seconds, found["a"].why, winner(found)) == (None, "no such thing here.", "b")
    with pytest.raises(RuntimeError, match="no such thing"):
        race({"a": step("a", fails)})


def test_threads_are_set_for_a_turn_only_in_numpys_matrix_products_too():
    """Small circuits run on NumPy arrays: without this, one thread was two, and far slower beside others."""
    import threadpoolctl

    def counts():
        blas = [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]
        return torch.get_num_threads(), {each["num_threads"] for each in blas}

    before, seen = counts(), []
    race({n: Step(lambda: seen.append(counts()), CPU, n) for n in (1, 2)}, seconds=0.1)
    assert (1, {1}) in seen and {each for each, _ in seen} == {1, 2} and counts() == before


# --- memory ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not measure.held.CLEAR.exists(), reason="a peak is never forgotten here")
def test_the_peak_is_that_of_what_came_last():
    """Of pages so many that they go back to the system at once, whatever else this process does."""
    measure.reset_peak(CPU)
    before = measure.peak()
    large = torch.ones(256 * 2**20, dtype=torch.uint8)
    held = measure.peak()
    assert held - before > 0.9 * large.nbytes and abs(measure.resident() - held) < 2**24
    del large
    assert measure.peak_on(CPU) > held - 2**24, "a peak stays, but for what Linux has not yet summed"
    measure.reset_peak(CPU)
    assert measure.peak() < held - 2**27, "until it is begun anew"


# --- how busy the machine is -------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "load"), [(0.0, 1.0), (100.0, 0.0)], ids=["of others", "of this process"])
def test_a_container_has_what_the_others_leave(monkeypatch, own, load):
    """All but one of 64 cores are busy, and two are granted."""
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: list(range(64)), raising=False)
    monkeypatch.setattr(psutil.Process, "cpu_percent", lambda self: own)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: [63 / 64 * 100] * 64)
    assert clock.load(1.0) == pytest.approx(load)
    assert [clock.note(each) is None for each in (clock.QUIET * 2, 0.19)] == [False, True]

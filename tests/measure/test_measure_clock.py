"""Measured time and memory: the clock, the race, a step by part, the machine and its survey."""

import getpass
import json
import platform
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, Quanv2d, data, measure, recipes, train
from qnnkit.device import machine
from qnnkit.measure import Lap, Step, clock, parts, race, survey, winner
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests import forked
from tests.toys import linear, shipped, typing

CPU = torch.device("cpu")


# --- the race ----------------------------------------------------------------------------------------------


@pytest.fixture
def step(virtual):
    """Makes steps that take the given seconds; `step.calls` lists their names."""

    def make(name, seconds, samples=1):
        def run():
            make.calls.append(name)
            virtual.now += seconds() if callable(seconds) else seconds

        return Step(run, samples=samples)

    make.calls = []
    return make


def test_steps_take_turns_and_are_compared_per_sample(step):
    laps = race({"a": step("a", 0.1, 10), "b": step("b", 0.1, 5)}, rounds=4)
    assert {name: lap.seconds for name, lap in laps.items()} == pytest.approx({"a": 0.01, "b": 0.02})
    assert [lap.rounds for lap in laps.values()] == [4, 4] and winner(laps) == "a"
    assert step.calls[:4] == ["a", "a", "b", "b"], "one warm-up, one timed"
    turns = [set(step.calls[i : i + 2]) for i in range(4, 12, 2)]
    assert turns == [{"a", "b"}] * 4 and step.calls[4:12:2] != ["a"] * 4, "the order changes"


def test_times_and_errors_come_from_undisturbed_rounds(step):
    took = iter([0.1, 0.1, 0.1, 0.9, 0.2, 0.8])  # one warm-up, one trial, four rounds
    laps = race({"a": step("a", lambda: next(took)), "b": step("b", 0.1)}, rounds=4)
    assert laps["a"].seconds == pytest.approx(0.15), "0.1 and 0.2; the others were disturbed"
    assert laps["a"].error is not None and laps["a"].error > 0
    steady = race({"a": step("a", 0.01), "b": step("b", 0.011)}, rounds=3)["b"]  # two calls in a turn
    assert (steady.seconds, steady.error) == pytest.approx((0.011, 0.0), abs=1e-9)


def test_much_slower_steps_are_measured_once_and_too_long_ones_never(step):
    steps = {"a": step("a", 0.1), "b": step("b", 0.9)}
    laps = race(steps, seconds=1.0)
    assert step.calls.count("b") == 3, "one warm-up, one timed, one more in case of a hiccup"
    assert (laps["b"].seconds, laps["b"].error, laps["b"].rounds) == (pytest.approx(0.9), None, 1)
    assert race(steps, seconds=100.0)["b"].rounds > 1, "if there is time, it may have been a hiccup"
    laps = race({str(n): step(str(n), 0.01 * n, n) for n in (1, 100)}, longest=0.5)
    assert laps["100"] == Lap(None, why="A step would take too long.") and "100" not in step.calls
    long = {"a": step("long", 6.0), "b": step("b", 1.0)}
    assert race(long, seconds=10.0, longest=99.0)["b"] == Lap(None, why="The time was up.")
    assert step.calls.count("long") == 2
    assert race({"a": long["a"]}, seconds=2.9)["a"].seconds == 6.0 and step.calls.count("long") == 3


def test_a_failure_has_a_reason_and_an_error_of_all_steps_is_raised(step):
    def fails():
        raise RuntimeError("no such thing here\nmore")

    laps = race({"a": step("a", fails), "b": step("b", 0.1)})
    assert (laps["a"].seconds, laps["a"].why, winner(laps)) == (None, "no such thing here.", "b")
    with pytest.raises(RuntimeError, match="no such thing"):
        race({"a": step("a", fails)})


def test_threads_are_set_for_one_turn_also_in_numpys_matrix_products():
    """Small circuits run on NumPy: otherwise one thread became two, much slower on a busy machine."""
    import threadpoolctl

    def counts():
        blas = [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]
        return torch.get_num_threads(), {each["num_threads"] for each in blas}

    before, seen = counts(), []
    race({n: Step(lambda: seen.append(counts()), CPU, n) for n in (1, 3)}, rounds=0)  # ends with 3
    assert (1, {1}) in seen and {each for each, _ in seen} == {1, 3} and counts() == before


# --- memory ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not measure.held.CLEAR.exists(), reason="a peak is never forgotten here")
def test_the_peak_belongs_to_the_last_call():
    """In a small process: the system may reclaim pages of a large idle one at any moment."""
    done = forked.python("""
        import torch
        from qnnkit import measure

        cpu = torch.device("cpu")
        measure.reset_peak(cpu)
        before = measure.peak()
        large = torch.ones(256 * 2**20, dtype=torch.uint8)
        held = measure.peak()
        assert held - before > 0.9 * large.nbytes and abs(measure.resident() - held) < 2**24, (held, before)
        del large
        assert measure.peak_on(cpu) > held - 2**24, "a peak stays, but for what Linux has not yet summed"
        measure.reset_peak(cpu)
        assert measure.peak() < held - 2**27, "until it is reset"
    """)
    assert done.returncode == 0, done.stderr


# --- how busy the machine is -------------------------------------------------------------------------------


@pytest.mark.parametrize(("used", "load"), [(0.0, 1.0), (100.0, 0.0)], ids=["of others", "of this process"])
def test_a_container_gets_the_cores_that_others_leave(monkeypatch, used, load):
    """All except one of 64 cores are busy, and the container may use two."""
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: list(range(64)), raising=False)
    monkeypatch.setattr(psutil.Process, "cpu_percent", lambda self: used)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: [63 / 64 * 100] * 64)
    assert clock.load(1.0) == pytest.approx(load)
    assert [clock.note(each) is None for each in (clock.QUIET * 2, 0.19)] == [False, True]


# --- the survey of a machine: asserts no times -------------------------------------------------------------


def test_a_survey_gives_flat_rows_and_a_table_with_the_recipes_net(home, monkeypatch, capfd):
    """Made by the command, while others use the machine."""
    command = typing(monkeypatch, capfd)
    monkeypatch.setattr(clock, "load", lambda: 1.5)
    status, out, err = command("measure", "--quick", "--out", "mine.json", "--json")
    saved = json.loads(out)
    assert status == 0 and json.loads((home / "mine.json").read_bytes()) == saved
    assert not any(isinstance(value, dict | list) for row in saved["rows"] for value in row.values())
    names = ("bandwidth", "product", "launch", "net update", "net memory", "net epoch")
    values = {row["what"]: row["value"] for row in saved["rows"] if row["device"] == "cpu"}
    assert {*values} == {*names} and min(values.values()) > 0
    assert values["net epoch"] == pytest.approx(1079 / 32 * values["net update"])
    assert saved["busy"] == {"most": 1.5, "sentence": measure.note(1.5)} and "1.5 of its" in measure.note(1.5)
    facts = saved["machine"]
    assert not {platform.node(), getpass.getuser()} & {*map(str, facts.values())}, "facts name host or user"
    monkeypatch.setattr(survey, "take", lambda *args, **options: saved)
    status, out, err = command("measure")
    text, _, path = out.rpartition("File: ")
    assert (status, err) == (0, "") and json.loads(Path(path.strip()).read_text()) == saved
    parts = (*names, facts["name"], survey.fastest(saved), saved["busy"]["sentence"])
    assert all(part in " ".join(text.split()) for part in parts)
    assert max(map(len, text.splitlines())) < 100, "a page of 800 pixels shows all of it"


def test_a_missing_measurement_has_a_reason():
    config = recipes.settings("digits_quanv", stride=4, batch_size=8)
    splits, places = recipes.of(config).load(config), [torch.device(name) for name in ("cpu", "cuda:7")]
    ways = [(one, each) for each in ("float32", "float16") for one in places]
    rows = list(survey.net_rows(config, splits, ways, 0.1))
    updates = [row for row in rows if row["what"] == "net update"]
    assert [(row["device"], row["precision"]) for row in updates] == [
        ("cpu", "float32"), ("cuda:7", "float32"), ("cuda:7", "float16"),
    ]  # fmt: skip
    assert all((row["value"] is None) == bool(row["why"]) == (row["device"] == "cuda:7") for row in updates)
    assert survey.fastest({"rows": rows}).endswith(" on cpu in float32.")
    name = "Intel(R) Xeon(R) CPU @ 2.00GHz, 2 cores, Colab"
    assert survey.default_place({"name": name}).name == "intel-xeon-cpu-2-00ghz-2-cores-colab.json"


# --- a step by part: parts take preset times, on a clock that only they advance -----------------------------

TAKES = {
    "loading": 1, "transfer": 2, "classical forward": 4, "quantum forward": 8, "classical backward": 16,
    "quantum backward": 32, "optimizer": 64, "rest": 0,
}  # fmt: skip
CLOCK = SimpleNamespace(now=0)


def spend(part: str, values):
    CLOCK.now += TAKES[part]
    return values


class Slow(torch.autograd.Function):
    """The identity, which takes its time in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx, values, kind):
        ctx.kind = kind
        return spend(f"{kind} forward", values.clone())

    @staticmethod
    def backward(ctx, gradient):
        return spend(f"{ctx.kind} backward", gradient), None


class SlowCircuit(QuantumLayer):
    def __call__(self, inputs):
        return super().__call__(inputs=inputs)

    def forward(self, inputs):
        return Slow.apply(super().forward(inputs), "quantum")


class Reader(nn.Module):
    def forward(self, values):
        return Slow.apply(values, "classical")


def net(before: nn.Module, uses: int) -> nn.Module:
    """Circuits on the inputs, or on the outputs of a classical layer, each with a classical reader."""
    circuit = shipped(n_qubits=2, n_layers=1, kind=SlowCircuit)
    return nn.Sequential(before, *[circuit, Reader()] * uses)


INPUTS, LABELS = torch.linspace(0, 3, 8).reshape(4, 2), torch.tensor([0, 1, 0, 1])


def parts_of(model, loader, **settings):
    rows = measure.step_parts(model, Classification(), loader, steps=2, warmup=1, seconds=0, **settings)
    return {row["name"]: row["seconds"] for row in rows}


@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize("before", [nn.Identity(), nn.Hardsigmoid()])
def test_each_part_shows_its_time_and_the_model_is_unchanged(monkeypatch, before, uses):
    right, model = torch.optim.Adam.step, net(before, uses).eval()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    loader, moved = mock.MagicMock(), mock.Mock()  # the only requirement: it can be moved to a device
    loader.__iter__.side_effect = lambda: iter([spend("loading", (moved, LABELS))])
    moved.to.side_effect = lambda *args, **named: spend("transfer", INPUTS)
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: spend("optimizer", right(self)))
    monkeypatch.setattr(clock, "now", lambda device: CLOCK.now)
    times = parts_of(model, loader)
    assert list(times) == list(parts.PARTS)
    assert times == {name: took * (uses if " " in name else 1) for name, took in TAKES.items()}
    assert not model.training and not model[1]._forward_hooks
    assert all(torch.equal(weight, start[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_frozen_filters_in_half_precision_have_no_backward_pass():
    images = torch.linspace(0, 3, 64).reshape(4, 1, 4, 4)
    quanv = Quanv2d(1, "data_reuploading", filters=2, trainable=False, n_layers=1)
    frozen, config = nn.Sequential(quanv, nn.Flatten(), linear(32, 2)), Settings(precision="bfloat16")
    times = parts_of(frozen, [(images, LABELS)], config=config)
    assert times["quantum forward"] > 0 == times["quantum backward"] and times["classical backward"] > 0


def test_a_changed_step_changes_one_thing_and_keeps_the_rest(monkeypatch):
    """The timed step includes augmentation and the pieces whose gradients are summed."""
    seen, right = [], train.Stepper.backward

    def backward(stepper, *args):
        seen.append((stepper.config.precision, stepper.config.micro_batch, stepper.task.augment is not None))
        right(stepper, *args)

    monkeypatch.setattr(train.Stepper, "backward", backward)
    settings = {"batch_size": 8, "augmentation": "affine", "micro_batch": 4}
    config, splits = recipes.settings("digits_quanv", **settings), data.load("digits", train_fraction=0.02)
    n, other = len(splits.train), {"trainable": False, "backend": "default.qubit"}
    for change, samples in (({}, 8), (other, 8), ({"precision": "bfloat16", "batch_size": 64}, n)):
        step = measure.changed_step(config, splits, change, threads=1)
        assert (step.samples, step.threads, str(step.device)) == (samples, 1, "cpu")
        step.run()
    assert seen == [("float32", 4, True)] * 4 + [("bfloat16", 4, True)] * (-(-n // 4))
    slow = measure.changed_step(config, splits, {"backend": "lightning.qubit", "batch_size": 64})
    assert slow.samples == 256 // 49 < n, "circuits one by one"

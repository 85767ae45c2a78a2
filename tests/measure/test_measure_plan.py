"""qnnkit.measure: nets planned, verdicts, remedies, other machines, and what is typed answered or refused."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
import torch

from benchmarks.predicting import transformer
from qnnkit import device, measure, runs, train, words
from qnnkit.measure import platforms
from qnnkit.measure.memory import Work, trace
from qnnkit.measure.platforms import HERE, Spot, estimate, roofline
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests.toys import linear, refused, typing

figuring = importlib.import_module("qnnkit.measure.figures")  # the package's attributes are the functions
predicting = importlib.import_module("qnnkit.measure.predict")
planning = importlib.import_module("qnnkit.measure.plan")
GB, HOUR = 10**9, 3600.0
SMALL = (64, 2, 4, 4, 172, 500)  # hidden, layers, heads (twice), inner, vocabulary


def llama(**given):
    return transformer(
        "llama", "small", 1000, **{"batch_size": 2, "optimizer": "adamw", "sequence_length": 32, **given}
    )


@pytest.fixture(scope="module", autouse=True)
def brief():
    """Measuring takes a moment, and nobody else is at work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figuring, "ARRAY", 2**22)
        patch.setattr(figuring, "LONG_ENOUGH", 1e-4)
        patch.setattr(planning, "load", lambda: 0.0)
        patch.setitem(importlib.import_module("qnnkit.models.causal_lm").LLAMA, "small", SMALL)
        yield


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """An empty workspace."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def digits():
    return runs.to_plan("digits_quanv", {"epochs": 50}, timed=False)


@pytest.fixture(scope="module")
def planned(tmp_path_factory, digits):
    """The plan of a small recipe, times measured for a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNNKIT_HOME", str(tmp_path_factory.mktemp("home")))
        return measure.plan(**digits, deadline="8h", budget=10, seconds=0.1)


# --- one net, on this machine ------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{}, {"lora_rank": 64}], ids=["plain", "lora_rank"])
def test_checkpoints_take_the_disk_that_is_counted(tmp_path, change):
    workload = llama(epochs=4, batch_size=8, **change)
    model, config = workload.build(workload.training, False), workload.training
    loaders = {split: workload.loader(1) for split in ("train", "validation")}
    train.fit(model, workload.task, loaders, config, groups=workload.groups(model, config), folder=tmp_path)
    sizes = [path.stat().st_size for path in tmp_path.glob("checkpoint-*")]
    found, more = measure.predict(workload, measured=False), 2**16  # names and random states
    assert found.checkpoint < max(sizes) < found.checkpoint + more and found.checkpoint > 5 * more
    assert len(sizes) <= config.keep_checkpoints + 1 and sum(sizes) < found.disk + 3 * more


def test_predictions_add_up(digits, monkeypatch):
    workload = digits["workload"]
    found = measure.predict(workload, seconds=0.1, n_threads=1)
    assert found.peak == found.in_all == sum(found.memory.values()) > found.on_accelerator > 0
    assert found.memory["framework"] > 100 * 2**20 and found.memory["data"] == workload.data_bytes
    assert found.seconds and found.seconds > 0 and found.spread >= 1 and "scaled" not in found.notes[-1]
    each = found.n_samples / workload.training.batch_size
    assert found.seconds_per_epoch == pytest.approx(each * found.seconds)
    monkeypatch.setattr(train, "fit", None)  # nothing is run where only memory is asked
    again = measure.predict(workload, measured=False)
    assert again.seconds is None and again.seconds_per_epoch is None and again.held == found.held
    assert {*again.memory} == {*found.memory} - {"workspace"}


@pytest.mark.parametrize("n_samples", [1000, 4])
def test_what_timing_itself_keeps_is_not_counted_twice(n_samples):
    """The weights of the best epoch, without a folder, or a checkpoint's copy: trainings count the latter."""
    rows = torch.ones(8, 4000), torch.zeros(8, dtype=torch.long)
    config = Settings(batch_size=2, optimizer="sgd", learning_rate=1e-6)
    about = (lambda *_: linear(4000, 4000), lambda config: rows, Classification())
    found = measure.predict(measure.Workload("", config, n_samples, *about, example=rows[0]), seconds=0.1)
    assert found.memory["weights"] > 6e7 and found.memory["checkpoint"] > 6e7
    assert found.memory["workspace"] < 0.5 * found.memory["weights"]


def test_what_would_not_fit_is_timed_at_a_smaller_batch(digits, monkeypatch):
    workload = digits["workload"].change(batch_size=4)
    held = sum(trace(workload).memory.values())
    for free, size in ((2 * held + 2, None), (1.8 * held, 2), (0, 0)):
        monkeypatch.setattr(predicting, "free", lambda device, free=free: free)
        found = measure.predict(workload, seconds=0.1, n_threads=1)
        told = f"with {size} samples at a time, and scaled up"
        assert (found.seconds is None) == (size == 0)
        assert any(told in note for note in found.notes) == (size == 2)


# --- a plan ------------------------------------------------------------------------------------------------


def test_a_plan_has_a_row_for_every_machine_and_text_and_json_say_the_same(planned):
    assert [each["machine"] for each in planned.places] == [HERE, *platforms.load().shown]
    assert [each["basis"] for each in planned.places][:2] == ["measured here", "published"]
    assert planned.remedies == [] and planned.answer.startswith(f"Run it on {HERE}: ")
    epoch = planned.prediction.seconds_per_epoch
    assert planned.places[0]["epoch"] == pytest.approx(epoch)
    assert planned.places[0]["in_all"] == pytest.approx(50 * planned.nets * planned.seeds * epoch)
    text = str(planned)
    assert max(map(len, text.splitlines())) <= 120
    parts = "memory at the peak", "nets: 5, seeds: 3", "not measured", "A100 40 GB", "price unknown"
    assert all(part in " ".join(text.split()) for part in (*parts, planned.answer))
    found = json.loads(json.dumps(planned.as_dict(), allow_nan=False))
    assert found["places"] == planned.places and found["answer"] == planned.answer
    assert found["prediction"]["memory"] == planned.prediction.memory
    assert planned.brief()["peak_bytes"] == planned.prediction.peak


def test_what_cannot_be_timed_here_is_planned_with_wider_ranges(digits, planned, home):
    workload = digits["workload"].change(precision="float16", batch_size=10**6)  # no arithmetic of a CPU
    found = measure.plan(**digits | {"workload": workload})
    assert found.prediction.seconds is found.places[0]["epoch"] is None and found.prediction.peak > 0
    assert any("float16" in note for note in found.notes) and found.places[0]["basis"] == "not timed"
    assert found.prediction.training.batch_size == found.prediction.n_samples
    assert "A batch of 1,000,000 is more than the samples: it holds all of them." in found.notes
    assert list(home.iterdir()) == [], "a plan leaves nothing behind"
    t4, known = (next(each for each in one.places if each["machine"] == "T4") for one in (found, planned))
    assert t4["factor"] > known["factor"]


# --- remedies ----------------------------------------------------------------------------------------------


def test_where_memory_is_tight_each_remedy_is_traced(monkeypatch):
    workload = llama(batch_size=64)
    plain = measure.predict(workload, measured=False)
    total, framework = plain.in_all, plain.memory["framework"]
    spot = Spot(HERE, "cpu", int(0.9 * (total - framework) + framework))
    monkeypatch.setattr(platforms, "this_machine", lambda *given: spot)
    found = measure.plan(workload, device="cpu", measure=False)
    assert found.places[0]["verdict"] in ("marginal", "not here") and found.places[0]["why"] == ["memory"]
    rows = {each["command"]: each for each in found.remedies}
    assert list(rows) == [
        "--set micro_batch=16", "--set gradient_checkpointing=true", "--set precision=bfloat16",
        "--set batch_size=32",
    ]  # fmt: skip
    for each in found.remedies:
        assert each["needs"] < total and each["slow"] is None
        assert each["fits"] == (each["needs"] <= planning.FULL * spot.usable)
    four, here = trace(workload.change(micro_batch=16)), found.places[0]["needs"]
    less = plain.held + plain.memory["checkpoint"] - four.held - four.copied
    assert here - rows["--set micro_batch=16"]["needs"] == less > 0
    assert "--set micro_batch=16" in str(found)
    done = Settings(batch_size=2, micro_batch=2, gradient_checkpointing=True, precision="bfloat16")
    assert list(planning.changes(done)) == []


# --- verdicts ----------------------------------------------------------------------------------------------


def judge(share, hours=None, deadline=None, cost=None, budget=None, factor=2.0):
    seconds, limit = (each and each * HOUR for each in (hours, deadline))
    asked = (("time", seconds, limit), ("price", cost, budget))
    limits = [(name, value, most / factor, most) for name, value, most in asked if most is not None]
    return planning.judge([("memory", share, planning.COMFORTABLE, planning.FULL), *limits])


@pytest.mark.parametrize(
    ("asked", "verdict", "why"),
    [
        ((0.7, 3.9, 8), "comfortable", []), ((0.701, 1, 8), "marginal", ["memory"]),
        ((0.951, 1, 8), "not here", ["memory"]), ((0.1, 4.1, 8), "marginal", ["time"]),
        ((0.1, 1, 8, 30, 10), "not here", ["price"]), ((0.1, 1, None, 0.0, 0.0), "comfortable", []),
        ((0.1, 1, None, 0.01, 0.0), "not here", ["price"]), ((0.1, 1, None, 30), "comfortable", []),
        ((0.1, None, 1, None, 1), "marginal", ["time unknown", "price unknown"]),
        ((0.951, 9, 8, 30, 10), "not here", ["memory", "time", "price"]),
    ],
)  # fmt: skip
def test_memory_time_and_price_decide(asked, verdict, why):
    assert judge(*asked) == (verdict, why)


def at(name, hours=None, cost=0.0, needs=1.0, usable=10.0, **limits):
    """The row of a machine."""
    verdict, why = judge(needs / usable, hours, cost=cost, **limits)
    row = {"machine": name, "needs": needs * GB, "usable": usable * GB, "epoch": None, "cost": cost}
    return row | {"in_all": hours and hours * HOUR, "factor": 2.0, "verdict": verdict, "why": why}


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ([at(HERE, 2), at("Mac 8 GB", 1), at("L4", 0.2, 0.1)],
         "Run it on this machine: 2 h 0 min (x 2.0), free, 1 GB of 10 GB; comfortable."),
        ([at(HERE, 30, deadline=8), at("T4", 9, 0.5, deadline=8), at("L4", 2, 1.0, deadline=8)],
         "Run it on L4: 2 h 0 min (x 2.0), 1.00 USD, 1 GB of 10 GB; comfortable."),
        ([at(HERE, needs=200), at("H100", 2, 4, deadline=1)],
         "No machine does it; nearest is H100: 2 h 0 min (x 2.0), 4.00 USD, 1 GB of 10 GB; not here: time."),
    ],
)  # fmt: skip
def test_the_answer_is_the_cheapest_that_does_it_else_the_nearest(places, told):
    assert planning.answer(places) == told


# --- other machines ----------------------------------------------------------------------------------------


WORK = Work(flops=2e9, bytes=1e8, operations=1000)
CPU = {"device": "cpu", "tflops": {"float32": 0.1}, "bandwidth_gb_s": 10, "overhead_us": 5}
GPU = {
    "device": "cuda:0",
    "tflops": {"float32": 10, "float16": 100},
    "bandwidth_gb_s": 1000,
    "overhead_us": 10,
}


@pytest.mark.parametrize(
    ("work", "processor", "precision", "seconds"),
    [
        (WORK, CPU, "float32", 2e9 / 1e11 + 1e8 / 1e10 + 1000 * 5e-6),  # all add up
        (WORK, GPU, "float32", 1000 * 1e-5),  # a small step waits for Python
        (Work(2e13, 1e8, 1000), GPU, "float32", 2e13 / 1e13 + 1e8 / 1e12),  # a large one hides it
        (Work(1e14, 0, 1), GPU, "float16", 1.0),
        (Work(1e14, 0, 1), GPU, "bfloat16", 10.0),  # without hardware of its own: as float32
    ],
)
def test_the_shortest_time_on_a_processor(work, processor, precision, seconds):
    assert roofline(work, processor, precision) == pytest.approx(seconds)


def test_the_step_that_was_measured_here_is_carried_over_unless_it_is_far_off():
    line, spot = roofline(WORK, CPU), Spot("x", "cuda", GB, basis="published", figures=[GPU])
    for times, carried in ((2, 2), (100, platforms.FARTHEST), (1 / 100, 1 / platforms.FARTHEST)):
        assert platforms.calibration(WORK, "float32", times * line, CPU) == pytest.approx(carried)
    assert platforms.calibration(WORK, "float32", None, CPU) is None
    assert estimate(WORK, "float32", spot, 2.0) == (pytest.approx(2 * roofline(WORK, GPU)), 2.0, "cuda:0")
    assert estimate(WORK, "float32", spot, None)[1] == 3.0
    mac = Spot("Mac", "mac", GB, basis="published", figures=[GPU, CPU | {"overhead_us": 1}])
    for work, quicker in ((Work(1e6, 1e6, 3000), "cpu"), (Work(1e12, 1e9, 3000), "cuda:0")):
        assert estimate(work, "float32", mac, 1.0)[2] == quicker


def test_what_a_training_may_use_here_is_what_is_free(monkeypatch):
    found = platforms.this_machine(torch.device("cpu"))
    total, available = device.machine.memory()
    assert available * 0.5 < found.usable <= total and (found.name, found.price_per_hour) == (HERE, 0.0)
    assert platforms.this_machine(torch.device("cpu"), 0.7).price_per_hour == 0.7
    monkeypatch.setattr(device.machine, "memory", lambda: (16 * GB, 15 * GB))
    assert platforms.this_machine(torch.device("mps")).usable == int(2 / 3 * 16 * GB), "as macOS allows"
    monkeypatch.setattr(platforms.devices, "on_colab", lambda: True)
    assert platforms.this_machine(torch.device("cpu")).price_per_hour is None


def test_every_row_says_where_its_figures_come_from_and_when():
    table = platforms.load()
    assert {"M1 Pro 16 GB", "M1 Pro 32 GB", "V100", "RTX 4090"} <= {*table.shown} <= {*table.machines}
    for name, row in table.machines.items():
        sources = [row.source, *(processor.source for processor in row.processors.values())]
        assert all("http" in source or "Computed" in source or source.startswith("As ") for source in sources)
        assert not row.price_per_hour or f"{name} {row.as_of}" in table.note()


OURS = """
shown: [Ours, T4]
machines:
  T4: {price_per_hour: 3, processors: {cuda: {tflops: {float16: 40}}}}
  Ours: {kind: cuda, usable_gb: 47, price_per_hour: 0.5, as_of: 2026-11-20, source: the invoice, processors: {
      cuda: {bandwidth_gb_s: 900, tflops: {float32: 90}, overhead_us: 9, source: its data sheet}}}
"""


def test_a_table_of_ones_own_is_laid_over_the_other(home):
    usual = platforms.load()
    (home / "machines.yaml").write_text(OURS)
    mine = platforms.load()
    assert mine.shown == ("Ours", "T4") and mine.machines["Ours"].price_per_hour == 0.5
    tflops = mine.machines["T4"].processors["cuda"].tflops
    assert (mine.machines["T4"].price_per_hour, tflops.float32, tflops.float16) == (3, 8.1, 40)
    assert mine.machines["L4"] == usual.machines["L4"]
    (home / "other.yaml").write_text("machines: {T4: {price_per_hour: 9}}")
    assert "Ours" not in platforms.load("other.yaml").machines  # a path is meant from the workspace


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (OURS.replace("kind: cuda,", ""), "machines.Ours.kind"),
        ("shown: [T4, Mine]", "shown"),
        ("machines: {T4: {usable_gb: -1}}", "machines.T4.usable_gb"),
        ("machines: {T4: {prize: 1}}", "machines.T4.prize"),
        ("[T4]", "mine.yaml"),
    ],
)
def test_a_bad_table_is_refused(home, text, wrong):
    (home / "mine.yaml").write_text(text)
    with refused(wrong):
        platforms.load("mine.yaml")


# --- the command -------------------------------------------------------------------------------------------


QUICK: Any = ("plan", "--recipe", "digits_quanv", "--no-measuring")


def test_the_command_prints_the_page_or_json(planned, monkeypatch, capfd):
    typed = typing(monkeypatch, capfd)
    about = ("--set", "epochs=7", "--samples", 5000, "--deadline", "1s", "--budget", "0", "--only", "hybrid")
    status, out, err = typed(*QUICK, *about, "--json")
    found = json.loads(out)
    assert (status, err, found["nets"], found["seeds"]) == (0, "", 1, 1)
    assert found["prediction"]["training"]["epochs"] == 7 and found["prediction"]["n_samples"] == 5000
    why = {each["machine"]: each["why"] for each in found["places"]}
    assert why["T4"] == ["time", "price"] and why[HERE] == ["time unknown"]
    monkeypatch.setattr(measure, "plan", lambda **asked: planned)
    assert typed(*QUICK) == (0, f"{planned}\n", "")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((*QUICK, "--set", "batch_size=auto"), "`batch_size` must be a number here"),
        ((*QUICK, "--samples", "0"), "`samples` must be above 0"),
        ((*QUICK, "--only", "classical"), "`--only` must name the run's own net"),
        ((*QUICK, "--deadline", "soon"), "Argument `deadline` must be a time, but is 'soon'"),
        ((*QUICK, "--prices", "nothing.yaml"), "Cannot read machine table"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(given, told, monkeypatch, capfd):
    status, out, err = typing(monkeypatch, capfd)(*given)
    assert (status, out) == (2, "") and told in err and err.startswith("qnnkit: ") and err.count("\n") == 1


# --- words -------------------------------------------------------------------------------------------------


def test_times_are_read_or_refused():
    times = {"8h": 28_800, "90 min": 5400, "2d 4h": 187_200, "1.5 hours": 5400, " 30s ": 30, "1H30M": 5400}
    assert {text: words.parse_duration(text) for text in times} == times
    for text in ("", "8", "h", "0h", "-1h", "8 epochs", "8h later", "1e3h", "nan h", "8hh"):
        with refused("deadline"):
            words.parse_duration(text, "deadline")

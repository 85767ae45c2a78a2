"""qnnkit.measure: verdicts, other machines, and answers or errors of the command."""

import importlib
import json
from typing import Any

import pytest
import torch

from qnnkit import device, measure, runs
from qnnkit.measure import platforms
from qnnkit.measure.memory import Work
from qnnkit.measure.platforms import HERE, Spot, estimate, roofline
from tests.toys import refused, typing

planning = importlib.import_module("qnnkit.measure.plan")  # not the function of that name
GB, HOUR = 10**9, 3600.0


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No other load on the machine."""
    monkeypatch.setattr(planning, "load", lambda: 0.0)


# --- a plan ------------------------------------------------------------------------------------------------


RECIPE: Any = ("plan", "--recipe", "digits_quanv", "--set", "stride=4")
QUICK: Any = (*RECIPE, "--no-measuring")


def test_a_plan_has_a_row_per_machine_and_text_and_json_agree(monkeypatch, capfd):
    typed, plans, plan = typing(monkeypatch, capfd), [], measure.plan
    monkeypatch.setattr(
        measure, "plan", lambda **asked: plans.append(plan(**asked, seconds=0.1)) or plans[-1]
    )
    limits = "--set", "epochs=7", "--deadline", 0.0003, "--budget", "0"
    status, out, err = typed(*RECIPE, *limits, "--json")
    parsed, [planned] = json.loads(out), plans
    assert (status, err, parsed) == (0, "", json.loads(json.dumps(planned.as_dict(), allow_nan=False)))
    places, prediction = {each["machine"]: each for each in parsed["places"]}, parsed["prediction"]
    assert [*places] == [HERE, *platforms.load().shown]
    assert (prediction["n_samples"], parsed["nets"], parsed["seeds"], parsed["remedies"]) == (1079, 5, 3, [])
    mine, other, epoch = places[HERE], places["T4"], prediction["seconds_per_epoch"]
    assert (mine["basis"], other["basis"]) == ("measured here", "published")
    assert (mine["epoch"], mine["in_all"]) == pytest.approx((epoch, 7 * 5 * 3 * epoch))
    assert (mine["why"], other["why"], parsed["answer"]) == (["time"], ["time", "price"], planned.answer)
    text = str(planned)
    parts = "memory at the peak", "nets: 5, seeds: 3", "not measured", "A100 40 GB", "cost unknown"
    assert all(part in " ".join(text.split()) for part in (*parts, planned.answer))
    assert planned.brief()["peak_bytes"] == prediction["peak"] == planned.prediction.peak
    status, out, err = typed(*QUICK, "--only", "hybrid")
    assert (status, out, err) == (0, f"{plans[1]}\n", "") and plans[1].nets == plans[1].seeds == 1


def test_a_plan_without_timing_has_wider_ranges(home):
    asked = runs.to_plan("digits_quanv", {"stride": 4}, timed=False)
    workload = asked["workload"].change(precision="float16", batch_size=10**6)  # a CPU cannot compute in it
    plan = measure.plan(**asked | {"workload": workload})
    assert plan.prediction.seconds is plan.places[0]["epoch"] is None and plan.prediction.peak > 0
    assert any("float16" in note for note in plan.notes) and plan.places[0]["basis"] == "not timed"
    assert plan.prediction.training.batch_size == plan.prediction.n_samples
    assert "The batch size 1,000,000 exceeds the number of samples: a batch holds all of them." in plan.notes
    assert list(home.iterdir()) == [], "a plan leaves no files behind"
    row, hours = plan.places[-1], plan.places[-1]["in_all"] / 3600
    late = measure.plan(**asked | {"workload": workload}, deadline=2 * hours).places[-1]
    assert (row["why"], late["why"], late["verdict"]) == ([], ["time"], "marginal"), "it may take three times"
    assert row["cost"] == pytest.approx(platforms.load().machines[row["machine"]].price_per_hour * hours)


# --- verdicts ----------------------------------------------------------------------------------------------


def at(name, share, hours=None, cost=0.0, deadline=None, budget=None):
    """The row of a machine: the needed share of 10 GB, and hours and cost, which may double."""
    asked = ("time", hours, deadline), ("price", cost, budget)
    limits = [(each, value, most / 2, most) for each, value, most in asked if most is not None]
    verdict, why = planning.judge([("memory", share, planning.COMFORTABLE, planning.FULL), *limits])
    row = {"machine": name, "needs": share * 10 * GB, "usable": 10 * GB, "epoch": None, "cost": cost}
    return row | {"in_all": hours and hours * HOUR, "factor": 2.0, "verdict": verdict, "why": why}


@pytest.mark.parametrize(
    ("places", "ending"),
    [
        ([at("L4", 0.7, 3.9, 0.0, 8)], "; comfortable."),
        ([at("L4", 0.701, 1, 0.0, 8)], "; marginal: memory."),
        ([at("L4", 0.1, 4.1, 0.0, 8)], "; marginal: time."),
        ([at("L4", 0.1, 1, 0.01, None, 0.0)], "; not here: price."),
        ([at("L4", 0.1, None, None, 1, 1)], "; marginal: time unknown, price unknown."),
        ([at("L4", 0.951, 9, 30, 8, 10)], "; not here: memory, time, price."),
        ([at(HERE, 0.1, 2), at("Mac 8 GB", 0.1, 1), at("L4", 0.1, 0.2, 0.1)],
         "Run it on this machine: 2 h 0 min (x 2.0), free, 1 GB of 10 GB; comfortable."),
        ([at(HERE, 0.1, 30, 0.0, 8), at("T4", 0.1, 9, 0.5, 8), at("L4", 0.1, 2, 1.0, 8)],
         "Run it on L4: 2 h 0 min (x 2.0), 1.00 USD, 1 GB of 10 GB; comfortable."),
        ([at(HERE, 20), at("H100", 0.1, 2, 4, 1)],
         "No machine fits; the nearest is H100: 2 h 0 min (x 2.0), 4.00 USD, 1 GB of 10 GB; not here: time."),
    ],
)  # fmt: skip
def test_the_answer_is_the_cheapest_sufficient_machine_or_else_the_nearest(places, ending):
    assert planning.answer(places).endswith(ending)


# --- other machines ----------------------------------------------------------------------------------------


WORK = Work(flops=2e9, bytes=1e8, operations=1000)
CPU = {"device": "cpu", "tflops": {"float32": 0.1}, "bandwidth_gb_s": 10, "overhead_us": 5}
FAST = {"bandwidth_gb_s": 1000, "overhead_us": 10}
GPU = {"device": "cuda:0", "tflops": {"float32": 10, "float16": 100}, **FAST}


@pytest.mark.parametrize(
    ("work", "processor", "precision", "seconds"),
    [
        (WORK, CPU, "float32", 2e9 / 1e11 + 1e8 / 1e10 + 1000 * 5e-6),  # all parts add up
        (WORK, GPU, "float32", 1000 * 1e-5),  # a small step waits for Python
        (Work(2e13, 1e8, 1000), GPU, "float32", 2e13 / 1e13 + 1e8 / 1e12),  # a large one hides it
        (Work(1e14, 0, 1), GPU, "float16", 1.0),
        (Work(1e14, 0, 1), GPU, "bfloat16", 10.0),  # without hardware for it: as float32
    ],
)
def test_the_shortest_time_on_a_processor(work, processor, precision, seconds):
    assert roofline(work, processor, precision) == pytest.approx(seconds)


def test_a_step_measured_here_is_carried_over_unless_it_is_far_off():
    line, spot = roofline(WORK, CPU), Spot("x", "cuda", GB, basis="published", figures=[GPU])
    for times, carried in ((2, 2), (100, platforms.FARTHEST), (1 / 100, 1 / platforms.FARTHEST)):
        assert platforms.calibration(WORK, "float32", times * line, CPU) == pytest.approx(carried)
    assert platforms.calibration(WORK, "float32", None, CPU) is None
    assert estimate(WORK, "float32", spot, 2.0) == (pytest.approx(2 * roofline(WORK, GPU)), 2.0, "cuda:0")
    assert estimate(WORK, "float32", spot, None)[1] == 3.0
    mac = Spot("Mac", "mac", GB, basis="published", figures=[GPU, CPU | {"overhead_us": 1}])
    for work, quicker in ((Work(1e6, 1e6, 3000), "cpu"), (Work(1e12, 1e9, 3000), "cuda:0")):
        assert estimate(work, "float32", mac, 1.0)[2] == quicker


def test_a_training_may_use_the_free_memory_of_this_machine(monkeypatch):
    total, available = device.machine.memory()
    machine = platforms.this_machine(torch.device("cpu"), 0.7)
    assert available * 0.5 < machine.usable <= total and (machine.name, machine.price_per_hour) == (HERE, 0.7)
    assert platforms.this_machine(torch.device("cpu")).price_per_hour == 0.0
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


def test_a_users_table_overrides_the_other_and_a_bad_one_raises_an_error(home):
    usual = platforms.load()
    (home / "machines.yaml").write_text(OURS)
    mine = platforms.load()
    assert mine.shown == ("Ours", "T4") and mine.machines["Ours"].price_per_hour == 0.5
    tflops = mine.machines["T4"].processors["cuda"].tflops
    assert (mine.machines["T4"].price_per_hour, tflops.float32, tflops.float16) == (3, 8.1, 40)
    (home / "other.yaml").write_text("machines: {T4: {price_per_hour: 9}}")
    other = platforms.load("other.yaml").machines  # a path is relative to the workspace
    assert other["L4"] == usual.machines["L4"] and "Ours" not in other
    bad = {"machines.Ours.kind": OURS.replace("kind: cuda,", ""), "shown": "shown: [T4, Mine]"}
    bad |= {"other.yaml": "[T4]", "machines.T4.usable_gb": "machines: {T4: {usable_gb: -1}}"}
    for wrong, text in bad.items():
        (home / "other.yaml").write_text(text)
        with refused(wrong):
            platforms.load("other.yaml")


# --- the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*QUICK, "--set", "batch_size=auto"), "`batch_size` must be a number here"),
        ((*QUICK, "--deadline", "0"), "`deadline` must be a number above 0"),
        ((*QUICK, "--only", "classical"), "`--only` must name the main net"),
        ((*QUICK, "--prices", "nothing.yaml"), "Cannot read machine table"),
        (("measure", "--out", "file/machine.json"), "A file is in its place"),
    ],
)
def test_wrong_arguments_are_reported_in_one_sentence(arguments, words, home, monkeypatch, capfd):
    (home / "file").touch()
    status, out, err = typing(monkeypatch, capfd)(*arguments)
    assert (status, out) == (2, "") and words in err and err.startswith("qnnkit: ") and err.count("\n") == 1

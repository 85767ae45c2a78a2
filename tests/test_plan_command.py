"""qnnkit.plan as a whole: real nets planned, surveys read, and what is typed answered or refused."""

import json
import math
import sys

import pytest
import torch

from qnnkit import cli, device, plan
from qnnkit.measure import survey
from qnnkit.plan import here, machines, surveys
from qnnkit.plan.places import HERE, needed
from qnnkit.plan.verdict import judge

GB = 10**9
LONGEST_LINE = 100


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """An empty workspace."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The plan of a small recipe, times measured for a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNNKIT_HOME", str(tmp_path_factory.mktemp("home")))
        asked = plan.asked("digits_quanv", settings={"epochs": 50})
        return plan.plan(asked, deadline="8h", budget="10", seconds=0.3)


# --- a plan ------------------------------------------------------------------------------------------------


def test_this_machine_stands_first_and_then_every_row_of_the_table(digits):
    assert [each.name for each in digits.places] == [HERE, *machines.load().shown]
    assert digits.here.basis == "measured here"
    assert {each.basis for each in digits.places[1:]} == {"published"}


def test_all_nets_and_seeds_count(digits):
    assert (digits.nets, digits.seeds) == (5, 3)
    found, epoch = digits.here, digits.prediction.seconds_per_epoch
    assert found.epoch.likely == pytest.approx(epoch)
    assert found.total.likely == pytest.approx(50 * 15 * epoch)
    assert any("Controls are taken to cost as much as the hybrid net" in note for note in digits.notes)


def test_deadline_and_budget_are_those_that_were_asked_for(digits):
    assert (digits.wish.deadline, digits.wish.budget) == (8 * 3600, 10)


def test_it_fits_everywhere_with_all_images_at_once(digits):
    assert {each.largest for each in digits.places} == {digits.prediction.n_samples}
    assert all(each.verdict.fits for each in digits.places) and digits.remedies == ()
    assert digits.answer[0].startswith("Run it here: about ")


def test_the_text_fits_its_page(digits):
    text = plan.table(digits)
    assert max(map(len, text.splitlines())) <= LONGEST_LINE
    for told in ("Memory at the peak, on cpu", "5 nets x 3 seeds x 50 epochs", "not measured by qnnkit"):
        assert told in text
    assert digits.answer[0] in " ".join(text.split())


def test_json_holds_what_the_text_says(digits):
    found = json.loads(json.dumps(digits.as_dict(), allow_nan=False))
    assert [each["name"] for each in found["places"]] == [each.name for each in digits.places]
    assert found["prediction"]["memory"] == digits.prediction.memory
    assert found["answer"] == list(digits.answer)


@pytest.mark.parametrize("named", [{"recipe": "digits_quanv"}, {"model": "llama", "size": "tiny"}])
def test_a_larger_batch_never_needs_less(named):
    workload = plan.asked(**named).workload
    changed = (workload.change(batch_size=size) for size in (1, 16, 256))
    found = [plan.predict(each, measured=False).on_accelerator for each in changed]
    assert found == sorted(found) and found[0] < found[-1]


def test_more_memory_than_exists_is_not_here_and_nothing_large_is_run():
    asked = plan.asked(model="llama", size="tiny", settings={"batch_size": 8192}, samples=8192)
    found = plan.predict(asked.workload, measured=False)
    usable = here.spot(torch.device("cpu"), machines.load()).usable
    verdict = judge(needed(found, "cpu"), usable)
    assert (verdict.word, verdict.fits, found.seconds) == ("not here", False, None)


@pytest.mark.slow
def test_a_plan_for_more_memory_than_exists_runs_nothing_large():
    settings = {"batch_size": 8192, "precision": "bfloat16", "gradient_checkpointing": True}
    asked = plan.asked(model="llama", size="tiny", settings=settings, samples=8192)
    found = plan.plan(asked, measure=False, largest=False)
    assert found.here.needs > found.here.usable > 0
    assert found.here.verdict.word == "not here" and found.here.total is None
    assert found.remedies[0].name == "micro-batches" and found.remedies[0].fits
    assert any("To fit it on this machine: --set micro_batch=" in sentence for sentence in found.answer)
    assert max(map(len, plan.table(found).splitlines())) <= LONGEST_LINE


def test_without_times_the_ranges_are_wider(digits):
    asked = plan.asked("digits_quanv", settings={"epochs": 50})
    found = plan.plan(asked, measure=False, largest=False)
    assert (found.here.epoch, found.prediction.seconds, found.here.largest) == (None, None, None)
    wide, narrow = (next(each for each in one.places if each.name == "T4").total for one in (found, digits))
    assert wide.high / wide.low > narrow.high / narrow.low


def test_a_batch_that_is_more_than_the_data_holds_them_all():
    found = plan.plan(
        plan.asked("digits_quanv", settings={"batch_size": 10**6}), measure=False, largest=False
    )
    assert found.prediction.training.batch_size == found.prediction.n_samples
    assert found.notes[0] == "A batch of 1,000,000 is more than the samples: it holds all of them."


def test_samples_may_be_others_than_those_that_are_here():
    assert plan.asked("digits_quanv", samples=60_000).workload.n_samples == 60_000
    assert plan.asked(model="clip", size="tiny").workload.n_samples == 1000


def test_a_plan_leaves_nothing_behind(home):
    plan.plan(plan.asked("digits_quanv"), measure=False, largest=False)
    assert list(home.iterdir()) == []


# --- this machine ------------------------------------------------------------------------------------------


def test_figures_of_this_machine_are_measured():
    first = here.figures(torch.device("cpu"), "float32", 1)
    assert first.measured and first.device == "cpu"
    values = [first.flops["float32"], first.bytes_per_second, first.seconds_per_operation]
    assert all(0 < value < math.inf for value in values)


def test_what_a_training_may_use_here_is_what_is_free():
    found = here.spot(torch.device("cpu"), machines.load())
    total, available = device.machine.memory()
    assert available * 0.5 < found.usable <= total
    assert (found.name, found.kind, found.price_per_hour) == (HERE, "cpu", 0.0)
    assert here.spot(torch.device("cpu"), machines.load(), 0.7).price_per_hour == 0.7


@pytest.mark.parametrize(
    ("kind", "name", "memory", "row"),
    [
        ("cuda", "Tesla T4", 15.83e9, "T4"),
        ("cuda", "NVIDIA L4", 23.6e9, "L4"),
        ("cuda", "NVIDIA A100-SXM4-40GB", 42.4e9, "A100 40 GB"),
        ("cuda", "NVIDIA A100-SXM4-80GB", 85.1e9, "A100 80 GB"),
        ("cuda", "NVIDIA H100 80GB HBM3", 85.0e9, "H100 80 GB"),
        ("mac", "Apple M3 Pro", 8 * 2**30, "Mac 8 GB"),
        ("mac", "Apple M4", 24 * 2**30, "Mac 24 GB"),
        ("mac", "Apple M4 Max", 64 * 2**30, None),
        ("cuda", "NVIDIA L40S", 47.7e9, None),
        ("cuda", "Tesla V100-SXM2-16GB", 16.9e9, None),
        ("cpu", "AMD EPYC", 16e9, None),
    ],
)
def test_a_machine_is_known_by_its_kind_its_name_and_its_memory(kind, name, memory, row):
    assert here.row_of(machines.load(), kind, name, memory) == row


# --- surveys -----------------------------------------------------------------------------------------------


def a_survey(name, *devices, memory=16 * GB, price=None):
    """A machine's file as `qnnkit measure` would write it, of a machine that is not here."""
    figures = {"bandwidth": (2e11, "B/s"), "product": (5e12, "FLOP/s"), "launch": (1e-5, "s")}
    return {
        "format": 2,
        "qnnkit": "0.1.0",
        "machine": survey.facts() | {"name": name, "processor": "another"},
        "devices": [{"device": kind, "name": chip, "memory": memory} for kind, chip in devices],
        "measured_at": "2026-11-01T00:00:00Z",
        "seconds": 100.0,
        "busy": {"most": 0.0, "sentence": None},
        "price_per_hour": price,
        "net": {"recipe": "none", "digest": "", "batch_size": 1, "n_samples": 1, "noun": "samples"},
        "notes": [],
        "rows": [
            {"what": what, "device": kind, "value": value, "unit": unit, "spread": 1.0}
            | ({"precision": "float32"} if what == "product" else {})
            for kind, _ in devices
            for what, (value, unit) in figures.items()
        ],
    }


@pytest.fixture
def keep(home):
    """Writes a survey to a file, in the workspace's `machines/` by default."""

    def write(found, path=None):
        path = path or home / "machines" / "other.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        return path

    return write


T4 = a_survey("Tesla T4, 2 cores, Colab", ("cpu", "Intel"), ("cuda:0", "Tesla T4"))


def test_a_survey_in_the_workspace_goes_before_published_figures(keep):
    keep(T4)
    found = surveys.read((), machines.load())
    (figures,) = found.rows["T4"]  # the GPU alone: it is what has to hold the training
    assert figures.device == "cuda:0" and figures.flops == {"float32": 5e12}
    assert found.notes == ["T4: times from the survey of Tesla T4, 2 cores, Colab, 2026-11-01."]
    assert found.others == []


def test_a_machine_in_no_row_is_one_of_its_own(keep, home):
    path = keep(a_survey("Big one", ("cpu", "EPYC"), memory=512 * GB, price=0.4), home / "big.json")
    ((spot, figures),) = surveys.read([path], machines.load()).others
    assert (spot.name, spot.kind, spot.price_per_hour) == ("Big one", "cpu", 0.4)
    assert spot.usable < 512 * GB and figures[0].measured


def test_the_survey_of_this_very_machine_is_no_other_machine(keep):
    keep(a_survey(survey.facts()["name"], ("cpu", "this")))
    found = surveys.read((), machines.load())
    assert (found.rows, found.others, found.notes) == ({}, [], [])


def test_a_file_that_is_none_is_noted_in_the_workspace_and_refused_where_it_is_named(keep, home):
    keep("{}")
    (note,) = surveys.read((), machines.load()).notes
    assert note.startswith("Left out `machines/other.json`: ")
    with pytest.raises(ValueError, match="must be a file that `qnnkit measure` wrote"):
        surveys.read([home / "machines" / "other.json"], machines.load())
    with pytest.raises(FileNotFoundError):
        surveys.read(["nothing.json"], machines.load())


def test_a_survey_without_bandwidth_says_nothing_of_times(keep):
    found = a_survey("Half", ("cuda:0", "Tesla T4"))
    found["rows"][0] |= {"value": None, "why": "out of memory"}
    keep(found)
    read = surveys.read((), machines.load())
    assert read.rows == {}
    assert read.notes == ["The survey of Half lacks what an estimate needs. Measure it anew."]


def test_a_plan_uses_the_survey(keep):
    keep(T4)
    found = plan.plan(plan.asked("digits_quanv"), measure=False, largest=False)
    basis = {each.name: each.basis for each in found.places}
    assert (basis["T4"], basis["L4"]) == ("from its survey", "published")


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def typed(monkeypatch, capfd):
    """`typed("--recipe", ...)` gives (exit status, stdout, stderr) of `qnnkit plan`."""
    for name, value in device.launch_environment().items():
        monkeypatch.setenv(name, value)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qnnkit", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return caught.value.code, out, err

    return command


QUICK = ("--recipe", "digits_quanv", "--no-measuring")


def test_the_command_prints_the_page(typed):
    status, out, err = typed(*QUICK, "--for", "50 epochs", "--deadline", "8h", "--budget", "10")
    assert (status, err) == (0, "")
    assert "Run it " in out and "A100 40 GB" in out
    assert "5 nets x 3 seeds x 50 epochs" in out
    status, out, _ = typed(*QUICK, "--epochs", "7", "--deadline", "1s", "--budget", "0", "--json")
    found = json.loads(out)
    assert status == 0 and found["wish"] == {"deadline": 1, "budget": 0}
    assert found["prediction"]["training"]["epochs"] == 7
    reasons = {each["name"]: each["verdict"]["reason"] for each in found["places"]}
    assert "over the deadline of 1.0 s" in reasons["T4"] and "over the budget of 0" in reasons["T4"]


@pytest.mark.slow
def test_what_fits_nowhere_is_an_answer_too(typed):
    words = ("--model", "llama", "--size", "tiny", "--batch-size", 8192, "--samples", 8192)
    status, out, _ = typed(*words, "--no-measuring")
    assert status == 0 and "It fits nowhere" in out and "--set micro_batch=" in out


def test_json(typed):
    status, out, _ = typed(*QUICK, "--json", "--set", "batch_size=64", "--samples", 5000)
    found = json.loads(out)
    assert status == 0 and found["prediction"]["training"]["batch_size"] == 64
    assert found["prediction"]["n_samples"] == 5000


def test_a_price_table_with_a_missing_row(typed, home):
    (home / "mine.yaml").write_text("shown: [T4, Mine]")
    status, out, err = typed(*QUICK, "--prices", "mine.yaml")
    assert (status, out) == (2, "")
    assert "must have a row `Mine`" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "Argument `recipe` must be named, or `model` in its place"),
        (("--recipe", "digits_quanv", "--model", "llama"), "Name one"),
        (("--recipe", "digit_quanv"), "Did you mean 'digits_quanv'?"),
        (("--model", "lama"), "Did you mean 'llama'?"),
        (("--model", "llama", "--size", "huge"), "Argument `size` must be one of tiny"),
        (("--recipe", "digits_quanv", "--size", "tiny"), "It belongs to --model."),
        (("--recipe", "digits_quanv", "--lora-rank", "8"), "`lora_rank` must be left out"),
        (("--model", "llama", "--lora-rank", "0"), "`lora_rank` must be a whole number"),
        (("--model", "llama", "--sequence-length", "99999"), "`sequence_length` must be at most 2048"),
        (("--model", "llama", "--set", "epocs=2"), "Did you mean 'epochs'?"),
        (("--model", "llama", "--set", "epochs=2.5"), "`epochs` must be a valid integer"),
        (("--model", "llama", "--batch-size", "0"), "`batch_size` must be greater than or equal to 1"),
        (
            ("--model", "llama", "--precision", "float8"),
            "`precision` must be 'float32', 'bfloat16' or 'float16'",
        ),
        (("--recipe", "digits_quanv", "--samples", "0"), "`samples` must be above 0"),
        (("--recipe", "digits_quanv", "--batch-size", "4", "--set", "batch_size=3"), "must be given once"),
        ((*QUICK, "--for", "3 h"), "a time goes to --deadline"),
        ((*QUICK, "--deadline", "soon"), "Argument `deadline` must be a time, but is 'soon'"),
        ((*QUICK, "--budget", "10 EUR"), "Argument `budget` must be an amount in USD"),
        ((*QUICK, "--prices", "nothing.yaml"), "Cannot read machine table"),
        ((*QUICK, "--measured", "nothing.json"), "must be a machine's file"),
        ((*QUICK, "--device", "gpu"), "Argument `device` must be a known name"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(typed, words, told):
    status, out, err = typed(*words)
    assert (status, out) == (2, "")
    assert told in err and err.startswith("qnnkit: ") and err.count("\n") == 1

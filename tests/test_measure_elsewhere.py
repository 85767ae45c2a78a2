"""Other machines: a table that anyone may edit, surveys of them, and times by roofline."""

import datetime
import json

import pytest
import torch
import yaml

from qnnkit import device
from qnnkit.measure import elsewhere, survey
from qnnkit.measure.elsewhere import HERE, Spot, estimate, roofline
from qnnkit.measure.memory import Work

TODAY = datetime.date(2026, 11, 23)
NAMES = (
    "Mac 8 GB", "Mac 16 GB", "Mac 24 GB", "M1 Pro", "M4", "RTX 4060", "RTX 4090", "T4", "V100", "L4",
    "A100 40 GB", "A100 80 GB", "H100 80 GB",
)  # fmt: skip
GB = 10**9
WORK = Work(flops=2e9, bytes=1e8, operations=1000)


def figures(name, flops, bytes_per_second, seconds):
    known = {"bytes_per_second": bytes_per_second, "seconds_per_operation": seconds}
    return {"device": name, "flops": flops, **known}


CPU = figures("cpu", {"float32": 1e11}, 1e10, 5e-6)
GPU = figures("cuda:0", {"float32": 1e13, "float16": 1e14}, 1e12, 1e-5)


@pytest.fixture
def table(monkeypatch, tmp_path):
    """Writes a table of one's own and gives its path; the workspace is empty."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "home"))

    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def own(table):
    return elsewhere.load()


# --- qnnkit's own table ------------------------------------------------------------------------------------


def test_every_row_says_where_its_figures_come_from_and_when(own):
    assert own.shown == NAMES
    for row in own.machines.values():
        told = [row.source, *(processor.source for processor in row.processors.values())]
        assert all("http" in source or "Computed" in source or source.startswith("As ") for source in told)
        assert row.as_of <= TODAY and row.usable_gb <= row.memory_gb


def test_a_machine_of_ones_own_costs_nothing_and_colabs_follow_from_units(own, table):
    assert own.price_per_hour("Mac 8 GB") == 0
    assert own.price_per_hour("T4") == own.machines["T4"].compute_units_per_hour * own.compute_unit.price
    assert own.price_per_hour("H100 80 GB") == own.machines["H100 80 GB"].price_per_hour
    path = table("machines: {T4: {compute_units_per_hour: null}}")
    assert elsewhere.load(path).price_per_hour("T4") is None


def test_notes_say_that_nothing_was_measured_and_which_prices_are_old(own, table):
    told = " ".join(own.notes(TODAY))
    assert "not measured by qnnkit" in told and "Prices as of 2024-04-22 to 2026-11-09" in told
    assert "Older than a year: prices of L4, A100 40 GB" in told
    fresh = "as_of: 2026-11-01\nshown: [T4]\nmachines: {T4: {compute_units_per_hour: 1}}"
    assert not any("Older" in note for note in elsewhere.load(table(fresh)).notes(TODAY))


# --- one's own table ---------------------------------------------------------------------------------------


def test_a_figure_of_ones_own_goes_before_and_the_others_stay(own, table):
    row = "{compute_units_per_hour: 3, processors: {cuda: {tflops: {float16: 40}}}}"
    text = f"as_of: 2026-11-20\nmachines: {{T4: {row}}}"
    mine = elsewhere.load(table(text))
    assert mine.machines["T4"].compute_units_per_hour == 3
    assert mine.machines["T4"].as_of == datetime.date(2026, 11, 20)
    tflops = mine.machines["T4"].processors["cuda"].tflops
    assert (tflops.float32, tflops.float16) == (8.1, 40)
    assert mine.machines["L4"] == own.machines["L4"]


NEW = """
as_of: 2026-11-20
shown: [Ours, T4]
machines:
  Ours:
    kind: cuda
    memory_gb: 48
    usable_gb: 47
    price_per_hour: 0.5
    currency: EUR
    source: the invoice
    processors:
      cuda: {bandwidth_gb_s: 900, tflops: {float32: 90}, overhead_us: 9, source: its data sheet}
"""


def test_the_table_of_the_workspace_is_found(monkeypatch, tmp_path, table):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    table(NEW, "machines.yaml")
    mine = elsewhere.load()
    assert mine.shown == ("Ours", "T4") and mine.price_per_hour("Ours") == 0.5
    table("machines: {T4: {compute_units_per_hour: 9}}", "other.yaml")
    assert "Ours" not in elsewhere.load("other.yaml").machines  # a relative path is meant from the workspace


@pytest.mark.parametrize("figure", ["kind", "source", "processors", "tflops", "float32"])
def test_a_missing_figure_is_named_with_its_row(table, figure):
    values = yaml.safe_load(NEW)
    row = values["machines"]["Ours"]
    cuda = row["processors"]["cuda"]
    next(each for each in (row, cuda, cuda["tflops"]) if figure in each).pop(figure)
    path = table(yaml.safe_dump(values))
    with pytest.raises(ValueError, match=rf"`machines\.Ours\.[\w.]*{figure}` must be given") as caught:
        elsewhere.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shown: [T4, Mine]", "Argument `shown` must be a known name, but is 'Mine'"),
        ("machines: {T4: {memory_gb: -1}}", "`machines.T4.memory_gb` must be greater than 0, but is -1"),
        ("machines: {T4: {memory_gb: .inf}}", "must be a finite number"),
        ("machines: {T4: {memory_gb: 12}}", "`usable_gb` must be at most memory_gb, 12, but is 15"),
        ("machines: {T4: {kind: gpu}}", "`machines.T4.kind` must be 'cuda', 'mac' or 'cpu', but is 'gpu'"),
        ("machines: {T4: {prize: 1}}", "`machines.T4.prize` must be a known name"),
        ("machines: [T4]", "`machines` must be a valid dictionary"),
        ("[T4]", "must hold keys and values"),
        ("machines: {", "must be plain YAML, but is not in line"),
        ("machines: {T4: !!python/name:os.system }", "must be plain YAML"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(table, text, told):
    path = table(text)
    with pytest.raises(ValueError) as caught:
        elsewhere.load(path)
    said = str(caught.value)
    assert told in said and "\n" not in said and said.endswith(".")
    assert "pydantic" not in said and path.name in said


# --- machines ----------------------------------------------------------------------------------------------


def test_what_a_training_may_use_here_is_what_is_free(own):
    found = elsewhere.this_machine(torch.device("cpu"), own)
    total, available = device.machine.memory()
    assert available * 0.5 < found.usable <= total
    assert (found.name, found.kind, found.price_per_hour) == (HERE, "cpu", 0.0)
    assert elsewhere.this_machine(torch.device("cpu"), own, 0.7).price_per_hour == 0.7


def test_a_mac_s_gpu_may_use_two_thirds_of_its_memory(own, monkeypatch):
    """What macOS lets it hold, however much is free."""
    monkeypatch.setattr(device.machine, "memory", lambda: (16 * GB, 15 * GB))
    assert elsewhere.this_machine(torch.device("mps"), own).usable == int(2 / 3 * 16 * GB)
    assert elsewhere.this_machine(torch.device("cpu"), own).usable >= 15 * GB
    monkeypatch.setattr(device.machine, "memory", lambda: (16 * GB, 4 * GB))
    assert elsewhere.this_machine(torch.device("mps"), own).usable < 10 * GB


@pytest.mark.parametrize(
    ("kind", "name", "memory", "row"),
    [
        ("cuda", "Tesla T4", 15.83e9, "T4"),
        ("cuda", "NVIDIA A100-SXM4-40GB", 42.4e9, "A100 40 GB"),
        ("cuda", "NVIDIA A100-SXM4-80GB", 85.1e9, "A100 80 GB"),
        ("cuda", "NVIDIA H100 80GB HBM3", 85.0e9, "H100 80 GB"),
        ("mac", "Apple M3 Pro", 8 * 2**30, "Mac 8 GB"),
        ("mac", "Apple M4", 16 * 2**30, "M4"),
        ("mac", "Apple M1 Pro", 32 * 2**30, "M1 Pro"),
        ("mac", "Apple M4 Max", 64 * 2**30, None),
        ("cuda", "NVIDIA L40S", 47.7e9, None),
        ("cpu", "AMD EPYC", 16e9, None),
    ],
)
def test_a_machine_is_known_by_its_kind_its_name_and_its_memory(own, kind, name, memory, row):
    assert elsewhere.row_of(own, kind, name, memory) == row


# --- surveys -----------------------------------------------------------------------------------------------


def a_survey(name, *devices, memory=16 * GB):
    """A machine's file as `qnnkit measure` would write it, of a machine that is not here."""

    def rows(kind):
        yield {"what": "bandwidth", "device": kind, "value": 2e11, "unit": "B/s", "spread": 1.0}
        product = {"what": "product", "device": kind, "precision": "float32"}
        yield {**product, "value": 5e12, "unit": "FLOP/s", "spread": 1.0}
        yield {"what": "launch", "device": kind, "value": 1e-5, "unit": "s", "spread": 1.0}

    return {
        "format": 2,
        "machine": survey.facts() | {"name": name},
        "devices": [{"device": kind, "name": chip, "memory": memory} for kind, chip in devices],
        "measured_at": "2026-11-01T00:00:00Z",
        "busy": {"most": 0.0, "sentence": None},
        "price_per_hour": 0.4,
        "seconds": 100.0,
        "net": {"recipe": "x", "digest": "0", "batch_size": 1, "n_samples": 1, "noun": "image"},
        "notes": [],
        "rows": [row for kind, _ in devices for row in rows(kind)],
    }


T4 = a_survey("Tesla T4, 2 cores, Colab", ("cpu", "Intel"), ("cuda:0", "Tesla T4"))


@pytest.fixture
def keep(tmp_path):
    """Writes a survey to a file, in the workspace's `machines/` by default."""

    def write(found, path=None):
        path = path or tmp_path / "home" / "machines" / "other.json"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(found))
        return path

    return write


def spots(own, files=()):
    found, notes = elsewhere.spots(own, files)
    return {spot.name: spot for spot in found}, notes


def test_a_survey_in_the_workspace_goes_before_published_figures(own, keep):
    keep(T4)
    found, notes = spots(own)
    assert list(found) == list(own.shown)
    (gpu,) = found["T4"].figures  # the GPU alone: it is what has to hold the training
    assert gpu["device"] == "cuda:0" and found["T4"].basis == "from its survey"
    assert found["T4"].currency == "USD" and found["L4"].basis == "published"
    assert notes == ["T4: times from the survey of Tesla T4, 2 cores, Colab, 2026-11-01."]


def test_a_machine_in_no_row_is_one_of_its_own(own, keep, tmp_path):
    big = a_survey("Big one", ("cpu", "EPYC"), memory=512 * GB)
    found, _ = spots(own, [keep(big, tmp_path / "big.json")])
    big = found["Big one"]
    assert (big.kind, big.price_per_hour, big.currency) == ("cpu", 0.4, None)
    assert big.usable < 512 * GB


def test_a_file_that_is_none_is_noted_in_the_workspace_and_refused_where_it_is_named(own, keep):
    path = keep({})
    (note,) = spots(own)[1]
    assert note.startswith("Left out `machines/other.json`: ")
    with pytest.raises(ValueError, match="must be a file that `qnnkit measure` wrote"):
        spots(own, [path])


def test_this_very_machine_is_no_other_and_a_survey_without_bandwidth_says_nothing(own, keep):
    keep(a_survey(survey.facts()["name"], ("cpu", "this")))
    found, notes = spots(own)
    assert list(found) == list(own.shown) and notes == []
    half = a_survey("Half", ("cuda:0", "Tesla T4"))
    half["rows"][0] |= {"value": None, "why": "out of memory"}
    keep(half)
    found, notes = spots(own)
    assert found["T4"].basis == "published"
    assert notes == ["The survey of Half lacks what an estimate needs. Measure it anew."]


# --- times -------------------------------------------------------------------------------------------------


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
def test_what_a_processor_can_do_at_best(work, processor, precision, seconds):
    assert roofline(work, processor, precision) == pytest.approx(seconds)


def test_the_step_that_was_measured_here_is_carried_over_unless_it_lies_far_off():
    line = roofline(WORK, CPU)
    found = elsewhere.calibration(WORK, "float32", 2 * line, CPU)
    assert found == pytest.approx(2)
    there, name = estimate(WORK, "float32", Spot("x", "cuda", GB, basis="published", figures=[GPU]), found)
    assert there.likely == pytest.approx(2 * roofline(WORK, GPU)) and name == "cuda:0"
    assert elsewhere.calibration(WORK, "float32", 100 * line, CPU) == elsewhere.FARTHEST
    assert elsewhere.calibration(WORK, "float32", line / 100, CPU) == 1 / elsewhere.FARTHEST
    for seconds, known in ((None, CPU), (1.0, None)):
        assert elsewhere.calibration(WORK, "float32", seconds, known) is None


@pytest.mark.parametrize(("basis", "factor"), elsewhere.FACTORS.items())
def test_every_estimate_has_its_range(basis, factor):
    spot = Spot("x", "cuda", GB, basis=basis, figures=[GPU])
    for calibrated, known in ((1.0, factor), (None, elsewhere.UNCALIBRATED)):
        found, _ = estimate(WORK, "float32", spot, calibrated)
        assert found.high / found.likely == pytest.approx(known) == found.likely / found.low


def test_a_mac_takes_whichever_of_its_processors_is_quicker(own):
    mac = Spot("mac", "mac", GB, basis="published", figures=elsewhere.published(own.machines["Mac 16 GB"]))
    small, large = Work(1e6, 1e6, 3000), Work(1e12, 1e9, 3000)
    assert estimate(small, "float32", mac, 1.0)[1] == "cpu"
    assert estimate(large, "float32", mac, 1.0)[1] == "mps"

"""The survey of a machine: its rows, its file, how it is read. No time is asserted."""

from __future__ import annotations

import getpass
import importlib
import json
import platform
import time
from pathlib import Path

import pytest
import torch

from qnnkit import data, measure, models, recipes, runs
from qnnkit.measure import clock, survey
from qnnkit.models import features
from qnnkit.runs import surveying
from tests.toys import texts, typing

CPU = torch.device("cpu")
figuring = importlib.import_module("qnnkit.measure.figures")  # the package's attribute is the function


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory):
    """A survey of this machine as `qnnkit measure --quick` takes it, its file, and what is told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock.load, "__defaults__", (0.02,))
        patch.setattr(figuring, "LONG_ENOUGH", 1e-4)
        patch.setattr(figuring, "ARRAY", 2**22)
        patch.setenv("QNNKIT_HOME", str(tmp_path_factory.mktemp("home")))
        told, settings = [], {"price_per_hour": 0.5}
        return *surveying.measure_machine(echo=told.append, quick=True, settings=settings), told


def rows_of(found, what, **settings):
    wanted = {"what": what, **settings}
    return [row for row in found["rows"] if wanted.items() <= row.items()]


# --- the rows ----------------------------------------------------------------------------------------------


def test_a_survey_is_flat_rows(surveyed):
    found, path, told = surveyed
    assert json.loads(path.read_bytes()) == found
    assert all({"what", "device", "value", "unit"} <= row.keys() for row in found["rows"])
    assert not any(isinstance(value, dict | list) for row in found["rows"] for value in row.values())
    for what in ("bandwidth", "product", "launch", "net update", "net memory"):
        assert rows_of(found, what, device="cpu")[0]["value"] > 0, what
    assert found["price_per_hour"] == 0.5 and found["busy"]["most"] >= 0 and len(told) >= 2


def test_the_recipes_own_net_is_measured(surveyed):
    found = surveyed[0]
    [update], [epoch], [memory] = (
        rows_of(found, f"net {what}", device="cpu") for what in ("update", "epoch", "memory")
    )
    assert epoch["value"] == pytest.approx(1079 / 32 * update["value"]) and update["why"] == ""
    assert memory["value"] > 50e6, "Python and torch alone"
    net = found["net"]
    assert (net["recipe"], net["batch_size"], net["n_samples"]) == ("digits_quanv", 32, 1079)


def test_what_cannot_be_measured_says_why():
    config = recipes.settings("digits_quanv", stride=4, batch_size=8)
    splits = recipes.of(config).load(config)
    ways = [(one, each) for each in ("float32", "float16") for one in (CPU, torch.device("cuda:7"))]
    rows = list(survey.net_rows(config, splits, ways, 0.1))
    assert [(row["device"], row["precision"]) for row in rows if row["what"] == "net update"] == [
        ("cpu", "float32"), ("cuda:7", "float32"), ("cuda:7", "float16"),
    ]  # fmt: skip
    assert all((row["value"] is None) == (row["device"] == "cuda:7") for row in rows)
    assert all(row["why"] for row in rows if row["what"] == "net update" and row["value"] is None)


def test_a_frozen_part_is_computed_before_as_in_training():
    config = recipes.settings("digits_quanv", stride=2, hidden=2, batch_size=16)
    splits = data.load("digits", train_fraction=0.1)
    batch = next(iter(splits.batches("train", 3, shuffle=False)))
    frozen = config.override(trainable=False)
    net = models.QuanvNet(**splits.sizes, stride=2, hidden=2, trainable=False)
    assert features.training_batch(net, batch, frozen, 100)[0].is_floating_point() and net.training
    trained = models.QuanvNet(**splits.sizes, stride=2, hidden=2)
    augmented = frozen.override(augmentation="affine")
    for given in ((net, batch, frozen, 10**12), (net, batch, augmented, 100), (trained, batch, config, 100)):
        assert features.training_batch(*given)[0] is batch[0]  # too many, others in every epoch, not frozen


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("digits_clip", {"n_qubits": 2, "n_layers": 1, "patch_size": 8}),
        ("text_adapter", {"sequence_length": 16, "vocabulary": 260, "adapter_weights": 3000}),
    ],
)
def test_captions_and_tokens_are_measured_as_images_are(tmp_path, recipe, settings):
    if recipe.startswith("text"):
        settings = {**settings, "data_dir": str(texts(tmp_path))}
    config = recipes.settings(recipe, batch_size=4, micro_batch=2, threads=1, **settings)
    splits = runs.Run(tmp_path, config).splits
    found = {row["what"]: row for row in survey.net_rows(config, splits, [(CPU, "float32")], 0.1)}
    updates = len(splits.train) / 4
    assert found["net epoch"]["value"] == pytest.approx(updates * found["net update"]["value"])


def test_a_busy_machine_is_said_first_and_kept(monkeypatch):
    told, config = [], recipes.settings("digits_quanv")
    monkeypatch.setattr(clock, "load", lambda: 1.5)
    monkeypatch.setattr(survey, "figures", lambda *given, **named: figures())
    monkeypatch.setattr(survey, "net_rows", lambda *given, **named: [])
    found = survey.take(config, recipes.of(config).load(config), echo=told.append)
    assert told[0] == found["busy"]["sentence"] == measure.note(1.5) and "1.5 of its" in told[0]
    assert found["busy"]["most"] == 1.5 and "The machine is busy" in survey.table(found)


def figures():
    return {"bandwidth_gb_s": 1, "overhead_us": 1, "tflops": {"float32": 1e-3}}


@pytest.mark.slow
def test_the_default_survey():
    """A minute on two cores at rest; no figure is told of a machine that is busy."""
    begin, config = time.perf_counter(), recipes.settings("digits_quanv", threads="auto")
    found = survey.take(config, recipes.of(config).load(config))
    assert {row["precision"] for row in rows_of(found, "net update")} == {"float32", "bfloat16", "float16"}
    if found["busy"]["sentence"] is None:
        assert time.perf_counter() - begin < 120


# --- the file, and how it is read --------------------------------------------------------------------------


def test_each_kind_of_machine_has_its_file():
    name = "Intel(R) Xeon(R) CPU @ 2.00GHz, 2 cores, Colab"
    assert survey.default_place({"name": name}).name == "intel-xeon-cpu-2-00ghz-2-cores-colab.json"


def test_nothing_in_the_facts_tells_whose_machine_it_is():
    facts = survey.facts()
    assert not {platform.node(), getpass.getuser()} & {*map(str, facts.values())}
    assert str(Path.home()) not in json.dumps(facts)


def test_the_table_has_a_row_for_each_figure(surveyed):
    text = survey.table(surveyed[0])
    assert all(row["what"] in text for row in surveyed[0]["rows"])
    assert surveyed[0]["machine"]["name"] in text and survey.fastest(surveyed[0]) in text


VALUES = (("epoch", "cpu", 1.5), ("epoch", "cuda:0", 0.5), ("memory", "cpu", 4e8), ("memory", "cuda:0", 1e8))
OLD = {  # as earlier versions wrote it
    "format": 2,
    "machine": {"name": "Tesla T4", "cores": 2, "memory_bytes": 1, "system": "", "versions": {}},
    "rows": [
        {"what": f"net {what}", "device": where, "precision": "float32", "value": value, "spread": None}
        for what, where, value in VALUES
    ],
}


def test_what_earlier_versions_measured_is_still_told():
    told = survey.fastest(OLD)
    assert told == "An epoch of the net: 0.50 s on cuda:0 in float32; 1.5 s on cpu in float32."


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, capfd):
    """`command("measure", ...)` gives exit status, stdout and stderr."""
    return typing(monkeypatch, capfd)


@pytest.fixture
def asked(monkeypatch, surveyed):
    """Grows with what surveys are asked for, which take no time."""
    found = []

    def taken(config, splits, *, echo=None, **options):
        found.append((config.recipe, config.batch_size, len(splits.train), options))
        return surveyed[0]

    monkeypatch.setattr(survey, "take", taken)
    return found


def test_measure_prints_a_table_and_writes_the_file(command, surveyed, asked, tmp_path):
    status, out, err = command("measure", "--out", "mine.json", "--set", "batch_size=8")
    assert asked.pop() == ("digits_quanv", 8, 1079, {"quick": False})
    assert (status, err) == (0, "") and out.rstrip().endswith(f"File: {tmp_path / 'mine.json'}")
    assert json.loads((tmp_path / "mine.json").read_bytes()) == surveyed[0]
    status, out, _ = command("measure", "--quick", "--json")
    assert asked.pop()[3] == {"quick": True}
    assert status == 0 and json.loads(out) == surveyed[0]
    assert [file.name for file in (tmp_path / "machines").iterdir()] == [surveyed[1].name]
    runs.open_run("run", "digits_quanv", batch_size=8, train_fraction=0.5)
    surveying.measure_machine(run_dir="run")
    assert asked[0][1:3] == (8, 540)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "batch_size=auto"], "`batch_size` must be a number here, but is 'auto'"),
        (["--out", "file/machine.json"], "a file is in its place"),
    ],
)
def test_a_bad_command_is_refused_before_minutes_are_spent(command, tmp_path, monkeypatch, words, told):
    monkeypatch.setattr(survey, "take", lambda *given, **options: pytest.fail("measured in vain"))
    (tmp_path / "file").write_text("mine")
    status, out, err = command("measure", *words)
    assert (status, out) == (2, "") and told in err and err.count("\n") == 1, err
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_is_surveyed():
    config = recipes.settings("digits_quanv")
    found = survey.take(config, recipes.of(config).load(config), quick=True)
    for what in ("bandwidth", "launch", "net update", "net memory"):
        assert rows_of(found, what, device="cuda:0")[0]["value"] > 0


@pytest.mark.mps
@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs MPS")
def test_a_mac_is_surveyed():
    config = recipes.settings("digits_quanv")
    found = survey.take(config, recipes.of(config).load(config), quick=True)
    assert {"cpu", "mps"} <= {row["device"] for row in found["rows"]}

"""The survey of a machine: its rows, its file, how it is read. No time is asserted."""

from __future__ import annotations

import getpass
import importlib
import json
import platform

import pytest
import torch

from qnnkit import measure, recipes, runs
from qnnkit.measure import clock, survey
from qnnkit.runs import nets
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
        return *nets.measure_machine("digits_quanv", settings, echo=told.append, quick=True), told


def rows_of(found, what, **settings):
    wanted = {"what": what, **settings}
    return [row for row in found["rows"] if wanted.items() <= row.items()]


# --- the rows ----------------------------------------------------------------------------------------------


def test_a_survey_is_flat_rows_and_a_table_with_the_recipes_own_net(surveyed):
    found, path, told = surveyed
    assert json.loads(path.read_bytes()) == found and path.name.endswith(".json")
    assert not any(isinstance(value, dict | list) for row in found["rows"] for value in row.values())
    names = ("bandwidth", "product", "launch", "net update", "net memory", "net epoch")
    values = {what: rows_of(found, what, device="cpu")[0]["value"] for what in names}
    assert min(values.values()) > 0 and values["net memory"] > 50e6, "Python and torch alone"
    assert values["net epoch"] == pytest.approx(1079 / 32 * values["net update"])
    assert found["net"] == {"recipe": "digits_quanv", "batch_size": 32, "n_samples": 1079}
    assert found["price_per_hour"] == 0.5 and found["busy"]["most"] >= 0 and len(told) >= 2
    text, facts = survey.table(found), found["machine"]
    assert all(part in " ".join(text.split()) for part in (*names, facts["name"], survey.fastest(found)))
    assert max(map(len, text.splitlines())) < 100, "which a page of 800 pixels shows whole"
    assert not {platform.node(), getpass.getuser()} & {*map(str, facts.values())}, "whose machine it is"
    name = "Intel(R) Xeon(R) CPU @ 2.00GHz, 2 cores, Colab"
    assert survey.default_place({"name": name}).name == "intel-xeon-cpu-2-00ghz-2-cores-colab.json"


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


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_captions_and_tokens_are_measured_as_images_are(tmp_path):
    captions = {"n_qubits": 2, "n_layers": 1, "patch_size": 8}
    tokens = {"sequence_length": 16, "vocabulary": 260, "adapter_weights": 3000}
    tokens["data_dir"] = str(texts(tmp_path))
    for recipe, settings in (("digits_clip", captions), ("text_adapter", tokens)):
        config = recipes.settings(recipe, batch_size=4, micro_batch=2, threads=1, **settings)
        splits = runs.Run(tmp_path, config).splits
        found = {row["what"]: row for row in survey.net_rows(config, splits, [(CPU, "float32")], 0.1)}
        each = found["net update"]["value"]
        assert found["net epoch"]["value"] == pytest.approx(len(splits.train) / 4 * each)


def test_a_busy_machine_is_said_first_and_kept(monkeypatch):
    told, config = [], recipes.settings("digits_quanv")
    monkeypatch.setattr(clock, "load", lambda: 1.5)
    monkeypatch.setattr(
        survey, "figures", lambda *given, **named: {"bandwidth_gb_s": 1, "overhead_us": 1, "tflops": {}}
    )
    monkeypatch.setattr(survey, "net_rows", lambda *given, **named: [])
    found = survey.take(config, recipes.of(config).load(config), echo=told.append)
    assert told[0] == found["busy"]["sentence"] == measure.note(1.5) and "1.5 of its" in told[0]
    assert found["busy"]["most"] == 1.5 and "The machine is busy" in survey.table(found)


OLD = {  # as earlier versions wrote it
    "machine": {"name": "Tesla T4", "cores": 2, "memory_bytes": 1, "system": "", "versions": {}},
    "rows": [
        {"what": f"net {what}", "device": where, "precision": "float32", "value": value, "spread": None}
        for what, where, value in (("epoch", "cpu", 1.5), ("epoch", "cuda:0", 0.5), ("memory", "cpu", 4e8))
    ],
}


def test_what_earlier_versions_measured_is_still_told():
    told = survey.fastest(OLD)
    assert told == "An epoch of the net: 0.50 s on cuda:0 in float32; 1.5 s on cpu in float32."


# --- the command -------------------------------------------------------------------------------------------


def test_measure_prints_a_table_and_writes_the_file(surveyed, tmp_path, monkeypatch, capfd):
    asked, command = [], typing(monkeypatch, capfd)

    def taken(config, splits, *, echo=None, **options):
        asked.append((config.recipe, config.batch_size, len(splits.train), options))
        return surveyed[0]

    monkeypatch.setattr(survey, "take", taken)
    status, out, err = command("measure", "--out", "mine.json", "--set", "batch_size=8")
    assert asked.pop() == ("digits_quanv", 8, 1079, {"quick": False})
    assert (status, err) == (0, "") and out.rstrip().endswith(f"File: {tmp_path / 'mine.json'}")
    assert json.loads((tmp_path / "mine.json").read_bytes()) == surveyed[0]
    status, out, _ = command("measure", "--quick", "--json")
    assert asked.pop()[3] == {"quick": True} and status == 0 and json.loads(out) == surveyed[0]
    for words, told in (
        (("--set", "batch_size=auto"), "`batch_size` must be a number here, but is 'auto'"),
        (("--out", "mine.json/machine.json"), "A file is in its place"),
    ):
        status, out, err = command("measure", *words)
        assert (status, out) == (2, "") and told in err and err.count("\n") == 1 and asked == []

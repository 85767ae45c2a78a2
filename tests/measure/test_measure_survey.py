"""The survey of a machine: its rows, its file, how it is read. No time is asserted."""

import getpass
import json
import platform
from pathlib import Path

import pytest
import torch

from qnnkit import measure, recipes
from qnnkit.measure import clock, survey
from tests.toys import typing


def test_a_survey_is_flat_rows_and_a_table_with_the_recipes_own_net(home, monkeypatch, capfd):
    """Taken by the command, while others use the machine."""
    command = typing(monkeypatch, capfd)
    monkeypatch.setattr(clock, "load", lambda: 1.5)
    words = ("measure", "--quick", "--set", "price_per_hour=0.5", "--out", "mine.json")
    status, out, err = command(*words, "--json")
    found = json.loads(out)
    assert status == 0 and json.loads((home / "mine.json").read_bytes()) == found
    assert not any(isinstance(value, dict | list) for row in found["rows"] for value in row.values())
    names = ("bandwidth", "product", "launch", "net update", "net memory", "net epoch")
    values = {row["what"]: row["value"] for row in found["rows"] if row["device"] == "cpu"}
    assert {*values} == {*names} and min(values.values()) > 0
    assert values["net epoch"] == pytest.approx(1079 / 32 * values["net update"])
    assert found["net"] == {"recipe": "digits_quanv", "batch_size": 32, "n_samples": 1079}
    assert found["price_per_hour"] == 0.5
    assert found["busy"] == {"most": 1.5, "sentence": measure.note(1.5)} and "1.5 of its" in measure.note(1.5)
    assert err.startswith(measure.note(1.5)), "it is said first"
    facts = found["machine"]
    assert not {platform.node(), getpass.getuser()} & {*map(str, facts.values())}, "whose machine it is"
    monkeypatch.setattr(survey, "take", lambda *given, **options: found)
    status, out, err = command("measure")
    text, _, path = out.rpartition("File: ")
    assert (status, err) == (0, "") and json.loads(Path(path.strip()).read_text()) == found
    parts = (*names, facts["name"], survey.fastest(found), found["busy"]["sentence"])
    assert all(part in " ".join(text.split()) for part in parts)
    assert max(map(len, text.splitlines())) < 100, "which a page of 800 pixels shows whole"


def test_what_cannot_be_measured_says_why():
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

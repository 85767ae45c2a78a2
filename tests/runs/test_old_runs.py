"""Run folders of an earlier version: one finished, one stopped in its second epoch of three."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from qnnkit import report, runs


@pytest.fixture
def home(home, monkeypatch):
    """A workspace with `mine.py` and its runs, runs/finished and runs/stopped."""
    with zipfile.ZipFile(Path(__file__).with_name("run_0_1.zip")) as archive:
        archive.extractall(home)
    (home / "runs" / "stopped" / ".train.lock").touch()  # no process holds it
    monkeypatch.chdir(home)
    return home


def test_an_old_finished_run_is_reported_and_used(home, monkeypatch):
    run = runs.open_run("runs/finished", "mine.py")
    before, status = run.result, runs.state.of_run("runs/finished")
    assert (status.state, status.row["net"]) == ("finished", "classical")
    assert runs.train_all(run) == list(run.tested().values()), "it trains again"
    seen, opened = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: seen.append(path.name) or opened(path))
    again = report.finish(run)
    assert seen.count("provenance.json") <= 3, "it repeats facts"
    assert again["nets"] == before["nets"] and again["config_digest"] == before["config_digest"]
    [row] = runs.predict("runs/finished", [np.zeros(3, np.float32)], recipe="mine.py")
    assert np.isfinite(row["output"]).all()


def test_an_old_stopped_run_resumes_to_the_same_numbers(home):
    run, finished = runs.open_run("runs/stopped", "mine.py"), runs.open_run("runs/finished", "mine.py")
    status, first = runs.state.of_run("runs/stopped"), runs.frame(run, "epoch")["train_loss"].tolist()
    assert (status.state, status.row["net"], status.row["epoch"]) == ("stopped", "hybrid", 2)
    finals = runs.train_all(run)
    losses = runs.frame(run, "epoch")["train_loss"].tolist()
    assert losses[: len(first)] == first and len(losses) == 6
    for row in finals:  # another processor rounds differently
        known = finished.tested()[row["net"], row["seed"]]
        assert row["test_r2"] == pytest.approx(known["test_r2"], abs=1e-4)

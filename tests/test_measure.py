"""Time as measured, and remembered: in the process, and in a workspace that is in use."""

import json
import time

import pytest
import torch

from qnnkit import measure, workspace

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setattr(measure.remembered, "_FOUND", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QNNKIT_HOME", raising=False)


def test_seconds_is_the_median_after_a_warm_up():
    pauses = iter([0.2, 0.0, 0.05, 0.0])
    assert 0 <= measure.seconds(lambda: time.sleep(next(pauses)), CPU, rounds=3) < 0.05
    assert next(pauses, None) is None, "one to warm up, three timed"


def test_a_question_is_measured_once(monkeypatch, tmp_path):
    asked = []

    def answer():
        asked.append(1)
        return {"batched": 0.5}

    question = {"circuit": "abc", **measure.machine(CPU)}
    assert measure.once(question, answer) == measure.once(question, answer) == {"batched": 0.5}
    assert len(asked) == 1 and not list(tmp_path.iterdir()), "a plain script leaves no files"
    measure.once({**question, "circuit": "abd"}, answer)
    assert len(asked) == 2

    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    measure.remembered._FOUND.clear()
    measure.once(question, answer)
    [file] = (tmp_path / "measured").iterdir()
    assert json.loads(file.read_text())["question"]["circuit"] == "abc"
    measure.remembered._FOUND.clear()  # another process
    assert measure.once(question, answer) == {"batched": 0.5} and len(asked) == 3
    file.write_text('{"seconds": {"batched"')
    measure.remembered._FOUND.clear()
    assert measure.once(question, answer) == {"batched": 0.5} and len(asked) == 4
    assert json.loads(file.read_text())["seconds"] == {"batched": 0.5}


def test_a_workspace_is_in_use_where_it_holds_runs(tmp_path):
    assert workspace.shelf("measured") is None
    (tmp_path / "runs").mkdir()
    assert workspace.shelf("measured") == tmp_path / "measured"


def test_a_workspace_that_cannot_be_written_is_no_reason_to_stop(monkeypatch, tmp_path):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    (tmp_path / "measured").write_text("a file in its place")
    assert measure.once({"circuit": "abc"}, lambda: {"batched": 0.5}) == {"batched": 0.5}


def test_the_peak_is_that_of_what_came_last(tmp_path):
    measure.reset_peak(CPU)
    before = measure.peak()
    large = torch.ones(64 * 2**20, dtype=torch.uint8)
    held = measure.peak()
    assert held - before > 0.9 * large.nbytes and measure.peak_on(CPU) == held
    assert abs(measure.resident() - held) < 16 * 2**20
    del large
    assert measure.peak() >= held, "a peak stays"
    if measure.memory.CLEAR.exists():
        measure.reset_peak(CPU)
        assert measure.peak() < held - 32 * 2**20, "until it is begun anew"

"""Time as measured, and remembered: in the process, and in a workspace that is in use."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from qnnkit import measure, workspace
from qnnkit.device import machine
from qnnkit.measure import busy

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
    kept = json.loads(file.read_text())
    assert kept["question"]["circuit"] == "abc" and 0 <= kept["busy"] <= machine.cores()
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


PEAKS = """
import torch
from qnnkit import measure

CPU = torch.device("cpu")
measure.reset_peak(CPU)
before = measure.peak()
large = torch.ones(64 * 2**20, dtype=torch.uint8)
held = measure.peak()
assert held - before > 0.9 * large.nbytes and measure.peak_on(CPU) == held, (before, held)
assert abs(measure.resident() - held) < 16 * 2**20
del large
assert measure.peak() > held - 2**20, "a peak stays, but for what Linux has not yet summed over the cores"
if measure.memory.CLEAR.exists():
    measure.reset_peak(CPU)
    assert measure.peak() < held - 32 * 2**20, "until it is begun anew"
"""


def test_the_peak_is_that_of_what_came_last():
    """In a process of its own: one that has run many tests gives memory back whenever it likes."""
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- how busy the machine is -------------------------------------------------------------------------------


@pytest.fixture
def spinning():
    """A program for every core, which does nothing but spin."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(machine.cores())]
    time.sleep(0.3)
    yield
    for program in programs:
        program.kill()
        program.wait()


def test_a_machine_that_is_busy_is_said_to_be(spinning):
    load = measure.load(0.5)
    assert load > 0.8 * machine.cores(), "they take turns with whatever else runs, and use all there is"
    told = measure.note(load)
    assert told and told.startswith("The machine is busy: other programs use ") and "measure again" in told


def test_own_work_is_nobody_elses(monkeypatch):
    """A process that itself keeps the cores busy, and others that leave them alone."""
    facts = SimpleNamespace(idle=0.0, own=0.0)

    def sleep(seconds):
        facts.idle += (machine.cores() - 1) * seconds
        facts.own += seconds

    clock = iter([0.0, 0.5])
    monkeypatch.setattr(busy.time, "sleep", sleep)
    monkeypatch.setattr(busy.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(busy, "_idle", lambda cores: facts.idle)
    monkeypatch.setattr(psutil.Process, "cpu_times", lambda self: (facts.own, 0.0))
    assert busy.load(0.5) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("idle", "used", "load"),
    [
        (32.0, 0.0, 0.0),  # of 64 cores half are free, and 2 are all that is asked for
        (1.0, 0.0, 1.0),  # one is free
        (32.0, 1.5, 1.5),  # the quota of 2 is used up by something else in this container
    ],
)
def test_a_container_has_what_the_others_leave(monkeypatch, tmp_path: Path, idle, used, load):
    (tmp_path / "cpu.max").write_text("200000 100000")
    stat, facts, clock = tmp_path / "cpu.stat", SimpleNamespace(idle=0.0), iter([0.0, 1.0])
    stat.write_text("usage_usec 1000000\nuser_usec 0\n")

    def sleep(seconds):
        facts.idle = idle
        stat.write_text(f"usage_usec {1000000 + int(1e6 * used)}\nuser_usec 0\n")

    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: list(range(64)), raising=False)
    monkeypatch.setattr(psutil.Process, "cpu_times", lambda self: (0.0, 0.0))
    monkeypatch.setattr(busy.time, "sleep", sleep)
    monkeypatch.setattr(busy.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(busy, "_idle", lambda cores: facts.idle)
    assert busy.load(1.0) == pytest.approx(load)
    assert (busy.note(busy.QUIET * 2) is None, busy.note(0.19)) == (False, None)

"""A day on Colab: set-up, notebooks 00 to 04, restarts, crashes, lost machines, a lost Drive.

The real kit runs on the stand-in machine of `tests/colab.py`. `make colab` runs all tests on a Python with
the versions of Colab's image (`colab_image.txt` in this folder); the default tests are the short ones, on
this Python.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.colab import Machine, machine_at, make_machine
from tests.forked import until

IMAGE = os.environ.get("QNNKIT_COLAB_IMAGE")
"""The Python of the image, set by `make colab`."""
SMALL = {"image_size": 8, "n_layers": 1, "epochs": 60 if IMAGE else 6, "n_seeds": 1, "train_fraction": 0.3}
SMALL |= {"controls": '["classical"]', "threads": 1, "device": "cpu"}
RUN = ("run", "--recipe", "digits_quanv", "--run-dir", "runs/first")
RUN += tuple(word for name, value in SMALL.items() for word in ("--set", f"{name}={value}"))
SHORT = () if IMAGE else ("--notebooks", "03_train")
"""Additional options of default tests: other notebooks train nothing."""


@pytest.fixture(scope="module")
def new_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fresh machine, which tests copy."""
    folder = tmp_path_factory.mktemp("image") / "new"
    return make_machine(folder, IMAGE or sys.executable, command=None).folder


def train(machine: Machine, *words: str) -> str:
    """Runs the training command, which must succeed; returns its output."""
    done = machine.run(machine.python, "-m", "qnnkit", *RUN, *words)
    assert done.returncode == 0 and "Report: " in done.stdout, done.stdout + done.stderr
    assert "frozen modules" not in done.stdout + done.stderr
    return done.stdout


def at_work(new_machine: Path, folder: Path) -> tuple[Machine, subprocess.Popen[str]]:
    """A machine that is set up, and the training command in a terminal on it."""
    machine = machine_at(new_machine, folder)
    machine.set_up()
    options: dict = {"cwd": machine.content, "env": machine.environment(), "start_new_session": True}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return machine, subprocess.Popen([machine.python, "-m", "qnnkit", *RUN], **options)


def wait_for(ready: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Waits until `ready`; the run may not end before."""
    until(lambda: ready() or process.poll() is not None, seconds=120)
    assert ready(), process.stdout.read()


def local_run(machine: Machine) -> Path:
    return Path(f"{machine.checkout}-local", "runs", "first")


def epochs(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count('"event": "epoch"') if path.exists() else 0


def kill(machine: Machine, process: subprocess.Popen[str]) -> None:
    """Ends every process at once, as a crash or the end of a machine does."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get("STAND_IN") == str(machine.folder):
                each.kill()
    process.communicate()


def scores(folder: Path) -> dict[tuple, float]:
    """All losses and accuracies of the training."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        (row["event"], row["net"], row["seed"], row.get("epoch"), name): value
        for row in rows
        if row["event"] in ("epoch", "test")
        for name, value in row.items()
        if name.endswith(("loss", "accuracy"))
    }


@pytest.fixture(scope="module")
def undisturbed(new_machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with a finished run that was never disturbed."""
    machine = machine_at(new_machine, tmp_path_factory.mktemp("undisturbed") / "machine")
    machine.set_up()
    train(machine, *SHORT)
    return machine


def test_a_run_reaches_drive(undisturbed: Machine) -> None:
    remote = undisturbed.workspace / "runs" / "first"
    names = [path.name[:2] for path in sorted((remote / "notebooks").glob("0*.ipynb"))]
    assert names == (["00", "01", "02", "03", "04", "04"] if IMAGE else ["03"])
    assert json.loads((remote / "result.json").read_text())
    assert scores(remote) == scores(local_run(undisturbed))


def test_the_run_is_there_after_a_restart(undisturbed: Machine) -> None:
    before = len(undisturbed.mounts())
    code = "from qnnkit import workspace; print(workspace.run_folder('runs/first') / 'result.json')"
    trace = {"GIT_TRACE": str(undisturbed.folder / "git.txt")}
    restarted = undisturbed.run_ipython(f"{undisturbed.first_cell()}\n{code}", **trace)
    assert restarted.stdout.strip() == str(local_run(undisturbed) / "result.json"), restarted.stderr
    assert len(undisturbed.mounts()) == before and undisturbed.fetched() == []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["crash", "lost in 03", "lost while mirroring"])
def test_a_crash_and_a_lost_machine(new_machine, undisturbed, tmp_path, when: str) -> None:
    machine, process = at_work(new_machine, tmp_path / "machine")
    remote = machine.workspace / "runs" / "first"
    if when == "lost while mirroring":  # a draft is on Drive
        wait_for(lambda: epochs(local_run(machine)) and list(remote.glob(".*")), process)
    else:
        wait_for(lambda: epochs(local_run(machine)) >= 2 and (remote / "config.json").exists(), process)
    kill(machine, process)
    if when != "crash":
        drive = Path(shutil.move(machine.folder / "gdrive", tmp_path / "drive"))
        shutil.rmtree(machine.folder)
        machine = machine_at(new_machine, tmp_path / "machine", drive)
        machine.set_up()
    train(machine)
    assert scores(remote) == scores(local_run(undisturbed))


@pytest.mark.slow
def test_a_second_notebook_is_refused_and_a_lost_drive_comes_back(new_machine, undisturbed, tmp_path):
    machine, process = at_work(new_machine, tmp_path / "machine")
    wait_for(lambda: epochs(local_run(machine)), process)
    process.send_signal(signal.SIGSTOP)  # the first is at work, however long the second takes
    second = machine.run(machine.python, "-m", "qnnkit", *RUN)
    process.send_signal(signal.SIGCONT)
    assert second.returncode != 0 and "process" in second.stdout + second.stderr
    mount = machine.lose_drive()
    at = epochs(local_run(machine))
    wait_for(lambda: epochs(local_run(machine)) > at or process.poll() is not None, process)
    out = process.communicate(timeout=300)[0]
    assert list(mount.iterdir()) == [], "files were written below the mount point"
    assert "Drive is not mounted" in out or "waits" in out
    again = machine.run_ipython(machine.first_cell())
    assert again.returncode == 0 and (mount / "MyDrive").is_symlink(), again.stdout + again.stderr
    train(machine)
    assert scores(machine.workspace / "runs" / "first") == scores(local_run(undisturbed))

"""A day on Colab: set-up, notebooks 00 to 04, restarts, crashes, lost machines, a Drive that drops.

The kit runs as it is, on the stand-in machine of `tests/colab.py`. `make colab` runs all of it on a Python
with the versions of Colab's image (`colab_image.txt` here) and says what happened in each situation;
the default tests run the short ones on this Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.colab import Machine, make_machine, without_address

IMAGE = os.environ.get("QNNKIT_COLAB_IMAGE")
"""The Python of the image, which `make colab` names."""
EPOCHS = f"epochs={60 if IMAGE else 6}"
TINY = ("image_size=8", "n_layers=1", EPOCHS, "n_seeds=1", 'controls=["classical"]', "train_fraction=0.3")
RUN = ("run", "--recipe", "digits_quanv", "--run-dir", "runs/first", *(w for s in TINY for w in ("--set", s)))


@pytest.fixture(scope="module")
def new_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a machine that nothing was done on yet, to be copied."""
    return make_machine(
        tmp_path_factory.mktemp("image") / "new", IMAGE or sys.executable, command=None
    ).folder


@pytest.fixture(scope="module")
def told() -> Iterator[Callable[[str, str], None]]:
    """Collects a line for each situation, which are printed in the end."""
    lines: list[str] = []
    yield lambda situation, happened: lines.append(f"| {situation} | {happened} |")
    print("\n| situation | what happened |\n|---|---|", *lines, sep="\n")


def machine_at(new_machine: Path, folder: Path, drive: Path | None = None) -> Machine:
    """A new Colab machine, with what lies on a Drive already."""
    machine = Machine(Path(shutil.copytree(new_machine, folder, symlinks=True)))
    if drive is not None:
        (machine.folder / "gdrive").symlink_to(drive)
    return machine


def set_up(machine: Machine) -> None:
    """Runs the first cell of a notebook, as Colab would."""
    machine.publish({"colab_setup.ipynb": machine.here(Path("colab_setup.ipynb").read_text())})
    done = machine.run_ipython(machine.first_cell(), QNNKIT_REPOSITORY=machine.repository)
    assert done.returncode == 0, done.stdout + done.stderr


def qnnkit(machine: Machine, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return machine.run(machine.python, "-m", "qnnkit", *words, **variables)


def at_work(new_machine: Path, folder: Path) -> tuple[Machine, subprocess.Popen[str]]:
    """A machine that is set up, and the run's command in a terminal of it."""
    machine = machine_at(new_machine, folder)
    set_up(machine)
    command = [machine.python, "-m", "qnnkit", *RUN]
    return machine, subprocess.Popen(
        command, cwd=machine.content, env=machine.environment(), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for(
    ready: Callable[[], Any], process: subprocess.Popen[str] | None = None, most: float = 120
) -> Any:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if found := ready():
            return found
        assert process is None or process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def local_run(machine: Machine) -> Path:
    return Path(f"{machine.checkout}-local", "runs", "first")


def epochs(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count('"event": "epoch"') if path.exists() else 0


def kill(machine: Machine, process: subprocess.Popen[str]) -> None:
    """What a crash, or the end of a machine, does: every process of it ends at once."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get("STAND_IN") == str(machine.folder):
                each.kill()
    process.communicate()


def scores(folder: Path) -> dict[str, Any]:
    """All losses and accuracies that training wrote."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["event"] in ("epoch", "test")]
    return {
        f"{row['event']} {row['net']} {row['seed']} {row.get('epoch')}": {
            name: value for name, value in row.items() if name.endswith(("loss", "accuracy"))
        }
        for row in rows
    }


@pytest.fixture(scope="module")
def undisturbed(new_machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine on which the run went through."""
    machine = machine_at(new_machine, tmp_path_factory.mktemp("undisturbed") / "machine")
    set_up(machine)
    done = qnnkit(machine, *RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "frozen modules" not in done.stdout + done.stderr
    return machine


def test_a_run_reaches_drive(undisturbed: Machine, told: Callable) -> None:
    kept = undisturbed.workspace / "runs" / "first"
    names = [path.name for path in sorted((kept / "notebooks").glob("0*.ipynb"))]
    assert [name[:2] for name in names] == ["00", "01", "02", "03", "04", "04"]
    assert json.loads((kept / "result.json").read_text()) and scores(kept) == scores(local_run(undisturbed))
    told("set-up, notebooks 00 to 04", "finished; the run folder is on Drive, read back and equal")


def test_after_a_restart_the_run_is_found(undisturbed: Machine, told: Callable) -> None:
    before = len(undisturbed.mounts())
    again = qnnkit(undisturbed, *RUN)
    assert again.returncode == 0 and "done in" not in again.stdout and "Report: " in again.stdout, (
        again.stdout
    )
    code = "from qnnkit import runs; print(runs.open_run('runs/first').result is not None)"
    restarted = undisturbed.run_ipython(f"{undisturbed.first_cell()}\n{code}")
    assert restarted.stdout.splitlines()[-1] == "True", restarted.stdout + restarted.stderr
    assert len(undisturbed.mounts()) == before
    told("Restart session, a terminal, another notebook", "the same run; nothing is trained or mounted again")


@pytest.mark.slow
def test_a_crash_in_the_middle_of_03(new_machine, undisturbed, tmp_path, told) -> None:
    machine, process = at_work(new_machine, tmp_path / "machine")
    at = wait_for(lambda: epochs(local_run(machine)), process)
    kill(machine, process)
    done = qnnkit(machine, *RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert scores(local_run(machine)) == scores(local_run(undisturbed))
    told("a crash in 03", f"killed after epoch {at}; the same command finished it, with the same numbers")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["03", "mirroring"])
def test_a_machine_that_is_lost(new_machine, undisturbed, tmp_path, told, when: str) -> None:
    machine, process = at_work(new_machine, tmp_path / "machine")
    kept = machine.workspace / "runs" / "first"
    if when == "03":
        wait_for(lambda: epochs(local_run(machine)) >= 2 and (kept / "config.json").exists(), process)
    else:  # a draft lies on Drive
        wait_for(lambda: epochs(local_run(machine)) and list(kept.glob(".*")), process)
    kill(machine, process)
    drive = Path(shutil.move(machine.folder / "gdrive", tmp_path / "drive"))
    shutil.rmtree(machine.folder)
    new = machine_at(new_machine, tmp_path / "machine", drive)
    set_up(new)
    done = qnnkit(new, *RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert scores(new.workspace / "runs" / "first") == scores(local_run(undisturbed))
    told(f"the machine is lost in {when}", "a new machine went on from Drive, with the same numbers")


@pytest.mark.slow
def test_two_notebooks_on_one_machine(new_machine, undisturbed, tmp_path, told) -> None:
    machine, first = at_work(new_machine, tmp_path / "machine")
    wait_for(lambda: epochs(local_run(machine)), first)
    second = qnnkit(machine, *RUN)
    assert second.returncode != 0 and "process" in second.stdout + second.stderr
    out = first.communicate(timeout=300)[0]
    assert first.returncode == 0, out
    assert scores(local_run(machine)) == scores(local_run(undisturbed))
    last = (second.stdout + second.stderr).strip().splitlines()[-1]
    told("two notebooks on one run", f"the second is refused: {last[:120]}")


@pytest.mark.slow
def test_drive_drops_and_comes_back(new_machine, undisturbed, tmp_path, told) -> None:
    machine, process = at_work(new_machine, tmp_path / "machine")
    wait_for(lambda: epochs(local_run(machine)), process)
    mount = machine.lose_drive()
    at = epochs(local_run(machine))
    wait_for(lambda: epochs(local_run(machine)) > at or process.poll() is not None)
    out = process.communicate(timeout=300)[0]
    assert list(mount.iterdir()) == [], "something was written below the mount point"
    said = next(line for line in out.splitlines() if "Drive is not mounted" in line or "waits" in line)
    told("Drive drops in 03", f"nothing is written below its mount point; it is said: {said[:160]}")
    again = machine.run_ipython(machine.first_cell())
    assert again.returncode == 0 and (mount / "MyDrive").is_symlink(), again.stdout + again.stderr
    done = qnnkit(machine, *RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert scores(machine.workspace / "runs" / "first") == scores(local_run(undisturbed))
    told(
        "Drive is mounted again", "the same command finished the run; its copy on Drive has the same numbers"
    )


@pytest.mark.slow
def test_what_bars_drive_is_moved_aside(new_machine, tmp_path, told) -> None:
    machine = machine_at(new_machine, tmp_path / "machine")
    (machine.content / "drive" / "features").mkdir(parents=True)
    set_up(machine)
    [kept] = Path(f"{machine.checkout}-local").glob("found_below_drive_*")
    assert [path.name for path in kept.iterdir()] == ["features"]
    told("files lie below Drive's mount point", "set-up moved them into the local workspace, and named them")


@pytest.mark.slow
def test_a_numbered_notebook_in_the_image(new_machine, tmp_path, told) -> None:
    """Cells out of order: the set-up cell comes after a cell that failed for want of it."""
    machine = machine_at(new_machine, tmp_path / "machine")
    machine.publish({"colab_setup.ipynb": machine.here(Path("colab_setup.ipynb").read_text())})
    code = "try:\n    import qnnkit.workspace\nexcept ImportError:\n    print('none yet')\n"
    code += f"{machine.first_cell()}\n"
    code += "from qnnkit import workspace\nprint(workspace.home())"
    done = machine.run_ipython(without_address(code), QNNKIT_REPOSITORY=machine.repository)
    assert done.stdout.splitlines()[-1] == str(machine.workspace), done.stdout + done.stderr
    told("cells out of order", "the first cell, run late, leaves the same state")


@pytest.mark.slow
def test_a_run_that_a_laptop_hands_to_colab(new_machine, undisturbed, tmp_path, told) -> None:
    """`colab run` copies the script to the machine, and shows what it prints."""
    machine = machine_at(new_machine, tmp_path / "machine")
    laptop = tmp_path / "laptop"
    machine.git(machine.content, "clone", "--quiet", machine.repository, str(laptop))
    written = subprocess.run(
        [machine.python, "-m", "qnnkit", *RUN, "--on", "colab"], cwd=laptop, env=machine.environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert written.stdout.startswith("Wrote first_on_colab.py. Start it by: colab run --gpu T4"), written
    done = machine.run(machine.python, laptop / "first_on_colab.py", QNNKIT_CONTENT=str(machine.content))
    assert done.returncode == 0, done.stdout + done.stderr
    packed = machine.content / "runs_first.zip"
    assert f"The run folder is packed. Fetch it by: colab download {packed} ." in done.stdout
    shutil.unpack_archive(packed, laptop)
    assert scores(laptop / "runs" / "first") == scores(local_run(undisturbed))
    told("qnnkit run --on colab", "the script gave the same command, and packed a run with the same numbers")

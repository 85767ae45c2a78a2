"""Kills trainings (also mirrored ones), notebook chains and batches at random moments; compares outcomes.

tests/runs/test_torture.py does so a few times, `make torture` many times. Real processes get SIGKILL, and the
same command runs again.
"""

import contextlib
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from qnnkit import runs
from qnnkit.checkpoint import Store
from qnnkit.runs import lock
from tests import forked
from tests.same import same
from tests.toys import TINY, pictures

TIMES = ("seconds", "seconds_per_epoch", "peak_memory")
"""Columns that differ between any two runs."""


def outcome(folder: Path) -> dict:
    """All results of a run except times: rows, weights at the best epoch, and the state to resume from."""
    run = runs.open_run(folder)
    numbers: dict = {}
    rows = [row for row in run.rows("metrics") if row["event"] in ("epoch", "test")]  # others contain times
    for row in rows:  # an epoch that was computed twice has two rows
        key = (row["event"], row["net"], row["seed"], row.get("epoch"))
        numbers[key] = {name: value for name, value in row.items() if name not in TIMES}
    for net in run.nets:
        for seed in run.seeds:
            numbers[net, seed] = dict(runs.trained(run, net, seed).state_dict())
            state = Store(run.checkpoints(net, seed), run.identity(net, seed)).restore()
            assert state is not None
            numbers[net, seed, "state"] = {"model": state["model"], "optimizer": state["optimizer"]}
    return numbers


def kill(process: Any, generator: random.Random | None = None) -> None:
    """SIGKILL for a process and all its children, like a power cut; or for a randomly chosen one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family if generator is None else [generator.choice(family)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


def torture_command(
    folder: Path,
    words: list[str],
    n_kills: int,
    generator: random.Random,
    compare: Callable[[Path], None],
    longest: float = 12.0,
    mirrored: bool = False,
) -> dict[str, int]:
    """Runs `qnnkit WORDS` again and again in workspaces below `folder`, killed within `longest` seconds.

    Every third time one of its processes is killed first: a run, a kernel, or the server that forks them. If
    it is mirrored, every other kill also loses the local copy. After at most ten kills the command may
    finish, and `compare` gets the workspace.
    """
    killed, finished, machine, log = 0, 0, folder / "machine", folder / "killed.log"
    while killed < n_kills:
        home, left = folder / f"killed-{finished}", min(10, n_kills - killed)
        home.mkdir()
        environment = {"OMP_NUM_THREADS": "1", "QNNKIT_HOME": str(home)}
        environment |= {"QNNKIT_LOCAL": str(machine)} if mirrored else {}
        while True:
            process = forked.start("qnnkit", *words, log=log, env=environment)
            if left <= 0:
                assert process.wait(600) == 0, f"{words} failed; see {log}:\n{log.read_text()[-2000:]}"
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert process.wait(generator.uniform(0.1, longest)) == 0, f"{words} failed; see {log}"
                break
            if left % 3 == 0:
                kill(process, generator)
                time.sleep(generator.uniform(0, longest / 6))
            if process.poll() is None:
                kill(process)
                killed, left = killed + 1, left - 1
            process.wait()
            if left % 2:
                shutil.rmtree(machine, ignore_errors=True)
        shutil.rmtree(machine, ignore_errors=True)
        compare(home)
        finished += 1
    return {"kills": killed, "finished": finished}


SETTINGS: dict[str, Any] = {**TINY, "save_every_steps": 1}


def torture_run(
    folder: Path, n_kills: int, generator: random.Random, command: str = "run", mirrored: bool = False
) -> dict[str, int]:
    """Kills a run's command and its kernels, and compares the result with an undisturbed training.

    Args:
        folder: Folder for all files.
        n_kills: Minimum number of kills.
        generator: Chooses the moments.
        command: "run" executes the notebooks, "train" trains alone.
        mirrored: Whether the workspace is on Drive behind a local copy.
    """
    short = {"epochs": 4 if command == "run" else 12, "data_dir": str(pictures(folder / "pictures"))}
    settings, words = SETTINGS | short, [command, "--recipe", "folder_quanv", "--run-dir", "killed"]
    straight = runs.open_run(folder / "straight", "folder_quanv", **settings)
    runs.train_all(straight)
    for name, value in settings.items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]

    def compare(home: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("QNNKIT_HOME", str(home))
            if mirrored:  # as another machine
                patched.setenv("QNNKIT_LOCAL", str(folder / "machine"))
            assert same(outcome(Path("killed")), outcome(straight.folder)), home
            if mirrored:  # otherwise this process would go on mirroring the next workspace's folder
                lock._end(folder / "machine" / "killed", None, None, None)
        if command == "run":
            result, finals = json.loads((home / "killed" / "result.json").read_text()), runs.frame(straight)
            for row in result["nets"]:
                assert row["scores"] == finals[finals["net"] == row["net"]]["test_accuracy"].tolist()
        assert not list((home / "killed").rglob("*.running.ipynb"))

    longest = 12.0 if command == "run" else 3.0
    return torture_command(folder, words, n_kills, generator, compare, longest, mirrored)


def torture_batch(folder: Path, n_kills: int, generator: random.Random) -> dict[str, int]:
    """Kills a batch of two runs at a time, its runs and their kernels."""
    settings = SETTINGS | {"epochs": 3, "data_dir": str(pictures(folder / "pictures"))}
    spec = {"name": "torture", "recipe": "folder_quanv", "settings": settings, "seeds": [0, 1, 2]}
    spec |= {"workers": 2, "retries": 3, "notebooks": ["03_train"]}
    (folder / "batch.yaml").write_text(json.dumps(spec))  # JSON is YAML
    straight = {}
    for seed in spec["seeds"]:
        run = runs.open_run(folder / f"straight-{seed}", "folder_quanv", **settings, seed=seed)
        runs.train_all(run)
        straight[seed] = outcome(run.folder)

    def compare(home: Path) -> None:
        outcomes = {runs.open_run(each).config.seed: outcome(each) for each in (home / "runs").iterdir()}
        assert same(outcomes, straight), home

    return torture_command(folder, ["batch", str(folder / "batch.yaml")], n_kills, generator, compare)


KINDS: dict[str, Callable[[Path, int, random.Random], dict[str, int]]] = {
    "training": partial(torture_run, command="train"),
    "mirrored": partial(torture_run, command="train", mirrored=True),
    "chain": torture_run,
    "batch": torture_batch,
}

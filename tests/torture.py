"""Kills trainings (mirrored ones too), notebook chains and batches at random moments, and compares outcomes.

`make torture` does so many times; tests/runs/test_torture.py a few. Nothing is simulated: real processes get
SIGKILL, and the same command is given again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from qnnkit import runs
from qnnkit.checkpoint import Store
from tests import forked
from tests.same import same

TINY = {"image_size": 6, "n_layers": 1, "hidden": 2, "batch_size": 4, "n_seeds": 1}
TIMES = ("seconds", "seconds_per_epoch", "peak_memory", "peak_ram")
"""What no two runs have in common."""


def pictures(folder: Path) -> Path:
    """Twelve 6x6 images in each of two class folders: bright above, or bright below."""
    generator = random.Random(0)
    for name in ("above", "below"):
        (folder / name).mkdir(parents=True)
        for i in range(12):
            bright = [120 * ((row < 3) == (name == "above")) for row in range(6) for _ in range(6)]
            image = Image.new("L", (6, 6))
            image.putdata([level + generator.randrange(100) for level in bright])
            image.save(folder / name / f"{i}.png")
    return folder


def outcome(folder: Path) -> dict:
    """All that a run came to but its times: rows, weights at the best epoch, and the state to go on from."""
    run = runs.open_run(folder)
    found: dict = {}
    rows = [row for row in run.rows("metrics") if row["event"] in ("epoch", "test")]  # others tell times
    for row in rows:  # an epoch that was computed twice is there twice
        key = (row["event"], row["net"], row["seed"], row.get("epoch"))
        found[key] = {name: value for name, value in row.items() if name not in TIMES}
    for net in run.nets:
        for seed in run.seeds:
            found[net, seed] = dict(runs.trained(run, net, seed).state_dict())
            state = Store(run.checkpoints(net, seed), run.identity(net, seed)).restore()
            assert state is not None
            found[net, seed, "state"] = {"model": state["model"], "optimizer": state["optimizer"]}
    return found


def kill(process: Any, generator: random.Random | None = None) -> None:
    """SIGKILL for a process and all below it, as a machine is switched off; or for one that is drawn."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family if generator is None else [generator.choice(family)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


def torture_command(
    folder: Path, words: list[str], n_kills: int, generator: random.Random, compare: Callable[[Path], None]
) -> dict[str, int]:
    """Gives `qnnkit WORDS` again and again in workspaces below `folder`, killed at random moments.

    Every third time one process of it is killed first: a run, a kernel, or what these are forked from. After
    at most ten kills it is left in peace, and `compare` is given the workspace.
    """
    killed = finished = 0
    while killed < n_kills:
        home, log, left = folder / f"killed-{finished}", folder / "killed.log", min(10, n_kills - killed)
        home.mkdir()
        environment = {"OMP_NUM_THREADS": "1", "QNNKIT_HOME": str(home)}
        while True:
            process = forked.start("qnnkit", *words, log=log, env=environment)
            if left <= 0:
                assert process.wait(600) == 0, f"{words} failed; see {log}:\n{log.read_text()[-2000:]}"
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert process.wait(generator.uniform(0.1, 12)) == 0, f"{words} failed; see {log}"
                break
            if left % 3 == 0:
                kill(process, generator)
                time.sleep(generator.uniform(0, 2))
            if process.poll() is None:
                kill(process)
                killed, left = killed + 1, left - 1
            process.wait()
        compare(home)
        finished += 1
    return {"kills": killed, "finished": finished}


# Forked children, so that what is killed is the work and not, nine times in ten, the import of torch. A
# moment below 1 is seconds; above, it counts what touches files: when something could be half done.
FORKED = """
import json, os, shutil, signal, sys, threading, time
import accelerate, torch, torch._dynamo, torch._inductor
from qnnkit import runs

torch.set_num_threads(1)
moment, seen = 0.0, 0
FILES = ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir")

def audit(event, arguments):
    global seen
    if moment > 1 and event in FILES and arguments and "torture" in str(arguments[0]):
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)

def later():
    time.sleep(moment)
    os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(audit)
settings = json.loads(sys.argv[2])
for folder, moments, lost in json.loads(sys.argv[1]):
    for turn, chosen in enumerate([*moments, 0]):
        if lost and turn % 2:
            shutil.rmtree(lost, ignore_errors=True)  # the machine is gone, and another goes on
        child = os.fork()
        if not child:
            moment = chosen
            if 0 < moment < 1:
                threading.Thread(target=later, daemon=True).start()
            for final in runs.train_all(runs.open_run(folder, "folder_quanv", **settings)):
                pass
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
        print("killed" if status else "ended", flush=True)
"""


def torture_training(
    folder: Path, n_kills: int, generator: random.Random, lost: str | None = None
) -> dict[str, int]:
    """Trains undisturbed, then under `n_kills` kills or a few more: at times, or at file operations.

    Every other time the folder `lost` is deleted before the training is resumed.
    """
    settings = {**TINY, "epochs": 6, "controls": ["classical"], "save_every_steps": 1}
    settings["data_dir"] = str(pictures(folder / "torture-pictures"))

    def place(name: str) -> str:
        return f"runs/{name}" if lost else str(folder / name)

    def moment() -> float:
        return generator.uniform(0.01, 0.99) if generator.random() < 0.5 else generator.randrange(2, 250)

    straight, killed, folders = place("torture-straight"), 0, []
    work: list[tuple[str, list[float], str | None]] = [(straight, [], None)]
    while killed < n_kills:
        if folders:
            work = [(folders[-1], [moment() for _ in range(4)], lost)]
        command = [sys.executable, "-c", FORKED, json.dumps(work), json.dumps(settings)]
        done = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        killed += done.stdout.count("killed")
        assert not folders or same(outcome(Path(folders[-1])), outcome(Path(straight))), folders[-1]
        folders.append(place(f"torture-{len(folders)}"))
    return {"kills": killed, "trainings": len(folders) - 1}


def torture_mirrored(folder: Path, n_kills: int, generator: random.Random) -> dict[str, int]:
    """Trainings on Drive behind a local copy, which is lost with the machine at every other kill."""
    drive, machine = folder / "torture-drive", folder / "torture-machine"
    drive.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QNNKIT_HOME", str(drive))
        patched.setenv("QNNKIT_LOCAL", str(machine))
        found = torture_training(folder, n_kills, generator, lost=str(machine))
        here = outcome(Path("runs/torture-0"))
        shutil.rmtree(machine)
        assert same(outcome(Path("runs/torture-0")), here), "Drive has another outcome"
    return found


def torture_chain(folder: Path, n_kills: int, generator: random.Random) -> dict[str, int]:
    """The notebooks under kills of `qnnkit run` and its kernel, compared with an undisturbed training."""
    settings = {**TINY, "epochs": 4, "controls": ["classical"], "save_every_steps": 1}
    settings["data_dir"] = str(pictures(folder / "pictures"))
    straight = runs.open_run(folder / "straight", "folder_quanv", **settings)
    for _ in runs.train_all(straight):
        pass
    words = ["run", "--recipe", "folder_quanv", "--run-dir", "killed"]
    for name, value in settings.items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]

    def compare(home: Path) -> None:
        assert same(outcome(home / "killed"), outcome(straight.folder)), home
        result, finals = json.loads((home / "killed" / "result.json").read_text()), straight.finals()
        for row in result["nets"]:
            assert row["scores"] == finals[finals["net"] == row["net"]]["test_accuracy"].tolist()
        assert not list((home / "killed").rglob("*.running.ipynb"))

    return torture_command(folder, words, n_kills, generator, compare)


def torture_batch(folder: Path, n_kills: int, generator: random.Random) -> dict[str, int]:
    """A batch of two at a time under kills of the whole, of its runs and of their kernels."""
    settings = {**TINY, "epochs": 3, "controls": ["classical"], "save_every_steps": 1}
    settings["data_dir"] = str(pictures(folder / "pictures"))
    spec = {"name": "torture", "recipe": "folder_quanv", "settings": settings, "seeds": [0, 1, 2]}
    spec |= {"workers": 2, "retries": 3, "notebooks": ["03_train"]}
    (folder / "batch.yaml").write_text(json.dumps(spec))  # JSON is YAML
    straight = {}
    for seed in spec["seeds"]:
        run = runs.open_run(folder / f"straight-{seed}", "folder_quanv", **settings, seed=seed)
        for _ in runs.train_all(run):
            pass
        straight[seed] = outcome(run.folder)

    def compare(home: Path) -> None:
        found = {runs.open_run(each).config.seed: outcome(each) for each in (home / "runs").iterdir()}
        assert found.keys() == straight.keys(), home
        for seed, one in found.items():
            assert same(one, straight[seed]), f"seed {seed} of {home} differs"

    return torture_command(folder, ["batch", str(folder / "batch.yaml")], n_kills, generator, compare)


KINDS = {
    "training": torture_training,
    "mirrored": torture_mirrored,
    "chain": torture_chain,
    "batch": torture_batch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, action="append")
    asked = parser.parse_args()
    for kind in asked.only or KINDS:
        folder = Path(tempfile.mkdtemp(prefix=f"torture-{kind}-"))
        start = time.monotonic()
        told = KINDS[kind](folder, asked.kills, random.Random(asked.seed))
        print(f"{kind}: {told}, every outcome equal, {time.monotonic() - start:.0f} s", flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

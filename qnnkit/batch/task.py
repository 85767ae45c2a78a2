"""One run as a worker of Dask does it: a process of its own, stopped when it is no longer wanted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qnnkit import warm, workspace
from qnnkit.runs import state

LOOK = 0.5  # seconds between two looks at whether a run is still wanted
GRACE = 90.0  # seconds that a run has to write its checkpoint and end
IN_USE = "is in use"  # what runs.lock says of a folder that is taken
_in_use, _choosing = Counter[str](), threading.Lock()  # GPUs of this process, for the runs of its workers
THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")


@dataclass(frozen=True)
class Job:
    """All that a worker is told about a run; plain values, for it may be another machine."""

    id: str
    folder: str
    words: tuple[str, ...]  # of `qnnkit run`
    batch: str  # folder of the batch
    session: str  # of the command that wants it
    home: str
    threads: int
    gpus: int = 0  # that it has to itself

    def unwanted(self) -> str | None:
        """ "stopped" or "pruned" once the run is no longer wanted."""
        try:
            found = json.loads((Path(self.batch) / state.SESSION).read_bytes())
        except FileNotFoundError:
            return "stopped"
        except (OSError, ValueError):  # a disk that does not answer now
            return None
        if found["id"] != self.session:
            return "stopped"
        return "pruned" if self.id in found["pruned"] else None


def execute(job: Job) -> tuple[str, str]:
    """Runs `job` to its end: "finished", "failed", "pruned", "stopped" or "blind", and why.

    After its worker was killed, or beside a batch with the same run, it waits until nobody has the folder,
    and goes on from the newest checkpoint.
    """
    folder = Path(job.folder)
    if not Path(job.batch).is_dir():
        return "blind", f"A worker does not see `{job.batch}`. Set QNNKIT_HOME to a folder that all share."
    while True:
        asked = job.unwanted()
        if state.finished(folder):
            return "finished", ""
        if asked is not None:
            return asked, ""
        error = _attempt(job, workspace.make_folder(folder) / "run.log")
        if IN_USE not in error and job.unwanted() is None and not state.finished(folder):
            return "failed", error


def _attempt(job: Job, log: Path) -> str:
    """Runs the process until it ends or is unwanted; how it ended, as it says in the log."""
    command = [sys.executable, "-m", "qnnkit", "run", "--run-dir", job.folder, *job.words]
    begin = log.stat().st_size if log.exists() else 0
    with _gpus(job.gpus) as gpus:
        # In a session of its own: Ctrl-C reaches the batch alone, which then asks its runs to stop.
        process = warm.start(command, _environment(job) | gpus, log)
        try:
            while process.poll() is None and job.unwanted() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK)
        finally:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()  # its kernel follows by itself
                process.wait()
    return sentence(log, begin, process.returncode)


def visible_gpus() -> list[str]:
    """Names by which a process can be given each GPU that this one sees."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


@contextlib.contextmanager
def _gpus(n: int) -> Iterator[dict[str, str]]:
    """The variable that gives a run `n` of the GPUs that its worker sees, those that fewest runs have."""
    with _choosing:
        chosen = sorted(visible_gpus() if n else [], key=_in_use.__getitem__)[:n]
        _in_use.update(chosen)
    try:
        yield {"CUDA_VISIBLE_DEVICES": ",".join(chosen)} if chosen else {}
    finally:
        with _choosing:
            _in_use.subtract(chosen)


def _environment(job: Job) -> dict[str, str]:
    """The worker's, with the run's share of the cores."""
    import qnnkit

    found = os.environ | {f"{name}_NUM_THREADS": str(job.threads) for name in THREADS}
    found |= {"QNNKIT_HOME": job.home, "QNNKIT_STOP_WITH_PARENT": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    root = Path(qnnkit.__file__).parent.parent
    if root.name not in ("site-packages", "dist-packages"):  # a checkout that only sys.path knows
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), found.get("PYTHONPATH")]))
    return found


def sentence(log: Path, begin: int, status: int) -> str:
    """Why an attempt ended, as it said itself in the log."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    told = [line.removeprefix("qnnkit: ") for line in lines if line.startswith("qnnkit: ")]
    if told:
        return told[-1]
    if status < 0:
        name = signal.Signals(-status).name
        hint = " Memory may have run out: use fewer workers." if name == "SIGKILL" else ""
        return f"The run was ended from outside ({name}).{hint} Its log is {log}."
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"The run stopped with exit status {status}: {last} Its log is {log}."

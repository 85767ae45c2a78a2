"""One run as a worker does it: a process of its own, watched, stopped when it is no longer wanted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnkit import workspace
from qnnkit.batch import state

LOOK = 1.0  # seconds between two looks at whether a run is still wanted
GRACE = 90.0  # seconds that a run has to write its checkpoint and end
IN_USE = "is in use"  # what runs.lock says of a folder that is taken
THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")


@dataclass(frozen=True)
class Job:
    """All that a worker is told about a run; plain values, for it may be another machine."""

    id: str
    recipe: str
    folder: str
    words: tuple[str, ...]
    batch: str  # folder of the batch
    home: str
    session: str
    attempts: int  # so far
    threads: int

    @property
    def control(self) -> Path:
        return state.control(Path(self.batch))

    def stop_asked(self) -> str | None:
        """ "stopped" or "pruned" once the run is no longer wanted."""
        if (self.control / f"stop-{self.id}").exists():
            return "pruned"
        return None if state.session(Path(self.batch)) == self.session else "stopped"


def dask_setup(worker: Any) -> None:
    """Called by Dask as a worker starts: Ctrl-C in a terminal is the batch's to answer, not the worker's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def execute(job: Job) -> dict[str, Any]:
    """Runs `job` to its end, and says how it ended: finished, failed, pruned or stopped.

    Called again after its worker was killed, it first ends what that worker left behind; the run then goes
    on from its checkpoint.
    """
    folder, start = Path(job.folder), time.monotonic()
    mark = job.control / f"running-{job.id}"
    while True:
        asked = job.stop_asked()
        if state.finished(folder):
            return _ended("finished", start)
        if asked is not None:
            return _leave(job, asked, start)
        _end_leftover(mark)
        (folder / "failed.json").unlink(missing_ok=True)
        log = workspace.make_folder(folder) / "run.log"
        begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            process = subprocess.Popen(
                _command(job),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(job),
                start_new_session=True,  # Ctrl-C reaches the batch alone, which then asks its runs to stop
            )
        try:
            _write_mark(mark, job, process.pid)
            asked = _watch(job, process, mark)
        finally:
            if process.poll() is None:
                _end(process.pid, GRACE)
                process.wait()
            mark.unlink(missing_ok=True)
        if state.finished(folder):
            return _ended("finished", start)
        if asked is not None:
            return _leave(job, asked, start)
        error = _sentence(log, begin, process.returncode)
        if IN_USE in error:  # by a run of another batch, which may finish it
            _pause(job, 5.0)
            continue
        return _fail(job, "failed", error, start)


def _ended(how: str, start: float, error: str | None = None) -> dict[str, Any]:
    return {"state": how, "error": error, "seconds": time.monotonic() - start}


def _leave(job: Job, asked: str, start: float) -> dict[str, Any]:
    if asked == "pruned":
        return _fail(job, "pruned", "Stopped early: worse than other runs at the same epoch.", start)
    return _ended(asked, start)


def _fail(job: Job, how: str, error: str, start: float) -> dict[str, Any]:
    attempts = job.attempts + (how == "failed")
    state.write_failure(Path(job.folder), how, error, attempts)
    return _ended(how, start, error)


def _command(job: Job) -> list[str]:
    command = [sys.executable, "-m", "qnnkit", "run", "--run-dir", job.folder, "--recipe", job.recipe]
    for word in (*job.words, f"threads={job.threads}"):
        command += ["--set", word]
    return command


def _environment(job: Job) -> dict[str, str]:
    """The worker's, with its share of the cores; its GPUs are in it already."""
    import qnnkit

    found = dict(os.environ)
    found |= {f"{name}_NUM_THREADS": str(job.threads) for name in THREADS}
    found |= {"QNNKIT_HOME": job.home, "QNNKIT_STOP_WITH_PARENT": str(os.getpid())}
    found["PYTHONUNBUFFERED"] = "1"
    root = Path(qnnkit.__file__).parent.parent
    if root.name not in ("site-packages", "dist-packages"):  # a checkout that only sys.path knows
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), found.get("PYTHONPATH")]))
    return found


def _watch(job: Job, process: subprocess.Popen[bytes], mark: Path) -> str | None:
    """Waits for the process; ends it, and says why, once the run is no longer wanted."""
    last = time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        if time.monotonic() - last >= LOOK:
            last = time.monotonic()
            if asked := job.stop_asked():
                _end(process.pid, GRACE)
                process.wait()
                return asked
            if mark.exists():
                os.utime(mark)
    return None


def _pause(job: Job, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and job.stop_asked() is None:
        time.sleep(0.5)


def _write_mark(mark: Path, job: Job, pid: int) -> None:
    import psutil

    created = psutil.Process(pid).create_time()
    place = {"host": socket.gethostname(), "pid": pid, "created": created}
    workspace.write_json(mark, {"session": job.session, "started": time.time(), **place})


def _end_leftover(mark: Path) -> None:
    """Ends the process that a killed worker of this machine left behind, should it still be there."""
    import psutil

    left = state.read_json(mark)
    if left is None or left.get("host") != socket.gethostname():
        return
    try:
        same = psutil.Process(left["pid"]).create_time() == left["created"]
    except psutil.NoSuchProcess:
        return
    if same:
        _end(left["pid"], GRACE)


def _end(pid: int, grace: float) -> None:
    """Asks a process to end, waits, then kills what is left of it and of what it started."""
    import psutil

    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        process.send_signal(signal.SIGTERM)
    except psutil.NoSuchProcess:
        return
    psutil.wait_procs([process], timeout=grace)
    _, left = psutil.wait_procs(family, timeout=2)
    for each in left:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=5)


def _sentence(log: Path, begin: int, status: int) -> str:
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

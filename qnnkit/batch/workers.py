"""Workers that execute the runs of a batch, each in its own process: threads here, or Dask workers."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnkit import checks, warm, words, workspace
from qnnkit.batch.batch_file import BatchConfig, Planned, count
from qnnkit.device import machine
from qnnkit.runs import rows, state

RUN_BYTES = 1.2e9
"""Memory to keep free for each run: its process and kernel took 0.9 GB (Linux, PyTorch for CPUs)."""
TIMEOUT = 15.0
"""Seconds that a scheduler has to answer, and then to provide a worker."""
GONE = "The scheduler is gone. Finished runs are kept. Start it, then run the same command again."
LOOK = 0.5  # seconds between two checks that a run is still wanted
GRACE = 90.0  # seconds that a run has to write its checkpoint and end
IN_USE = "is in use"  # part of the message of runs.lock about a locked folder
_in_use, _choosing = Counter[str](), threading.Lock()  # number of this process's runs on each GPU


@dataclass(frozen=True)
class Pool:
    """Workers that each execute one run at a time."""

    executor: Executor
    slots: Callable[[], int]
    """How many runs can be executed at once now; raises ConnectionError if the scheduler is gone."""
    threads: int
    """Most CPU threads of a run."""


def need(module: str, extra: str) -> Any:
    """Imports and returns `module`.

    Raises:
        ModuleNotFoundError: The extra that contains it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        sentence = f"This batch needs {module}, which is not installed. Run: pip install 'qnnkit[{extra}]'."
        raise ModuleNotFoundError(sentence, name=error.name) from None


def shares(config: BatchConfig, wanted: int | None, gpus: int) -> tuple[int, int]:
    """Returns how many runs to execute at once, and the CPU threads of each; together at most all cores.

    Args:
        config: The batch.
        wanted: Threads that its runs request; None if they take their share.
        gpus: Number of GPUs.

    Raises:
        ValueError: There are fewer GPUs than a run, or the workers, need.
    """
    cores = machine.cores()
    fit = min(cores // (wanted or 1), int(machine.memory()[1] / RUN_BYTES))
    if config.gpus_per_run:
        fit = gpus // config.gpus_per_run
        if fit < (config.workers or 1):
            rule = f"fit the {gpus} GPUs of this machine"
            value = f"{config.gpus_per_run} for each of {config.workers or 1} workers"
            raise ValueError(checks.message("gpus_per_run", rule, value, "Use fewer, or leave it out."))
    workers = config.workers or max(1, min(fit, count(config)))
    return workers, max(1, cores // workers)


@contextlib.contextmanager
def opened(config: BatchConfig, runs: Iterable[Planned], scheduler: Any = None) -> Iterator[Pool]:
    """Opens the workers of a batch.

    Args:
        config: The batch.
        runs: Some of its runs, at least one of each recipe.
        scheduler: The address of a Dask scheduler, a Dask cluster, or None for threads of this process.

    Raises:
        ConnectionError: No scheduler answers there, or it has no workers.
        ValueError: There are fewer GPUs than a run, or the workers, need.
    """
    threads = [run.config.threads for run in runs]
    wanted = max(filter(None, threads)) if all(isinstance(n, int) for n in threads) else None
    if scheduler is None:
        gpus = len(visible_gpus()) if config.gpus_per_run else 0
        workers, share = shares(config, wanted, gpus)
        with ThreadPoolExecutor(workers) as executor:
            yield Pool(executor, lambda: workers, share)
    else:
        with _connected(scheduler) as client:
            executor = client.get_executor(pure=False)
            yield Pool(executor, lambda: _slots(client), wanted or 1)


@contextlib.contextmanager
def _connected(scheduler: Any) -> Iterator[Any]:
    """Opens a Dask client that has workers; restores the state of Python's random numbers at the end."""
    distributed = need("distributed", "cluster")
    with contextlib.ExitStack() as opened:
        opened.callback(random.setstate, random.getstate())
        try:
            client = distributed.Client(scheduler, set_as_default=False, timeout=TIMEOUT)
            opened.enter_context(client).wait_for_workers(1, timeout=TIMEOUT)
        except (OSError, TimeoutError, ValueError, TypeError) as error:
            where = scheduler if isinstance(scheduler, str) else scheduler.scheduler_address
            step = f"Start them with `dask scheduler` and `dask worker {where} --nthreads 1`."
            message = f"No scheduler with a worker answers at {where} ({words.first_line(error)}). {step}"
            raise ConnectionError(message) from None
        yield client


def _slots(client: Any) -> int:
    """Returns how many runs the workers of a scheduler can execute at once; workers may come and go."""
    workers = client.scheduler_info(n_workers=-1).get("workers")
    if client.status != "running" or workers is None:
        raise ConnectionError(GONE)
    return sum(worker["nthreads"] for worker in workers.values())


# --- one run, by a worker -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a worker needs to execute a run: plain values, since it may be on another machine."""

    folder: str
    words: tuple[str, ...]  # arguments of `qnnkit run`
    variables: Mapping[str, str]  # environment variables, added to those of the worker
    gpus: int  # number of GPUs reserved for it
    batch: str  # folder of the batch
    command: str  # id of the command that submitted it

    def unwanted(self) -> bool:
        """Whether the command has ended or has pruned the run."""
        try:
            session = json.loads((Path(self.batch) / state.SESSION).read_bytes())
        except FileNotFoundError:
            return True
        except (OSError, ValueError):  # a disk that does not answer now
            return False
        failure = rows.facts(Path(self.folder), "failed.json")
        return session["id"] != self.command or failure.get("state") == "pruned"


def execute(job: Job) -> tuple[str, str]:
    """Executes a run; returns "finished", "failed" or, once it is unwanted, "pruned", and why it failed.

    If another process holds the run folder (of a killed batch, or of another batch), it waits until that
    process ends, and resumes from the newest checkpoint.

    Raises:
        ConnectionError: This machine cannot access the folder of the batch.
    """
    folder = Path(job.folder)
    if not Path(job.batch).is_dir():
        step = "Set QNNKIT_HOME to a folder that all machines share."
        raise ConnectionError(f"A worker does not see `{job.batch}`. {step}")
    error, result = "", folder / "result.json"  # on Drive, if the run is worked on elsewhere
    while not job.unwanted() and not (error and result.exists()):
        if error and IN_USE not in error:
            return "failed", error
        error = _attempt(job, workspace.make_folder(folder) / "run.log")
    return ("finished" if result.exists() else "pruned"), ""


def _attempt(job: Job, log: Path) -> str:
    """Executes a process until it ends or is unwanted; returns why it ended, as read from its log."""
    command = [sys.executable, "-m", "qnnkit", "run", "--run-dir", job.folder, *job.words]
    begin = log.stat().st_size if log.exists() else 0
    variables = os.environ | job.variables | {warm.PARENT: str(os.getpid())}
    with _gpus(job.gpus) as gpus:
        # In its own session: Ctrl-C reaches only the batch, which then stops its runs.
        process = warm.start(command, variables | gpus, log)
        try:
            while process.poll() is None and not job.unwanted():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK)
        finally:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()  # its kernel ends by itself
                process.wait()
    return reason(log, begin, process.returncode)


def visible_gpus() -> list[str]:
    """Returns the name of each GPU that this process sees, as CUDA_VISIBLE_DEVICES takes it."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


@contextlib.contextmanager
def _gpus(n: int) -> Iterator[dict[str, str]]:
    """Yields the environment variable that gives a run the `n` least used GPUs of this process."""
    with _choosing:
        chosen = sorted(visible_gpus() if n else [], key=_in_use.__getitem__)[:n]
        _in_use.update(chosen)
    try:
        yield {"CUDA_VISIBLE_DEVICES": ",".join(chosen)} if chosen else {}
    finally:
        with _choosing:
            _in_use.subtract(chosen)


def reason(log: Path, begin: int, status: int) -> str:
    """Returns why an attempt ended, as read from its log after byte `begin`."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    if sentences := [line for line in lines if line.startswith("qnnkit: ")]:
        return sentences[-1].removeprefix("qnnkit: ")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing").rstrip(".")
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"stopped with status {status}"
    hint = " Memory may have run out: use fewer workers." if status == -signal.SIGKILL else ""
    return f"The run {how}: {last}.{hint} Its log is {log}."

"""Who executes the runs of a batch, each in a process of its own: threads here, or Dask workers elsewhere."""

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
"""Seconds that a scheduler has to answer, and then to have a worker."""
GONE = "The scheduler is gone. Finished runs are kept. Start it, then type the same command again."
LOOK = 0.5  # seconds between two looks at whether a run is still wanted
GRACE = 90.0  # seconds that a run has to write its checkpoint and end
IN_USE = "is in use"  # what runs.lock says of a folder that is taken
_in_use, _choosing = Counter[str](), threading.Lock()  # GPUs that runs of this process have


@dataclass(frozen=True)
class Pool:
    """Workers that each execute one run at a time."""

    executor: Executor
    slots: Callable[[], int]
    """How many runs can run at once right now; raises ConnectionError if the scheduler is gone."""
    threads: int
    """CPU threads of each run, at most."""


def need(module: str, extra: str) -> Any:
    """`module`, imported now.

    Raises:
        ModuleNotFoundError: The extra that brings it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        sentence = f"This batch needs {module}, which is not installed. Type: pip install 'qnnkit[{extra}]'."
        raise ModuleNotFoundError(sentence, name=error.name) from None


def shares(config: BatchConfig, wanted: int | None, gpus: int) -> tuple[int, int]:
    """How many runs at once, and the CPU threads of each: together no more than the cores.

    Args:
        config: The batch.
        wanted: Threads that its runs ask for; None if they take what is there.
        gpus: How many GPUs there are.

    Raises:
        ValueError: There are fewer GPUs than a run, or the workers, ask for.
    """
    cores = machine.cores()
    fit = min(cores // (wanted or 1), int(machine.memory()[1] / RUN_BYTES))
    if config.gpus_per_run:
        fit = gpus // config.gpus_per_run
        if fit < (config.workers or 1):
            rule = f"fit the {gpus} GPUs of this machine"
            value = f"{config.gpus_per_run} for each of {config.workers or 1} workers"
            raise ValueError(checks.message("gpus_per_run", rule, value, "Ask for fewer, or leave it out."))
    workers = config.workers or max(1, min(fit, count(config)))
    return workers, max(1, cores // workers)


@contextlib.contextmanager
def opened(config: BatchConfig, runs: Iterable[Planned], scheduler: Any = None) -> Iterator[Pool]:
    """The workers of a batch.

    Args:
        config: The batch.
        runs: Some of its runs, of every recipe.
        scheduler: The address of a Dask scheduler, a Dask cluster, or None for threads of this process.

    Raises:
        ConnectionError: No scheduler answers there, or it has no workers.
        ValueError: There are fewer GPUs than a run, or the workers, ask for.
    """
    threads = [run.config.threads for run in runs]
    wanted = max(filter(None, threads)) if all(isinstance(each, int) for each in threads) else None
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
    """A client of Dask's that has workers; Python's random numbers are as before in the end."""
    distributed = need("distributed", "cluster")
    with contextlib.ExitStack() as opened:
        opened.callback(random.setstate, random.getstate())
        try:
            client = distributed.Client(scheduler, set_as_default=False, timeout=TIMEOUT)
            opened.enter_context(client).wait_for_workers(1, timeout=TIMEOUT)
        except (OSError, TimeoutError, ValueError, TypeError) as error:
            where = scheduler if isinstance(scheduler, str) else scheduler.scheduler_address
            step = f"Start them by `dask scheduler` and `dask worker {where} --nthreads 1`."
            message = f"No scheduler with a worker answers at {where} ({words.first_line(error)}). {step}"
            raise ConnectionError(message) from None
        yield client


def _slots(client: Any) -> int:
    """How many runs the workers of a scheduler can take; they may come and go."""
    workers = client.scheduler_info(n_workers=-1).get("workers")
    if client.status != "running" or workers is None:
        raise ConnectionError(GONE)
    return sum(each["nthreads"] for each in workers.values())


# --- one run, by a worker -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know of a run: plain values, since it may be on another machine."""

    folder: str
    words: tuple[str, ...]  # of `qnnkit run`
    variables: Mapping[str, str]  # of its environment, next to the worker's own
    gpus: int  # that it has to itself
    batch: str  # folder of the batch
    command: str  # id of the command that wants it

    def unwanted(self) -> bool:
        """Whether the command has ended, or has given the run up."""
        try:
            session = json.loads((Path(self.batch) / state.SESSION).read_bytes())
        except FileNotFoundError:
            return True
        except (OSError, ValueError):  # a disk that does not answer now
            return False
        failure = rows.facts(Path(self.folder), "failed.json")
        return session["id"] != self.command or failure.get("state") == "pruned"


def execute(job: Job) -> tuple[str, str]:
    """Runs `job` to its end: "finished", "failed" or, once it is unwanted, "pruned"; and why it failed.

    If another process holds the run folder (of a batch that was killed, or of another one), it waits until
    that one ends, and resumes from the newest checkpoint.

    Raises:
        ConnectionError: This machine does not see the folder of the batch.
    """
    folder = Path(job.folder)
    if not Path(job.batch).is_dir():
        step = "Set QNNKIT_HOME to a folder that all share."
        raise ConnectionError(f"A worker does not see `{job.batch}`. {step}")
    error, result = "", folder / "result.json"  # on Drive, if a run runs elsewhere
    while not job.unwanted() and not (error and result.exists()):
        if error and IN_USE not in error:
            return "failed", error
        error = _attempt(job, workspace.make_folder(folder) / "run.log")
    return ("finished" if result.exists() else "pruned"), ""


def _attempt(job: Job, log: Path) -> str:
    """Runs the process until it ends or is unwanted; returns why it ended, as its log says."""
    command = [sys.executable, "-m", "qnnkit", "run", "--run-dir", job.folder, *job.words]
    begin = log.stat().st_size if log.exists() else 0
    variables = os.environ | job.variables | {warm.PARENT: str(os.getpid())}
    with _gpus(job.gpus) as gpus:
        # In a session of its own: Ctrl-C reaches the batch alone, which then asks its runs to stop.
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
    """Names by which a process can be given each GPU that this one sees."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


@contextlib.contextmanager
def _gpus(n: int) -> Iterator[dict[str, str]]:
    """The variable that gives a run `n` of the GPUs that this process sees, those that fewest runs have."""
    with _choosing:
        chosen = sorted(visible_gpus() if n else [], key=_in_use.__getitem__)[:n]
        _in_use.update(chosen)
    try:
        yield {"CUDA_VISIBLE_DEVICES": ",".join(chosen)} if chosen else {}
    finally:
        with _choosing:
            _in_use.subtract(chosen)


def reason(log: Path, begin: int, status: int) -> str:
    """Why an attempt ended, as its log says from byte `begin` on."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    if sentences := [line for line in lines if line.startswith("qnnkit: ")]:
        return sentences[-1].removeprefix("qnnkit: ")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    how = f"was ended from outside ({signal.Signals(-status).name})" if status < 0 else f"stopped ({status})"
    hint = " Memory may have run out: use fewer workers." if status == -signal.SIGKILL else ""
    return f"The run {how}: {last}{hint} Its log is {log}."

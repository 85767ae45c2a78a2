"""Where runs are run: threads of this process that each wait for one, or workers that a person has."""

from __future__ import annotations

import contextlib
import importlib
import logging
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from qnnkit import checks
from qnnkit.batch import task
from qnnkit.batch.batch_file import BatchConfig, Planned, count
from qnnkit.device import machine

RUN_BYTES = 1.2e9
"""Memory to keep free for each run: its process and kernel took 0.9 GB, on Linux with PyTorch for CPUs."""
GONE = "The scheduler is gone. What has finished is kept; the same command goes on once one is there again."
TIMEOUT = 15.0  # seconds that a scheduler elsewhere has to answer


@dataclass(frozen=True)
class Pool:
    """Workers that take runs."""

    client: Any
    threads: int
    """CPU threads of each run, at most."""
    gpus_per_run: int
    where: str = ""

    def submit(self, job: task.Job) -> Any:
        """A future of how `job` ended."""
        resources = {"GPU": self.gpus_per_run} if self.gpus_per_run else None
        return self.client.submit(task.execute, job, pure=False, resources=resources)

    def slots(self) -> int:
        """How many runs can run at once right now; workers may come and go.

        Raises:
            ConnectionError: The scheduler is gone.
        """
        found = self.client.scheduler_info(n_workers=-1).get("workers")
        if self.client.status != "running" or found is None:
            raise ConnectionError(GONE)
        if not self.gpus_per_run:
            return sum(each["nthreads"] for each in found.values())
        return sum(int(each["resources"].get("GPU", 0)) // self.gpus_per_run for each in found.values())

    def require_workers(self) -> None:
        """Raises ConnectionError where nobody takes a run."""
        try:
            self.client.wait_for_workers(1, timeout=TIMEOUT)
        except TimeoutError:
            step = f"Start some: dask worker {self.where} --nthreads 1."
            raise ConnectionError(f"The scheduler at {self.where} has no workers. {step}") from None


def need(module: str, extra: str) -> Any:
    """`module`, imported now.

    Raises:
        ModuleNotFoundError: The extra that brings it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        told = f"A batch needs {module}, which is not installed. Type: pip install 'qnnkit[{extra}]'."
        raise ModuleNotFoundError(told, name=error.name) from None


def shares(config: BatchConfig, wanted: int | None, gpus: int) -> tuple[int, int]:
    """How many workers, and how many threads each of their runs takes: together no more than the cores.

    Args:
        config: The batch.
        wanted: Threads that its runs ask for; None takes what is there.
        gpus: How many GPUs there are.

    Raises:
        ValueError: There are fewer GPUs than a run, or the workers, ask for.
    """
    most = machine.cores()
    if config.gpus_per_run:
        fit = gpus // config.gpus_per_run
        if fit < (config.workers or 1):
            rule = f"fit the {gpus} GPUs of this machine"
            value = f"{config.gpus_per_run} for each of {config.workers or 1} workers"
            raise ValueError(checks.message("gpus_per_run", rule, value, "Ask for fewer, or leave it out."))
    else:
        fit = min(most // (config.threads or wanted or 1), int(machine.memory()[1] / RUN_BYTES))
    workers = config.workers or max(1, min(fit, count(config)))
    return workers, config.threads or max(1, most // workers)


@contextlib.contextmanager
def opened(config: BatchConfig, runs: Iterable[Planned], scheduler: Any) -> Iterator[Pool]:
    """The workers of a scheduler that a person started, or of this process, which listen nowhere.

    Args:
        config: The batch.
        runs: Some of its runs, of every recipe.
        scheduler: An address, a cluster of Dask's, or None.

    Raises:
        ConnectionError: No scheduler answers there.
        ValueError: There are fewer GPUs than a run, or the workers, ask for.
    """
    distributed = need("distributed", "cluster")
    asked = [run.config.threads for run in runs]
    wanted = max(filter(None, asked)) if all(isinstance(each, int) for each in asked) else None
    with _unnoticed(), contextlib.ExitStack() as stack:
        threads, each = config.threads or wanted or 1, config.gpus_per_run
        if scheduler is None:
            workers, threads = shares(config, wanted, len(task.visible_gpus()) if each else 0)
            scheduler = stack.enter_context(_inside(distributed, workers, {"GPU": each} if each else None))
        where = scheduler if isinstance(scheduler, str) else scheduler.scheduler_address
        arguments = distributed.Security().get_connection_args("client")
        if isinstance(scheduler, str) and where.startswith("tls://") and arguments["ssl_context"] is None:
            step = "Name its files in Dask's configuration, under distributed.comm.tls."
            told = f"The scheduler at {where} asks for a certificate, and Dask has none here. {step}"
            raise ConnectionError(told)
        try:
            client = distributed.Client(scheduler, set_as_default=False, timeout=TIMEOUT)
        except (OSError, TimeoutError, ValueError) as error:
            step = "Start one there with `dask scheduler`, or leave --scheduler out."
            told = f"No scheduler answers at {where} ({type(error).__name__}). {step}"
            raise ConnectionError(told) from None
        yield Pool(stack.enter_context(client), threads, each, where)


def _inside(distributed: Any, workers: int, resources: dict[str, int] | None) -> Any:
    """As a LocalCluster(processes=False), which would open ports for pages on its nodes."""
    options = {"protocol": "inproc://", "dashboard": False}
    # Runs are processes of their own, so the memory of this one says nothing.
    worker = {**options, "nthreads": 1, "memory_limit": 0, "resources": resources}
    return distributed.SpecCluster(
        scheduler={"cls": _unserved(distributed.Scheduler), "options": options},
        workers={i: {"cls": _unserved(distributed.Worker), "options": worker} for i in range(workers)},
        silence_logs=logging.CRITICAL,
    )


def _unserved(node: Any) -> Any:
    """A scheduler or worker of Dask that opens no port for pages on itself."""
    return type(node.__name__, (node,), {"start_http_server": lambda *given, **options: None})


@contextlib.contextmanager
def _unnoticed() -> Iterator[None]:
    """Dask leaves no trace: no messages of workers that come and go, no draws from Python's generator."""
    drawn = random.getstate()
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio", "optuna")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
        random.setstate(drawn)

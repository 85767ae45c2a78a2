"""Where runs are run: worker processes of Dask, on this machine or on those that a person has."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import random
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.batch import state, task
from qnnkit.batch.plan import BatchConfig
from qnnkit.device import machine

LOOPBACK = "127.0.0.1"
RUN_BYTES = 1.2e9
"""Memory to keep free for each run: its process and kernel took 0.9 GB, on Linux with PyTorch for CPUs."""
DEATHS = 100  # of workers, after which Dask gives a run up; a run does not kill its worker, people do
GONE = "The scheduler is gone. What has finished is kept; the same command goes on once one is there again."
TIMEOUT = 15.0  # seconds that a scheduler elsewhere has to answer


@dataclass
class Pool:
    """Workers that take runs."""

    client: Any
    gpus_per_run: int
    _asked: float = -math.inf
    _slots: int = 0

    def submit(self, job: task.Job) -> Any:
        """A future of how `job` ended."""
        resources = {"GPU": self.gpus_per_run} if self.gpus_per_run else None
        return self.client.submit(task.execute, job, pure=False, resources=resources, retries=0)

    def slots(self) -> int:
        """How many runs can run at once right now; workers may come and go."""
        if time.monotonic() - self._asked > 1:
            self.require_alive()
            workers = self.client.scheduler_info(n_workers=-1).get("workers")
            if workers is None:  # what is left when the connection breaks in the middle of the question
                raise ConnectionError(GONE)
            self._asked, self._slots = time.monotonic(), sum(map(self._room, workers.values()))
        return self._slots

    def _room(self, worker: dict[str, Any]) -> int:
        if self.gpus_per_run:
            return int(worker["resources"].get("GPU", 0)) // self.gpus_per_run
        return worker["nthreads"]

    def require_alive(self) -> None:
        """Raises ConnectionError once the scheduler is gone."""
        if self.client.status != "running":
            raise ConnectionError(GONE)


def need(module: str, extra: str) -> Any:
    """`module`, imported now.

    Raises:
        ModuleNotFoundError: The extra that brings it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"A batch needs {module}, which is not installed. Type: pip install 'qnnkit[{extra}]'.",
            name=error.name,
        ) from None


def shares(config: BatchConfig, wanted: int | None, runs: int, gpus: int) -> tuple[int, int]:
    """How many workers, and how many threads each of their runs takes: together no more than the cores.

    Args:
        config: The batch.
        wanted: Threads that the recipe asks for.
        runs: How many runs there are.
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
        fit = max(1, most // (config.threads or wanted or 1))
        fit = min(fit, max(1, int(machine.memory()[1] / RUN_BYTES)))
    workers = config.workers or max(1, min(fit, runs))
    return workers, config.threads or max(1, most // workers)


def visible_gpus() -> list[str]:
    """Names by which a process can be given each GPU of this machine."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


@contextlib.contextmanager
def local(config: BatchConfig, workers: int, listen: str, echo: Callable[[str], None]) -> Iterator[Pool]:
    """A scheduler in this process and one worker process per run at a time; killed ones are replaced."""
    dask, distributed = need("dask", "cluster"), need("distributed", "cluster")
    settings = {
        "distributed.scheduler.allowed-failures": DEATHS,
        "distributed.nanny.pre-spawn-environ": {},  # threads are set for each run
        "distributed.nanny.environ": {},
    }
    with (
        _unnoticed(),
        dask.config.set(settings),
        tempfile.TemporaryDirectory(prefix="qnnkit-batch-", ignore_cleanup_errors=True) as scratch,
        distributed.SpecCluster(
            scheduler={
                "cls": distributed.Scheduler,
                "options": {
                    "host": listen,
                    "port": 0,
                    "dashboard": True,
                    "dashboard_address": f"{listen}:{_free_port(listen, 8787)}",
                },
            },
            workers={
                index: {
                    "cls": distributed.Nanny,
                    "options": {
                        "host": LOOPBACK if listen == LOOPBACK else None,
                        "nthreads": 1,
                        "memory_limit": 0,  # runs are processes of their own; Dask would measure the worker
                        "local_directory": scratch,
                        "silence_logs": logging.CRITICAL,
                        "dashboard": False,
                        "preload": task.__name__,
                        **_gpus(config, index),
                    },
                }
                for index in range(workers)
            },
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        echo(f"Scheduler: {cluster.scheduler_address}   Dashboard: {_dashboard(cluster.dashboard_link)}")
        yield Pool(client, config.gpus_per_run)


def _gpus(config: BatchConfig, index: int) -> dict[str, Any]:
    if not config.gpus_per_run:
        return {}
    own = visible_gpus()[index * config.gpus_per_run : (index + 1) * config.gpus_per_run]
    return {"env": {"CUDA_VISIBLE_DEVICES": ",".join(own)}, "resources": {"GPU": config.gpus_per_run}}


@contextlib.contextmanager
def remote(
    config: BatchConfig, address: str, batch: Path, session: str, echo: Callable[[str], None]
) -> Iterator[Pool]:
    """The workers of a scheduler that a person started; they must see the folder of the batch.

    Raises:
        ConnectionError: No scheduler answers there, it has no workers, or they cannot see the folder.
    """
    distributed = need("distributed", "cluster")
    with _unnoticed():
        try:
            client = distributed.Client(address, set_as_default=False, timeout=TIMEOUT)
        except (OSError, TimeoutError, ValueError) as error:
            raise ConnectionError(
                f"No scheduler answers at {address} ({type(error).__name__}). Start one there with `dask "
                "scheduler`, or leave --scheduler out."
            ) from None
        with client:
            try:
                client.wait_for_workers(1, timeout=TIMEOUT)
            except TimeoutError:
                raise ConnectionError(
                    f"The scheduler at {address} has no workers. Start some: dask worker {address} "
                    "--nthreads 1."
                ) from None
            _require_shared(client, batch, session)
            echo(f"Scheduler: {address}   Dashboard: {_dashboard(client.dashboard_link)}")
            yield Pool(client, config.gpus_per_run)


def _require_shared(client: Any, batch: Path, session: str) -> None:
    """A worker that lacks qnnkit, or sees another disk, would fail every run."""
    try:
        seen = client.run(state.session, batch, on_error="return")
    except Exception as error:
        raise ConnectionError(f"The workers cannot be asked ({error}). Start them anew.") from None
    for worker, found in seen.items():
        if isinstance(found, Exception):
            raise ConnectionError(
                f"Worker {worker} cannot use qnnkit ({found}). Install the same qnnkit there."
            )
        if found != session:
            raise ConnectionError(
                f"Worker {worker} does not see `{batch}`. Set QNNKIT_HOME to a folder that all machines "
                "share."
            )


def _dashboard(link: str) -> str:
    return link.removesuffix("/status") + "/status" if link else "none"


def _free_port(host: str, wanted: int) -> int:
    """`wanted`, where it is free; else 0, which takes any."""
    with socket.socket() as probe:
        try:
            probe.bind((host, wanted))
        except OSError:
            return 0
    return wanted


@contextlib.contextmanager
def _unnoticed() -> Iterator[None]:
    """Dask leaves no trace: no messages of workers that come and go, no draws from Python's generator."""
    drawn = random.getstate()
    names = ["distributed", "tornado", "bokeh", "asyncio"]
    loggers = [logging.getLogger(name) for name in names]
    loggers += [
        logger
        for name, logger in logging.Logger.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and name.startswith(("distributed.", "tornado.", "bokeh."))
    ]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            # Between our look at a port and Dask's, another may have taken it; Dask then takes another.
            warnings.filterwarnings("ignore", "(?s)Port .* is already in use")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
        random.setstate(drawn)

"""Executes a batch from its file to its last run: finished runs are kept, unfinished ones resume."""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import yaml

from qnnkit import recipes, workspace
from qnnkit.batch import batch_file, search, workers
from qnnkit.batch.batch_file import BatchConfig, Planned
from qnnkit.batch.table import Shown
from qnnkit.runs import state
from qnnkit.runs.lock import alone
from qnnkit.runs.state import State

LOOK = 1.0  # seconds between two reads of the runs' folders
THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
PRUNED = "Stopped early: worse than other runs at the same epoch."


def run_batch(
    source: str | Path | Mapping[str, Any],
    *,
    folder: str | Path | None = None,
    scheduler: Any = None,
    echo: Callable[[str], None] | None = None,
) -> list[State]:
    """Executes the runs of a batch that have not finished yet; after a kill at any moment it resumes them.

    Args:
        source: Path of a YAML file, or a dictionary with the same keys.
        folder: The batch's folder; None: batches/<name> of the workspace.
        scheduler: Address of a Dask scheduler, such as tls://host:port, or a Dask cluster; None executes the
            runs on this machine and opens no port.
        echo: Called with a line for each change; None prints it.

    Returns:
        The final state of each run. A failed run never stops the others.

    Raises:
        ValueError: The batch cannot be run; nothing has been written.
        OSError: A file cannot be read or written, or no scheduler answers.
        ModuleNotFoundError: The extra `cluster` for a scheduler, or `sweep` for a sampler, is not installed.
        KeyboardInterrupt: Ctrl-C; runs have stopped and written their checkpoints.
    """
    config = batch_file.read_config(source)
    runs, batch = batch_file.plan(config), batch_folder(config, folder)
    if config.optuna:
        workers.need("optuna", "sweep")
    with workers.opened(config, runs, scheduler) as pool:
        workspace.make_folder(batch)
        with alone(batch, "batch"):
            values = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
            text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
            workspace.write_bytes(batch / "batch.yaml", text.encode())
            kind = search.Study if config.optuna else search.Listed
            queue = kind(config, batch, runs, recipes.of(runs[0].config).task(runs[0].config).score)
            progress = Shown(batch, echo)
            progress.line(_summary(config, runs))
            Command(config, batch, pool, progress).finish(queue)
    return state.of_batch(batch)


def batch_folder(config: BatchConfig, folder: str | Path | None = None) -> Path:
    """Returns the folder in which a batch keeps its list of runs; None: batches/<name> of the workspace."""
    return workspace.place(folder) if folder else workspace.home().absolute() / "batches" / config.name


def _summary(config: BatchConfig, runs: list[Planned]) -> str:
    number = batch_file.count(config)
    if config.optuna is not None:
        return f"Batch {config.name}: up to {number} runs, proposed by {config.optuna.sampler}."
    same = number - len(runs)
    sentence = f" (without {same} duplicate{'s' * (same != 1)})" if same else ""
    return f"Batch {config.name}: {len(runs)} run{'s' * (len(runs) != 1)}{sentence}."


class Command:
    """One command that executes a batch: submits its runs to workers and records how they end."""

    def __init__(self, config: BatchConfig, batch: Path, pool: workers.Pool, shown: Shown):
        self.config, self.batch, self.pool, self.shown = config, batch, pool, shown
        self.id = uuid.uuid4().hex
        self.running: dict[Future[tuple[str, str]], Planned] = {}
        self.failures = Counter[str]()

    def finish(self, queue: search.Listed) -> None:
        """Executes the runs of a queue; retries a failed run as often as the batch file allows."""
        workspace.write_json(self.batch / state.SESSION, {"id": self.id})
        looked = -math.inf
        try:
            while queue.left or self.running:
                if time.monotonic() - looked >= LOOK:
                    looked, slots = time.monotonic(), max(1, self.pool.slots())
                    for run in filter(queue.hopeless, self.running.values()):
                        state.write_failure(run.folder, "pruned", PRUNED)  # its worker then stops it
                    self.shown.update(queue.left)
                while len(self.running) < slots and (run := queue.next()):
                    self._start(run)
                for future in wait(self.running, LOOK / 4, FIRST_COMPLETED).done:
                    self._end(self.running.pop(future), future, queue)
        finally:
            (self.batch / state.SESSION).unlink(missing_ok=True)  # workers then stop their runs
            if any(not future.done() for future in self.running):
                self.shown.line("Stopping: checkpoints are written. Run the same command again to resume.")
                wait(self.running, workers.GRACE + 10)
            with contextlib.suppress(OSError, ValueError):
                self.shown.update(0)

    def _start(self, run: Planned) -> None:
        with contextlib.suppress(OSError):  # an unwritable disk stops the run, not the batch
            (run.folder / "failed.json").unlink(missing_ok=True)
        wanted = run.config.threads
        # Nothing is measured while other runs compute: without a number of threads, a run takes its share.
        threads = min(self.pool.threads, wanted if isinstance(wanted, int) else self.pool.threads)
        words = [word for word in run.words if not word.startswith("threads=")]
        settings = [part for word in (*words, f"threads={threads}") for part in ("--set", word)]
        variables = {f"{name}_NUM_THREADS": str(threads) for name in THREADS}
        job = workers.Job(
            folder=str(run.folder),
            words=("--recipe", run.config.recipe, "--notebooks", ",".join(self.config.notebooks), *settings),
            variables=variables | {"QNNKIT_HOME": str(workspace.home().absolute()), "PYTHONUNBUFFERED": "1"},
            gpus=self.config.gpus_per_run,
            batch=str(self.batch),
            command=self.id,
        )
        self.running[self.pool.executor.submit(workers.execute, job)] = run

    def _end(self, run: Planned, future: Future[tuple[str, str]], queue: search.Listed) -> None:
        try:
            how, error = future.result()
        except ConnectionError:  # a worker cannot access the batch's folder
            raise
        except Exception as fault:  # such as a worker that was lost several times, or lacks qnnkit
            self.pool.slots()  # raises an error if the scheduler is gone, which is no fault of the run
            how, error = "failed", f"Its worker could not run it: {fault}"
        if how in ("failed", "pruned"):
            state.write_failure(run.folder, how, error or PRUNED)
        if how == "failed" and state.look(run.folder).state == "finished":
            self.shown.line(error)  # its result has not reached Drive
        self.failures[run.id] += how == "failed"
        if how == "failed" and self.failures[run.id] <= self.config.retries:
            self._start(run)
        else:
            queue.tell(run, how)

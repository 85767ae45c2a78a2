"""A batch from its file to its last run: finished runs are kept, unfinished ones resume."""

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

LOOK = 1.0  # seconds between two looks at the folders of the runs
THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
PRUNED = "Stopped early: worse than other runs at the same epoch."


def run_batch(
    source: str | Path | Mapping[str, Any],
    *,
    folder: str | Path | None = None,
    scheduler: Any = None,
    echo: Callable[[str], None] | None = None,
) -> list[State]:
    """Runs what a batch file, or a dictionary of the same keys, asks for and has not finished yet.

    Called again, or after a kill at any moment, it resumes.

    Args:
        source: Path of a YAML file, or its content.
        folder: The batch's own; None takes batches/<name> of the workspace.
        scheduler: Address of a Dask scheduler, such as tls://host:port, or a Dask cluster; None runs them
            on this machine, and opens no port.
        echo: Called with a line per change; None prints them.

    Returns:
        The state of each run at the end. One failure never stops the rest.

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
    """Where a batch keeps its list of runs."""
    return workspace.place(folder) if folder else workspace.home().absolute() / "batches" / config.name


def _summary(config: BatchConfig, runs: list[Planned]) -> str:
    number = batch_file.count(config)
    if config.optuna is not None:
        return f"Batch {config.name}: up to {number} runs, proposed by {config.optuna.sampler}."
    same = number - len(runs)
    sentence = f" ({same} more are identical to others and run once)" if same else ""
    return f"Batch {config.name}: {len(runs)} run{'s' * (len(runs) != 1)}{sentence}."


class Command:
    """One command that works on a batch: hands its runs to workers, and notes how they ended."""

    def __init__(self, config: BatchConfig, batch: Path, pool: workers.Pool, shown: Shown):
        self.config, self.batch, self.pool, self.shown = config, batch, pool, shown
        self.id = uuid.uuid4().hex
        self.running: dict[Future[tuple[str, str]], Planned] = {}
        self.failures = Counter[str]()

    def finish(self, queue: search.Listed) -> None:
        """Runs the runs of a queue; a failed run is tried again as often as the batch file says."""
        workspace.write_json(self.batch / state.SESSION, {"id": self.id})
        looked = -math.inf
        try:
            while queue.left or self.running:
                if time.monotonic() - looked >= LOOK:
                    looked, slots = time.monotonic(), max(1, self.pool.slots())
                    for run in filter(queue.hopeless, self.running.values()):
                        state.write_failure(run.folder, "pruned", PRUNED)  # its worker sees it, and stops it
                    self.shown.update(queue.left)
                while len(self.running) < slots and (run := queue.next()):
                    self._start(run)
                for future in wait(self.running, LOOK / 4, FIRST_COMPLETED).done:
                    self._end(self.running.pop(future), future, queue)
        finally:
            (self.batch / state.SESSION).unlink(missing_ok=True)  # no run is wanted any more
            if any(not future.done() for future in self.running):
                self.shown.line("Stopping: checkpoints are written. Type the same command again to resume.")
                wait(self.running, workers.GRACE + 10)
            with contextlib.suppress(OSError, ValueError):
                self.shown.update(0)

    def _start(self, run: Planned) -> None:
        with contextlib.suppress(OSError):  # a disk that cannot be written stops the run, not the batch
            (run.folder / "failed.json").unlink(missing_ok=True)
        asked = run.config.threads
        # Nothing is measured while others run: a run without a number of threads takes its share.
        threads = min(self.pool.threads, asked if isinstance(asked, int) else self.pool.threads)
        others = [word for word in run.words if not word.startswith("threads=")]
        settings = [word for each in (*others, f"threads={threads}") for word in ("--set", each)]
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
        except ConnectionError:  # a worker does not see the batch
            raise
        except Exception as lost:  # such as a worker that was lost several times, or lacks qnnkit
            self.pool.slots()  # a scheduler that is gone is no fault of the run
            how, error = "failed", f"Its worker could not run it: {lost}"
        if how in ("failed", "pruned"):
            state.write_failure(run.folder, how, error or PRUNED)
        if how == "failed" and state.look(run.folder).state == "finished":
            self.shown.line(error)  # its result has not reached Drive
        self.failures[run.id] += how == "failed"
        if how == "failed" and self.failures[run.id] <= self.config.retries:
            self._start(run)
        else:
            queue.tell(run, how)

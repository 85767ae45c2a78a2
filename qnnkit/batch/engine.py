"""A batch from its file to its last run: what is finished is kept, what is not goes on."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from qnnkit import workspace
from qnnkit.batch import batch_file, cluster, search, task
from qnnkit.batch.batch_file import BatchConfig, Planned
from qnnkit.batch.table import Shown, shown
from qnnkit.runs import Run, finished, rows, state
from qnnkit.runs.state import State

TICK = 0.2  # seconds between two looks at the workers, while no run ends
LOOK = 1.0  # seconds between two looks at the folders of the runs
PRUNED = "Stopped early: worse than other runs at the same epoch."


def run_batch(
    source: str | Path | Mapping[str, Any],
    *,
    folder: str | Path | None = None,
    scheduler: Any = None,
    echo: Callable[[str], None] | None = None,
) -> list[State]:
    """Runs what a batch file, or a dictionary of the same keys, asks for and has not finished yet.

    Called again, or after a kill at any moment, it goes on.

    Args:
        source: Path of a YAML file, or its content.
        folder: The batch's own; None takes batches/<name> of the workspace.
        scheduler: Address of a Dask scheduler, such as tls://host:port, or a cluster of Dask's; None runs
            them on this machine, and opens no port.
        echo: Called with a line per change; None shows a live table where one can be shown, else prints.

    Returns:
        How each run stands at the end. One failure never stops the rest.

    Raises:
        ValueError: The batch cannot be run; nothing has been written.
        OSError: A file cannot be read or written, or no scheduler answers.
        ModuleNotFoundError: The extra `cluster`, or for a sampler `sweep`, is not installed.
        KeyboardInterrupt: Ctrl-C; runs have stopped and written their checkpoints.
    """
    config = batch_file.read_config(source)
    runs, batch = batch_file.plan(config), batch_folder(config, folder)
    if config.optuna:
        cluster.need("optuna", "sweep")
    with cluster.opened(config, runs, scheduler) as pool:
        workspace.make_folder(batch)
        values = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        workspace.write_bytes(batch / "batch.yaml", text.encode())
        asked = config, batch, runs[0].score
        given = search.Study(*asked) if config.optuna else search.Listed(*asked, runs)
        with shown(batch, echo) as told:
            told.line(_summary(config, runs))
            if scheduler is not None:
                told.line(f"Scheduler: {pool.where}")
            for run in runs:
                try:
                    _mirror(run)
                except OSError as error:  # the others can still be run
                    told.line(str(error))
            Crew(config, batch, pool, told).finish(given)
    return state.of_batch(batch)


def batch_folder(config: BatchConfig, folder: str | Path | None = None) -> Path:
    """Where a batch keeps its list of runs."""
    return workspace.place(folder) if folder else workspace.home().absolute() / "batches" / config.name


def _mirror(run: Planned) -> None:
    """Brings Drive what it lacks of a run that has finished here, as `qnnkit run` does."""
    folder = rows.work(run.folder)
    remote = workspace.remote_of(folder)
    if remote and (folder / "result.json").exists() and not (remote / "result.json").exists():
        finished(Run(folder, run.config))


def _summary(config: BatchConfig, runs: list[Planned]) -> str:
    number = batch_file.count(config)
    if config.optuna is not None:
        return f"Batch {config.name}: up to {number} runs, proposed by {config.optuna.sampler}."
    same, done = number - len(runs), sum(state.finished(run.folder) for run in runs)
    told = f" ({same} more are identical to others and run once)" if same else ""
    told += f", {done} of them finished before" if done else ""
    return f"Batch {config.name}: {len(runs)} run{'s' * (len(runs) != 1)}{told}."


class Crew:
    """Hands the runs of a batch to the workers of a pool, and takes back how they ended."""

    def __init__(self, config: BatchConfig, batch: Path, pool: cluster.Pool, shown: Shown):
        self.config, self.batch, self.pool, self.shown = config, batch, pool, shown
        self.session, self.pruned = uuid.uuid4().hex, set[str]()
        self.futures: dict[Any, Planned] = {}
        self.tries, self.ended = Counter[str](), threading.Event()

    def finish(self, source: search.Listed) -> None:
        """Runs all that `source` gives, each as often as it may fail."""
        if not source.left:
            return
        self.pool.require_workers()
        self._sign()
        looked, slots = -math.inf, 1
        try:
            while True:
                if time.monotonic() - looked >= LOOK:
                    looked, slots = time.monotonic(), max(1, self.pool.slots())
                    self._require_mine()
                    for run in source.hopeless(self.futures.values()):
                        self.pruned.add(run.id)
                        self._sign()
                    self.shown.update(self.futures.values(), source.left, slots)
                while len(self.futures) < slots and (run := source.next()):
                    self._start(run)
                if not self.futures:
                    return
                self.ended.clear()
                done = [each for each in self.futures if each.done()]
                for future in done:
                    known = future.status == "finished"
                    how, error = future.result() if known else self._broken(future)
                    self._end(self.futures.pop(future), how, error, source)
                if not done:
                    self.ended.wait(TICK)
        except BaseException as error:
            self._leave()
            self._wait(told=isinstance(error, KeyboardInterrupt))
            raise
        finally:
            self._leave()

    def _sign(self) -> None:
        """Tells all workers whose the batch is, and which runs are to stop; an earlier command's stop."""
        workspace.write_json(self.batch / state.SESSION, {"id": self.session, "pruned": sorted(self.pruned)})

    def _is_mine(self) -> bool:
        return rows.facts(self.batch, state.SESSION).get("id") == self.session

    def _require_mine(self) -> None:
        if not self._is_mine():
            told = "was taken over by another command, or its folder was removed"
            step = "This one stops; what has finished is kept."
            raise FileExistsError(f"Batch `{self.config.name}` {told}. {step}")

    def _leave(self) -> None:
        """No run of this command is wanted any more."""
        if self._is_mine():
            (self.batch / state.SESSION).unlink(missing_ok=True)

    def _wait(self, told: bool) -> None:
        """No run is left behind: each writes its checkpoint first."""
        end = time.monotonic() + task.GRACE + 10
        while (busy := [each for each in self.futures if not each.done()]) and time.monotonic() < end:
            if self.pool.client.status != "running":
                return
            if told:
                n, told = len(busy), False
                some = "1 run writes its checkpoint" if n == 1 else f"{n} runs write their checkpoints"
                self.shown.line(f"Stopping: {some}. The same command goes on.")
            time.sleep(TICK)

    def _start(self, run: Planned) -> None:
        (run.folder / "failed.json").unlink(missing_ok=True)
        asked = run.config.threads
        # Beside others nothing is measured: a run without a number of its own takes its share.
        threads = min(self.pool.threads, asked if isinstance(asked, int) else self.pool.threads)
        others = [word for word in run.words if not word.startswith("threads=")]
        settings = [word for each in (*others, f"threads={threads}") for word in ("--set", each)]
        job = task.Job(
            id=run.id,
            folder=str(run.folder),
            words=("--recipe", run.config.recipe, "--notebooks", ",".join(self.config.notebooks), *settings),
            batch=str(self.batch),
            session=self.session,
            home=str(workspace.home().absolute()),
            threads=threads,
            gpus=self.config.gpus_per_run,
        )
        future = self.pool.submit(job)
        future.add_done_callback(lambda _: self.ended.set())
        self.futures[future] = run
        self.shown.begin(run)

    def _end(self, run: Planned, how: str, error: str, source: search.Listed) -> None:
        if how == "stopped":
            self._require_mine()
        if how == "blind":
            raise ConnectionError(error)
        if how in ("failed", "pruned"):
            state.write_failure(run.folder, how, error or PRUNED)
        self.tries[run.id] += how == "failed"
        if how == "stopped" or (how == "failed" and self.tries[run.id] <= self.config.retries):
            self._start(run)
            return
        self.shown.end(run, how)
        source.tell(run, how)

    def _broken(self, future: Any) -> tuple[str, str]:
        """How a run ended that its worker could not do, and why."""
        self.pool.slots()  # a scheduler that is gone is no fault of the run
        error = future.exception()
        if type(error).__name__ == "KilledWorker":
            step = "Start it where nothing ends it, and run the same command again."
            return "failed", f"Its worker was lost several times. {step}"
        if isinstance(error, ImportError | AttributeError):
            return "blind", f"A worker cannot use qnnkit ({error}). Install the same qnnkit there."
        return "failed", f"The worker could not run it: {error}"

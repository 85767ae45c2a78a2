"""A batch from its file to its last run: what is finished is kept, what is not goes on."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from qnnkit import recipes, workspace
from qnnkit.batch import cluster, plan, search, state, task
from qnnkit.batch.plan import BatchConfig, Planned
from qnnkit.batch.state import Outcome
from qnnkit.batch.table import Shown, shown

TICK = 0.2  # seconds between two looks at the workers
PRUNED = "Stopped early: worse than other runs at the same epoch."
LOST = "Its worker was lost several times. Start it where nothing ends it, and run the same command again."


def run_batch(
    source: str | Path | Mapping[str, Any],
    *,
    folder: str | Path | None = None,
    scheduler: Any = None,
    echo: Callable[[str], None] | None = None,
) -> list[Outcome]:
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
    config = plan.read_config(source)
    with contextlib.ExitStack() as stack:
        if config.optuna is None:
            runs = plan.plan(config)
            score, number = runs[0].score, len(runs)
        else:
            runs, score, number = [], plan.judge_space(config), config.optuna.n_trials
            stack.enter_context(search.quiet())
        wanted = _threads(config)
        opened = (
            cluster.local(config, wanted, number)
            if scheduler is None
            else cluster.remote(config, scheduler, wanted)
        )
        pool, batch = stack.enter_context(opened), batch_folder(config, folder)
        workspace.make_folder(batch)
        workspace.write_bytes(batch / "batch.yaml", as_yaml(config).encode())
        if config.optuna is None:
            state.write_runs(batch, config.name, config.recipe, runs, score)
            source_of_runs = search.Listed(runs)
        else:
            source_of_runs = search.Study(config, batch, score)
        told = stack.enter_context(shown(batch, echo))
        _tell_plan(config, runs, told.line)
        if scheduler is not None:
            told.line(f"Scheduler: {pool.where}")
        Crew(config, batch, pool, told).finish(source_of_runs)
    return state.read(batch)


def batch_folder(config: BatchConfig, folder: str | Path | None = None) -> Path:
    """Where a batch keeps its list of runs."""
    return workspace.place(folder) if folder else workspace.home().absolute() / "batches" / config.name


def as_yaml(config: BatchConfig) -> str:
    """The batch file of a batch, without what it leaves out."""
    values = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _threads(config: BatchConfig) -> int | None:
    """The most that a run of the batch wants; None where one of them takes what it can get."""
    given = {name: value for name, value in config.settings.items() if name == "threads"}
    wanted = [recipes.settings(name, **given).threads for name in config.recipes]
    return None if {None, "auto"} & set(wanted) else max(filter(None, wanted))


def _tell_plan(config: BatchConfig, runs: list[Planned], line: Callable[[str], None]) -> None:
    number = plan.count(config)
    if config.optuna is not None:
        line(f"Batch {config.name}: up to {number} runs, proposed by {config.optuna.sampler}.")
        return
    same, done = number - len(runs), sum(state.finished(run.folder) for run in runs)
    told = f"Batch {config.name}: {len(runs)} runs"
    told += f" ({same} more are identical to others and run once)" if same else ""
    line(f"{told}, {done} of them finished before." if done else f"{told}.")


class Crew:
    """Hands the runs of a batch to the workers of a pool, and takes back how they ended."""

    def __init__(self, config: BatchConfig, batch: Path, pool: cluster.Pool, shown: Shown):
        self.config, self.batch, self.pool, self.shown = config, batch, pool, shown
        self.session, self.pruned = uuid.uuid4().hex, set[str]()
        self.futures: dict[Any, Planned] = {}
        self.tries, self.failures = Counter[str](), Counter[str]()

    def finish(self, source: search.Listed) -> None:
        """Runs all that `source` gives, each as often as it may fail."""
        if not source.left:
            return
        self.pool.require_workers()
        self._sign()
        try:
            while True:
                while len(self.futures) < max(1, self.pool.slots()) and (run := source.next()):
                    self._start(run)
                if not self.futures:
                    return
                for future in [each for each in self.futures if each.done()]:
                    self._end(self.futures.pop(future), *_result(future), source)
                for run in source.hopeless(run for run in self.futures.values() if run.id not in self.pruned):
                    self.pruned.add(run.id)
                    self._sign()
                self.shown.update(self.futures.values(), source.left, self.pool.slots())
                self._require_mine()
                time.sleep(TICK)
        except BaseException as error:
            self._stop(isinstance(error, KeyboardInterrupt))
            raise
        finally:
            if self._is_mine():
                (self.batch / state.SESSION).unlink(missing_ok=True)

    def _sign(self) -> None:
        """Tells all workers whose the batch is, and which runs are to stop; an earlier command's stop."""
        workspace.write_json(self.batch / state.SESSION, {"id": self.session, "pruned": sorted(self.pruned)})

    def _is_mine(self) -> bool:
        return (state.read_json(self.batch / state.SESSION) or {}).get("id") == self.session

    def _require_mine(self) -> None:
        if not self._is_mine():
            raise FileExistsError(
                f"Batch `{self.config.name}` was taken over by another command, or its folder was "
                "removed. This one stops; what has finished is kept."
            )

    def _start(self, run: Planned) -> None:
        self.failures[run.id] = (state.read_json(run.folder / "failed.json") or {}).get("attempts", 0)
        (run.folder / "failed.json").unlink(missing_ok=True)
        asked = run.config.threads
        # Beside others nothing is measured: a run without a number of its own takes its share.
        threads = min(self.pool.threads, asked if isinstance(asked, int) else self.pool.threads)
        settings = [word for each in (*run.words, f"threads={threads}") for word in ("--set", each)]
        job = task.Job(
            id=run.id,
            folder=str(run.folder),
            words=("--recipe", run.config.recipe, "--notebooks", ",".join(self.config.notebooks), *settings),
            batch=str(self.batch),
            session=self.session,
            home=str(workspace.home().absolute()),
            threads=threads,
            gpus=self.pool.gpus,
        )
        self.futures[self.pool.submit(job)] = run
        self.shown.begin(run)

    def _end(self, run: Planned, how: str, error: str, source: search.Listed) -> None:
        if how == "stopped":
            self._require_mine()
        if how == "blind":
            raise ConnectionError(error)
        if how in ("failed", "pruned"):
            self.failures[run.id] += how == "failed"
            state.write_failure(run.folder, how, error or PRUNED, self.failures[run.id])
        self.tries[run.id] += 1
        if how == "stopped" or (how == "failed" and self.tries[run.id] <= self.config.retries):
            self._start(run)
            return
        self.shown.end(run, how)
        source.tell(run, how)

    def _stop(self, by_hand: bool) -> None:
        """No run is left behind: each writes its checkpoint first."""
        if self._is_mine():
            (self.batch / state.SESSION).unlink(missing_ok=True)
        busy = [future for future in self.futures if not future.done()]
        if by_hand and busy:
            self.shown.line(f"Stopping: {len(busy)} runs write their checkpoints. The same command goes on.")
        end = time.monotonic() + task.GRACE + 10
        while self.pool.client.status == "running" and time.monotonic() < end:
            if all(future.done() for future in busy):
                return
            time.sleep(TICK)


def _result(future: Any) -> tuple[str, str]:
    """How a run ended, and why."""
    if future.status == "finished":
        return future.result()
    error = future.exception()
    if type(error).__name__ == "KilledWorker":
        return "failed", LOST
    if isinstance(error, ImportError | AttributeError):
        return "blind", f"A worker cannot use qnnkit ({error}). Install the same qnnkit there."
    return "failed", f"The worker could not run it: {error}"

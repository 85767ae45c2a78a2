"""A batch from its file to its last run: what is finished is kept, what is not goes on."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from qnnkit import recipes, workspace
from qnnkit.batch import cluster, plan, state, task
from qnnkit.batch.plan import BatchConfig, Planned
from qnnkit.batch.state import Outcome
from qnnkit.batch.table import Progress, progress

TICK = 0.2  # seconds between two looks at the workers
LOST = 10  # times that a run is handed out again after its worker was lost


def run_batch(
    source: str | Path | Mapping[str, Any],
    *,
    folder: str | Path | None = None,
    scheduler: str | None = None,
    listen: str = cluster.LOOPBACK,
    echo: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """Runs what a batch file, or a dictionary of the same keys, asks for and has not finished yet.

    Called again, or after a kill at any moment, it goes on. A script that calls it needs the usual
    `if __name__ == "__main__":`, because workers are processes of their own.

    Args:
        source: Path of a YAML file, or its content.
        folder: The batch's own; None takes batches/<name> of the workspace.
        scheduler: Address of a Dask scheduler, tcp://host:port; None starts workers on this machine.
        listen: Where a scheduler on this machine listens.
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
    number = plan.count(config)
    if config.optuna is None:
        runs = plan.plan(config)
        score = runs[0].score
    else:
        runs = []
        score = plan.judge_space(config)
        cluster.need("optuna", "sweep")
    cluster.need("distributed", "cluster")
    batch = batch_folder(config, folder)
    wanted = _threads(config)
    shares = None
    if scheduler is None:
        gpus = len(cluster.visible_gpus()) if config.gpus_per_run else 0
        shares = cluster.shares(config, wanted, max(1, len(runs) or number), gpus)
    workspace.make_folder(state.control(batch))
    workspace.write_bytes(batch / "batch.yaml", as_yaml(config).encode())
    if config.optuna is None or not (batch / "batch.json").exists():  # a study writes its runs itself
        state.write_runs(batch, config.name, config.recipe, runs, score)
    with _session(batch) as session, progress(batch, echo) as shown:
        _tell_plan(config, runs, number, shown.line)
        if runs and all(state.finished(run.folder) for run in runs):
            return state.read(batch)
        if shares is not None:
            opened = cluster.local(config, shares[0], listen, shown.line)
            threads = min(wanted or shares[1], shares[1])
        else:
            opened = cluster.remote(config, str(scheduler), batch, session, shown.line)
            threads = min(filter(None, (wanted, config.threads)), default=1)
        with opened as pool:
            crew = Crew(config, batch, session, threads, pool, shown)
            if config.optuna is None:
                crew.finish(runs)
            else:
                from qnnkit.batch import sweep

                sweep.finish(crew, score)
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


def _tell_plan(config: BatchConfig, runs: list[Planned], number: int, line: Callable[[str], None]) -> None:
    if config.optuna is not None:
        line(f"Batch {config.name}: up to {number} runs, proposed by {config.optuna.sampler}.")
        return
    same = number - len(runs)
    done = sum(state.finished(run.folder) for run in runs)
    told = f"Batch {config.name}: {len(runs)} runs"
    told += f" ({same} more are identical to others and run once)" if same else ""
    line(f"{told}, {done} of them finished before." if done else f"{told}.")


@contextlib.contextmanager
def _session(batch: Path) -> Iterator[str]:
    """Makes the batch this command's own; what runs for an earlier command of it stops by itself."""
    name, path = uuid.uuid4().hex, state.control(batch) / "session"
    for old in state.control(batch).glob("stop-*"):
        old.unlink(missing_ok=True)
    workspace.write_bytes(path, name.encode())
    try:
        yield name
    finally:
        if state.session(batch) == name:
            path.unlink(missing_ok=True)


class Crew:
    """Hands runs to the workers of a pool, and takes back how they ended."""

    def __init__(
        self,
        config: BatchConfig,
        batch: Path,
        session: str,
        threads: int,
        pool: cluster.Pool,
        shown: Progress,
    ):
        self.config, self.batch, self.session, self.threads = config, batch, session, threads
        self.pool, self.shown = pool, shown
        self.futures: dict[str, Any] = {}
        self.runs: dict[str, Planned] = {}
        self.tries: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self.looked = 0.0

    def finish(self, runs: list[Planned]) -> None:
        """Runs all of `runs`, each as often as it may fail."""
        waiting = deque(run for run in runs if not state.finished(run.folder))
        with self.stopping():
            while waiting or self.futures:
                while waiting and self.free:
                    self.start(waiting.popleft())
                for run, ended in self.ended():
                    if self.again(run, ended):
                        waiting.append(run)
                self.rest(len(waiting))

    @property
    def free(self) -> bool:
        """Whether a worker has nothing to do."""
        return len(self.futures) < max(1, self.pool.slots())

    def start(self, run: Planned) -> None:
        """Hands a run out."""
        before = state.read_json(run.folder / "failed.json") or {}
        job = task.Job(
            id=run.id,
            recipe=run.config.recipe,
            folder=str(run.folder),
            words=run.words,
            batch=str(self.batch),
            home=str(workspace.home().absolute()),
            session=self.session,
            attempts=before.get("attempts", 0),
            threads=min(self.threads, self._wanted(run.config.threads)),
        )
        self.runs[run.id], self.futures[run.id] = run, self.pool.submit(job)

    def _wanted(self, threads: int | str | None) -> int:
        """Beside others nothing is measured: a run without a number of its own takes its share."""
        return threads if isinstance(threads, int) else self.threads

    def ended(self) -> Iterator[tuple[Planned, dict[str, Any]]]:
        """The runs that have ended since the last look, and how."""
        self.pool.require_alive()
        for id_, future in list(self.futures.items()):
            if not future.done():
                continue
            del self.futures[id_]
            run = self.runs[id_]
            ended = self._result(run, future)
            if ended is not None:
                (state.control(self.batch) / f"stop-{id_}").unlink(missing_ok=True)
                if ended["state"] == "stopped":
                    continue
                self.shown.ended(run, ended)
                yield run, ended

    def again(self, run: Planned, ended: dict[str, Any]) -> bool:
        """Whether a run that has ended is to be tried once more."""
        if ended["state"] != "failed":
            return False
        self.tries[run.id] = self.tries.get(run.id, 0) + 1
        return self.tries[run.id] <= self.config.retries

    def prune(self, id_: str) -> None:
        """Asks the worker of a run to stop it."""
        (state.control(self.batch) / f"stop-{id_}").touch()

    def rest(self, waiting: int) -> None:
        """Waits a moment; shows how things stand.

        Raises:
            FileExistsError: Another command has taken the batch over.
        """
        time.sleep(TICK)
        self.shown.update(list(self.futures), waiting, self.pool.slots())
        if time.monotonic() - self.looked > 1:
            self.looked = time.monotonic()
            if state.session(self.batch) != self.session:
                raise FileExistsError(
                    f"Batch `{self.config.name}` was taken over by another command, or its folder was "
                    "removed. This one stops; what has finished is kept."
                )

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """However the work ends, no run is left behind: each writes its checkpoint first."""
        try:
            yield
        except BaseException as error:
            if state.session(self.batch) == self.session:
                (state.control(self.batch) / "session").unlink(missing_ok=True)
            busy = [future for future in self.futures.values() if not future.done()]
            if busy and self.pool.client.status == "running":
                if isinstance(error, KeyboardInterrupt):
                    self.shown.line(
                        f"Stopping: {len(busy)} runs write their checkpoints. The same command goes on."
                    )
                end = time.monotonic() + task.GRACE + 10
                while time.monotonic() < end and not all(future.done() for future in busy):
                    time.sleep(TICK)
            raise

    def _result(self, run: Planned, future: Any) -> dict[str, Any] | None:
        """How a run ended; None when it was not done, and has been handed out again."""
        if future.status == "finished":
            ended = future.result()
            mine = state.session(self.batch) == self.session
            if ended["state"] != "stopped" or not mine:
                return ended
            told = f"its worker does not see `{self.batch}`. Set QNNKIT_HOME to a folder that all share."
        else:
            self.pool.require_alive()
            error = future.exception() if future.status == "error" else None
            if error is not None and type(error).__name__ not in ("KilledWorker", "FutureCancelledError"):
                return self._fail(run, f"The worker could not run it: {error}")
            told = "its worker was lost again and again. Start it where nothing ends it, and run it again."
        self.lost[run.id] = self.lost.get(run.id, 0) + 1
        if self.lost[run.id] > LOST:
            return self._fail(run, f"The run was not done: {told}")
        self.start(run)
        return None

    def _fail(self, run: Planned, told: str) -> dict[str, Any]:
        before = state.read_json(run.folder / "failed.json") or {}
        with contextlib.suppress(OSError):  # where not even that can be written, the others still go on
            state.write_failure(run.folder, "failed", told, before.get("attempts", 0) + 1)
        return {"state": "failed", "error": told, "seconds": 0.0}

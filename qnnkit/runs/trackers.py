"""A run's rows in the trackers that Accelerate knows; metrics.jsonl has them whatever becomes of these.

Each tracker is called from a daemon thread of its own, which takes rows from a bounded queue: one that fails
or hangs is left out, and neither slows the training nor stops it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.settings import digest_of
from qnnkit.train.processes import is_main

END = 10.0
"""Seconds that the end of a training waits, at most, for all of its trackers."""
ROWS = 2000
"""Rows that may wait for a tracker."""
ENVIRONMENT = {
    "MLFLOW_TRACKING_URI": "sqlite:///{home}/mlflow.db",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",  # drawn from the generator that the training may use
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TRACKIO_DIR": "{home}/trackio",
    "WANDB_CONSOLE": "off",
    "WANDB_SILENT": "true",  # and asks no terminal for a key
}
"""What trackers read, where the user has not set it; `home` is the workspace."""


def require_known(names: Iterable[str]) -> None:
    """Raises ValueError unless each name is one of Accelerate's trackers or "all"."""
    for name in names:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        checks.choice("tracker", name, (*LOGGER_TYPE_TO_CLASS, "all"))


@contextlib.contextmanager
def tracked(
    names: Iterable[str], project: str, run: str, begun: str | None, config: dict[str, Any]
) -> Iterator[Callable[[dict[str, Any], int, str], None]]:
    """Gives a function that sends the finite numbers of a row to trackers, and returns at once.

    Its arguments are the row, the step and what is put before the names, such as "hybrid/seed0". A tracker
    that is not installed, fails or hangs is left out, with one sentence on stderr. Of several processes, only
    the first sends.

    Args:
        names: As Accelerate has them; "all" stands for those that are installed.
        project: What groups runs in a tracker, such as the recipe.
        run: The run's name.
        begun: When it was. A run of the same name and time goes on in TensorBoard, MLflow, W&B and trackio
            where it was; other trackers begin anew.
        config: Flat settings, logged once.

    Example:
        >>> with tracked([], "digits_quanv", "mine", None, {}) as track:
        ...     track({"train_loss": 0.5}, 1, "hybrid/seed0")
    """
    threads: list[_Thread] = []
    if names and is_main():
        from accelerate import tracking

        # Accelerate's logger asks for the state of an Accelerator, which is not there between two nets.
        tracking.logger = logging.getLogger(tracking.__name__)  # pyright: ignore[reportAttributeAccessIssue]
        home = workspace.home().absolute()
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value.format(home=home))
        label = re.sub(r"[^\w.-]", "_", run) + f"-{digest_of([run, begun])[:6]}"
        wanted = tracking.filter_trackers(["all"], home) if "all" in names else names
        threads = [_Thread(name, home, project, label, config) for name in {str(name) for name in wanted}]

    def track(row: dict[str, Any], step: int, prefix: str) -> None:
        values = {f"{prefix}/{name}": value for name, value in row.items() if _is_number(name, value)}
        for thread in threads:
            thread.put((values, step, prefix))

    try:
        yield track
    finally:
        end = time.monotonic() + END
        for thread in threads:
            thread.put(None)
        for thread in threads:
            if not thread.left_out:
                thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                thread.leave_out(f"it had not finished {END:.0f} s after the training")


class _Thread(threading.Thread):
    """Calls one tracker."""

    def __init__(self, name: str, *about: Any):
        super().__init__(name=name, daemon=True)
        self.about, self.rows, self.left_out = about, queue.Queue[Any](ROWS), False
        self.start()

    def put(self, row: Any) -> None:
        try:
            self.rows.put_nowait(row)
        except queue.Full:
            self.leave_out(f"{ROWS} rows wait for it")

    def leave_out(self, why: str) -> None:
        if not self.left_out:
            self.left_out = True
            told = "metrics.jsonl has every row. Mend it, or leave it out of `trackers`."
            _say(f"Tracker `{self.name}` is left out from here on: {why}. Training goes on, and {told}")

    def run(self) -> None:
        try:
            tracker = _start(self.name, *self.about)
            while (row := self.rows.get()) is not None:
                values, step, prefix = row
                if self.name == "wandb":  # takes no step twice, and each net counts its updates
                    tracker.tracker.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")
                    values, step = values | {f"{prefix}/step": step}, None
                tracker.log(values, step=step)
            tracker.finish()
        except BaseException as error:  # W&B is known to raise SystemExit
            words = f"{type(error).__name__}: {error}".strip(" :")
            self.leave_out(textwrap.shorten(words, 240, placeholder=" ...").rstrip("."))


def _start(name: str, home: Path, project: str, run: str, config: dict[str, Any]) -> Any:
    """A tracker of Accelerate's, begun or gone on with."""
    from accelerate import tracking
    from filelock import FileLock

    if not tracking.filter_trackers([name], home):
        raise ModuleNotFoundError(f"it is not installed, which `pip install {name}` does")
    kind, options = tracking.LOGGER_TYPE_TO_CLASS[name], {}
    begun = (home / name / run).exists()  # of TensorBoard
    with contextlib.ExitStack() as stack:
        if name == "mlflow":
            stack.enter_context(FileLock(home / ".mlflow.lock", timeout=60))  # runs of a batch begin at once
            options = {"run_name": run, "run_id": _mlflow_run(home, run)}
            begun = options["run_id"] is not None
        elif name == "wandb":
            options = {"name": run, "id": run, "resume": "allow", "dir": home, "mode": _wandb_mode(home)}
        elif name == "trackio":
            options = {"name": run, "resume": "allow", "embed": False}
        tracker = kind(*([run, home / name] if kind.requires_logging_directory else [project]), **options)
        tracker.main_process_only = False  # asking who is the first asks for the same state
        tracker.start()
    if not begun:  # a run that goes on may be placed elsewhere, and MLflow takes no other value
        tracker.store_init_configuration({name: _plain(value) for name, value in config.items()})
    return tracker


def _mlflow_run(home: Path, run: str) -> str | None:
    """The id of the run where MLflow has it."""
    import mlflow  # pyright: ignore[reportMissingImports]

    database, draft = home / "mlflow.db", home / ".mlflow.db"
    if mlflow.get_tracking_uri() == f"sqlite:///{database}" and not database.exists():
        draft.unlink(missing_ok=True)  # MLflow cannot mend a database that a kill has left half made
        mlflow.MlflowClient(f"sqlite:///{draft}").search_experiments()
        draft.replace(database)
    named = f"attributes.run_name = '{run}'"
    found = mlflow.search_runs(search_all_experiments=True, filter_string=named, output_format="list")
    return found[0].info.run_id if found else None


def _wandb_mode(home: Path) -> str | None:
    """ "offline" without a login; None leaves it to W&B."""
    import wandb  # pyright: ignore[reportMissingImports]

    with contextlib.suppress(wandb.UsageError):
        if os.environ.get("WANDB_MODE") or wandb.login():
            return None
    told = f"Tracker `wandb` has no login, so the run is kept offline in {home / 'wandb'}."
    _say(f"{told} Run `wandb login`, then `wandb sync` on its folder there.")
    return "offline"


def _is_number(name: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return number and name not in ("seed", "step", "steps", "epochs", "updates", "time")


def _plain(value: Any) -> bool | int | float | str:
    """A setting as every tracker takes it."""
    return value if isinstance(value, bool | int | float) else str(value)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)

"""A run's rows in the trackers that Accelerate knows; metrics.jsonl has them whatever becomes of these.

Each tracker is called from a daemon thread of its own: one that fails or hangs is left out, and neither slows
the training nor stops it.
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
from typing import Any

from qnnkit import workspace
from qnnkit.settings import digest_of
from qnnkit.train.processes import is_main

END = 10.0
"""Seconds that the end of a training waits, at most, for all of its trackers."""
ENVIRONMENT = {
    "MLFLOW_TRACKING_URI": "sqlite:///{home}/mlflow.db",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",  # drawn from the generator that the training may use
    "TRACKIO_DIR": "{home}/trackio",
    "WANDB_CONSOLE": "off",
    "WANDB_SILENT": "true",  # and asks no terminal for a key
}
"""What trackers read, where the user has not set it; `home` is the workspace."""
PLAIN = (bool, int, float)
NOT_SENT = ("seed", "step", "steps", "epochs", "updates", "time")


@contextlib.contextmanager
def tracked(
    names: Iterable[str], project: str, run: str, begun: str | None, config: dict[str, Any]
) -> Iterator[Callable[[dict[str, Any], int, str], None]]:
    """Gives a function that sends the finite numbers of a row to trackers, and returns at once.

    Its arguments are the row, the step and what is put before the names, such as "hybrid/seed0". A tracker
    that is not installed, fails or hangs is left out, with one sentence on stderr. Of several processes, only
    the first sends.

    Args:
        names: As Accelerate has them; "all" means those that are installed.
        project: What groups runs in a tracker, such as the recipe.
        run: The run's name.
        begun: When it was. A run of the same name and time continues in TensorBoard, W&B and trackio where it
            was; other trackers begin another.
        config: Flat settings, logged when the tracker starts.

    Example:
        >>> with tracked([], "digits_quanv", "mine", None, {}) as track:
        ...     track({"train_loss": 0.5}, 1, "hybrid/seed0")
    """
    threads: dict[threading.Thread, queue.SimpleQueue[Any]] = {}
    if names and is_main():
        from accelerate import tracking

        # Accelerate's logger asks for the state of an Accelerator, which is not there between two nets.
        tracking.logger = logging.getLogger(tracking.__name__)  # pyright: ignore[reportAttributeAccessIssue]
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value.format(home=workspace.home().absolute()))
        run = re.sub(r"[^\w.-]", "_", run) + f"-{digest_of([run, begun])[:6]}"
        for name in tracking.get_available_trackers() if "all" in names else names:
            rows = queue.SimpleQueue[Any]()
            given = str(name), rows, project, run, config
            threads[threading.Thread(target=_send, args=given, name=str(name), daemon=True)] = rows
        for thread in threads:
            thread.start()

    def track(row: dict[str, Any], step: int, prefix: str) -> None:
        numbers = {name: row[name] for name in row.keys() - NOT_SENT if type(row[name]) in (int, float)}
        finite = {f"{prefix}/{name}": value for name, value in numbers.items() if math.isfinite(value)}
        for rows in threads.values():
            rows.put((finite, step))

    try:
        yield track
    finally:
        end = time.monotonic() + END
        for rows in threads.values():
            rows.put(None)
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                _leave_out(thread.name, f"it had not finished {END:.0f} s after the training")


def _send(name: str, rows: queue.SimpleQueue[Any], project: str, run: str, config: dict[str, Any]) -> None:
    """Starts one of Accelerate's trackers, and sends it rows until there is none."""
    try:
        from accelerate import tracking
        from filelock import FileLock

        home = workspace.home().absolute()
        if not tracking.filter_trackers([name], home):
            raise ModuleNotFoundError(f"it is not installed, which `pip install {name}` does")
        options = {
            "mlflow": {"run_name": run},
            "wandb": {"name": run, "id": run, "resume": "allow", "dir": home},
            "trackio": {"name": run, "resume": "allow", "embed": False},
        }
        kind = tracking.LOGGER_TYPE_TO_CLASS[name]
        place = [run, home / name] if kind.requires_logging_directory else [project]
        tracker = kind(*place, **options.get(name, {}))
        tracker.main_process_only = False  # asking who is the first asks for the same state
        with FileLock(home / f".{name}.lock", timeout=60):  # MLflow's one database is made once
            tracker.start()
        plain = {key: value if type(value) in PLAIN else str(value) for key, value in config.items()}
        tracker.store_init_configuration(plain)
        while (row := rows.get()) is not None:
            values, step = row
            if name == "wandb":  # takes no step twice, and each net counts its own
                values, step = values | {"updates": step}, None
            tracker.log(values, step=step)
        tracker.finish()
    except BaseException as error:  # W&B is known to raise SystemExit
        words = f"{type(error).__name__}: {error}".strip(" :")
        _leave_out(name, textwrap.shorten(words, 240, placeholder=" ...").rstrip("."))


def _leave_out(name: str, why: str) -> None:
    step = "Training goes on, and metrics.jsonl has every row. Mend it, or leave it out of `trackers`."
    print(f"Tracker `{name}` is left out from here on: {why}. {step}", file=sys.stderr, flush=True)

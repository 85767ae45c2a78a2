"""A run's numbers in TensorBoard, MLflow, W&B and trackio, beside metrics.jsonl, which always has them.

The trackers are Accelerate's own classes. They live in a process of their own, this file run as a script: one
that hangs, crashes or opens sockets at exit cannot reach the training, its globals or its random numbers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Sequence
from importlib import util
from pathlib import Path
from typing import IO, Any

import qnnkit
from qnnkit import checks, workspace

TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")
START = 30.0  # seconds from its start that a tracker has to begin, where the training ends before
LEAVE = 8.0  # seconds that the end of training waits, at most, for trackers that have begun
ROWS = 2000  # rows that may wait for a tracker
STEPS = {
    "tensorboard": "Look whether its folder `tensorboard` in the run folder can be written.",
    "mlflow": "Look at MLFLOW_TRACKING_URI and whether something answers there.",
    "wandb": "Look at WANDB_MODE and the network; WANDB_MODE=offline needs none.",
    "trackio": "Look whether TRACKIO_DIR can be written.",
}
_SKIPPED = ("seed", "epoch", "step")  # told by the prefix and the step


class Trackers:
    """Sends rows to trackers by name, and never stops or slows what it is told of.

    A tracker that cannot be had, fails or hangs is left out, with one warning that says why. On another
    process of the same training than the first, nothing is sent.

    Args:
        names: Of TRACKERS.
        folder: The run's folder; TensorBoard logs there, and `trackers.json` keeps what goes on when the run
            is resumed.
        run_name: The run's name in a tracker.
        project: What groups runs there, such as the recipe.
        config: Flat settings, told once.

    Raises:
        ValueError: A name is unknown.

    Example:
        >>> with Trackers([], Path("run"), "run", "digits_quanv", {}) as trackers:
        ...     trackers.log({"train_loss": 0.5}, step=1, prefix="hybrid/seed0")
    """

    def __init__(
        self, names: Sequence[str], folder: Path, run_name: str, project: str, config: dict[str, Any]
    ):
        self.names = tuple(dict.fromkeys(checks.choice("tracker", name, TRACKERS) for name in names))
        self.folder = folder
        self.task = {"run_name": run_name, "project": project, "config": _plain(config)}
        self.process: subprocess.Popen[str] | None = None
        self.open: set[str] = set()
        self.started: set[str] = set()
        self.killed, self.heard = False, 0.0
        self.rows: queue.Queue[str | None] = queue.Queue(ROWS)
        self.said: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()

    def __enter__(self) -> Trackers:
        if int(os.environ.get("RANK", "0") or 0) > 0:
            return self
        for name in self.names:
            if _installed(name) or (name == "tensorboard" and _installed("tensorboardX")):
                self.open.add(name)
            else:
                self._leave_out(name, "it is not installed", f"Install it: pip install {name}.")
        if self.open:
            self._launch()
        return self

    def log(self, row: dict[str, Any], step: int, prefix: str) -> None:
        """Sends the finite numbers of a row, as `<prefix>/<name>`, and returns at once.

        Args:
            row: Everything that is no number is left out.
            step: Such as the epoch; one that was sent before is no harm.
            prefix: Such as "hybrid/seed0".
        """
        self._hear()
        values = {f"{prefix}/{name}": value for name, value in row.items() if _is_number(name, value)}
        if self.open and values:
            try:
                self.rows.put_nowait(json.dumps({"values": values, "step": step, "prefix": prefix}))
            except queue.Full:
                self._leave_all_out("they take no more rows")

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            return
        trained = time.monotonic()
        try:
            with contextlib.suppress(queue.Full):  # then it takes no more anyway
                self.rows.put_nowait(None)
            while self.open and self.reader.is_alive() and time.monotonic() < self._patience(trained):
                self.reader.join(0.05)
                self._hear()
        finally:
            self._kill()
            self.process.wait()
            self.reader.join()
        self._hear()
        self._leave_all_out(f"it had not finished {time.monotonic() - trained:.0f} s after the training")

    def _patience(self, trained: float) -> float:
        """When to leave: soon, but where a short training is over before a tracker has begun."""
        if self.started >= self.open:
            return max(trained, self.heard) + LEAVE
        return max(trained + LEAVE, self.launched + START)

    def _launch(self) -> None:
        self.launched = time.monotonic()
        command = [sys.executable, "-P", __file__]  # -P: files beside this one are no modules
        try:
            with _log_file(self.folder) as log:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=_environment(),
                    text=True,
                    start_new_session=True,  # Ctrl-C ends the training; and no terminal to ask for a login
                )
        except OSError as error:
            self._leave_all_out(f"no process can be started for it ({error.strerror})")
            return
        home = str(workspace.home().absolute())
        hello = self.task | {"names": sorted(self.open), "folder": str(self.folder.absolute()), "home": home}
        self.rows.put(json.dumps(hello))
        threading.Thread(target=_write, args=(self.process, self.rows), daemon=True).start()
        self.reader = threading.Thread(target=_read, args=(self.process, self.said), daemon=True)
        self.reader.start()

    def _hear(self) -> None:
        """Takes in what the trackers' process has said; warns from here, the caller's thread."""
        while not self.said.empty():
            word = self.said.get()
            name, what = word["tracker"], word["what"]
            if what == "started":
                self.started.add(name)
                self.heard = time.monotonic()
            elif what == "finished":
                self.open.discard(name)
            elif what == "note":
                _warn(word["why"])
            elif name in self.open:
                self._leave_out(name, word["why"])
        ended = None if self.process is None or self.reader.is_alive() else self.process.wait()
        if ended and self.said.empty() and not self.killed:
            self._leave_all_out(f"its process ended with status {ended}")

    def _kill(self) -> None:
        if self.process is not None:
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                if self.process.poll() is None and hasattr(os, "killpg"):
                    os.killpg(self.process.pid, signal.SIGKILL)  # W&B's own helper with it
            self.process.kill()

    def _leave_all_out(self, why: str) -> None:
        for name in sorted(self.open):
            self._leave_out(name, why)

    def _leave_out(self, name: str, why: str, next_step: str | None = None) -> None:
        self.open.discard(name)
        if not self.open:
            self._kill()
        log = f" More: {self.folder / 'trackers.log'}." if next_step is None else ""
        _warn(
            f"Tracker `{name}` is left out from here on: {why}. Training goes on, and metrics.jsonl has "
            f"every row. {next_step or STEPS[name]}{log}"
        )


def _log_file(folder: Path) -> IO[str]:
    try:
        return (folder / "trackers.log").open("a")
    except OSError:  # a tracker that needs no folder goes on without
        return Path(os.devnull).open("a")


def _installed(package: str) -> bool:
    found = util.find_spec(package)
    return found is not None and found.origin is not None  # W&B's own folder `wandb` is no package


def _is_number(name: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and name not in _SKIPPED


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Settings as every tracker takes them: numbers, words, yes or no."""
    return {k: v if isinstance(v, bool | int | float) else _words(v) for k, v in config.items()}


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _warn(sentence: str) -> None:
    try:
        warnings.warn(sentence, stacklevel=4)
    except UserWarning:  # where warnings are errors: a tracker stops no training there either
        print(sentence, file=sys.stderr)


def _environment() -> dict[str, str]:
    """Of the trackers' process: no GPU, no rank; a server that is down fails soon."""
    alone = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONWARNINGS")
    found = {name: value for name, value in os.environ.items() if name not in alone}
    root = str(Path(qnnkit.__file__).parent.parent)
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [root, found.get("PYTHONPATH")]))
    found |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    retries = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
    return {"WANDB_SILENT": "true", "GIT_PYTHON_REFRESH": "quiet"} | retries | found


def _write(process: subprocess.Popen[str], rows: queue.Queue[str | None]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin:  # its end is heard by the reader
        while (row := rows.get()) is not None:
            process.stdin.write(row + "\n")
            process.stdin.flush()


def _read(process: subprocess.Popen[str], said: queue.SimpleQueue[dict[str, str]]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # a kill cuts the last one short
                said.put(json.loads(line))


# --- in the trackers' own process --------------------------------------------------------------------------


class _Served:
    """One tracker, in a thread of its own: while it waits for a server, the others go on."""

    def __init__(self, name: str, task: dict[str, Any], say: Callable[..., None]):
        self.name, self.task, self.say = name, task, say
        self.rows: queue.Queue[dict[str, Any] | None] = queue.Queue(ROWS)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def put(self, row: dict[str, Any] | None) -> None:
        try:
            self.rows.put_nowait(row)
        except queue.Full:
            self.say(self.name, "lost", f"{ROWS} rows wait for it")

    def _serve(self) -> None:
        try:
            tracker = self._start()
            self.say(self.name, "started")
            while (row := self.rows.get()) is not None:
                self._log(tracker, **row)
            tracker.finish()
            self.say(self.name, "finished")
        except BaseException as error:  # SystemExit too: W&B is known to raise it
            traceback.print_exc()
            words = f"{type(error).__name__}: {error}".strip(" :")
            self.say(self.name, "lost", textwrap.shorten(words, 240, placeholder=" ...").rstrip("."))

    def _start(self) -> Any:
        from accelerate import tracking

        known = _Memory(Path(self.task["folder"]) / "trackers.json", self.name)
        settings = getattr(self, f"_{self.name}")(known)
        tracker = tracking.LOGGER_TYPE_TO_CLASS[self.name](**settings)
        tracker.main_process_only = False  # this is no process of the training
        try:
            tracker.start()
        except Exception as error:
            code = getattr(error, "error_code", None)
            if code == "RESOURCE_DOES_NOT_EXIST" and settings.get("run_id"):
                known.clear()  # the database that held this run is gone
                tracker.run_id = None
            elif code != "RESOURCE_ALREADY_EXISTS":  # another run has just made the experiment
                raise
            tracker.start()
        if not known:  # a resumed run keeps the settings it began with: MLflow refuses others
            tracker.store_init_configuration(self.task["config"])
        known.keep(settings, tracker)
        return tracker

    def _log(self, tracker: Any, values: dict[str, float], step: int, prefix: str) -> None:
        if self.name != "wandb":
            tracker.log(values, step=step)
            return
        # W&B takes no step twice, and each net counts its epochs from 1: a step of its own for each.
        tracker.run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")
        tracker.log(values | {f"{prefix}/step": step})

    def _tensorboard(self, known: _Memory) -> dict[str, Any]:
        return {"run_name": "", "logging_dir": str(Path(self.task["folder"]) / "tensorboard")}

    def _mlflow(self, known: _Memory) -> dict[str, Any]:
        home, artifacts = Path(self.task["home"]), None
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{_mlflow_database(home)}"
            artifacts = (home / "mlartifacts").as_uri()
        run_id = known.get("run_id") if known.get("uri") == os.environ["MLFLOW_TRACKING_URI"] else None
        if not run_id:
            known.clear()
        names = {"experiment_name": self.task["project"], "run_name": self.task["run_name"]}
        return names | {"logging_dir": artifacts, "run_id": run_id}

    def _wandb(self, known: _Memory) -> dict[str, Any]:
        mode = os.environ.get("WANDB_MODE")
        if not mode and not _has_login():
            mode = "offline"
            told = f"Tracker `wandb` found no key, so this run is kept offline in {self.task['home']}/wandb."
            self.say("wandb", "note", f"{told} Run `wandb login`, then `wandb sync` on its folder there.")
        names = {"run_name": self.task["project"], "name": self.task["run_name"], "dir": self.task["home"]}
        return names | {"mode": mode, "id": known.get("id") or uuid.uuid4().hex[:12], "resume": "allow"}

    def _trackio(self, known: _Memory) -> dict[str, Any]:
        os.environ.setdefault("TRACKIO_DIR", str(Path(self.task["home"]) / "trackio"))
        return {"run_name": self.task["project"], "name": self.task["run_name"], "resume": "allow"}


def _mlflow_database(home: Path) -> Path:
    """The workspace's own, made if missing: whole or not at all, whoever else wants it or is killed."""
    import mlflow  # pyright: ignore[reportMissingImports]
    from filelock import FileLock

    path, draft = home / "mlflow.db", workspace.draft_of(home / "mlflow.db")
    with FileLock(home / ".mlflow.lock"):
        for left in home.glob(".mlflow.db.*"):  # by one that was killed: nobody makes one now
            left.unlink(missing_ok=True)
        if not path.exists():
            mlflow.MlflowClient(tracking_uri=f"sqlite:///{draft}").search_experiments()
            draft.replace(path)
    return path


def _has_login() -> bool:
    """Whether the environment has a key for W&B, or `wandb login` has left one."""
    import requests.utils

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return requests.utils.get_netrc_auth(host) is not None


class _Memory(dict):
    """What `trackers.json` knows of one tracker: by which id a resumed run goes on there."""

    lock = threading.Lock()

    def __init__(self, path: Path, name: str):
        self.path, self.name = path, name
        super().__init__(self._all().get(name, {}))

    def _all(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):  # lost or damaged: the tracker begins another run
            return {}
        return found if isinstance(found, dict) else {}

    def keep(self, settings: dict[str, Any], tracker: Any) -> None:
        told: dict[str, Any] = {"begun": True}
        if self.name == "mlflow":
            told = {"uri": os.environ["MLFLOW_TRACKING_URI"], "run_id": tracker.tracker.info.run_id}
        elif self.name == "wandb":
            told = {"id": settings["id"]}
        with self.lock, contextlib.suppress(OSError):  # without it a resumed run begins anew in the tracker
            workspace.write_json(self.path, self._all() | {self.name: told})


def _main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    if hasattr(os, "nice"):
        os.nice(5)  # training comes first
    lock = threading.Lock()

    def say(name: str, what: str, why: str = "") -> None:
        with lock, contextlib.suppress(OSError):
            out.write(json.dumps({"tracker": name, "what": what, "why": why}) + "\n")
            out.flush()

    task = json.loads(sys.stdin.readline())
    from accelerate import tracking

    # Accelerate's own logger asks for the state of a training, which there is none of here.
    tracking.logger = logging.LoggerAdapter(logging.getLogger("trackers"))
    tracking.logger.warning_once = tracking.logger.warning  # pyright: ignore[reportAttributeAccessIssue]
    served = [_Served(name, task, say) for name in task["names"]]
    for line in sys.stdin:
        for each in served:
            each.put(json.loads(line))
    for each in served:
        each.put(None)
    end = time.monotonic() + START  # where the training was killed, nobody ends this process
    for each in served:
        each.thread.join(max(0.0, end - time.monotonic()))
    os._exit(0)  # what hangs in a thread, or at exit, ends here


if __name__ == "__main__":
    _main()

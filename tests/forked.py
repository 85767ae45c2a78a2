"""Processes for tests, forked from one that has imported what they need: see qnnkit.warm.

Each has its own session, log and exit, as one that `subprocess` starts, but spends no seconds on importing
torch and PennyLane. A test of a cold Python starts it by `subprocess`.
"""

import contextlib
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from qnnkit import warm

ROOT = Path(__file__).parent.parent
MODULES = ("qnnkit.cli", "qnnkit.batch", "qnnkit.inspector", "distributed.cli", "tests.stand_in")
PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
STARTED = dict(os.environ) | {"PYTHONPATH": PATH}


def begin() -> None:
    """Starts the fork server for the first process; a test may have changed folder and environment."""
    server.ensure_running = usual
    with contextlib.chdir(ROOT), mock.patch.dict(os.environ, STARTED, clear=True):
        usual()


def share(address: str) -> None:
    """Forks processes from another process's server, which ends with that process."""
    server._forkserver_address, server._forkserver_alive_fd = address, os.open(os.devnull, os.O_RDONLY)
    server.ensure_running = lambda: None


def start(*words: object, log: Path, env: Mapping[str, str] | None = None) -> Any:
    """`python -m WORDS` in the current folder, as by `subprocess.Popen`; its output is appended to `log`."""
    return warm.start([sys.executable, "-m", *map(str, words)], dict(os.environ) | dict(env or {}), log)


def run(*words: object, timeout: float = 180, env: Mapping[str, str] | None = None) -> SimpleNamespace:
    """Runs `python -m WORDS` to its end: `returncode`, and `stdout` with its whole output."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(*words, log=Path(folder) / "log", env=env)
        try:
            process.wait(timeout)
        finally:
            process.kill()
        return SimpleNamespace(returncode=process.returncode, stdout=(Path(folder) / "log").read_text())


def python(code: str, *arguments: object, **options: Any) -> SimpleNamespace:
    """Runs `code` in a new process, with `arguments` in sys.argv: the result of `run`, and `stderr`."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        done = run("tests.forked", errors, textwrap.dedent(code), *arguments, **options)
        return SimpleNamespace(**vars(done), stderr=errors.read_text() if errors.exists() else done.stdout)


def until(condition: Callable[[], Any], why: Callable[[], object] = str, seconds: float = 60) -> Any:
    """Waits for a condition to hold, and returns its value; `why` explains a timeout."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, why()
        time.sleep(0.02)
    return value


def begun(process: Any, ready: Callable[[], Any], log: Path) -> None:
    """Waits until a process is ready; it may not end before."""
    until(lambda: ready() or process.poll() is not None, log.read_text)
    assert ready(), log.read_text()


@contextlib.contextmanager
def in_parallel(code: str, *arguments: object) -> Iterator[Any]:
    """Runs `code` in a parallel process, killed at the end; starts once it has printed something."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        process = start("tests.forked", Path(folder) / "errors", textwrap.dedent(code), *arguments, log=log)
        try:
            begun(process, lambda: log.exists() and log.stat().st_size, log)
            yield process
        finally:
            process.kill()
            process.wait()


HOLDS = """
    import sys, time
    from pathlib import Path
    from qnnkit.runs.lock import alone
    with alone(Path(sys.argv[1]), sys.argv[2]):
        print("held", flush=True)
        time.sleep(600)
"""


def holding(folder: Path, work: str) -> contextlib.AbstractContextManager[Any]:
    """A parallel process that holds a run folder for its work."""
    return in_parallel(HOLDS, folder, work)


if sys.platform == "linux" and __name__ != "__main__":
    warm._begun, server = True, forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    forkserver.set_forkserver_preload(["qnnkit.kernel", *MODULES])
    usual, server.ensure_running = server.ensure_running, begin


if __name__ == "__main__":
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    code = compile(sys.argv[2], "<code>", "exec")
    sys.argv[:3] = ["-c"]
    exec(code, {"__name__": "__main__"})

"""Python processes that import nothing heavy: forked from one that has imported it and done nothing else.

Each run of a batch, and each notebook of a run, has a process of its own, so that nothing of one reaches the
next. The fork server of the standard library, which imports `qnnkit.kernel`, saves each of them the seconds
that importing torch and PennyLane takes. Only on Linux, where a fork is safe, and once `begin` was called:
elsewhere every process begins by itself.
"""

from __future__ import annotations

import atexit
import os
import pickle
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any, NamedTuple

PARENT = "QNNKIT_STOP_WITH_PARENT"
"""Variable of a process that ends cleanly once the one whose id it holds has ended: see `wait_for_parent`."""
PATH = sys.path[1:]  # of `python -m`: its first is the current folder

_begun = False
_starter: int | None = None
"""In a forked process: a file descriptor that is readable once the process that asked for it has ended."""


def begin() -> None:
    """Starts the fork server, once; it imports `qnnkit.kernel`, and ends with this process."""
    global _begun
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else a kernel's debugger warns
    if sys.platform != "linux" or _begun:
        return
    _begun = True
    forkserver.set_forkserver_preload(["qnnkit.kernel"])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    forkserver.ensure_running()  # Ctrl-C, which a terminal sends to all, is for the others
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ready(command: Sequence[str]) -> bool:
    """Whether `command` can be forked: it is `python -m MODULE ...`, of this Python."""
    return _begun and list(command[:2]) == [sys.executable, "-m"]


def start(command: Sequence[str], env: Mapping[str, str], log: Path) -> Any:
    """A new process in a session of its own, which adds what it prints to `log`."""
    if ready(command):
        return Forked(command, env, log)
    with log.open("ab") as file:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=env, start_new_session=True, **options)


class Forked(subprocess.Popen[bytes]):
    """A forked process that does what `command` does.

    Args:
        command: One that `ready` has agreed to.
        env: All of its environment.
        log: Takes what it prints; the output of the fork server if None.
    """

    stdin = stdout = stderr = None

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path | None = None):
        self.args, self.returncode = command, None  # pyright: ignore[reportAttributeAccessIssue]
        status, program = forkserver.connect_to_new_process([])
        self._status = connection.Connection(status, writable=False)
        self._alive = connection.Connection(program, readable=False)  # its end is seen by `wait_for_parent`
        made = _Program(list(command[2:]), dict(env), str(Path.cwd()), log and str(log))
        with open(program, "wb", closefd=False) as file:  # first what multiprocessing prepares: no `__main__`
            file.write(pickle.dumps({}) + pickle.dumps(made))
        self.pid = forkserver.read_signed(status)

    def poll(self) -> int | None:
        """Its exit status once it has ended; one that nobody can tell any more was killed."""
        if self.returncode is None and self._status.poll():
            try:
                self.returncode = forkserver.read_signed(self._status.fileno())
            except EOFError:
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; raises subprocess.TimeoutExpired where it goes on."""
        if self.returncode is None and not self._status.poll(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.poll()  # pyright: ignore[reportReturnType]


def wait_for_parent(parent: int) -> None:
    """Returns once the process that started this one, with the id `parent`, has ended."""
    if _starter is not None:
        connection.wait([_starter])
    while _starter is None and os.getppid() == parent:
        time.sleep(0.5)


class _Program(NamedTuple):
    """What `python -m WORDS` does, in a folder and with an environment."""

    words: list[str]
    env: dict[str, str]
    folder: str
    log: str | None

    def _bootstrap(self, starter: int) -> int:
        """Does it, and returns the exit status: called in the forked process, as of a `Process`."""
        global _begun, _starter
        _begun, _starter = True, starter
        server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
        server.ensure_running = lambda: None  # what is started here is forked by the same server
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.log is not None:
            file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.dup2(file, 1)
            os.dup2(file, 2)
        os.chdir(self.folder)
        _take(self.env)
        if PARENT not in self.env:  # else it ends by itself, cleanly
            threading.Thread(target=_end_with_parent, daemon=True).start()
        sys.path[:] = [*([] if sys.flags.safe_path else [self.folder]), *PATH]
        sys.argv[:] = self.words
        try:
            sys.modules.pop(self.words[0], None)  # imported ahead of time; now it is the program
            runpy.run_module(self.words[0], run_name="__main__", alter_sys=True)
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        finally:  # the fork server prints any other error
            threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
            atexit._run_exitfuncs()
            sys.stdout.flush()
        return 0


def _take(env: Mapping[str, str]) -> None:
    """Makes `env` the environment, also for modules that have read theirs as they were imported."""
    import threadpoolctl

    if (threads := env.get("OMP_NUM_THREADS", "")).isdigit():
        threadpoolctl.threadpool_limits(int(threads))
    os.environ.clear()
    os.environ.update(env)
    if backend := env.get("MPLBACKEND"):
        sys.modules["matplotlib"].rcParams["backend"] = backend


def _end_with_parent() -> None:
    wait_for_parent(0)
    os._exit(1)

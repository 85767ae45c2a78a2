"""Python processes that import nothing heavy: forked from one that has imported it and done nothing else.

Each run of a batch, and each notebook of a run, has a process of its own, so that nothing of one reaches the
next. The fork server of the standard library, which imports `qnnkit.preload`, saves each of them the seconds
that importing torch and PennyLane takes. Only on Linux, where a fork is safe, and once `begin` was called:
elsewhere every process begins by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

LOOK = 0.5  # seconds between two looks at whether a parent has ended
PATH = sys.path[1:]  # of `python -m`: its first is the current folder

_begun, _lock = False, threading.Lock()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Imports without garbage collection, which takes a third of the time and finds next to nothing.

    What is imported stays: no later collection looks through it, in this process or in one forked from it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def begin(*modules: str) -> None:
    """Starts the fork server, once; it imports `qnnkit.preload` and `modules`, and ends with this process."""
    global _begun
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else a kernel's debugger warns
    if sys.platform != "linux" or _begun:
        return
    forkserver.set_forkserver_preload(["qnnkit.preload", *modules])
    forkserver.ensure_running()
    atexit.register(_end, os.getpid())
    _begun = True


def _end(owner: int) -> None:
    pid = forkserver._forkserver._forkserver_pid
    if pid is not None and os.getpid() == owner:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)  # it may still be importing
            os.waitpid(pid, 0)


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


class Forked:
    """A forked process that does what `command` does, with the methods of `subprocess.Popen`.

    Args:
        command: One that `ready` has agreed to.
        env: All of its environment.
        log: Takes what it prints; the output of the fork server if None.
    """

    stdin = stdout = stderr = None

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path | None = None):
        arguments = list(command[2:]), dict(env), log and str(log)
        self._process = multiprocessing.get_context("forkserver").Process(target=_become, args=arguments)
        with _lock:
            main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
            try:  # so that it does not execute the caller's script, which may begin the same process again
                self._process.start()
            finally:
                sys.modules["__main__"] = main
        self.pid: Any = self._process.pid

    def poll(self) -> int | None:
        """Its exit status once it has ended."""
        with _lock:  # a status is read once, be it by a thread that starts another process
            return self._process.exitcode

    returncode = property(poll)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status.

        Raises:
            subprocess.TimeoutExpired: It goes on.
        """
        connection.wait([self._process.sentinel], timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def wait_for_end(parent: int) -> None:
    """Returns once the process that started this one, with the id `parent`, has ended."""
    starter = multiprocessing.parent_process()
    if starter is not None:
        starter.join()
    while os.getppid() == parent:
        time.sleep(LOOK)


# --- in the process that is forked --------------------------------------------------------------------------


def _become(words: list[str], env: dict[str, str], log: str | None) -> None:
    """Does what `python -m WORDS` does in the current folder."""
    os.setsid()
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
    _share_server()
    _take(env, words)
    if "JPY_PARENT_PID" in env:  # ipykernel would look for another parent
        threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path[:] = [*([] if sys.flags.safe_path else [str(Path.cwd())]), *PATH]
    sys.argv = words
    Path("/proc/self/comm").write_text(" ".join(words[:2])[:15])  # its name in `top`
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()  # multiprocessing does not before Python 3.13


def _share_server() -> None:
    """Processes that this one starts are forked by the same server; else the first would start another.

    What else starts processes here does it as in a process that begins by itself.
    """
    global _begun
    server, parent, _begun = forkserver._forkserver, os.getppid(), True
    begin_again = server.ensure_running
    server.ensure_running = lambda: None if os.getppid() == parent else begin_again()
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process().name = "MainProcess"


def _end_with_parent() -> None:
    wait_for_end(0)
    os._exit(1)


def _take(env: dict[str, str], words: list[str]) -> None:
    """The environment, also for those that have read theirs as they were imported."""
    import threadpoolctl
    import torch

    if torch.cuda._is_in_bad_fork():  # an import has opened a GPU, which a fork cannot use
        os.execve(sys.executable, [sys.executable, "-m", *words], env)
    threads = env.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and threads != os.environ.get("OMP_NUM_THREADS"):
        threadpoolctl.threadpool_limits(int(threads), user_api="blas")
        torch.set_num_threads(int(threads))
    os.environ.clear()
    os.environ.update(env)
    if "matplotlib" in sys.modules and (backend := env.get("MPLBACKEND")):
        sys.modules["matplotlib"].rcParams["backend"] = backend

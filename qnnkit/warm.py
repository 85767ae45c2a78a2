"""Starts Python processes fast, by forking one that has imported the heavy packages and done nothing else.

Each run of a batch, and each notebook of a run, has its own process, so that none affects the next. The fork
server of the standard library imports `qnnkit.kernel`, which saves each process the seconds of importing
torch and PennyLane. It is used only on Linux, where forking is safe, and after `begin` was called; otherwise
every process starts on its own.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, popen_forkserver, util
from pathlib import Path
from typing import Any

PARENT = "QNNKIT_STOP_WITH_PARENT"
"""Environment variable with the id of a process at whose end this process ends cleanly: see `at_end_of`."""
PATH = sys.path[1:]  # without the first entry, to which `python -m` sets the current folder

_begun = False


def begin() -> None:
    """Starts the fork server once; it imports what forked processes need, and ends with this process."""
    global _begun
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else a kernel's debugger warns
    # nbformat's jsonschema would spend three seconds on a grammar of addresses, which no notebook uses.
    sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]
    if sys.platform != "linux" or _begun:
        return
    _begun = True
    forkserver.set_forkserver_preload(["qnnkit.kernel", "qnnkit.cli"])
    usual, tempfile.tempdir = tempfile.tempdir, sockets()
    util.get_temp_dir()  # made now, for the socket of the server
    tempfile.tempdir = usual
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    forkserver.ensure_running()  # blocks Ctrl-C, which a terminal sends to all processes
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def sockets() -> str:
    """Returns the folder of temporary files; /tmp if its path is too long for sockets, with 107 bytes."""
    folder = tempfile.gettempdir()
    return "/tmp" if os.name == "posix" and len(os.fsencode(folder)) > 60 else folder


def ready(command: Sequence[str]) -> bool:
    """Whether `command` can be forked: it must be `python -m MODULE ...` with this Python."""
    return _begun and list(command[:2]) == [sys.executable, "-m"]


def start(command: Sequence[str], env: Mapping[str, str], log: Path) -> Any:
    """Starts a process in its own session; its output is appended to `log`."""
    if ready(command):
        return Forked(command, env, log)
    with log.open("ab") as file:
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=env, start_new_session=True, **options)


class Forked(popen_forkserver.Popen):
    """A forked process that does what `command` does.

    Args:
        command: A command for which `ready` is true.
        env: Its full environment.
        log: File to which its output is appended; None takes the output of the fork server.
    """

    stdin = stdout = stderr = None
    send_signal = popen_forkserver.Popen._send_signal  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path | None = None):
        arguments = list(command[2:]), dict(env), log and str(log)
        process: Any = multiprocessing.get_context("forkserver").Process(target=_become, args=arguments)
        super().__init__(process)  # not `process.start()`: Python would wait for such a child at exit

    def wait(self, timeout: float | None = None) -> int:
        """Returns its exit status; raises subprocess.TimeoutExpired if it is still running."""
        if (status := super().wait(timeout)) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return status


def at_end_of(parent: int, end: Callable[[], object]) -> None:
    """Calls `end`, in a thread, once the process that started this one, with the id `parent`, has ended."""

    def follow() -> None:
        # A forked process is a child of the server, not of the process that started it.
        if (starter := multiprocessing.parent_process()) is not None:
            starter.join()
        while os.getppid() == parent:
            time.sleep(0.5)
        end()

    threading.Thread(target=follow, daemon=True).start()


def _become(words: list[str], env: dict[str, str], log: str | None) -> None:
    """Does what `python -m WORDS` does, with this environment, in the folder of the calling process."""
    import threadpoolctl

    global _begun
    _begun = True
    server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    server.ensure_running = lambda: None  # processes that are started here are forked by the same server
    multiprocessing.set_start_method(None, force=True)  # the default
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `nohup ... &` ignores it
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
    if (threads := env.get("OMP_NUM_THREADS", "")).isdigit():  # imported modules have read it already
        threadpoolctl.threadpool_limits(int(threads))
    os.environ.clear()
    os.environ.update(env)
    if backend := env.get("MPLBACKEND"):
        sys.modules["matplotlib"].rcParams["backend"] = backend
    if PARENT not in env:  # with it, the command ends cleanly by itself
        at_end_of(0, lambda: os._exit(1))
    sys.path[:] = [*([] if sys.flags.safe_path else [str(Path.cwd())]), *PATH]
    sys.argv[:] = words
    try:
        sys.modules.pop(words[0], None)  # imported ahead of time; now it is the program
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()

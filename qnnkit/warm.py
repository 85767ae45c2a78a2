"""Python processes that import nothing heavy: forked from one that has imported it and done nothing else.

Each run of a batch, and each notebook of a run, has a process of its own, so that nothing of one reaches the
next. The fork server of the standard library, which imports `qnnkit.kernel`, saves each of them the seconds
that importing torch and PennyLane takes. Only on Linux, where a fork is safe, and once `begin` was called:
elsewhere every process begins by itself.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, popen_forkserver
from pathlib import Path
from typing import Any

PARENT = "QNNKIT_STOP_WITH_PARENT"
"""Variable of a process that ends cleanly once the one whose id it holds has ended: see `at_end_of`."""
PATH = sys.path[1:]  # of `python -m`: its first is the current folder

_begun = False


def begin() -> None:
    """Starts the fork server, once; it imports what forked processes need, and ends with this process."""
    global _begun
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else a kernel's debugger warns
    # nbformat's jsonschema would build a grammar of addresses, which no notebook has, for three seconds.
    sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]
    if sys.platform != "linux" or _begun:
        return
    _begun = True
    forkserver.set_forkserver_preload(["qnnkit.kernel", "qnnkit.cli"])
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


class Forked(popen_forkserver.Popen):
    """A forked process that does what `command` does.

    Args:
        command: One that `ready` has agreed to.
        env: All of its environment.
        log: Takes what it prints; the output of the fork server if None.
    """

    stdin = stdout = stderr = None
    send_signal = popen_forkserver.Popen._send_signal  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path | None = None):
        arguments = list(command[2:]), dict(env), log and str(log)
        process: Any = multiprocessing.get_context("forkserver").Process(target=_become, args=arguments)
        super().__init__(process)  # not `start`, whose caller waits for it at its end

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; raises subprocess.TimeoutExpired where it goes on."""
        if (status := super().wait(timeout)) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return status


def at_end_of(parent: int, end: Callable[[], object]) -> None:
    """Calls `end`, in a thread, once the process that started this one, with the id `parent`, has ended."""

    def follow() -> None:
        # A forked process is the server's child.
        if (starter := multiprocessing.parent_process()) is not None:
            starter.join()
        while os.getppid() == parent:
            time.sleep(0.5)
        end()

    threading.Thread(target=follow, daemon=True).start()


def _become(words: list[str], env: dict[str, str], log: str | None) -> None:
    """Does what `python -m WORDS` does, with an environment, in the folder of the process that asked."""
    import threadpoolctl

    global _begun
    _begun = True
    server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    server.ensure_running = lambda: None  # what is started here is forked by the same server
    multiprocessing.set_start_method(None, force=True)  # the usual one
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where `nohup ... &` had it ignored
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
    if (threads := env.get("OMP_NUM_THREADS", "")).isdigit():  # for modules that have read theirs already
        threadpoolctl.threadpool_limits(int(threads))
    os.environ.clear()
    os.environ.update(env)
    if backend := env.get("MPLBACKEND"):
        sys.modules["matplotlib"].rcParams["backend"] = backend
    if PARENT not in env:  # else it ends by itself, cleanly
        at_end_of(0, lambda: os._exit(1))
    sys.path[:] = [*([] if sys.flags.safe_path else [str(Path.cwd())]), *PATH]
    sys.argv[:] = words
    try:
        sys.modules.pop(words[0], None)  # imported ahead of time; now it is the program
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()

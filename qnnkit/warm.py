"""Python processes that import nothing heavy: forked from one that has imported it and done nothing else.

Each run of a batch, and each notebook of a run, has a process of its own, so that nothing of one reaches the
next; this way they do not each spend seconds on importing torch and PennyLane. Only on Linux, where a fork is
safe, and once `begin` was called: elsewhere every process begins by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

MODULES = (
    *("qnnkit.report", "torch._dynamo", "accelerate", "pandas", "tqdm", "papermill", "threadpoolctl"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "ipykernel.kernelapp", "nbconvert"),
)
"""What a run and its notebooks import; torch's optimizers import torch._dynamo."""
PARENTS = ("JPY_PARENT_PID", "QNNKIT_STOP_WITH_PARENT")
"""Variables by which a process knows whose end is its own."""
LOOK = 0.05  # seconds between two looks at whether a process has ended

_lock = threading.Lock()
_nursery: Connection | None = None
_fresh = False  # whether this process was forked here, and has not computed


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


def begin() -> None:
    """Starts the process that others are forked from, once; it imports meanwhile, and ends with this one."""
    global _nursery, _fresh
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else a kernel's debugger warns
    if sys.platform != "linux" or _nursery is not None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    _nursery, theirs = Pipe()
    if not _fresh:
        code = f"from qnnkit import warm; warm.serve({theirs.fileno()}, {MODULES})"
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True}
        process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], **options)
        ends = process.kill, process.wait
    elif pid := os.fork():
        ends = functools.partial(os.kill, pid, signal.SIGKILL), functools.partial(os.waitpid, pid, 0)
    else:  # what has been imported here serves there
        os.setsid()  # Ctrl-C is for the other one
        serve(theirs)
    _fresh = False
    theirs.close()
    atexit.register(_end, *ends)


def _end(kill: Callable[[], Any], wait: Callable[[], Any]) -> None:
    if _nursery is not None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            kill()  # it may still be importing
            wait()


def _forget() -> None:
    """In a forked process: what was begun is its parent's, and a lock that another thread held stays so."""
    global _lock, _nursery
    _lock, _nursery = threading.Lock(), None


if sys.platform == "linux":
    os.register_at_fork(after_in_child=_forget)


def ready(command: Sequence[str]) -> bool:
    """Whether `command` can be forked: it is `python -m MODULE ...`, of this Python."""
    with contextlib.suppress(EOFError, OSError):
        return list(command[:2]) == [sys.executable, "-m"] and _nursery is not None and _ask("ready")
    return False


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
        log: Takes what it prints; this process's own output if None.
    """

    stdin = stdout = stderr = None

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path | None = None):
        self.pid = _ask("fork", list(command[2:]), dict(env), str(Path.cwd()), log)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status once it has ended; one that nobody can tell any more was killed."""
        if self.returncode is None:
            try:
                self.returncode = _ask("poll", self.pid)
            except (EOFError, OSError):
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status.

        Raises:
            subprocess.TimeoutExpired: It goes on.
        """
        end = time.monotonic() + (timeout or 0.0)
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(LOOK)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ask(*request: Any) -> Any:
    assert _nursery is not None
    with _lock:
        _nursery.send(request)
        return _nursery.recv()


# --- in the process that is forked --------------------------------------------------------------------------


def serve(channel: int | Connection, modules: Sequence[str] = ()) -> NoReturn:
    """Imports, then forks and tells who has ended, until the other end is closed."""
    try:
        with importing():
            for name in modules:
                importlib.import_module(name)
        with contextlib.suppress(EOFError, OSError):
            _serve(Connection(channel) if isinstance(channel, int) else channel)
    finally:
        os._exit(0)


def _serve(channel: Connection) -> None:
    parent = os.getpid()
    while True:
        what, *about = channel.recv()
        if what == "poll":
            pid, status = os.waitpid(about[0], os.WNOHANG)
            channel.send(os.waitstatus_to_exitcode(status) if pid else None)
        elif what == "ready":
            channel.send(True)
        elif pid := os.fork():
            channel.send(pid)
        else:
            channel.close()
            _become(parent, *about)


def _become(parent: int, words: list[str], env: dict[str, str], folder: str, log: Path | None) -> None:
    """Does what `python -m WORDS` does in `folder`, and ends; at once if `parent` was killed meanwhile."""
    global _fresh
    status, _fresh = 1, True
    try:
        if os.getppid() != parent:
            return
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if log is not None:
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.dup2(file, 1)
            os.dup2(file, 2)
        env |= {name: str(parent) for name in PARENTS if name in env}
        if "JPY_PARENT_PID" in env:  # ipykernel has read it as it was imported
            words = [*words, f"--IPKernelApp.parent_handle={parent}"]
        os.chdir(folder)
        _take(env, words)
        if not sys.flags.safe_path:
            sys.path[0] = folder
        sys.argv = words
        Path("/proc/self/comm").write_text(" ".join(words[:2])[:15])  # its name in `top`
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


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
    if backend := env.get("MPLBACKEND"):
        sys.modules["matplotlib"].rcParams["backend"] = backend

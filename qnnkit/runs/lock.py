"""One process at a time works on a run folder, and while it does, the folder is mirrored."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from qnnkit import workspace

WAIT = 10.0
"""Seconds that a newcomer waits: a killed parent's notebook needs a moment to notice."""


@contextlib.contextmanager
def alone(folder: Path, work: str, wait: float = WAIT) -> Iterator[None]:
    """Holds the folder for one kind of work ("chain", "train"); the system frees it when the process ends.

    Raises:
        BlockingIOError: Another process holds it; told is which.
    """
    from filelock import FileLock, Timeout

    path, note = folder / f".{work}.lock", folder / f".{work}.json"
    lock = FileLock(path, timeout=wait)
    try:
        lock.acquire()
    except Timeout:
        sentence = (
            f"Run folder `{folder}` is in use{_owner(note)}. Wait for it, or stop it, and run the same "
        )
        raise BlockingIOError(errno.EWOULDBLOCK, f"{sentence}command again.") from None
    try:
        workspace.clear_drafts(folder)
        owner = {"pid": os.getpid(), "machine": platform.node(), "since": time.strftime("%H:%M:%S")}
        with contextlib.suppress(OSError):  # it only helps the sentence above
            note.write_text(json.dumps(owner))
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def held(folder: Path, work: str) -> bool | None:
    """Whether a living process holds the folder for that work; None where none ever has."""
    from filelock import FileLock, Timeout

    path = folder / f".{work}.lock"
    if not path.exists():
        return None
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that may only be read: nobody here writes to it
        return False


@contextlib.contextmanager
def mirrored(folder: Path, tell: Callable[[str], None] | None = None) -> Iterator[None]:
    """Keeps the folder's copy on Drive up to date; does nothing for a folder that has none."""
    remote = workspace.remote_of(folder)
    if remote is None:
        yield
        return
    from qnnkit.checkpoint.mirror import Mirror

    with Mirror(folder, remote) if tell is None else Mirror(folder, remote, tell=tell):
        yield


_IN_NOTEBOOK: dict[Path, contextlib.ExitStack] = {}


def mirrored_in_notebook(folder: Path) -> None:
    """Keeps the folder's copy on Drive up to date from now on, where a person works in a notebook.

    What 00 to 02 leave is then as safe as a training's. Under papermill the chain mirrors already, and a
    second mirror of a folder only waits.
    """
    if folder in _IN_NOTEBOOK or "IPython" not in sys.modules or workspace.remote_of(folder) is None:
        return
    from IPython import get_ipython

    if get_ipython() is None:
        return
    stack = _IN_NOTEBOOK[folder] = contextlib.ExitStack()
    stack.enter_context(mirrored(folder))
    atexit.register(stack.close)


def bring(folder: Path) -> None:
    """Makes a run folder from its copy on Drive, if that is newer or the only one."""
    remote = workspace.remote_of(folder)
    if remote is None:
        return
    from qnnkit.checkpoint.restore import evict, restore

    if not folder.exists():
        evict()  # what comes wants room
    for note in restore(remote, folder):
        warnings.warn(note, stacklevel=3)


def _owner(note: Path) -> str:
    try:
        told = json.loads(note.read_text())
        return f" by process {told['pid']} on {told['machine']}, since {told['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return " by another process"

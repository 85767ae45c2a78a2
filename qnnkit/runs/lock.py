"""Locks of run folders, so that one process at a time works on them, and their mirroring to Drive."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from qnnkit import workspace
from qnnkit.checkpoint.mirror import Mirror, restore, settle

WAIT = 10.0
"""Seconds to wait for a lock: the notebook of a killed process needs a moment to end."""


@contextlib.contextmanager
def alone(folder: Path, work: str, wait: float = WAIT) -> Iterator[None]:
    """Holds the folder for one kind of work ("chain", "train"); the system frees it when the process ends.

    Raises:
        BlockingIOError: Another process holds it.
    """
    try:
        with FileLock(folder / f".{work}.lock", timeout=wait):
            yield
    except Timeout:
        sentence = f"Run folder `{folder}` is in use by another process. Wait for it, or stop it, and run "
        raise BlockingIOError(errno.EWOULDBLOCK, f"{sentence}the same command again.") from None


def held(folder: Path, work: str) -> bool | None:
    """Whether a living process holds the folder for that work; None if none ever has, or if unknown."""
    path = folder / f".{work}.lock"
    if not path.exists():
        return None
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a read-only folder
        return None


_MIRRORS: dict[Path, Mirror] = {}


def keep_mirrored(folder: Path) -> None:
    """Keeps the folder's copy on Drive up to date from now on, until the process ends.

    A folder without one is worked in directly. If it was itself a copy, the mirror that writes it stops.
    """
    if folder in _MIRRORS:
        return
    if remote := workspace.remote_of(folder):
        _MIRRORS[folder] = Mirror(folder, remote).__enter__()
        atexit.register(_end, folder, None, SystemExit(), None)  # an exit: faults are reported, not raised
    else:
        settle(folder)


@contextlib.contextmanager
def mirrored(folder: Path) -> Iterator[None]:
    """Keeps the folder's copy on Drive up to date, and checks at the end that it is complete.

    Raises:
        OSError: It is not complete.
    """
    keep_mirrored(folder)
    with contextlib.ExitStack() as last:
        last.push(functools.partial(_end, folder))
        last.callback(keep_mirrored, folder)  # called first: the body may have ended a mirror of its own
        yield


def _end(folder: Path, *error: Any) -> None:
    if folder in _MIRRORS and folder.exists():
        _MIRRORS.pop(folder).__exit__(*error)


def bring(folder: Path) -> None:
    """Restores a run folder from its copy on Drive, if that is newer or the only one."""
    remote = workspace.remote_of(folder)
    for note in restore(remote, folder) if remote else ():
        warnings.warn(note, stacklevel=3)

"""One process at a time works on a run folder, and while it does, the folder is mirrored."""

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
"""Seconds that a newcomer waits: a killed parent's notebook needs a moment to notice."""


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
    """Whether a living process holds the folder for that work; None where none ever has, or none can tell."""
    path = folder / f".{work}.lock"
    if not path.exists():
        return None
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that may only be read
        return None


_MIRRORS: dict[Path, Mirror] = {}


def keep_mirrored(folder: Path) -> None:
    """Keeps the folder's copy on Drive up to date from now on, until the process ends.

    A folder without one, which is worked in itself, may be the copy of one elsewhere: then it no longer is.
    """
    if folder in _MIRRORS:
        return
    if remote := workspace.remote_of(folder):
        _MIRRORS[folder] = Mirror(folder, remote).__enter__()
        atexit.register(_end, folder, None, SystemExit(), None)  # which tells of trouble, and raises nothing
    else:
        settle(folder)


@contextlib.contextmanager
def mirrored(folder: Path) -> Iterator[None]:
    """Keeps the folder's copy on Drive up to date, and sees in the end that all of it is there.

    Raises:
        OSError: It is not.
    """
    keep_mirrored(folder)
    with contextlib.ExitStack() as last:
        last.push(functools.partial(_end, folder))
        last.callback(keep_mirrored, folder)  # before it: the body may have ended one of its own
        yield


def _end(folder: Path, *error: Any) -> None:
    if folder in _MIRRORS and folder.exists():
        _MIRRORS.pop(folder).__exit__(*error)


def bring(folder: Path) -> None:
    """Makes a run folder from its copy on Drive, if that is newer or the only one."""
    remote = workspace.remote_of(folder)
    for note in restore(remote, folder) if remote else ():
        warnings.warn(note, stacklevel=3)

"""A run folder's copy elsewhere: the order of its files, whose state it is, and the way back.

Files are copied in an order of which any part is a state that the run resumes from. `.mirrored.json` in
the remote folder holds the mark of the copy that wrote there last. `.mirror.json` in a local copy holds the
marks that it comes from or has written, and the stamps of the files that it has there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from qnnkit import workspace
from qnnkit.checkpoint.file import NAME

STATE, NOTE, DRAFT = ".mirrored.json", ".mirror.json", ".draft-"
SETTINGS, RESULT = "config.json", "result.json"
CHUNK = 1 << 20
"""Bytes that are read at once."""
Mark = list[Any]
"""Of a state: who wrote it, and a number."""
Stamp = list[int]
"""Inode, time of change and size of a local file: any change to it changes one of them."""
_HERE = uuid.uuid4().hex
"""This process, in the marks of folders that it works in itself."""
_WAIT = 60.0
"""Seconds that whoever wants a folder waits while another process brings it."""
_TRIES = 4


# --- files --------------------------------------------------------------------------------------------------


def rank(name: str) -> tuple[int, str]:
    """The order in which files are copied: what a run is, rows, checkpoints, others, notebooks, its result.

    No checkpoint comes before its rows, and what says that something is finished comes last.
    """
    order = {"provenance.json": 0, "recipe.py": 0, SETTINGS: 1, RESULT: 7}
    kinds = {".jsonl": 2, ".json": 5, ".ipynb": 6}
    return order.get(name, 3 if NAME.fullmatch(Path(name).name) else kinds.get(Path(name).suffix, 4)), name


def visible(folder: Path) -> Iterator[str]:
    """The files of a folder that are mirrored, by their paths in it; no hidden, running or linked ones."""
    for above, folders, names in os.walk(folder, onerror=_raise_unless_gone):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            if name[0] != "." and not name.endswith(".running.ipynb"):
                with contextlib.suppress(FileNotFoundError, UnicodeEncodeError):
                    if stat.S_ISREG(Path(above, name).lstat().st_mode) and name.encode():
                        yield Path(above, name).relative_to(folder).as_posix()


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def stamp(path: Path) -> Stamp:
    """Of a file as it is now."""
    status = path.stat()
    return [status.st_ino, status.st_ctime_ns, status.st_size]


def size_of(name: str, file: BinaryIO) -> int:
    """Bytes of an open file; of lines, the whole ones."""
    return workspace.whole_length(file) if name.endswith(".jsonl") else os.fstat(file.fileno()).st_size


def chunks(file: BinaryIO, size: int, beat: Callable[[], object]) -> Iterator[bytes]:
    """The first `size` bytes of an open file, in pieces; `beat` is called for each."""
    file.seek(0)
    while size and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk
        beat()


def copy(file: BinaryIO, name: str, folder: Path, beat: Callable[[], object] = lambda: None) -> None:
    """Copies an open file to `folder/name`, whole or not at all, and asks the disk to keep it.

    Args:
        file: Of the run folder that is copied.
        name: Path of the file in both folders.
        folder: Where to; it exists.
        beat: Called as often as something moves.

    Raises:
        OSError: The disk is full, read-only or away.
    """
    draft, target = folder / f"{DRAFT}{uuid.uuid4().hex}", folder / name
    try:
        with draft.open("wb") as written:
            for chunk in chunks(file, size_of(name, file), beat):
                written.write(chunk)
            written.flush()
            os.fsync(written.fileno())
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(target)
        beat()
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


# --- whose state it is --------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    """What STATE or NOTE holds; nothing where it is missing or damaged.

    Raises:
        OSError: The folder does not answer.
    """
    missing = FileNotFoundError, NotADirectoryError, IsADirectoryError
    with contextlib.suppress(*missing, ValueError, RecursionError):
        content = json.loads(path.read_bytes().rpartition(b"\n")[2])  # earlier versions put a hash first
        return content if isinstance(content, dict) else {}
    return {}


def mark_of(remote: Path) -> Mark | None:
    """The mark of the state in a remote folder; None where there is none."""
    state = read(remote / STATE)
    return [state.get("owner"), state.get("counter")] if state else None


def sign(remote: Path, mark: Mark) -> None:
    """Writes the mark of a remote folder."""
    workspace.write_bytes(remote / STATE, json.dumps({"owner": mark[0], "counter": mark[1]}).encode())


def noted(local: Path) -> tuple[list[Mark], dict[str, Stamp | None]]:
    """The marks that a local copy comes from or has written, and which of its files the remote folder has.

    Both are empty for a folder that is no copy, or one of an earlier version.
    """
    note = read(local / NOTE)
    return (note["marks"], note["files"]) if {"marks", "files"} <= note.keys() else ([], {})


def note(local: Path, marks: list[Mark], files: Mapping[str, Stamp | None]) -> None:
    """Writes what `noted` reads."""
    workspace.write_bytes(local / NOTE, json.dumps({"marks": marks, "files": dict(files)}).encode())


def settle(folder: Path) -> None:
    """Takes a mirrored folder over for a process that works in it, as in Drive's copy on a Mac.

    A mirror elsewhere then stops.
    """
    mark = mark_of(folder)
    if mark is not None and mark[0] != _HERE:
        sign(folder, [_HERE, time.time_ns()])


def hold(local: Path, wait: float = 0) -> FileLock | None:
    """The lock of who mirrors or restores a folder; None while another has it. A kill releases it too."""
    lock = FileLock(local.with_name(f".{local.name}.mirror.lock"), timeout=wait, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


# --- the way back -------------------------------------------------------------------------------------------


def restore(remote: Path, local: Path) -> list[str]:
    """Makes `local` from what is in `remote`; returns what the user should know, in words.

    Nothing is deleted that could be wanted. A folder that a mirror is working on is left alone. So is one
    that is as new as the remote: it is where the run was computed. If the remote is newer (another machine
    has gone on) or another run's, the local folder is moved to a hidden name, which a note tells. Where
    there is no run, nothing happens. Checkpoints and rows are checked when they are used.

    Raises:
        ValueError: The settings are missing or damaged.
        OSError: The remote does not answer, or there is no room, and no local copy either.
    """
    marks, lock = noted(local)[0], None
    try:
        mark = mark_of(remote)
        names = [] if mark is None and marks else list(visible(remote))
        if not any(1 <= rank(name)[0] <= 3 for name in names):
            return []  # no run, or one of which a kill left nothing
        if SETTINGS not in names or workspace.read_json(remote / SETTINGS) is None:
            step = "Put it back from Drive's trash or history, or choose another run_dir."
            raise ValueError(f"Run folder `{remote}` cannot be restored: it has no {SETTINGS}. {step}")
        workspace.make_folder(local)
        lock = hold(local, wait=0 if marks else _WAIT)
        if lock is None or mark in noted(local)[0]:  # another process may have brought it meanwhile
            return []
        return _bring(remote, local, mark)
    except OSError as error:
        why = error.strerror or error
        if marks:
            return [f"`{remote}` does not answer ({why}), so the run goes on from `{local}` as it is."]
        raise OSError(
            error.errno,
            f"Run folder `{remote}` cannot be brought to `{local}` ({why}). See that Drive is mounted and "
            "that there is room, and run the same command again; nothing has changed.",
        ) from None
    finally:
        if lock is not None:
            lock.release()


def _bring(remote: Path, local: Path, mark: Mark | None) -> list[str]:
    partial, notes = local.with_name(f".{local.name}.restoring"), []
    try:
        for _ in range(_TRIES):  # another machine may be writing there
            shutil.rmtree(partial, ignore_errors=True)  # of the try before, or of a killed restore
            partial.mkdir()
            names = sorted(visible(remote), key=rank, reverse=True)  # rows last: see `Mirror._look`
            needed = sum((remote / name).stat().st_size for name in names)
            if needed > shutil.disk_usage(partial).free:
                raise OSError(errno.ENOSPC, f"it needs {needed / 1e9:.2f} GB, which this disk has not")
            for name in names:
                with contextlib.suppress(FileNotFoundError), (remote / name).open("rb") as file:
                    copy(file, name, partial)
            before, mark = mark, mark_of(remote)
            if mark == before:
                break
        stamps = {name: stamp(partial / name) for name in visible(partial)}
        note(partial, [mark or ["", 0]], stamps)
        if any(local.iterdir()):
            aside = local.replace(local.with_name(f".{local.name}.set-aside-{uuid.uuid4().hex[:8]}"))
            notes.append(f"`{local}` was not what the newest state comes from; it is set aside as `{aside}`.")
        partial.replace(local)
        return notes
    finally:
        shutil.rmtree(partial, ignore_errors=True)

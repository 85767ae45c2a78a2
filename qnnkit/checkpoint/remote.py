"""A mirrored run folder where it is kept: which copy writes there, what is there, and one file copied.

The files have their own names, and are copied in an order (`rank`) of which any prefix is a state that the
run can be resumed from. `.mirrored.json` names the local copy that writes there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from qnnkit import workspace
from qnnkit.checkpoint.file import NAME

STATE, NOTE = ".mirrored.json", ".mirror.json"
DRAFT = ".draft-"
SETTINGS, RESULT = "config.json", "result.json"
CHUNK = 1 << 20
"""Bytes that are read at once."""
Entry = tuple[int, str]
"""Size and SHA-256; of a checkpoint the first digits, which its name has."""
Mark = list[Any]
"""Of a state: who wrote it ("" if somebody works in the folder itself), and a number."""
Beat = Callable[[], object]


class Damaged(OSError):
    """A file is not what it was."""


def read(path: Path) -> dict[str, Any]:
    """What STATE or NOTE holds; nothing where it is missing or damaged.

    Raises:
        OSError: The folder does not answer.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        if stat.S_ISREG(path.lstat().st_mode):
            first, _, content = path.read_bytes().rpartition(b"\n")
            if not first or first == hashlib.sha256(content).hexdigest().encode():
                found = json.loads(content)
                return found if isinstance(found, dict) else {}
    return {}


def mark_of(remote: Path) -> Mark | None:
    """What says whose state a folder has; None where nothing does."""
    found = read(remote / STATE)
    return [found.get("owner"), found.get("counter")] if found else None


def marks_of(local: Path) -> list[Mark] | None:
    """The marks that a local copy comes from or has written; None for a folder without a note of any."""
    found = read(local / NOTE)
    return [mark for mark in found.get("marks") or [found.get("seen")] if mark] if found else None


def note(local: Path, marks: list[Mark]) -> None:
    """Writes the marks of a local copy."""
    workspace.write_bytes(local / NOTE, json.dumps({"marks": marks}).encode())


def sign(remote: Path, mark: Mark, files: dict[str, Entry] | None = None) -> None:
    """Writes the mark of a remote folder, after a hash of it; and what is there, once all of it is."""
    content = json.dumps({"owner": mark[0], "counter": mark[1], "files": files}).encode()
    workspace.write_bytes(remote / STATE, f"{hashlib.sha256(content).hexdigest()}\n".encode() + content)


def listed(remote: Path) -> dict[str, Entry]:
    """Name -> size and hash of what was there at the end of the last pass; nothing during one."""
    files = read(remote / STATE).get("files")
    found = files.items() if isinstance(files, dict) else ()
    return {
        name: (each[0], each[1])
        for name, each in found
        if isinstance(each, list) and [type(value) for value in each] == [int, str]
    }


def hold(local: Path, wait: float = 0) -> FileLock | None:
    """The lock of who mirrors or restores a folder; None while another has it. A kill releases it too."""
    lock = FileLock(local.with_name(f".{local.name}.mirror.lock"), timeout=wait, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    except OSError as error:
        raise workspace.cannot_write(local, error) from None
    return lock


def visible(folder: Path) -> Iterator[str]:
    """The files of a folder that are mirrored, by their paths in it; no hidden, running or linked ones."""
    for above, folders, names in os.walk(folder, onerror=_unless_gone):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            if name[0] != "." and not name.endswith(".running.ipynb"):
                with contextlib.suppress(FileNotFoundError, UnicodeEncodeError):
                    if stat.S_ISREG(Path(above, name).lstat().st_mode) and name.encode():
                        yield Path(above, name).relative_to(folder).as_posix()


def rank(name: str) -> tuple[int, str]:
    """The order in which files are copied: what a run is, rows, checkpoints, others, notebooks, its result.

    No checkpoint comes before its rows, and what says that something is finished comes last.
    """
    order = {"provenance.json": 0, "recipe.py": 0, SETTINGS: 1, RESULT: 7}
    kinds = {".jsonl": 2, ".json": 5, ".ipynb": 6}
    return order.get(name, 3 if digits(name) else kinds.get(Path(name).suffix, 4)), name


STATES = (2, 3)
"""Ranks of rows and checkpoints."""


def digits(name: str) -> str:
    """The digits of its hash that a checkpoint's name has; none of any other file."""
    match = NAME.fullmatch(name.rpartition("/")[2])
    return match[2] if match else ""


def entry(name: str, file: BinaryIO, *, reads: bool = False, beat: Beat = lambda: None) -> Entry:
    """Size and hash of an open file, of lines the whole ones; a checkpoint is believed unless it `reads`."""
    size = workspace.whole_length(file) if name.endswith(".jsonl") else os.fstat(file.fileno()).st_size
    known = digits(name)
    return size, known if known and not reads else digest(file, size, beat)[: len(known) or None]


def entries(folder: Path, *, reads: bool = False, beat: Beat = lambda: None) -> dict[str, Entry]:
    """Name -> size and hash of the files of a folder that are mirrored."""
    found = {}
    for name in visible(folder):
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
            found[name] = entry(name, file, reads=reads, beat=beat)
    return found


def digest(file: BinaryIO, size: int, beat: Beat, write: Callable[[bytes], Any] = lambda chunk: None) -> str:
    """SHA-256 of the first `size` bytes of an open file, which are written on the way."""
    found = hashlib.sha256()
    file.seek(0)
    while size and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        found.update(chunk)
        write(chunk)
        beat()
    return found.hexdigest()


def copy(source: BinaryIO, target: Path, part: Path, wanted: Entry, beat: Beat = lambda: None) -> None:
    """Writes a file, whole or not at all, and asks the disk to keep it.

    Args:
        source: An open file.
        target: Where its content comes to.
        part: Where it is written first, on the same disk.
        wanted: Its size, and the first digits of its hash.
        beat: Called as often as something moves.

    Raises:
        Damaged: It has another hash.
        OSError: The disk is full, read-only or away.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            found = digest(source, wanted[0], beat, file.write)
            file.flush()
            os.fsync(file.fileno())
        if not found.startswith(wanted[1]):
            raise Damaged("it has changed")
        part.replace(target)
        beat()
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:
            raise type(error)(error.errno, f"cannot write `{target}` ({error.strerror})") from None
        raise


def drafts(remote: Path) -> dict[str, Path]:
    """Name -> draft of the files that an earlier version was killed before it gave them their names."""
    there = {path.name.removeprefix(DRAFT): path for path in remote.glob(f"{DRAFT}*")}
    found = {}
    for name, (_, known) in listed(remote).items() if there else ():
        draft = there.get(hashlib.sha256(f"{name} {known}".encode(errors="replace")).hexdigest()[:16])
        safe = name.isprintable() and all(part[:1] not in ("", ".") for part in name.split("/"))
        if draft and safe and "\\" not in name:
            found[name] = draft
    return found


def settle(folder: Path) -> None:
    """Takes a mirrored folder over for whoever works in it, as in Drive's copy on a Mac.

    A mirror elsewhere then stops.
    """
    mark = mark_of(folder)
    if mark is not None and mark[0]:
        for name, draft in drafts(folder).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            draft.replace(folder / name)
        sign(folder, ["", time.time_ns()])


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error

"""The local side of a mirror: whose copy a folder is, and what it holds at one moment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from qnnkit import workspace
from qnnkit.checkpoint.stored import CHUNK, Damaged, Piece, inside

NOTE, LOCK = ".mirror.json", ".mirror.lock"
POINTER = "current.json"
"""The file in a folder of checkpoints that says which of them count."""
SEGMENTS = 16
"""Stored pieces of one file of lines, at most."""
SMALL = 1 << 20
"""Bytes up to which a file is read once and held; of a longer one only the open file is."""
TRIES = 5
YOUNG = 2.0
"""Seconds within which a file may change again without its time of change showing it."""

Hint = tuple[int, int, int, int]


@dataclass(frozen=True)
class Note:
    """What a local folder remembers of its mirror."""

    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    number: int = 0
    """Highest manifest that was there when this copy was made or last mirrored."""
    base: int = 0
    """The manifest that this copy began with, or last wrote."""

    def save(self, local: Path) -> None:
        workspace.write_json(local / NOTE, vars(self))


def read_note(local: Path) -> Note | None:
    """The note in a local folder; None if it has none that can be used."""
    try:
        content = json.loads((local / NOTE).read_bytes())
        note = Note(**content)
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    return note if isinstance(note.owner, str) and type(note.number) is type(note.base) is int else None


def hold(local: Path) -> FileLock | None:
    """The lock of who mirrors a folder, to be released; None while another has it. A kill releases it too."""
    lock = FileLock(local / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    except OSError as error:
        raise workspace.cannot_write(local / LOCK, error) from None
    return lock


class Content:
    """A stretch of a local file as it was when first read, whatever becomes of the name it had."""

    def __init__(self, file: BinaryIO, start: int, size: int):
        self.start, self.size, self.file = start, 0, file
        digest, held = hashlib.sha256(), []
        for chunk in stretch(file, start, size):
            digest.update(chunk)
            self.size += len(chunk)  # fewer than `size` where the file was cut meanwhile
            if size <= SMALL:
                held.append(chunk)
        self.sha256, self.held = digest.hexdigest(), b"".join(held) if size <= SMALL else None
        if self.held is not None:
            file.close()

    def chunks(self) -> Iterator[bytes]:
        """The content once more.

        Raises:
            Damaged: It has changed since.
        """
        if self.held is not None:
            yield self.held
            return
        digest = hashlib.sha256()
        for chunk in stretch(self.file, self.start, self.size):
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != self.sha256:
            raise Damaged("a local file was changed while it was copied")

    def close(self) -> None:
        self.file.close()


@dataclass
class Known:
    """What is stored of a path, and how the local file looked then."""

    pieces: tuple[Piece, ...]
    hint: Hint | None = None


@dataclass
class Seen:
    """What a path holds now: pieces that are stored, then content that is not."""

    hint: Hint | None
    pieces: tuple[Piece, ...]
    content: Content | None = None
    text: bytes | None = None
    """What a checkpoint folder's pointer says."""


def scan(local: Path, known: Mapping[str, Known], beat: Callable[[], None] = lambda: None) -> dict[str, Seen]:
    """What a folder holds, read so that nothing claims what is not there: the caller closes the contents.

    What says that something is finished is read before what it speaks of: notebooks, then JSON (pointers,
    results), then the rest, lines last. So lines are never older than checkpoints. A checkpoint folder whose
    pointer names a file that vanished meanwhile is read again, and left as stored if that does not help.
    """
    seen = _scan_once(local, known, beat)
    for _ in range(TRIES - 1):
        if all(_is_whole(name, seen) for name in seen):
            return seen
        close(seen)
        seen = _scan_once(local, known, beat)
    for pointer in [name for name in seen if not _is_whole(name, seen)]:
        folder = pointer.rpartition("/")[0] + "/"
        for name in [name for name in seen if name.startswith(folder)]:
            close({name: seen.pop(name)})
        seen |= {name: Seen(None, each.pieces) for name, each in known.items() if name.startswith(folder)}
    return seen


def _scan_once(local: Path, known: Mapping[str, Known], beat: Callable[[], None]) -> dict[str, Seen]:
    seen: dict[str, Seen] = {}
    try:
        for rank in range(4):
            for name in visible(local):
                if _rank(name) == rank:
                    with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                        seen[name] = _look(local / name, known.get(name))
                    beat()
    except BaseException:
        close(seen)
        raise
    return seen


def close(seen: Mapping[str, Seen]) -> None:
    for each in seen.values():
        if each.content is not None:
            each.content.close()


def visible(local: Path) -> Iterator[str]:
    """The files of a folder that are mirrored, by their paths in it; no hidden, running or linked ones."""
    for above, folders, names in os.walk(local, onerror=_unless_gone):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(above) / name
            if name.endswith(".running.ipynb"):
                continue
            with contextlib.suppress(ValueError, FileNotFoundError):
                relative = inside(path.relative_to(local).as_posix())
                if stat.S_ISREG(path.lstat().st_mode):
                    yield relative


def stretch(file: BinaryIO, start: int, size: int) -> Iterator[bytes]:
    """Bytes of an open file, a chunk at a time; fewer where it ends before."""
    file.seek(start)
    while size and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk


def _look(path: Path, known: Known | None) -> Seen:
    file = path.open("rb")
    try:
        status = os.fstat(file.fileno())
        hint: Hint = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        young = abs(time.time() - status.st_mtime) < YOUNG
        pieces, text = known.pieces if known else (), None
        if known and known.hint == hint and path.name != POINTER:
            file.close()
            return Seen(hint, pieces)
        if path.suffix == ".jsonl":
            pieces, content = _look_at_lines(file, pieces)
        else:
            content = Content(file, 0, status.st_size)
            text = content.held if path.name == POINTER else None
            if (content.sha256, content.size) == _only(pieces):
                content = content.close()
            else:
                pieces = ()
        return Seen(None if young else hint, pieces, content, text)
    except BaseException:
        file.close()
        raise


def _look_at_lines(file: BinaryIO, pieces: tuple[Piece, ...]) -> tuple[tuple[Piece, ...], Content | None]:
    """Which pieces the file still begins with, and its whole lines after them."""
    end, start, kept = workspace.whole_length(file), 0, 0
    for piece in pieces:
        digest = hashlib.sha256()
        for chunk in stretch(file, start, piece.size):
            digest.update(chunk)
        if start + piece.size > end or digest.hexdigest() != piece.sha256:
            break
        start, kept = start + piece.size, kept + 1
    if start == end:
        file.close()
        return pieces[:kept], None
    if kept >= SEGMENTS:
        kept = _merge_from([piece.size for piece in pieces[:kept]], end - start)
        start = sum(piece.size for piece in pieces[:kept])
    return pieces[:kept], Content(file, start, end - start)


def _merge_from(sizes: list[int], new: int) -> int:
    """How many of the first pieces stay; what is merged is at least as long as each that it takes in.

    So every line is copied some log2(file / segment) times in all, not once per merge.

    Example:
        >>> _merge_from([100, 9, 5, 5], new=5)
        1
    """
    after = new
    first = len(sizes) - 1
    for index in reversed(range(len(sizes))):
        if sizes[index] <= after:
            first = index
        after += sizes[index]
    return first


def _is_whole(name: str, seen: Mapping[str, Seen]) -> bool:
    """Whether every checkpoint that a pointer names was seen beside it."""
    text = seen[name].text
    if text is None:
        return True
    try:
        named = _strings(json.loads(text))
        folder = name.rpartition("/")[0]
        return all(f"{folder}/{each}" in seen for each in named if each.endswith(".safetensors"))
    except (ValueError, RecursionError):
        return True  # it names nothing


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _rank(name: str) -> int:
    return {".ipynb": 0, ".json": 1, ".jsonl": 3}.get(Path(name).suffix, 2)


def _only(pieces: tuple[Piece, ...]) -> tuple[str, int] | None:
    return (pieces[0].sha256, pieces[0].size) if len(pieces) == 1 else None


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error

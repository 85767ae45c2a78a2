"""What a mirrored run folder looks like where it is kept, and one file brought there or back.

`remote` holds the files of the run under their own names, and `.mirrored.json`: which copy was mirrored last
and the size and hash of each file. New content is first written as hidden drafts; replacing `.mirrored.json`
makes it the state, and then the drafts get their names. So there is one whole state, whatever is killed when.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

from filelock import FileLock, Timeout
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from qnnkit import workspace

STATE, NOTE = ".mirrored.json", ".mirror.json"
DRAFT = ".draft-"
CHUNK, LONGEST = 1 << 20, 1 << 26
"""Bytes that are read at once, and of the longest state file that is read."""
Entry = tuple[int, str]
"""Size and SHA-256."""


def _inside(path: str) -> str:
    """`path`, if it is a relative one that names a visible file below a folder.

    Raises:
        ValueError: It is not.
    """
    path.encode()  # half a surrogate names no file
    if "\\" in path or "\0" in path or any(part[:1] in ("", ".") for part in path.split("/")):
        raise ValueError(f"path {path!r} must stay inside the folder")
    return path


class State(BaseModel):
    """What is mirrored, and by which copy."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    owner: str
    counter: int
    """Rises with every state."""
    files: dict[Annotated[str, AfterValidator(_inside)], Entry] | None
    """None where somebody has worked in the folder itself: its files count as they are."""
    gone: dict[Annotated[str, AfterValidator(_inside)], Entry] = {}
    """What the state before had, to be deleted."""

    @property
    def mark(self) -> tuple[str, int]:
        return self.owner, self.counter

    @property
    def text(self) -> bytes:
        """What the file holds: a hash of the rest first."""
        content = self.model_dump_json().encode()
        return f"{hashlib.sha256(content).hexdigest()}\n".encode() + content


class Note(BaseModel):
    """What a local copy remembers of its mirror."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    owner: str
    seen: tuple[str, int] | None = None
    """Mark of the state that it comes from or has written last; None for a copy that was begun here."""

    def save(self, local: Path) -> None:
        workspace.write_bytes(local / NOTE, self.model_dump_json().encode())


class Damaged(ValueError):
    """What is stored is not what was written."""


def read_note(local: Path) -> Note | None:
    """The note in a local folder; None if it has none that can be used."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValidationError):
        return Note.model_validate_json((local / NOTE).read_bytes())
    return None


def read_state(remote: Path) -> State | None:
    """The state that a folder holds; None where the file is missing or damaged.

    Raises:
        OSError: The folder does not answer.
    """
    path = remote / STATE
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValidationError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= LONGEST:
            digest, _, content = path.read_bytes().partition(b"\n")
            if digest == hashlib.sha256(content).hexdigest().encode():
                return State.model_validate_json(content)
    return None


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


def visible(local: Path) -> Iterator[str]:
    """The files of a folder that are mirrored, by their paths in it; no hidden, running or linked ones."""
    for above, folders, names in os.walk(local, onerror=_unless_gone):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(above) / name
            if name.endswith(".running.ipynb"):
                continue
            with contextlib.suppress(ValueError, FileNotFoundError):
                relative = _inside(path.relative_to(local).as_posix())
                if stat.S_ISREG(path.lstat().st_mode):
                    yield relative


def length(name: str, file: BinaryIO) -> int:
    """Bytes of an open file that count: of lines the whole ones."""
    return workspace.whole_length(file) if name.endswith(".jsonl") else os.fstat(file.fileno()).st_size


def hash_of(chunks: Iterable[bytes], beat: Callable[[], None] = lambda: None) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        beat()
    return digest.hexdigest()


def stretch(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The first bytes of an open file, a chunk at a time; fewer where it ends before."""
    file.seek(0)
    while size and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk


def draft_of(remote: Path, path: str, entry: Entry) -> Path:
    return remote / f"{DRAFT}{hashlib.sha256(f'{path} {entry[1]}'.encode()).hexdigest()[:16]}"


def copy(target: Path, source: Iterable[bytes], sha256: str, beat: Callable[[], None] = lambda: None) -> None:
    """Writes a file, whole or not at all, and asks the disk to keep it.

    Raises:
        Damaged: The content has another hash.
        OSError: The disk is full, read-only or away.
    """
    digest, part = hashlib.sha256(), target.with_name(f"{DRAFT}{target.name}.part")
    try:
        with part.open("wb") as file:
            for chunk in source:
                digest.update(chunk)
                file.write(chunk)
                beat()
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != sha256:
            raise Damaged("it has changed")
        part.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise type(error)(error.errno, f"cannot write `{target}` ({error.strerror})") from None
        raise


def stored(remote: Path, name: str, size: int) -> Iterator[bytes]:
    """The content of a stored file of that size, a chunk at a time.

    Raises:
        Damaged: It is missing, is no plain file inside `remote`, or has another size.
        OSError: It cannot be read.
    """
    path = remote / name
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or path.resolve() != remote.resolve() / name:
            raise Damaged("it is no plain file")
        if status.st_size != size:
            raise Damaged(f"it has {status.st_size} bytes instead of {size}")
        with path.open("rb") as file:
            yield from stretch(file, size)
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged("it is missing") from None


def damaged(remote: Path, files: dict[str, Entry], beat: Callable[[], None] = lambda: None) -> dict[str, str]:
    """Path -> what is wrong with it, of stored files that do not read back by size and hash."""
    found = {}
    for path, (size, sha256) in files.items():
        beat()
        try:
            if hash_of(stored(remote, path, size), beat) != sha256:
                found[path] = "it has changed"
        except Damaged as error:
            found[path] = str(error)
    return found


def settle(folder: Path) -> None:
    """Gives a mirrored folder's drafts their names; from now on its files count as they are.

    For whoever works in the folder itself, as in Drive's copy on a Mac: a mirror elsewhere then stops.
    """
    state = read_state(folder)
    if state is None or state.files is None:
        return
    finish(folder, state)
    plain = State(owner="", counter=state.counter + 1, files=None)
    workspace.write_bytes(folder / STATE, plain.text)


def finish(remote: Path, state: State, beat: Callable[[], None] = lambda: None) -> None:
    """Gives the drafts of a state their names, its result last, and deletes what it no longer has.

    Raises:
        OSError: The disk is read-only or away.
    """
    drafts = {path.name: path for path in remote.glob(f"{DRAFT}*")}
    files = state.files or {}
    for path in sorted(files, key=lambda path: path == "result.json"):
        beat()
        draft = drafts.pop(draft_of(remote, path, files[path]).name, None)
        if draft is not None:
            workspace.require_mounted(remote)
            (remote / path).parent.mkdir(parents=True, exist_ok=True)
            draft.replace(remote / path)
    for path, (size, _) in state.gone.items():
        beat()
        with contextlib.suppress(FileNotFoundError):
            status = (remote / path).lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size == size:  # else somebody's own by now
                (remote / path).unlink()
    for draft in drafts.values():  # of a pass that a kill or an error ended
        draft.unlink(missing_ok=True)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error

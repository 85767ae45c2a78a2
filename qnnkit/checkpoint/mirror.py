"""A run folder on local disk, copied in the background to where it outlasts the machine.

Training never waits for the remote folder, and never fails because of it. Files are copied in an order of
which any part is a state that the run resumes from: settings, rows, checkpoints, other files, the result;
then files go that are gone here. `.mirrored.json` in the remote folder is the mark of the state there.
`.mirror.json` in a local copy holds the marks of the states that it comes from or has written, and the
stamps of the files that it has there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from qnnkit import workspace
from qnnkit.checkpoint.file import NAME, hash_of

STATE, NOTE, DRAFT = ".mirrored.json", ".mirror.json", ".draft"
SETTINGS, RESULT = "config.json", "result.json"
LASTING = (*workspace.FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
"""Error numbers that no waiting mends."""
PAUSES = (1.0, 10.0, 30.0)
"""Seconds between the tries of the last pass."""
SOON = 5.0
"""Seconds until the first pass: another machine soon knows that a run has begun, and with which settings."""
OTHER = "another copy of this run has been mirrored there since. Keep one of the two and move the other away"
_HERE = {"owner": uuid.uuid4().hex}
"""The mark of folders that this process works in itself."""


def rank(name: str) -> tuple[int, str]:
    """The order of copying: what a run is, rows, checkpoints, others, notebooks, its result."""
    order = {"provenance.json": 0, "recipe.py": 0, SETTINGS: 1, RESULT: 7}
    kinds = {".jsonl": 2, ".json": 5, ".ipynb": 6}
    return order.get(name, 3 if NAME.fullmatch(Path(name).name) else kinds.get(Path(name).suffix, 4)), name


def visible(folder: Path) -> Iterator[str]:
    """The files of a folder that are mirrored, by their paths in it; no hidden, running or linked ones."""

    def check(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for above, folders, names in os.walk(folder, onerror=check):
        folders[:] = [name for name in folders if name[0] != "."]
        for path in (Path(above, name) for name in names):
            if not (path.name.startswith(".") or path.name.endswith(".running.ipynb") or path.is_symlink()):
                yield path.relative_to(folder).as_posix()


def stamp(path: Path) -> list[int]:
    """Inode, time of change and size: any change to a local file changes one of them."""
    status = path.stat()
    return [status.st_ino, status.st_ctime_ns, status.st_size]


def copy(file: BinaryIO, name: str, folder: Path) -> None:
    """Copies an open file to `folder/name`, whole or not at all, and asks the disk to keep it."""
    draft, target = folder / DRAFT, folder / name
    with draft.open("wb") as written:
        shutil.copyfileobj(file, written, 1 << 20)
        written.flush()
        os.fsync(written.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(target)


def _read(path: Path) -> dict[str, Any]:
    """What STATE or NOTE holds; nothing where it is missing or damaged."""
    with contextlib.suppress(ValueError, TypeError, IsADirectoryError):
        return dict(workspace.read_json(path) or {})
    return {}


def settle(folder: Path) -> None:
    """Takes a mirrored folder over for a process that works in it, as in Drive's copy on a Mac.

    A mirror elsewhere then stops.
    """
    if _read(folder / STATE) not in ({}, _HERE):
        workspace.write_json(folder / STATE, _HERE)


class Mirror:
    """Keeps `remote` up to date with the run folder `local` while its body runs.

    Only one mirror works on a folder: while another process has one there, this one waits. If another
    machine has continued the run since, a mirror says so and copies nothing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as disk:
        ...     local, remote = Path(disk, "local"), Path(disk, "remote")
        ...     local.mkdir()
        ...     with Mirror(local, remote):
        ...         _ = (local / "config.json").write_text("{}")
        ...     (remote / "config.json").read_text()
        '{}'
    """

    def __init__(self, local: Path, remote: Path, interval: float = 60.0, patience: float = 300.0):
        """
        Args:
            local: The run folder; made if missing.
            remote: Where it is mirrored to: a folder on Drive, or any other.
            interval: Seconds between two passes, and until a failed one is tried again (the first: `SOON`).
            patience: Seconds that the last pass may take.
        """
        self.local, self.remote, self.interval, self.patience = local, remote, interval, patience
        self.tell: Any = lambda sentence: print(sentence, file=sys.stderr, flush=True)
        """Called with a sentence when the remote begins to fail, and when it works again."""
        self._trouble: str | None = None
        """Why the last state is not there."""

    def sync(self, read_back: bool = False) -> bool:
        """Copies what is new; returns whether anything was.

        Args:
            read_back: Also what is there with another content.

        Raises:
            FileExistsError: Another copy has been mirrored there since.
            OSError: Something could not be read or written; what is there can be resumed from.
        """
        workspace.require_mounted(self.remote)
        noted = _read(self.local / NOTE)
        marks, sent = noted.get("states", []), noted.get("files", {})
        if not marks:
            self.remote.mkdir(parents=True, exist_ok=True)
        self.remote.stat()  # a folder that is gone is not made again: Drive may not be mounted
        mark = self._require_own(marks)
        for name in sent:
            if not mark or (read_back and not self._is_there(name)):
                sent[name] = None
        with contextlib.ExitStack() as opened:
            stamps, changed = self._look(sent, opened)
            gone = sent.keys() - stamps.keys()
            if mark and not changed and not gone:
                return False
            new = {"owner": uuid.uuid4().hex}
            marks, sent = [mark, new], dict.fromkeys(changed) | sent
            # First: what a kill leaves there is known here.
            workspace.write_json(self.local / NOTE, {"states": marks, "files": sent})
            if RESULT in gone or RESULT in changed:  # never next to rows that it does not cover
                (self.remote / RESULT).unlink(missing_ok=True)
            for name in sorted(changed, key=rank):
                self._require_own(marks)  # copying may have taken long
                copy(changed[name], name, self.remote)
                sent[name] = stamps[name]
                workspace.write_json(self.local / NOTE, {"states": marks, "files": sent})
        for name in gone:
            (self.remote / name).unlink(missing_ok=True)
        self._require_own(marks)
        workspace.write_json(self.local / NOTE, {"states": marks, "files": stamps})
        workspace.write_json(self.remote / STATE, new)
        return True

    def _is_there(self, name: str) -> bool:
        """Whether a file has the same content here and there."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            return hash_of(self.local / name) == hash_of(self.remote / name)
        return False

    def _require_own(self, marks: list[Any]) -> dict[str, Any]:
        """The mark that is there, which this copy comes from; empty where there is none."""
        mark = _read(self.remote / STATE)
        if mark not in marks if mark else not marks and (self.remote / SETTINGS).exists():
            raise FileExistsError(errno.EEXIST, OTHER)
        return mark

    def _look(self, sent: dict[str, Any], opened: contextlib.ExitStack) -> tuple[Any, dict[str, BinaryIO]]:
        """Stamps of the local files at one moment, and open files of those that have changed.

        They are opened in the reverse of the order in which they are copied, and of rows all is copied that
        is there by then: what comes first may be newer than what follows, never older. What is pruned or
        replaced meanwhile stays readable.
        """
        for _ in range(5):
            stamps, changed = dict[str, Any](), {}
            with contextlib.suppress(FileNotFoundError):
                for name in sorted(visible(self.local), key=rank, reverse=True):
                    stamps[name] = stamp(self.local / name)
                    if sent.get(name) != stamps[name]:
                        changed[name] = opened.enter_context((self.local / name).open("rb"))
                return stamps, changed
        raise OSError("its files change while they are listed")

    def __enter__(self) -> Mirror:
        workspace.make_folder(self.local)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Brings the remote up to date and reads it back.

        Raises:
            OSError: That failed; an error of the body goes first, and this one is only printed.
        """
        self._leaving.set()
        self._thread.join(self.patience)
        trouble = "it does not answer" if self._thread.is_alive() else self._trouble
        if trouble is None:
            return
        message = f"The run could not be mirrored whole to `{self.remote}`: {trouble}. Everything is in "
        message += f"`{self.local}`. Mend it and run the same command again before this machine goes."
        if error is None:
            raise OSError(message)
        self.tell(message)

    def _work(self) -> None:
        """One pass after the other, until the last one is whole or has failed too often."""
        lock = lock_of(self.local)
        pause = min(SOON, self.interval)
        while not self._leaving.wait(pause):
            self._attempt(lock)
            pause = self.interval
        for pause in (*PAUSES, 0):
            if not self._attempt(lock, last=True):
                break
            time.sleep(pause)
        lock.release(force=True)

    def _attempt(self, lock: FileLock, last: bool = False) -> bool:
        """One pass; the last one also reads back what is there, and mends it. Whether to try it again."""
        before, self._trouble, number = self._trouble, "the mirror has failed, which should be reported", 0
        try:
            with contextlib.suppress(Timeout):  # another mirror sees to it
                lock.acquire(timeout=0)
                self.sync()
                if last and self.sync(read_back=True) and self.sync(read_back=True):
                    raise OSError("what was written cannot be read back")
            self._trouble = None
        except OSError as error:
            self._trouble, number = error.strerror or str(error), error.errno
        if bool(before) != bool(self._trouble):
            step = f"It is tried again; training goes on, and everything is in `{self.local}`."
            how = f"waits: {self._trouble}. {step}" if self._trouble else "works again."
            with contextlib.suppress(OSError, ValueError):  # a closed standard error is no reason to stop
                self.tell(f"Mirroring to `{self.remote}` {how}")
        return self._trouble is not None and number not in LASTING


def lock_of(local: Path) -> FileLock:
    """Of who mirrors or restores a folder; a kill releases it too."""
    return FileLock(local.with_name(f".{local.name}.mirror.lock"))


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
    marks = _read(local / NOTE).get("states", [])
    try:
        mark = _read(remote / STATE)
        names = [] if marks and mark in ({}, *marks) else sorted(visible(remote), key=rank, reverse=True)
        if not any(1 <= rank(name)[0] <= 3 for name in names):
            return []  # as new, or no run, or one of which a kill left nothing
        if SETTINGS not in names or workspace.read_json(remote / SETTINGS) is None:
            step = "Put it back from Drive's trash or history, or choose another run_dir."
            raise ValueError(f"Run folder `{remote}` cannot be restored: it has no {SETTINGS}. {step}")
        workspace.make_folder(local)
        with contextlib.suppress(Timeout), lock_of(local).acquire(timeout=0 if marks else 60):
            if mark not in _read(local / NOTE).get("states", []):  # another process may have brought it
                return _bring(remote, local, mark, names)
        return []
    except OSError as error:
        message = f"Run folder `{remote}` cannot be brought to `{local}` ({error.strerror or error})"
        if marks:
            return [f"{message}, so the run goes on from that as it is."]
        raise OSError(error.errno, f"{message}. Mount Drive and run the same command again.") from None


def _bring(remote: Path, local: Path, mark: dict[str, Any], names: list[str]) -> list[str]:
    """Copies these files, rows last (see `Mirror._look`), and puts them in the place of the local folder."""
    partial, notes = local.with_name(f".{local.name}.restoring"), []
    shutil.rmtree(partial, ignore_errors=True)  # of a killed restore
    try:
        partial.mkdir()
        for name in names:
            with (remote / name).open("rb") as file:
                copy(file, name, partial)
        note = {"states": [mark], "files": {name: stamp(partial / name) for name in names}}
        workspace.write_json(partial / NOTE, note)
        if any(local.iterdir()):
            aside = local.replace(local.with_name(f".{local.name}.set-aside-{uuid.uuid4().hex[:8]}"))
            notes.append(f"`{local}` was not what the newest state comes from; it is set aside as `{aside}`.")
        partial.replace(local)
        return notes
    finally:
        shutil.rmtree(partial, ignore_errors=True)

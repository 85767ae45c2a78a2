"""A run folder on local disk, copied in the background to a place that outlives the machine.

Training never waits for the remote folder and never fails because of it. Files are copied in an order in
which every prefix is a state that the run can resume from: settings, rows, checkpoints, other files, the
result. Then files that were deleted locally are deleted there. `.mirrored.json` in the remote folder holds
the mark of its state. `.mirror.json` in a local copy holds the marks of the states that it comes from or has
written, and the stamps of the files that it has copied.
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
"""Error numbers that waiting does not resolve."""
PAUSES = (1.0, 10.0, 30.0)
"""Seconds between the attempts of the last pass."""
SOON = 5.0
"""Seconds until the first pass, so that other machines soon see that a run has begun, and its settings."""
OTHER = "another copy of this run has been mirrored there since. Keep one of the two and move the other away"
_HERE = {"owner": uuid.uuid4().hex}
"""The mark of folders that this process itself works in."""


def rank(name: str) -> tuple[int, str]:
    """A file's rank in the order of copying: identity, rows, checkpoints, others, notebooks, result."""
    order = {"provenance.json": 0, "recipe.py": 0, SETTINGS: 1, RESULT: 7}
    kinds = {".jsonl": 2, ".json": 5, ".ipynb": 6}
    return order.get(name, 3 if NAME.fullmatch(Path(name).name) else kinds.get(Path(name).suffix, 4)), name


def visible(folder: Path) -> Iterator[str]:
    """Relative paths of the files to mirror; hidden files, running notebooks and links are skipped."""

    def check(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for above, folders, names in os.walk(folder, onerror=check):
        folders[:] = [name for name in folders if name[0] != "."]
        for path in (Path(above, name) for name in names):
            if not (path.name.startswith(".") or path.name.endswith(".running.ipynb") or path.is_symlink()):
                yield path.relative_to(folder).as_posix()


def stamp(path: Path) -> list[int]:
    """Inode, change time and size of a file; any change to a local file changes one of them."""
    status = path.stat()
    return [status.st_ino, status.st_ctime_ns, status.st_size]


def copy(file: BinaryIO, name: str, folder: Path) -> None:
    """Copies an open file to `folder/name` atomically, and flushes it to disk."""
    draft, target = folder / DRAFT, folder / name
    with draft.open("wb") as written:
        shutil.copyfileobj(file, written, 1 << 20)
        written.flush()
        os.fsync(written.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(target)


def _read(path: Path) -> dict[str, Any]:
    """The content of STATE or NOTE; empty if the file is missing or damaged."""
    with contextlib.suppress(ValueError, TypeError, IsADirectoryError):
        return dict(workspace.read_json(path) or {})
    return {}


def settle(folder: Path) -> None:
    """Claims a mirrored folder for a process that works directly in it, as in Drive's copy on a Mac.

    Mirrors on other machines then stop.
    """
    if _read(folder / STATE) not in ({}, _HERE):
        workspace.write_json(folder / STATE, _HERE)


class Mirror:
    """Keeps `remote` up to date with the run folder `local` while its body runs.

    Only one mirror works on a folder: while another process has one, this one waits. If another machine has
    continued the run since, the mirror reports it and copies nothing.

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
            local: The run folder; created if missing.
            remote: The folder to mirror to, on Drive or elsewhere.
            interval: Seconds between two passes, also after a failed one (the first pass: `SOON`).
            patience: Seconds that the last pass may take.
        """
        self.local, self.remote, self.interval, self.patience = local, remote, interval, patience
        self.tell: Any = lambda sentence: print(sentence, file=sys.stderr, flush=True)
        """Called with a message when the remote begins to fail, and when it works again."""
        self._trouble: str | None = None
        """Why the last state has not been copied; None if it has."""

    def sync(self, read_back: bool = False) -> bool:
        """Copies new and changed files; returns whether there were any.

        Args:
            read_back: Also copies files whose remote content differs.

        Raises:
            FileExistsError: Another copy has been mirrored there since.
            OSError: Something could not be read or written; the run can resume from the remote's state.
        """
        workspace.require_mounted(self.remote)
        noted = _read(self.local / NOTE)
        marks, sent = noted.get("states", []), noted.get("files", {})
        if not marks:
            self.remote.mkdir(parents=True, exist_ok=True)
        self.remote.stat()  # a missing folder is not created again: Drive may not be mounted
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
            # Written first, so that this copy recognises what a kill leaves there.
            workspace.write_json(self.local / NOTE, {"states": marks, "files": sent})
            if RESULT in gone or RESULT in changed:  # never next to rows that it does not cover
                (self.remote / RESULT).unlink(missing_ok=True)
            for name in sorted(changed, key=rank):
                self._require_own(marks)  # again, because copying may take long
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
        """Whether a file has the same content locally and remotely."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            return hash_of(self.local / name) == hash_of(self.remote / name)
        return False

    def _require_own(self, marks: list[Any]) -> dict[str, Any]:
        """The remote's mark, which must be among this copy's marks; empty if there is none."""
        mark = _read(self.remote / STATE)
        if mark not in marks if mark else not marks and (self.remote / SETTINGS).exists():
            raise FileExistsError(errno.EEXIST, OTHER)
        return mark

    def _look(self, sent: dict[str, Any], opened: contextlib.ExitStack) -> tuple[Any, dict[str, BinaryIO]]:
        """Stamps of the local files at one moment, and open files of those that have changed.

        Files are opened in the reverse order of copying, and rows are copied up to their end at that time. A
        file that is copied first may therefore be newer than later ones, but never older. Files that are
        deleted or replaced in the meantime stay readable.
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
            OSError: That failed. If the body raised an error, this one is only printed.
        """
        self._leaving.set()
        self._thread.join(self.patience)
        trouble = "it does not answer" if self._thread.is_alive() else self._trouble
        if trouble is None:
            return
        message = f"The run could not be mirrored completely to `{self.remote}`: {trouble}. Everything is in "
        message += f"`{self.local}`. Fix it and run the same command again before this machine is gone."
        if error is None:
            raise OSError(message)
        self.tell(message)

    def _work(self) -> None:
        """Runs one pass after the other, until the last one is complete or has failed too often."""
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
        """Runs one pass and returns whether to try again; the last pass also reads back and repairs files."""
        before, self._trouble, number = self._trouble, "the mirror has failed, which should be reported", 0
        try:
            with contextlib.suppress(Timeout):  # another mirror does it
                lock.acquire(timeout=0)
                self.sync()
                if last and self.sync(read_back=True) and self.sync(read_back=True):
                    raise OSError("written files cannot be read back")
            self._trouble = None
        except OSError as error:
            self._trouble, number = error.strerror or str(error), error.errno
        if bool(before) != bool(self._trouble):
            step = f"qnnkit tries again; training continues, and everything is in `{self.local}`."
            how = f"waits: {self._trouble}. {step}" if self._trouble else "works again."
            with contextlib.suppress(OSError, ValueError):  # standard error may be closed
                self.tell(f"Mirroring to `{self.remote}` {how}")
        return self._trouble is not None and number not in LASTING


def lock_of(local: Path) -> FileLock:
    """The lock for mirroring or restoring a folder; released even if its process is killed."""
    return FileLock(local.with_name(f".{local.name}.mirror.lock"))


def restore(remote: Path, local: Path) -> list[str]:
    """Restores `local` from `remote`; returns notes for the user.

    Nothing that could be needed is deleted. A folder that a mirror works on stays unchanged, and so does one
    that is as new as the remote, because the run was computed there. If the remote is newer (another machine
    has continued the run) or belongs to another run, the local folder is moved to a hidden name, which a note
    reports. If the remote holds no run, nothing happens. Checkpoints and rows are checked when they are used.

    Raises:
        ValueError: The settings are missing or damaged.
        OSError: The remote does not answer or the disk is full, and there is no local copy either.
    """
    marks = _read(local / NOTE).get("states", [])
    try:
        mark = _read(remote / STATE)
        names = [] if marks and mark in ({}, *marks) else sorted(visible(remote), key=rank, reverse=True)
        if not any(1 <= rank(name)[0] <= 3 for name in names):
            return []  # the local copy is as new, or there is no run, or a kill left nothing of it
        if SETTINGS not in names or workspace.read_json(remote / SETTINGS) is None:
            step = "Restore it from Drive's trash or history, or choose another run_dir."
            raise ValueError(f"Run folder `{remote}` cannot be restored: it has no {SETTINGS}. {step}")
        workspace.make_folder(local)
        with contextlib.suppress(Timeout), lock_of(local).acquire(timeout=0 if marks else 60):
            if mark not in _read(local / NOTE).get("states", []):  # else another process restored it
                return _bring(remote, local, mark, names)
        return []
    except OSError as error:
        message = f"Run folder `{remote}` cannot be brought to `{local}` ({error.strerror or error})"
        if marks:
            return [f"{message}, so the run continues from the local copy."]
        raise OSError(error.errno, f"{message}. Mount Drive and run the same command again.") from None


def _bring(remote: Path, local: Path, mark: dict[str, Any], names: list[str]) -> list[str]:
    """Copies the named files, rows last (see `Mirror._look`), and replaces the local folder by them."""
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
            notes.append(f"The newest state does not come from `{local}`, which was moved to `{aside}`.")
        partial.replace(local)
        return notes
    finally:
        shutil.rmtree(partial, ignore_errors=True)

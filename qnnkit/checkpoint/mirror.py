"""A run folder on local disk, kept up to date in the background where it outlasts the machine.

Training never waits for the remote, and never fails because of it. What is there is always one whole state
(`remote`), at most some interval old; leaving the mirror brings it up to date and reads it back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from filelock import FileLock

from qnnkit import workspace
from qnnkit.checkpoint import remote as there
from qnnkit.checkpoint.remote import Damaged, Entry, Note, State

LASTING = (*workspace.FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
"""Error numbers that no waiting mends."""
_LONGEST_WAIT = 60.0
"""Seconds between two tries of a remote that keeps failing."""
_TURN = 1.0
"""Seconds between two looks whether the other mirror of a folder has ended."""
_YOUNG = 2.0
"""Seconds within which a file may change again without its time of change showing it."""
_TRIES = 5
Hint = tuple[int, int, int, int]


class TakenOver(Exception):
    """Another copy of the folder has been mirrored since."""


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class Mirror:
    """Keeps `remote` up to date with the run folder `local` while its body runs.

    Only one mirror works on a folder. While another does, in this process or not, a mirror does nothing; it
    takes over if that one ends first. A copy of the folder that another machine has gone on with since is
    mirrored no more, which is said.

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

    def __init__(
        self,
        local: Path,
        remote: Path,
        *,
        interval: float = 60.0,
        flush: float = 120.0,
        tell: Callable[[str], None] = _say,
    ):
        """
        Args:
            local: The run folder; made if missing.
            remote: Where it is mirrored to: a folder on Drive, or any other.
            interval: Seconds between two states.
            flush: Seconds for which the last state is tried again when the body has ended, unless the disk is
                full or read-only.
            tell: Called with a sentence when the remote begins to fail, and when it works again.
        """
        self.local, self.remote, self.interval, self.flush = local, remote, interval, flush
        self.tell = tell
        self.note: Note | None = None
        self.beat = time.monotonic()
        """When something last moved: a slow Drive is told from one that hangs."""
        self._state: State | None = None
        """What this mirror has written last, once all of it has got its name."""
        self._damaged: set[str] = set()
        self._known: dict[str, tuple[Hint, Entry]] = {}
        self._disk: int | None = None
        self._failures = 0
        self._at: str | None = None
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        """Why the last state is not there, in a sentence."""

    # --- one state -----------------------------------------------------------------------------------------

    def sync(self) -> bool:
        """Stores what is new and makes it the state; says whether anything was. Only who `hold`s may do so.

        Raises:
            OSError: Something could not be read or written; the state before still is whole.
            TakenOver: Another copy has been mirrored there since.
        """
        self._tick()
        if self.note is None:
            note = there.read_note(self.local) or Note(owner=uuid.uuid4().hex)
            note.save(self.local)
            self.note = note
        if not (self.local / there.NOTE).exists():
            raise FileNotFoundError(errno.ENOENT, f"`{self.local / there.NOTE}` is gone")
        self._require_same_disk()
        self.remote.mkdir(parents=True, exist_ok=True)
        found = self._require_own(self.note)
        before, finished = found or self._state, found is not None and found == self._state
        old = (before.files if before else None) or {}
        files = self._store(old)
        if found and files == found.files and (finished or found.owner != self.note.owner):
            return False
        self._state = None
        self._require_own(self.note)  # copying may have taken long
        known = before.counter if before else self.note.seen[1] if self.note.seen else 0
        gone = before.gone | old if before and not finished else old  # a kill may have come before they went
        gone = {path: entry for path, entry in gone.items() if path not in files}
        state = State(owner=self.note.owner, counter=known + 1, files=files, gone=gone)
        there.copy(self.remote / there.STATE, [state.text], there.hash_of([state.text]), self._tick)
        self.note = Note(owner=state.owner, seen=state.mark)
        self.note.save(self.local)
        there.finish(self.remote, state, self._tick)
        self._state, self._damaged, self._at = state, set(), time.strftime("%H:%M")
        return True

    def check(self) -> None:
        """Reads back all that the state names, if this copy wrote it; `sync` then mends what is damaged.

        Raises:
            OSError: Something is not there as it was written, or cannot be read.
            TakenOver: Another copy has been mirrored there since.
        """
        self._tick()
        assert self.note is not None
        found = self._require_own(self.note)
        if found is not None and found.owner != self.note.owner:
            return  # nothing of this copy is there
        if found is None or found != self._state:
            wrong = {there.STATE: "it is not what was written"}
        else:
            wrong = there.damaged(self.remote, found.files or {}, self._tick)
        if wrong:
            self._state, self._damaged = None, set(wrong)
            told = ", ".join(f"`{path}`: {why}" for path, why in wrong.items())
            raise OSError(f"what was written cannot be read back ({told})")

    def _require_own(self, note: Note) -> State | None:
        """The state that is there, which this copy goes on from; None where none can be read."""
        found = there.read_state(self.remote)
        if found is None:
            foreign = note.seen is None and (self.remote / "config.json").exists()
        else:
            foreign = found.owner != note.owner and found.mark != note.seen
        if foreign:
            raise TakenOver(
                f"Another copy of this run has been mirrored to `{self.remote}` since, so this one, in "
                f"`{self.local}`, is mirrored no more. Keep one of the two: stop this one, or move "
                f"`{self.remote}` away and run the same command again."
            )
        return found

    def _store(self, old: dict[str, Entry]) -> dict[str, Entry]:
        """Writes what is new as drafts; gives all that the folder holds at one moment.

        What says that something is finished is read before what it speaks of, checkpoints and rows last and
        at one moment: an epoch's rows are there before its checkpoint, a test's after the last one.
        """
        files: dict[str, Entry] = {}
        others = [name for name in there.visible(self.local) if not _is_steady(name)]
        for name in sorted(others, key=_rank):
            with contextlib.ExitStack() as opened:
                try:
                    look = self._look(name, opened)
                except FileNotFoundError:  # deleted since it was listed
                    continue
                files[name] = self._entry(name, old, *look)
        for _ in range(_TRIES):
            with contextlib.ExitStack() as opened:
                names = self._steady()
                try:
                    looks = {
                        name: self._look(name, opened) for name in names
                    }  # what is pruned stays readable
                except FileNotFoundError:
                    continue
                if names == self._steady():
                    return files | {name: self._entry(name, old, *look) for name, look in looks.items()}
        raise OSError("its checkpoints change while they are listed")

    def _steady(self) -> list[str]:
        return sorted(filter(_is_steady, there.visible(self.local)))  # checkpoints, then rows

    def _look(self, name: str, opened: contextlib.ExitStack) -> tuple[BinaryIO | None, int, Hint]:
        """A file, its length now and how it looks; None for the file where it is known."""
        file = opened.enter_context((self.local / name).open("rb"))
        status = os.fstat(file.fileno())
        hint = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        if name in self._known and self._known[name][0] == hint:
            file.close()
            return None, 0, hint
        if abs(time.time() - status.st_mtime) < _YOUNG:
            hint = (-1, 0, 0, 0)
        return file, there.length(name, file), hint

    def _entry(self, name: str, old: dict[str, Entry], file: BinaryIO | None, size: int, hint: Hint) -> Entry:
        """Size and hash of a file, and a draft of it where that is new."""
        self._tick()
        if file is not None:
            self._known[name] = hint, (size, there.hash_of(there.stretch(file, size)))
        entry = self._known[name][1]
        if entry == old.get(name) and name not in self._damaged:
            return entry
        draft = there.draft_of(self.remote, name, entry)
        if draft.exists():  # of a pass that failed later
            return entry
        with contextlib.ExitStack() as opened:
            file = file or opened.enter_context((self.local / name).open("rb"))
            try:
                there.copy(draft, there.stretch(file, entry[0]), entry[1], self._tick)
            except Damaged:
                raise OSError(f"`{name}` was changed while it was copied") from None
        return entry

    def _require_same_disk(self) -> None:
        """A Drive that is no longer mounted leaves an ordinary folder behind, which must not be filled."""
        workspace.require_mounted(self.remote)
        above = self.remote
        while not above.exists():
            above = above.parent
        disk = above.stat().st_dev
        if self._disk not in (None, disk):
            raise OSError(f"`{self.remote}` is no longer on the disk that it was on; is Drive still mounted?")
        self._disk = disk

    def _tick(self) -> None:
        self.beat = time.monotonic()

    # --- in the background ---------------------------------------------------------------------------------

    def __enter__(self) -> Mirror:
        workspace.make_folder(self.local)
        lock = there.hold(self.local)
        self._leaving.clear()
        self._thread = threading.Thread(target=self._work, args=(lock,), daemon=True, name="mirror")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Brings the remote up to date and reads it back.

        Raises:
            OSError: That failed; an error of the body goes first, and is only given a note.
        """
        trouble = None if self._thread is None else self._finish(self._thread)
        if trouble is None:
            return
        if error is None:
            raise OSError(trouble)
        error.add_note(trouble)
        self._report(trouble)

    def _finish(self, thread: threading.Thread) -> str | None:
        """Waits for the last state to be stored and read back; what went wrong, in a sentence."""
        begun = time.monotonic()
        self._leaving.set()
        while thread.is_alive():
            thread.join(0.1)
            if time.monotonic() - max(begun, self.beat) > self.flush + _TURN:
                return self._incomplete("it does not answer")  # the thread may never end
        return self._trouble

    def _work(self, lock: FileLock | None) -> None:
        self._trouble = self._incomplete("the mirror itself has failed, which should be reported")
        while lock is None:
            left = self._leaving.wait(_TURN)
            lock = there.hold(self.local)
            if left and lock is None:
                self._trouble = None
                return
        try:
            wait = 0.0
            while not self._leaving.wait(wait):
                error = self._try(self.sync)
                wait = self.interval if error is None else self._patience()
            self._trouble = self._last_state()
        except TakenOver as error:
            self._trouble = str(error)
            self._report(self._trouble)
            self._leaving.wait()  # holds the folder: nothing may be put in its place while it is worked on
        finally:
            lock.release()

    def _last_state(self) -> str | None:
        end = time.monotonic() + self.flush
        while True:
            error = self._try(lambda: (self.sync(), self.check()))
            if error is None:
                return None
            wait = self._patience()
            if error.errno in LASTING or time.monotonic() + wait > end:
                return self._incomplete(str(error.strerror or error))
            time.sleep(wait)

    def _try(self, step: Callable[[], object]) -> OSError | None:
        """What went wrong in a step, if the disk did; told once until it works again."""
        try:
            step()
        except OSError as error:
            self._failures += 1
            if self._failures == 1:
                self._report(
                    f"Mirroring to `{self.remote}` waits: {error.strerror or error}. It is tried again; "
                    f"training goes on, and everything is in `{self.local}`."
                )
            return error
        if self._failures:
            self._failures = 0
            self._report(f"Mirroring to `{self.remote}` works again.")
        return None

    def _patience(self) -> float:
        """Seconds until the next try: twice as long each time, and never the same on two machines."""
        longest = min(_LONGEST_WAIT, 2.0 ** min(self._failures - 1, 10), max(self.interval, self.flush))
        return longest * random.SystemRandom().uniform(0.5, 1.0)  # no generator that a training draws from

    def _incomplete(self, trouble: str) -> str:
        has = f"its state of {self._at}" if self._at else "what was mirrored before"
        return (
            f"The run could not be mirrored whole to `{self.remote}`: {trouble}. Everything is in "
            f"`{self.local}`, and `{self.remote}` has {has}. Mend what is wrong and run the same command "
            "again before this machine goes."
        )

    def _report(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed standard error is no reason to stop
            self.tell(sentence)


def _is_steady(name: str) -> bool:
    return name.startswith("checkpoints/") or name.endswith(".jsonl")


def _rank(name: str) -> int:
    return 0 if name == "result.json" else {".ipynb": 1, ".json": 2}.get(Path(name).suffix, 3)

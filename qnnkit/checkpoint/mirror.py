"""A run folder on local disk, kept up to date in the background where it outlasts the machine.

Training never waits for the remote, and never fails because of it. Files are looked at from the last to
the first of `remote.rank` and copied from the first to the last, so what is there can be resumed from at
any moment. Leaving the mirror brings the remote up to date and reads it back.
"""

from __future__ import annotations

import contextlib
import errno
import os
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
from qnnkit.checkpoint.remote import Entry, Mark

LASTING = (*workspace.FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
"""Error numbers that no waiting mends."""
_TURN = 1.0
"""Seconds between two looks whether the other mirror of a folder has ended."""
_AGAIN = 10.0
"""Most seconds between two tries at the end."""
_TRIES = 5


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
            interval: Seconds between two passes, and until a failed one is tried again.
            flush: Seconds for which the last pass is tried again when the body has ended, unless the disk is
                full or read-only.
            tell: Called with a sentence when the remote begins to fail, and when it works again.
        """
        self.local, self.remote, self.interval, self.flush = local, remote, interval, flush
        self.tell = tell
        self.marks: list[Mark] | None = None
        """Of the states that this copy comes from or has written."""
        self.beat = time.monotonic()
        """When something last moved: distinguishes a slow Drive from one that hangs."""
        self._there: dict[str, Entry] | None = None
        """What the remote holds, as far as this mirror has read or written."""
        self._written: set[str] = set()
        self._broken: set[str] = set()
        self._disk: int | None = None
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        """Why the last state is not there, in a sentence."""

    # --- one pass ------------------------------------------------------------------------------------------

    def sync(self) -> bool:
        """Copies what is new; returns whether anything was. Only who `hold`s the folder may do so.

        Raises:
            OSError: Something could not be read or written; what is there can be resumed from.
            TakenOver: Another copy has been mirrored there since.
        """
        self._tick()
        if self.marks is None:
            there.note(self.local, marks := there.marks_of(self.local) or [])
            self.marks = marks
        if not (self.local / there.NOTE).exists():
            raise FileNotFoundError(errno.ENOENT, f"`{self.local / there.NOTE}` is gone")
        self._require_same_disk()
        self.remote.mkdir(parents=True, exist_ok=True)
        mark = self._require_own()
        if self._there is None:
            self._there, known = there.entries(self.remote, beat=self._tick), there.listed(self.remote)
            self._written = {
                name for name in known if self._there.get(name, known[name])[0] == known[name][0]
            }
        with contextlib.ExitStack() as opened:
            files, handles = self._look(opened)
            todo = [name for name in sorted(files, key=there.rank) if self._there.get(name) != files[name]]
            gone = [name for name in self._there if name not in files and self._goes(name)]
            if mark and not todo and not gone:
                return False
            self._claim()
            if there.RESULT in todo + gone:  # comes last, and is never beside rows that it does not speak of
                (self.remote / there.RESULT).unlink(missing_ok=True)
            part = self.remote / f"{there.DRAFT}{workspace.MACHINE}-{os.getpid()}"
            for name in todo:
                self._require_own()  # copying may have taken long
                try:
                    there.copy(handles[name], self.remote / name, part, files[name], self._tick)
                except there.Damaged:
                    if not there.digits(name):
                        raise  # it was changed meanwhile
                    self._broken.add(name)  # damaged here: of no use to anybody
                    del files[name]
                    continue
                self._there[name] = files[name]
                self._written.add(name)
        for name in gone:
            size, _ = self._there.pop(name)
            path = self.remote / name
            if path.is_file() and path.stat().st_size == size:  # else somebody's own by now
                path.unlink()
        for draft in self.remote.glob(f"{there.DRAFT}*"):  # of a pass that a kill ended
            draft.unlink(missing_ok=True)
        self._claim(files)  # another one: what was brought from here meanwhile was no more than a part
        return True

    def check(self) -> None:
        """Reads back what is there, if this copy wrote it; `sync` then mends what is damaged.

        Raises:
            OSError: Something is not there as it was written, or cannot be read.
            TakenOver: Another copy has been mirrored there since.
        """
        if self._there is None:
            return  # nothing of this copy is there
        mark, written = self._require_own(), self._there
        self._there = there.entries(self.remote, reads=True, beat=self._tick)
        wrong = [name for name in filter(self._goes, written) if self._there.get(name) != written[name]]
        if mark is None:
            wrong.append(there.STATE)
        if wrong:
            raise OSError(f"what was written cannot be read back (`{'`, `'.join(wrong)}`)")

    def _claim(self, files: dict[str, Entry] | None = None) -> None:
        """Writes that this copy works there and has changed something; what is there, once all of it is."""
        mark, new = self._require_own(), [uuid.uuid4().hex, 0]
        marks = [mark, new] if mark else [new]
        there.note(self.local, marks)  # first: what a kill leaves there is known here
        self.marks = marks
        there.sign(self.remote, new, files)
        self._tick()

    def _require_own(self) -> Mark | None:
        """The mark that is there, which this copy comes from; None where none can be read."""
        mark, marks = there.mark_of(self.remote), self.marks or []
        if (mark not in marks if mark else not marks) and (marks or (self.remote / there.SETTINGS).exists()):
            raise TakenOver(
                f"Another copy of this run has been mirrored to `{self.remote}` since, so this one, in "
                f"`{self.local}`, is mirrored no more. Keep one of the two: stop this one, or move "
                f"`{self.remote}` away and run the same command again."
            )
        return mark

    def _look(self, opened: contextlib.ExitStack) -> tuple[dict[str, Entry], dict[str, BinaryIO]]:
        """What the folder holds at one moment, and open files of what may have to be copied.

        It is looked at in the reverse of the order in which it is copied. Rows come last: they may be newer
        than the checkpoints, never older. What is pruned meanwhile stays readable.
        """
        for _ in range(_TRIES):
            files, handles, names = {}, {}, self._names()
            with contextlib.ExitStack() as now, contextlib.suppress(FileNotFoundError):
                for name in names:
                    handles[name] = now.enter_context((self.local / name).open("rb"))
                    files[name] = there.entry(name, handles[name], beat=self._tick)
                    if files[name] == (self._there or {}).get(name):
                        handles[name].close()
                if list(filter(there.digits, names)) == list(filter(there.digits, self._names())):
                    opened.enter_context(now.pop_all())
                    return files, handles
        raise OSError("its checkpoints change while they are listed")

    def _goes(self, name: str) -> bool:
        """Whether a file that is there, but no longer here, is deleted: files of others stay."""
        return name in self._written or bool(there.digits(name)) or name == there.RESULT

    def _names(self) -> list[str]:
        return sorted({*there.visible(self.local)} - self._broken, key=there.rank, reverse=True)

    def _require_same_disk(self) -> None:
        """A Drive that is no longer mounted leaves an ordinary folder behind, which must not be filled."""
        workspace.require_mounted(self.remote)
        disk = next(path for path in (self.remote, *self.remote.parents) if path.exists()).stat().st_dev
        if self._disk not in (None, disk):
            raise OSError(f"`{self.remote}` is no longer on the disk that it was on; is Drive still mounted?")
        self._disk = disk

    def _tick(self) -> None:
        self.beat = time.monotonic()

    # --- in the background ---------------------------------------------------------------------------------

    def __enter__(self) -> Mirror:
        workspace.make_folder(self.local)
        lock = there.hold(self.local)
        self.marks = self._there = None  # another one may have worked on it since
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
        begun = time.monotonic()
        self._leaving.set()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1)
            if time.monotonic() - max(begun, self.beat) > self.flush + _TURN:
                self._trouble = self._incomplete("it does not answer")  # the thread may never end
                break
        if self._trouble is None:
            return
        if error is None:
            raise OSError(self._trouble)
        error.add_note(self._trouble)
        self._report(self._trouble)

    def _work(self, lock: FileLock | None) -> None:
        self._trouble = self._incomplete("the mirror itself has failed, which should be reported")
        while lock is None:
            leaving = self._leaving.wait(_TURN)
            lock = there.hold(self.local)
            if leaving and lock is None:
                self._trouble = None  # the other one sees to it
                return
        try:
            self._trouble = self._passes()
        except TakenOver as error:
            self._trouble = str(error)
            self._report(self._trouble)
            self._leaving.wait()  # holds the folder: nothing may be put in its place while it is worked on
        finally:
            lock.release()

    def _passes(self) -> str | None:
        """One pass after the other until the last one; what went wrong with that, in a sentence."""
        failing, end = False, None
        while True:
            leaving = self._leaving.is_set()
            if leaving and end is None:
                end = time.monotonic() + self.flush
            try:
                self.sync()
                if leaving:
                    self.check()
                if failing:
                    self._report(f"Mirroring to `{self.remote}` works again.")
                failing = False
            except OSError as error:
                why = error.strerror or error
                if not failing:
                    self._report(
                        f"Mirroring to `{self.remote}` waits: {why}. It is tried again; "
                        f"training goes on, and everything is in `{self.local}`."
                    )
                failing = True
                if end and (error.errno in LASTING or time.monotonic() > end):
                    return self._incomplete(str(why))
            if end and not failing:
                return None
            if end:
                time.sleep(min(_AGAIN, self.flush / 3))
            else:
                self._leaving.wait(self.interval)

    def _incomplete(self, trouble: str) -> str:
        return (
            f"The run could not be mirrored whole to `{self.remote}`: {trouble}. Everything is in "
            f"`{self.local}`, and `{self.remote}` has what was mirrored before. Mend what is wrong and run "
            "the same command again before this machine goes."
        )

    def _report(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed standard error is no reason to stop
            self.tell(sentence)

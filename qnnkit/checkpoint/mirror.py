"""A run folder on local disk, copied in the background to where it outlasts the machine.

Training never waits for the remote folder, and never fails because of it. Leaving the mirror copies what is
left and reads all of it back.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from qnnkit import workspace
from qnnkit.checkpoint import remote as there
from qnnkit.checkpoint.remote import NOTE, RESULT, Mark, Stamp, rank

LASTING = (*workspace.FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
"""Error numbers that no waiting mends."""
_AGAIN = 10.0
"""Most seconds between two tries at the end."""
_TRIES = 5


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class Mirror:
    """Keeps `remote` up to date with the run folder `local` while its body runs.

    Only one mirror works on a folder. While another does, in this process or not, a mirror does nothing; it
    takes over if that one ends first. If another machine has continued the run since, a mirror says so and
    copies nothing.

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
        self, local: Path, remote: Path, interval: float = 60.0, flush: float = 120.0, tell: Any = _say
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
        self.tell: Callable[[str], object] = tell
        self.marks: list[Mark] | None = None
        """Of the states that this copy comes from or has written; None before the first pass."""
        self.beat = time.monotonic()
        """When something last moved: distinguishes a slow Drive from one that hangs."""
        self._sent: dict[str, Stamp | None] = {}
        """Files of this copy in `remote`: their stamps here when they were copied, None for unknown."""
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        """Why the last state is not there, in a sentence."""

    # --- one pass ------------------------------------------------------------------------------------------

    def sync(self) -> bool:
        """Copies what is new; returns whether anything was. Only who `hold`s the folder may do so.

        Raises:
            FileExistsError: Another copy has been mirrored there since.
            OSError: Something could not be read or written; what is there can be resumed from.
        """
        workspace.require_mounted(self.remote)
        if self.marks is None:
            self._begin()
        for path in (self.remote, self.local / NOTE):
            if not path.exists():
                raise FileNotFoundError(errno.ENOENT, f"`{path}` is gone; is Drive still mounted?")
        mark = self._require_own()
        if mark is None:  # nothing of this copy is there, or not any more
            self._sent = dict.fromkeys(self._sent)
        with contextlib.ExitStack() as opened:
            stamps, changed = self._look(opened)
            gone = self._sent.keys() - stamps.keys()
            if mark and not changed and not gone:
                return False
            new = [uuid.uuid4().hex, 0]
            self.marks = [mark, new] if mark else [new]  # noted first: what a kill leaves there is known here
            there.note(self.local, self.marks, dict.fromkeys(stamps) | self._sent)
            if RESULT in gone or RESULT in changed:  # is never beside rows that it does not cover
                (self.remote / RESULT).unlink(missing_ok=True)
            for name in sorted(changed, key=rank):
                self._require_own()  # copying may have taken long
                there.copy(changed[name], name, self.remote, self._tick)
                self._sent[name] = stamps[name]
        for name in gone:
            (self.remote / name).unlink(missing_ok=True)
            del self._sent[name]
        self._require_own()
        there.note(self.local, self.marks, self._sent)
        there.sign(self.remote, new)
        return True

    def check(self) -> None:
        """Reads back what is there; `sync` then copies again what is damaged.

        Raises:
            OSError: Something is not there as it was written, or cannot be read.
        """
        wrong = [name for name in self._sent if not self._is_there(name)]
        self._sent |= dict.fromkeys(wrong)
        if wrong or self._require_own() is None:
            raise OSError(f"what was written cannot be read back (`{'`, `'.join(wrong) or there.STATE}`)")

    def _begin(self) -> None:
        self.remote.mkdir(parents=True, exist_ok=True)
        for draft in self.remote.glob(f"{there.DRAFT}*"):  # of a pass that a kill ended
            draft.unlink(missing_ok=True)
        marks, self._sent = there.noted(self.local)
        there.note(self.local, marks, self._sent)
        self.marks = marks

    def _look(self, opened: contextlib.ExitStack) -> tuple[dict[str, Stamp], dict[str, BinaryIO]]:
        """Stamps of the local files at one moment, and open files of those that have changed.

        They are opened in the reverse of the order in which they are copied, and of rows all is copied that
        is there by then: what comes first may be newer than what follows, never older. What is pruned or
        replaced meanwhile stays readable.
        """
        for _ in range(_TRIES):
            stamps, changed = {}, {}
            with contextlib.suppress(FileNotFoundError):
                for name in sorted(there.visible(self.local), key=rank, reverse=True):
                    stamps[name] = there.stamp(self.local / name)
                    if self._sent.get(name) != stamps[name]:
                        changed[name] = opened.enter_context((self.local / name).open("rb"))
                return stamps, changed
        raise OSError("its files change while they are listed")

    def _is_there(self, name: str) -> bool:
        """Whether a file has the same content here and there."""
        with (
            contextlib.suppress(FileNotFoundError),
            (self.local / name).open("rb") as file,
            (self.remote / name).open("rb") as other,
        ):
            size = there.size_of(name, file)
            pieces = zip(*(there.chunks(each, size, self._tick) for each in (file, other)), strict=False)
            return os.fstat(other.fileno()).st_size == size and all(one == two for one, two in pieces)
        return False

    def _require_own(self) -> Mark | None:
        """The mark that is there, which this copy comes from; None where there is none."""
        mark, marks = there.mark_of(self.remote), self.marks or []
        own = mark in marks if mark else bool(marks)
        if not own and (marks or (self.remote / there.SETTINGS).exists()):
            raise FileExistsError(
                errno.EEXIST,
                "another copy of this run has been mirrored there since, so this one is mirrored no more. "
                "Keep one of the two: stop this one, or move the other away",
            )
        self._tick()
        return mark

    def _tick(self) -> None:
        self.beat = time.monotonic()

    # --- in the background ---------------------------------------------------------------------------------

    def __enter__(self) -> Mirror:
        workspace.make_folder(self.local)
        self.marks, self._sent = None, {}  # another one may have worked on it since
        self._leaving.clear()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Brings the remote up to date and reads it back.

        Raises:
            OSError: That failed; an error of the body goes first, and is only given a note.
        """
        begun = time.monotonic()
        self._leaving.set()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1)
            if time.monotonic() - max(begun, self.beat) > self.flush + 1:
                self._trouble = self._incomplete("it does not answer")  # the thread may never end
                break
        if self._trouble is not None and error is None:
            raise OSError(self._trouble)
        if self._trouble is not None and error is not None:
            error.add_note(self._trouble)
            self._report(self._trouble)

    def _work(self) -> None:
        """One pass after the other until the last one; notes what went wrong with that."""
        self._trouble = self._incomplete("the mirror itself has failed, which should be reported")
        lock, trouble, end = None, None, math.inf
        while True:
            if self._leaving.is_set():
                end = min(end, time.monotonic() + self.flush)
            before, trouble = trouble, None
            try:
                lock = lock or there.hold(self.local)
                if lock is not None:  # else another mirror sees to it
                    self.sync()
                    if end < math.inf:
                        self.check()
            except OSError as error:
                trouble = error
            if trouble is not None and before is None:
                self._report(
                    f"Mirroring to `{self.remote}` waits: {trouble.strerror or trouble}. It is tried again; "
                    f"training goes on, and everything is in `{self.local}`."
                )
            if trouble is None and before is not None:
                self._report(f"Mirroring to `{self.remote}` works again.")
            if end < math.inf:
                if trouble is None or trouble.errno in LASTING or time.monotonic() > end:
                    break
                time.sleep(min(_AGAIN, self.flush / 3))
            else:
                self._leaving.wait(self.interval)
        self._trouble = None if trouble is None else self._incomplete(trouble.strerror or trouble)
        if lock is not None:
            lock.release()

    def _incomplete(self, why: object) -> str:
        return (
            f"The run could not be mirrored whole to `{self.remote}`: {why}. Everything is in "
            f"`{self.local}`, and `{self.remote}` has what was mirrored before. Mend what is wrong and run "
            "the same command again before this machine goes."
        )

    def _report(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed standard error is no reason to stop
            self.tell(sentence)

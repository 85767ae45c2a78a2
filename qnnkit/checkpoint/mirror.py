"""A run folder on local disk, mirrored in the background to where it outlasts the machine.

Training never waits for the remote, and never fails because of it. What arrives there is always one whole
state (`stored`), at most some interval old; leaving the mirror brings it up to date and reads it back.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from filelock import FileLock

from qnnkit import checks, workspace
from qnnkit.checkpoint.local import hold
from qnnkit.checkpoint.publisher import Publisher, TakenOver

_LONGEST_WAIT = 60.0
"""Seconds between two tries of a remote that keeps failing."""
_TURN = 1.0
"""Seconds between two looks whether the other mirror of a folder has ended."""


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class Mirror:
    """Keeps `remote` up to date with the run folder `local` while its body runs.

    Only one mirror works on a folder. While another does, in this process or not, a mirror does nothing; it
    takes over if that one ends first.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as disk:
        ...     local, remote = Path(disk, "local"), Path(disk, "remote")
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
        flush: float = 300.0,
        tell: Callable[[str], None] = _say,
    ):
        """
        Args:
            local: The run folder; made if missing.
            remote: Where it is mirrored to: a folder on Drive, or any other.
            interval: Seconds between two states.
            flush: Seconds for which the last state is tried again when the body has ended.
            tell: Called with a sentence when the remote begins to fail, and when it works again.

        Raises:
            ValueError: A number is not above 0, or one folder lies in the other.
        """
        checks.positive("interval", interval, "Use a number of seconds, such as 60.")
        checks.positive("flush", flush, "Use a number of seconds, such as 300.")
        one, other = local.resolve(), remote.resolve()
        if one == other or one in other.parents or other in one.parents:
            step = "Choose a folder apart from it."
            raise ValueError(checks.message("remote", f"lie apart from {local}", str(remote), step))
        self.local, self.remote, self.interval, self.flush = local, remote, interval, flush
        self._tell = tell
        self._jitter = random.Random()  # its own: several machines must not knock at the same moment
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock: FileLock | None = None
        self._publisher: Publisher | None = None
        self._failures = 0
        self._trouble: str | None = None
        """Why the last state is not there, in a sentence."""

    def __enter__(self) -> Mirror:
        workspace.make_folder(self.local)
        self._lock = hold(self.local)
        self._leaving.clear()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
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
        self._told(trouble)

    def _finish(self, thread: threading.Thread) -> str | None:
        """Waits for the last state to be stored and read back; what went wrong, in a sentence."""
        begun = time.monotonic()
        self._leaving.set()
        while thread.is_alive():
            thread.join(0.1)
            beat = max(begun, self._publisher.beat if self._publisher else begun)
            if time.monotonic() - beat > self.flush + _TURN:
                return self._incomplete("it does not answer")  # the thread may never end
        return self._trouble

    def _work(self) -> None:
        self._trouble = self._incomplete("the mirror itself has failed, which should be reported")
        while self._lock is None:
            left = self._leaving.wait(_TURN)
            self._lock = hold(self.local)
            if left and self._lock is None:
                self._trouble = None
                return
        try:
            self._publisher = Publisher(self.local, self.remote)
            wait = 0.0
            while not self._leaving.wait(wait):
                trouble = self._try(self._publisher, self._publisher.sync)
                wait = self.interval if trouble is None else self._patience()
            self._trouble = self._last_state(self._publisher)
        except TakenOver as error:
            self._trouble = str(error)
            self._told(self._trouble)
            self._leaving.wait()  # holds the folder: nothing may be put in its place while it is worked on
        finally:
            self._lock.release()

    def _last_state(self, publisher: Publisher) -> str | None:
        end = time.monotonic() + self.flush
        while True:
            trouble = self._try(publisher, publisher.sync_and_check)
            if trouble is None:
                return None
            wait = self._patience()
            if time.monotonic() + wait > end:
                return self._incomplete(trouble)
            time.sleep(wait)

    def _try(self, publisher: Publisher, step: Callable[[], object]) -> str | None:
        """What went wrong in a step, if the disk did; told once until it works again."""
        publisher.tick()
        try:
            step()
        except OSError as error:
            trouble = str(error.strerror or error)
            self._failures += 1
            if self._failures == 1:
                self._told(
                    f"Mirroring to `{self.remote}` waits: {trouble}. It is tried again; training goes on, "
                    f"and everything is in `{self.local}`."
                )
            return trouble
        if self._failures:
            self._failures = 0
            self._told(f"Mirroring to `{self.remote}` works again.")
        return None

    def _patience(self) -> float:
        """Seconds until the next try: twice as long each time, and never the same on two machines."""
        longest = min(_LONGEST_WAIT, 2.0 ** min(self._failures - 1, 10), max(self.interval, self.flush))
        return longest * self._jitter.uniform(0.5, 1.0)

    def _incomplete(self, trouble: str) -> str:
        return (
            f"The run could not be mirrored whole to `{self.remote}`: {trouble}. Everything is in "
            f"`{self.local}`. Mend what is wrong and run the same command again before this machine goes."
        )

    def _told(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed standard error is no reason to stop
            self._tell(sentence)

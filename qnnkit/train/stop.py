"""Signals that ask a training to stop take effect after its next step is done and saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals of a scheduler or machine that is about to stop the process, and of a closed terminal."""
SIGNALS = (signal.SIGINT, *ENDING)
"""All signals that are deferred: ENDING, Ctrl-C and a kernel's interrupt."""


class Stop:
    """The signal that was received, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def now(self) -> NoReturn:
        """Leaves the training, which has saved its state; as on SIGTERM if only another process was asked."""
        self.signal = self.signal or signal.SIGTERM
        raise Stopped


class Stopped(BaseException):
    """The training has saved its state and is being left."""


@contextlib.contextmanager
def deferred() -> Iterator[Stop]:
    """A context that defers `SIGNALS` until `Stop.now` is called; then they take their usual effect.

    A second signal takes effect at once. Python receives signals only in its main thread, so the context does
    nothing in other threads.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}

    def hear(number: int, frame: object) -> None:
        if stop:
            _restore(before)
            _deliver(number, before[number])
        stop.signal = number

    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, hear)
    left = False
    try:
        yield stop
    except Stopped:
        left = True
    finally:
        _restore(before)
    if stop.signal is not None:  # also if it came after the last step
        _deliver(stop.signal, before[stop.signal])
    if left:  # the previous handler has returned, but the training has been left
        raise SystemExit(128 + (stop.signal or signal.SIGTERM))


def _restore(handlers: Mapping[Any, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _deliver(number: int, handler: object) -> None:
    if number in ENDING and handler in (signal.SIG_DFL, None):
        raise SystemExit(128 + number)  # dying at once would skip clean-up: locks, mirrors
    signal.raise_signal(number)

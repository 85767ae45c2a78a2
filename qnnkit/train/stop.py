"""A signal that asks a training to stop is heard when its next step is done and saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""A scheduler's or a machine's notice that it will go; a terminal that is closed."""
SIGNALS = (signal.SIGINT, *ENDING)
"""Also Ctrl-C and a kernel's interrupt."""


class Stop:
    """Which signal has come, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def now(self) -> NoReturn:
        """Leaves the training, which has saved its state; SIGTERM where only another process was asked."""
        self.signal = self.signal or signal.SIGTERM
        raise Stopped


class Stopped(BaseException):
    """The training has saved its state and is being left."""


@contextlib.contextmanager
def deferred() -> Iterator[Stop]:
    """Holds `SIGNALS` back until `Stop.now` is called inside; then they do what they did before.

    A second one does so at once. Python hears signals in its main thread only: in others none is held back.
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
    if stop.signal is not None:  # also one that came after the last step
        _deliver(stop.signal, before[stop.signal])
    if left:  # the handler before has heard it and would go on, but the training has been left
        raise SystemExit(128 + (stop.signal or signal.SIGTERM))


def _restore(handlers: Mapping[Any, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _deliver(number: int, handler: object) -> None:
    if number in ENDING and handler in (signal.SIG_DFL, None):
        raise SystemExit(128 + number)  # dying at once would skip the last words: locks, mirrors
    signal.raise_signal(number)

"""What a training feels of its machine: steps that have become slow, memory that is nearly gone."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

from qnnkit.device import machine
from qnnkit.train.progress import Moment

STRETCH = 1.0
"""Seconds of training, and at least one update, that make one number."""
WARMUP, EARLY, RECENT = 5, 30, 60
"""Stretches that are passed over, that are the beginning, and that must have been slow to be told."""
SLOWER = 1.5
"""Times the beginning's median."""
PERIOD = 10.0
"""Seconds between two looks at the memory."""
LOW = 0.05
"""Share of the RAM that is too little. Chosen, not fitted, like the numbers above."""


class Vitals:
    """Looks at the updates of a training, and says once each when they slow down or memory becomes short.

    Args:
        tell: Called with a sentence.
        remedy: What whoever trains may do about the memory.
        clock: Gives seconds.
        read: Gives the machine's memory and what of it is available, in bytes.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        remedy: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[], tuple[int, int]] | None = None,
    ):
        self.tell, self.remedy, self.clock, self.read = tell, remedy, clock, read or machine.memory
        self.pace, self.micro_batch = Pace(), None
        self.looked, self.told = -PERIOD, set()

    def update(self, moment: Moment) -> None:
        """Called after every update; looks at the memory every ten seconds only."""
        if moment.micro_batch != self.micro_batch:  # steps of more pieces take longer by themselves
            self.micro_batch, self.pace = moment.micro_batch, Pace()
        self.pace.add(moment.seconds)
        slow = self.pace.slow()
        if slow is not None:
            self._say("slow", slower(*slow))
        if (now := self.clock()) - self.looked >= PERIOD:
            self.looked = now
            total, available = self.read()
            if available < LOW * total:
                left = f"{available / 1e9:.1f} of {total / 1e9:.1f} GB of RAM are left"
                self._say(
                    "low", f"Memory is short: {left}, and what asks for more may be killed. {self.remedy}"
                )

    def _say(self, kind: str, sentence: str) -> None:
        if kind not in self.told:
            self.told.add(kind)
            self.tell(sentence)


class Pace:
    """Seconds of an update in the beginning and lately, by stretches: a single pause is no matter."""

    def __init__(self) -> None:
        self.seconds, self.updates, self.stretches = 0.0, 0, 0
        self.early: list[float] = []
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, seconds: float) -> None:
        self.seconds, self.updates = self.seconds + seconds, self.updates + 1
        if self.seconds < STRETCH:
            return
        each, self.seconds, self.updates = self.seconds / self.updates, 0.0, 0
        self.stretches += 1
        if self.stretches > WARMUP:
            (self.early if len(self.early) < EARLY else self.recent).append(each)

    def slow(self) -> tuple[float, float] | None:
        """Seconds of an update in the beginning and lately, where they are many more in most of a minute."""
        if len(self.recent) < RECENT or self.updates:  # asked once a stretch
            return None
        then, lately = statistics.median(self.early), sorted(self.recent)
        return (then, lately[RECENT // 2]) if lately[RECENT // 4] > SLOWER * then else None


def slower(then: float, now: float) -> str:
    """That updates take longer than in the beginning, in seconds each.

    Example:
        >>> slower(0.023, 0.0414)
        'Steps take 1.8x as long as at first (0.0414 s, were 0.023 s): another program, or heat (plug it in).'
    """
    told = f"({now:.3g} s, were {then:.3g} s)"
    return f"Steps take {now / then:.1f}x as long as at first {told}: another program, or heat (plug it in)."

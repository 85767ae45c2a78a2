"""What a training feels of its machine: steps that have become slow, memory that is nearly gone."""

from __future__ import annotations

import platform
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

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
LOW, TIGHT, MOVED = 0.05, 0.2, 0.1
"""Shares of the RAM: too little is left; little is, so that swap tells something; much has gone to swap.
Chosen, not fitted, like the numbers above."""


@dataclass(frozen=True)
class Reading:
    """The machine's memory at one moment, in bytes."""

    total: int
    available: int
    swap: int
    pressure: int = 1
    """What macOS calls it: 1 normal, 2 warning, 4 critical."""


class Vitals:
    """Looks at the updates of a training, and says once each when they slow down or memory becomes short.

    Args:
        tell: Called with a sentence.
        remedy: What whoever trains may do about the memory.
        clock: Gives seconds.
        read: Gives the machine's memory.
        mac: Whether this is a Mac, which slows down when it is hot.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        remedy: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[], Reading] | None = None,
        mac: bool = platform.system() == "Darwin",
    ):
        self.tell, self.remedy, self.clock, self.read, self.mac = tell, remedy, clock, read or reading, mac
        self.pace, self.at_once = Pace(), None
        self.first: Reading | None = None
        self.looked = -PERIOD
        self.told: set[str] = set()

    def update(self, moment: Moment) -> None:
        """Called after every update; looks at the memory every ten seconds only."""
        if moment.at_once != self.at_once:  # steps of more parts take longer by themselves
            self.at_once, self.pace = moment.at_once, Pace()
        self.pace.add(moment.seconds)
        slow = self.pace.slow()
        if slow is not None:
            self._say("slow", slower(*slow, mac=self.mac))
        if (now := self.clock()) - self.looked >= PERIOD:
            self.looked = now
            found = self.read()
            self.first = self.first or found
            for kind, sentence in strain(found, self.first).items():
                self._say(kind, f"{sentence} {self.remedy}")

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


def slower(then: float, now: float, *, mac: bool) -> str:
    """That updates take longer than in the beginning, in seconds each.

    Example:
        >>> slower(0.023, 0.0414, mac=False)
        'Steps take 1.8x as long as in the beginning (41 ms, were 23 ms): another program, or heat.'
    """
    why = "heat (let it cool, or plug it in), or another program" if mac else "another program, or heat"

    def words(seconds: float) -> str:
        value, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
        return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"

    told = words(now), words(then)
    return f"Steps take {now / then:.1f}x as long as in the beginning ({told[0]}, were {told[1]}): {why}."


def strain(now: Reading, first: Reading) -> dict[str, str]:
    """What is wrong with the memory, by kind: a sentence each.

    Args:
        now: The memory now.
        first: When the training began.
    """
    found = {}
    if now.pressure > 1:
        how = "critical" if now.pressure >= 4 else "high"
        found["pressure"] = f"macOS says that the pressure on its memory is {how}: steps slow down."
    elif now.available < LOW * now.total:
        left = f"{now.available / 1e9:.1f} of {now.total / 1e9:.1f} GB"
        found["low"] = f"Memory is short: {left} of RAM are left, and what asks for more may be killed."
    moved = now.swap - first.swap
    if moved > MOVED * now.total and now.available < TIGHT * now.total:
        told = f"{moved / 1e9:.1f} GB have gone to swap since the training began"
        found["swap"] = f"Memory is short: {told}, and steps wait for it."
    return found


def reading() -> Reading:
    """The memory of this machine, or what its container grants."""
    import psutil

    total, available = machine.memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some containers hide how much is swapped in and out
        swap = psutil.swap_memory().used
    level = "1"
    if platform.system() == "Darwin":
        level = machine.output("sysctl", "-n", "kern.memorystatus_vm_pressure_level")
    return Reading(total, available, swap, int(level) if level.isdigit() else 1)

"""What a training feels of its machine: steps that have become slow, memory that is nearly gone."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from qnnkit.device import machine
from qnnkit.train.progress import Moment

STRETCH = 1.0
"""Seconds of training, and at least one update, that are averaged: a single pause is no matter."""
WARMUP, EARLY, RECENT = 5, 30, 60
"""Stretches that are passed over, that are the beginning, and that must have been slow to be told."""
SLOWER = 1.5
"""Times the beginning's median."""
PERIOD = 10
"""Stretches between two looks at the memory."""
LOW = 0.05
"""Share of the RAM that is too little. Chosen, not fitted, like the numbers above."""


class Vitals:
    """Looks at the updates of a training, and says once each when they slow down or memory becomes short.

    Args:
        tell: Called with a sentence.
        remedy: What whoever trains may do about the memory.
    """

    def __init__(self, tell: Callable[[str], None], remedy: str):
        self.tell, self.remedy, self.told = tell, remedy, set()
        self._restart(None)

    def _restart(self, micro_batch: int | None) -> None:
        self.micro_batch, self.seconds, self.updates, self.paces = micro_batch, 0.0, 0, []

    def update(self, moment: Moment) -> None:
        """Called after every update."""
        if moment.micro_batch != self.micro_batch:  # steps of more pieces take longer by themselves
            self._restart(moment.micro_batch)
        self.seconds, self.updates = self.seconds + moment.seconds, self.updates + 1
        if self.paces and self.seconds < STRETCH:
            return
        if len(self.paces) % PERIOD == 0:
            self._look_at_memory()
        self.paces.append(self.seconds / self.updates)
        self.seconds, self.updates = 0.0, 0
        if len(self.paces) < WARMUP + EARLY + RECENT:
            return
        then, lately = statistics.median(self.paces[WARMUP:][:EARLY]), sorted(self.paces[-RECENT:])
        if lately[RECENT // 4] > SLOWER * then:
            now = lately[RECENT // 2]
            why = f"({now:.3g} s, were {then:.3g} s): another program, or heat (plug it in)"
            self._say("slow", f"Steps take {now / then:.1f}x as long as at first {why}.")

    def _look_at_memory(self) -> None:
        total, available = machine.memory()
        if available < LOW * total:
            left = f"{available / 1e9:.1f} of {total / 1e9:.1f} GB of RAM are left"
            told = f"Memory is short: {left}, and what asks for more may be killed. {self.remedy}"
            self._say("low", told)

    def _say(self, kind: str, sentence: str) -> None:
        if kind not in self.told:
            self.told.add(kind)
            self.tell(sentence)

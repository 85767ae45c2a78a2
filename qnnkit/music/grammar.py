"""Which events may come next, so that whatever is sampled is music."""

from __future__ import annotations

import torch
from torch import Tensor

from qnnkit.data.music_events import DURATION, LONGEST, PITCH, SIZE, START, TIME

MOST_BARS = 16
"""Bars of 16 steps that a single note lasts at most, as it is sampled: so every step comes to an end."""


class Grammar:
    """Reads events one by one and knows which may follow.

    Those that `MusicTokenizer.encode` may write next, less `end`: notes of a step from high to low, each
    after a duration; a time of less than 16 steps leads to a note.

    Example:
        >>> grammar = Grammar()
        >>> for token in (START, DURATION + 3, PITCH + 60):
        ...     grammar.read(token)
        >>> allowed = grammar.allowed()
        >>> bool(allowed[PITCH + 59]), bool(allowed[PITCH + 60]), bool(allowed[TIME])
        (True, False, True)
    """

    def __init__(self) -> None:
        self.steps = 0
        """Told so far."""
        self.last = START
        self.lowest = SIZE - PITCH  # pitch of the last note of this step
        self.bars = 0  # longest durations told one after the other

    def read(self, token: int) -> None:
        """Goes on by one event, an allowed one or not: a prompt may be of any origin."""
        if TIME <= token < DURATION:
            self.steps += token - TIME + 1
            self.lowest = SIZE - PITCH
        elif token >= PITCH:
            self.lowest = token - PITCH
        self.bars = self.bars + 1 if token == DURATION + LONGEST - 1 else 0
        self.last = token

    def allowed(self) -> Tensor:
        """Whether each token may come next, of shape (tokens,)."""
        mask = torch.zeros(SIZE, dtype=torch.bool)
        full_time, full_duration = TIME + LONGEST - 1, DURATION + LONGEST - 1
        after_time = self.last < DURATION  # or at the start
        after_pitch = self.last >= PITCH
        if after_pitch or self.last in (START, full_time):
            mask[TIME:DURATION] = True
        if after_time or (after_pitch and self.lowest > 0):
            mask[DURATION:PITCH] = True
        if self.last == full_duration and self.bars < MOST_BARS:
            mask[DURATION:PITCH] = True
        if not after_time:
            mask[PITCH : PITCH + self.lowest] = True
        return mask

"""A piece as sound, by adding sines: enough to hear what was written, in a notebook without a synthesiser."""

from __future__ import annotations

import numpy as np

from qnnkit import checks
from qnnkit.data.music_events import STEPS_PER_QUARTER, Piece

HARMONICS = (1.0, 0.5, 0.25, 0.12, 0.06)
"""Strength of a tone's first five partials."""
DECAY, FADE = 1.2, 0.03
"""Seconds in which a tone falls to 1/e, and over which it begins and ends."""


def synthesise(piece: Piece, *, bpm: float = 100.0, rate: int = 22050) -> np.ndarray:
    """A piece as samples: `IPython.display.Audio(synthesise(piece), rate=22050)` plays it.

    Args:
        piece: Any with a note.
        bpm: Quarters a minute.
        rate: Samples a second.

    Returns:
        float32, of shape (samples,), within -0.9..0.9; a second longer than the piece.

    Raises:
        ValueError: `bpm` or `rate` is not above 0.
    """
    checks.positive("bpm", bpm)
    checks.positive("rate", rate)
    seconds = 60 / bpm / STEPS_PER_QUARTER
    sound = np.zeros(int((len(piece) * seconds + 1) * rate) + 1)
    for note in piece.notes():
        first = int(note.start * seconds * rate)
        t = np.arange(int((note.duration * seconds + FADE) * rate)) / rate
        frequency = 440 * 2 ** ((note.pitch - 69) / 12)
        tone = sum(
            strength * np.sin(2 * np.pi * k * frequency * t)
            for k, strength in enumerate(HARMONICS, start=1)
            if k * frequency < rate / 2
        )
        rise = np.minimum(1, np.minimum(t, t[-1] - t) / FADE)  # no click at either end
        sound[first : first + len(t)] += tone * np.exp(-t / DECAY) * rise
    loudest = np.abs(sound).max()
    return (0.9 * sound / loudest if loudest else sound).astype(np.float32)

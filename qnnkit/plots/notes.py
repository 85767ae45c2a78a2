"""Piano rolls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.collections import PolyCollection

from qnnkit.plots.picture import COLOURS, Picture, legend_beside, picture

NAMES = ("C", "C♯", "D", "D♯", "E", "F", "F♯", "G", "G♯", "A", "A♯", "B")
STEPS_PER_BAR = 16  # of four quarters


def pitch_name(pitch: int) -> str:
    """A MIDI pitch as musicians write it.

    Example:
        >>> pitch_name(60), pitch_name(70)
        ('C4', 'A♯4')
    """
    return f"{NAMES[pitch % 12]}{pitch // 12 - 1}"


def piano_roll(
    rolls: Mapping[str, Mapping[str, Sequence[tuple[float, int, float]]]],
    *,
    n_steps: int | None = None,
) -> Picture:
    """Music as bars over time, a panel for each piece, all over the same bars and pitches.

    Args:
        rolls: Piece -> part ("given", "generated", a voice) -> notes as (start, pitch, duration) in 16ths and
            MIDI pitches. A part has one colour in all panels.
        n_steps: 16ths that are shown; all by default.
    """
    parts = list(dict.fromkeys(part for roll in rolls.values() for part in roll))
    notes = [note for roll in rolls.values() for part in roll.values() for note in part]
    if n_steps is None:
        n_steps = math.ceil(max((start + duration for start, _, duration in notes), default=STEPS_PER_BAR))
    pitches = [pitch for start, pitch, _ in notes if start < n_steps]
    low, high = (min(pitches) - 2, max(pitches) + 2) if pitches else (58, 74)
    height = max(1.1, 0.045 * (high - low))
    figure = picture(max(6.0, min(13.0, 2.6 + n_steps / 20)), (height + 0.35) * len(rolls) + 0.5)
    axes = figure.subplots(len(rolls), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, (name, roll) in zip(axes, rolls.items(), strict=True):
        for part, each in roll.items():
            corners = [_rectangle(*note) for note in each if note[0] < n_steps]
            colour = COLOURS[parts.index(part) % len(COLOURS)]
            bars = PolyCollection(corners, facecolors=colour, edgecolors="white", linewidths=0.4, zorder=2)
            axis.add_collection(bars)
        axis.set_title(name, fontsize=10, loc="left", parse_math=False)
        axis.grid(alpha=0.4, zorder=0)
    named = [pitch for pitch in range(low, high + 1) if pitch % 12 == 0]
    if len(named) < 3 and high - low <= 30:
        named = [pitch for pitch in range(low, high + 1) if pitch % 12 in (0, 7)]
    axes[0].set_yticks(named, [pitch_name(pitch) for pitch in named])
    n_bars = -(-n_steps // STEPS_PER_BAR)
    every = next(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, n_bars) if n_bars <= 16 * n)
    starts = range(0, n_bars, every)
    axes[0].set_xticks([bar * STEPS_PER_BAR for bar in starts], [str(bar + 1) for bar in starts])
    axes[0].set(xlim=(0, n_steps), ylim=(low, high))
    axes[-1].set_xlabel(f"bar of {STEPS_PER_BAR} sixteenths")
    figure.supylabel("pitch", fontsize=10)
    for i, part in enumerate(parts):
        axes[0].plot([], [], "s", color=COLOURS[i % len(COLOURS)], label=part)
    if len(parts) > 1:
        legend_beside(figure, axes[0])
    return figure


def _rectangle(start: float, pitch: int, duration: float) -> list[tuple[float, float]]:
    left, right, bottom, top = start, start + duration, pitch - 0.45, pitch + 0.45
    return [(left, bottom), (right, bottom), (right, top), (left, top)]

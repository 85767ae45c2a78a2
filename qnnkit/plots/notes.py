"""Piano rolls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from qnnkit.plots.picture import COLOURS, Picture, picture

STEPS_PER_BAR = 16  # a bar of four quarters


def piano_roll(
    rolls: Mapping[str, Mapping[str, Sequence[tuple[float, int, float]]]], *, n_steps: int | None = None
) -> Picture:
    """Music as bars over time, in one panel per piece, with the same range of bars and pitches.

    Args:
        rolls: For each piece, its parts ("given", "generated", a voice), each with notes as (start, pitch,
            duration) in 16ths and MIDI pitches. A part has the same colour in all panels.
        n_steps: Number of 16ths that are shown; default: all.
    """
    parts = list(dict.fromkeys(part for roll in rolls.values() for part in roll))
    colours = {part: COLOURS[i % len(COLOURS)] for i, part in enumerate(parts)}
    notes = [note for roll in rolls.values() for part in roll.values() for note in part]
    if n_steps is None:
        n_steps = math.ceil(max((start + duration for start, _, duration in notes), default=STEPS_PER_BAR))
    pitches = [pitch for start, pitch, _ in notes if start < n_steps]
    low, high = (min(pitches) - 2, max(pitches) + 2) if pitches else (58, 74)
    height = max(1.1, 0.045 * (high - low))
    figure = picture(max(6.0, min(13.0, 2.6 + n_steps / 20)), (height + 0.35) * len(rolls) + 0.8)
    axes = figure.subplots(len(rolls), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, (name, roll) in zip(axes, rolls.items(), strict=True):
        for part, of_part in roll.items():
            shown = np.array([note for note in of_part if note[0] < n_steps]).reshape(-1, 3)
            bar, thick = 1 + shown[:, 0] / STEPS_PER_BAR, 60 * height / (high - low)  # thick: in points
            end = bar + 0.9 * shown[:, 2] / STEPS_PER_BAR  # a gap between notes
            axis.hlines(shown[:, 1], bar, end, colours[part], linewidth=thick, zorder=2)
        axis.set_title(name, fontsize=10, loc="left", parse_math=False)
        axis.grid(alpha=0.4, zorder=0)
    axes[0].xaxis.set_major_locator(MaxNLocator(16, steps=[1, 2, 4, 8, 10], integer=True))
    axes[0].yaxis.set_major_locator(MultipleLocator(12))
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda pitch, place: f"C{round(pitch) // 12 - 1}"))
    axes[0].set(xlim=(1, 1 + n_steps / STEPS_PER_BAR), ylim=(low, high))
    axes[-1].set_xlabel(f"bar of {STEPS_PER_BAR} sixteenths")
    figure.supylabel("pitch", fontsize=10)
    if len(parts) > 1:
        handles = [Patch(color=colour, label=part) for part, colour in colours.items()]
        figure.legend(handles=handles, loc="outside right upper", frameon=False)
    return figure

"""Piano rolls, and what each adapter is worth on each composer's music."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle

from qnnkit.plots.picture import COLOURS, Picture, inches, legend_beside, name_ticks, picture

NAMES = ("C", "C♯", "D", "D♯", "E", "F", "F♯", "G", "G♯", "A", "A♯", "B")
STEPS_PER_BAR = 16


def pitch_name(pitch: int) -> str:
    """A MIDI pitch as musicians write it.

    Example:
        >>> pitch_name(60), pitch_name(70)
        ('C4', 'A♯4')
    """
    return f"{NAMES[pitch % 12]}{pitch // 12 - 1}"


def piano_roll(
    rolls: Mapping[str, Mapping[str, Sequence[tuple[int, int, int]]]],
    *,
    n_steps: int | None = None,
    steps_per_bar: int = STEPS_PER_BAR,
) -> Picture:
    """Music as bars over time, a panel for each piece, all over the same bars and pitches.

    Args:
        rolls: Piece -> part ("given", "generated", a voice) -> notes as (start, pitch, duration) in 16ths and
            MIDI pitches. A part has one colour in all panels.
        n_steps: 16ths that are shown; all by default.
        steps_per_bar: 16 for four quarters.
    """
    parts = list(dict.fromkeys(part for roll in rolls.values() for part in roll))
    notes = [note for roll in rolls.values() for part in roll.values() for note in part]
    if n_steps is None:
        n_steps = max((start + duration for start, _, duration in notes), default=steps_per_bar)
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
    n_bars = -(-n_steps // steps_per_bar)
    every = next(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, n_bars) if n_bars <= 16 * n)
    starts = range(0, n_bars, every)
    axes[0].set_xticks([bar * steps_per_bar for bar in starts], [str(bar + 1) for bar in starts])
    axes[0].set(xlim=(0, n_steps), ylim=(low, high))
    axes[-1].set_xlabel(f"bar of {steps_per_bar} sixteenths")
    figure.supylabel("pitch", fontsize=10)
    for i, part in enumerate(parts):
        axes[0].plot([], [], "s", color=COLOURS[i % len(COLOURS)], label=part)
    if len(parts) > 1:
        legend_beside(figure, axes[0])
    return figure


def _rectangle(start: int, pitch: int, duration: int) -> list[tuple[float, float]]:
    left, right, bottom, top = start, start + duration, pitch - 0.45, pitch + 0.45
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def loss_matrices(
    panels: Mapping[str, np.ndarray],
    adapters: Sequence[str],
    composers: Sequence[str],
    *,
    half_widths: Mapping[str, np.ndarray] | None = None,
    framed: Sequence[tuple[int, int]] = (),
    rows: str = "adapter",
) -> Picture:
    """Nats per token of each adapter on each composer's music, a panel for each kind of adapter.

    The best of a column is bold. Columns are coloured each for itself, for some music is harder to foretell.

    Args:
        panels: Kind -> nats per token, of shape (adapters, composers); NaN where there is none.
        adapters: Names of the rows.
        composers: Names of the columns.
        half_widths: Kind -> of intervals, as the panels; NaN where there is none.
        framed: (Row, column) of cells with a frame, in every panel, as each adapter's own composer.
        rows: What the rows are.
    """
    halves = half_widths or {}
    above = {kind: values - np.nanmin(values, axis=0) for kind, values in panels.items()}
    most = max(float(np.nanmax(each)) for each in above.values()) or 0.1
    names, upright = max(inches(adapters), 0.5), max(inches(composers), 0.5)
    width = max(1.25 if halves else 1.0, 0.4 * upright) * len(composers) + names + 2.2
    height = (0.5 * len(adapters) + 0.35) * len(panels) + upright + 0.65
    figure = picture(width, max(2.6, height))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    image: Any = None
    for axis, (kind, values) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(above[kind], cmap="Blues", vmin=0, vmax=most, aspect="auto")
        spreads = halves.get(kind, np.full(values.shape, np.nan))
        for (row, column), value in np.ndenumerate(values):
            if np.isnan(value):
                continue
            own, half = above[kind][row, column], spreads[row, column]
            told = f"{value:.3f}" if np.isnan(half) else f"{value:.3f} ± {half:.3f}"
            style = {
                "color": "white" if own > 0.55 * most else "black",
                "weight": "bold" if own == 0 else "normal",
            }
            axis.text(column, row, told, ha="center", va="center", fontsize=9, **style)
        for row, column in framed:
            if np.isnan(values[row, column]):
                continue
            edge = Rectangle((column - 0.47, row - 0.44), 0.94, 0.88, fill=False, ec=COLOURS[1], lw=2)
            axis.add_patch(edge)
        axis.set_title(kind, fontsize=10, loc="left", parse_math=False)
        name_ticks(axis.yaxis, adapters)
        axis.set_ylabel(rows)
    name_ticks(axes[-1].xaxis, composers, rotation=90 if upright > 1.0 else 0)
    axes[-1].set_xlabel("music of")
    figure.colorbar(image, ax=list(axes), label="nats per token above the best")
    return figure

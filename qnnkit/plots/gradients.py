"""Gradients while a net trains: how large over the steps, and how far above the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from qnnkit.plots.picture import COLOURS, MARKERS, STYLES, Picture, decades, legend_beside, picture, short

HUES = {"quantum": COLOURS[0], "stand_in": COLOURS[3], "classical": COLOURS[1]}
"""Colour of a group of weights, the same in every figure."""
ZERO = 1e-30
"""Gradients below this are zero to the eye as to the optimizer: squared, float32 has no number for them."""


def gradient_history(
    steps: Sequence[int],
    norms: Mapping[str, Sequence[float]],
    clip_norms: Mapping[str, float | None] | None = None,
) -> Picture:
    """Gradient norm of each group of weights over the steps, and where clipping sets in.

    Args:
        steps: The observed optimizer updates, counted from 1.
        norms: Group or layer -> norm before clipping at each of these; NaN and zero are left out.
        clip_norms: Group -> largest norm that its clipping lets through; None does not clip.
    """
    figure = picture(8, 3.6)
    axis = figure.subplots()
    clip_norms = {name: clip for name, clip in (clip_norms or {}).items() if clip}
    shown = [np.asarray(list(clip_norms.values()) or [np.nan])]
    for index, (name, values) in enumerate(norms.items()):
        sizes = np.asarray(values, dtype=float)
        sizes = np.where(sizes > ZERO, sizes, np.nan)
        colour, marker = hue(name, index), MARKERS[index % len(MARKERS)]
        axis.plot(steps, sizes, "-", color=colour, marker=marker, ms=3, lw=1, label=short(name))
        if name in clip_norms:
            label = f"{short(name)}: clipped above {clip_norms[name]:g}"
            axis.axhline(clip_norms[name], color=colour, linestyle="--", lw=1, label=label)
        shown.append(sizes)
    known = np.concatenate(shown)
    known = known[np.isfinite(known)]
    decades(axis, known if len(known) else [1.0], "y")
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.set(xlabel="optimizer step", ylabel="gradient norm, before clipping")
    axis.grid(alpha=0.3)
    legend_beside(figure, axis)
    return figure


def gradient_snr(
    epochs: Sequence[int],
    ratios: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
    updates: int | None = None,
) -> Picture:
    """Signal-to-noise ratio of each group's gradient by epoch, with its 95 % interval.

    Args:
        epochs: Counted from 1.
        ratios: Group or layer -> (ratio, low, high), each with one number per epoch; NaN where unknown.
        updates: Optimizer steps of an epoch: below 1 / sqrt(updates) their mean too is mostly noise.
    """
    figure = picture(8, 3.4)
    axis = figure.subplots()
    top = 0.0
    for index, (name, numbers) in enumerate(ratios.items()):
        ratio, low, high = (np.asarray(each, dtype=float) for each in numbers)
        colour, style = hue(name, index), STYLES[index % len(STYLES)]
        marker = MARKERS[index % len(MARKERS)]
        axis.plot(epochs, ratio, style, color=colour, marker=marker, ms=4, label=short(name))
        axis.fill_between(epochs, low, high, color=colour, alpha=0.15, lw=0)
        top = max(top, np.nanmax(high, initial=0.0), np.nanmax(ratio, initial=0.0))
    if updates:
        noise = updates**-0.5
        axis.axhline(noise, color="black", linestyle=":", label=f"noise rules an epoch:\nbelow {noise:.2g}")
        top = max(top, noise)
    axis.set_ylim(0, 1.1 * top or 1.0)
    axis.set_xlim(min(epochs, default=1) - 0.5, max(epochs, default=1) + 0.5)
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axis.set(xlabel="epoch", ylabel="signal to noise, one step")
    axis.grid(alpha=0.3)
    legend_beside(figure, axis)
    return figure


def hue(name: str, index: int) -> str:
    """A group's own colour, or the next of the others for a layer's name."""
    return HUES.get(name, COLOURS[index % len(COLOURS)])

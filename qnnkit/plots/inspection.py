"""What the inspector draws: a layer's gradients, one image through the net, and one weight moved."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from qnnkit.plots.picture import COLOURS, Picture, bare, picture, short, show

WIDTH = 9.0
"""In inches, of every figure here: they stand below each other."""
DPI = 110
LIKELIEST = 10
"""Classes whose probabilities are shown."""
NAMED_OUTPUTS = 8
"""Measured values that are named on an axis; of more, every so many."""


def layer_gradients(
    steps: np.ndarray,
    norms: np.ndarray,
    shown: tuple[int, int],
    gradients: np.ndarray | None,
    weight: tuple[str, int] | None,
    epochs: np.ndarray,
    snr: np.ndarray,
    epoch: int,
) -> Picture:
    """One layer: its weights' gradients in an epoch, its gradient's norm over training, and signal to noise.

    Args:
        steps: Observed updates of the whole training, of shape (n,).
        norms: Of the layer's gradient at each, of shape (n,).
        shown: First and last step of what the histogram shows.
        gradients: Of each weight at each step shown, of shape (n_steps, n_weights); None where only norms
            were kept.
        weight: Name and place of the chosen weight, if there is one.
        epochs: With a ratio of signal to noise.
        snr: Ratio and ends of its interval, of shape (n_epochs, 3); NaN where unknown.
        epoch: The chosen one.
    """
    figure = picture(WIDTH, 3.0)
    left, middle, right = figure.subplots(1, 3)
    _histogram(left, gradients, weight)
    middle.set_title("Norm of the layer's gradient", fontsize=10)
    known = norms > 0
    if len(steps) < 2:
        _note(middle, f"{norms[0]:.3g}\non one batch" if len(norms) else "unknown")
    else:
        middle.axvspan(shown[0] - 0.5, shown[1] + 0.5, color=COLOURS[4], alpha=0.25, lw=0)
        middle.plot(steps[known], norms[known], "-o", ms=2.5, lw=1, color=COLOURS[0])
        if known.any():
            middle.set_yscale("log")
            middle.tick_params(axis="y", which="both", labelsize=8)
        middle.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        middle.set(xlabel="update (shaded: chosen)", ylabel="norm")
    right.set_title("Signal to noise", fontsize=10)
    finite = np.isfinite(snr[:, 0])
    if finite.any():
        at, (ratio, low, high) = epochs[finite], snr[finite].T
        right.fill_between(at, low, high, color=COLOURS[2], alpha=0.2, lw=0)
        right.plot(at, ratio, "-o", ms=3, lw=1, color=COLOURS[2])
        right.axvline(epoch, color=COLOURS[4], lw=2, alpha=0.7)
        right.set_ylim(bottom=min(0.0, float(np.nanmin(low))))
        right.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        right.set(xlabel="epoch (line: chosen)", ylabel="mean / spread, 95 % interval")
    else:
        _note(right, "needs the gradients\nof several updates")
    return figure


def _histogram(axis: Any, gradients: np.ndarray | None, weight: tuple[str, int] | None) -> None:
    axis.set_title("Gradients of its weights", fontsize=10)
    if gradients is None or not np.isfinite(gradients).any():
        _note(axis, "single weights' gradients\nare kept for circuits only")
        return
    finite = gradients[np.isfinite(gradients)]
    far = float(np.abs(finite).max()) or 1.0
    axis.hist(finite, bins=np.linspace(-far, far, 32), color=COLOURS[5])
    if weight is not None:
        mean = float(np.nanmean(gradients[:, weight[1]]))
        axis.axvline(mean, color=COLOURS[1], lw=2, label=f"mean of {weight[0]}")
        axis.set_ylim(top=1.25 * axis.get_ylim()[1])
        axis.legend(loc="upper left", fontsize=8, frameon=False)
    axis.xaxis.set_major_locator(MaxNLocator(3, symmetric=True))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:.2g}"))
    axis.set(xlabel="gradient (loss per radian)", ylabel="weights × updates")


def _note(axis: Any, sentence: str) -> None:
    axis.text(0.5, 0.5, sentence, transform=axis.transAxes, ha="center", va="center", color="#555")
    bare(axis)


def image_seen(
    image: np.ndarray, maps: np.ndarray | None, classes: Sequence[str], class_probs: np.ndarray, label: int
) -> Picture:
    """An image, what the first quanvolution makes of it, and the classes that the net thinks likeliest.

    Args:
        image: uint8, of shape (channels, height, width).
        maps: Expectation values, of shape (n_maps, rows, columns); None without a quanvolution.
        classes: Names.
        class_probs: Of shape (n_classes,).
        label: Of the true class.
    """
    figure = picture(WIDTH, 2.9)
    n_maps = 0 if maps is None else len(maps)
    columns = 2 if n_maps < 5 else 4
    ratios = [1.6, 1.7 + 0.9 * (columns - 2) if n_maps else 0.1, 2.2]
    parts: Any = figure.subfigures(1, 3, width_ratios=ratios)
    left, middle, right = parts
    axis = left.subplots()
    show(axis, image)
    bare(axis)
    axis.set_title(f"image of: {short(classes[label])}", fontsize=9, parse_math=False)
    if maps is not None and n_maps:
        axes = middle.subplots(-(-n_maps // columns), columns, squeeze=False).ravel()
        for axis in axes[n_maps:]:
            axis.set_axis_off()
        for place, (axis, values) in enumerate(zip(axes, maps, strict=False)):
            drawn = axis.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1)
            bare(axis)
            axis.set_title(f"channel {place}", fontsize=8)
        middle.colorbar(drawn, ax=list(axes), shrink=0.8, ticks=[-1, 0, 1])
        middle.suptitle("expectation values", fontsize=9)
    axis = right.subplots()
    best = np.argsort(-class_probs, kind="stable")[:LIKELIEST]
    colours = [COLOURS[2] if place == label else COLOURS[5] for place in best]
    axis.barh(range(len(best)), 100 * class_probs[best], color=colours)
    axis.set_yticks(range(len(best)), [short(classes[int(place)]) for place in best], parse_math=False)
    axis.set(ylim=(len(best) - 0.5, -0.5), xlim=(0, 100), xlabel="probability (%); green: true class")
    return figure


class WhatIfFigure:
    """A figure whose moving parts are drawn anew in some milliseconds, over what stays as it is.

    Args:
        weight: Name of the moved weight.
        title: Which circuit's values are shown.
        before: Its values with the weight as it is, of shape (n_outputs,).
        classes: Names.
        probs: Probabilities with the weight as it is, of shape (n_classes,).
        label: Of the true class.
        curve: Shifts in radians, and the loss at each.
        n_images: How many images the loss is a mean of.
    """

    def __init__(
        self,
        weight: str,
        title: str,
        before: np.ndarray,
        classes: Sequence[str],
        probs: np.ndarray,
        label: int,
        curve: tuple[np.ndarray, np.ndarray],
        n_images: int,
    ):
        self.figure = figure = picture(WIDTH, 3.1)
        figure.set_dpi(DPI)
        left, middle, right = figure.subplots(1, 3)
        outputs = [f"output {i}" for i in range(len(before))]
        self.values = _pairs(left, before, outputs, every=-(-len(before) // NAMED_OUTPUTS))
        left.set(xlim=(-1.08, 1.08), xlabel="expectation value")
        left.axvline(0, color="#999", lw=0.8)
        left.set_title(textwrap.fill(title, 34), fontsize=10, parse_math=False)
        left.legend(loc="lower center", bbox_to_anchor=(0.5, 0), ncols=2, fontsize=8, framealpha=0.85)
        left.set_ylim(len(before) + 0.35 * max(1, len(before) / 4), -0.6)  # room for the legend
        self.best = np.argsort(-probs, kind="stable")[:LIKELIEST]
        if label not in self.best:
            self.best[-1] = label
        names = [short(classes[int(place)]) + (" ✓" if place == label else "") for place in self.best]
        self.probs = _pairs(middle, 100 * probs[self.best], names)
        middle.set(xlim=(-4, 104), xlabel="probability (%); ✓: true class")
        middle.set_title("What the net says of the image", fontsize=10)
        shifts, losses = curve
        right.plot(shifts, losses, color=COLOURS[0], lw=1.2)
        right.axvline(0, color="#999", lw=0.8)
        [self.dot] = right.plot([0], [np.interp(0, shifts, losses)], "D", color=COLOURS[1], ms=7)
        right.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
        right.margins(y=0.15)
        right.set_xlabel(f"{weight} moved by (rad)", parse_math=False)
        right.set_ylabel(f"loss, {n_images} validation images")
        right.set_title("Loss along this weight", fontsize=10)
        self.background: Any = None

    def move(self, shift: float, values: np.ndarray, class_probs: np.ndarray, loss: float) -> None:
        """Puts the moving parts where they belong for a shift in radians."""
        self.values.set_xdata(values)
        self.probs.set_xdata(100 * class_probs[self.best])
        self.dot.set_data([shift], [loss])

    def png(self) -> bytes:
        """The figure as a PNG; from the second time on, only what moves is drawn."""
        from PIL import Image

        moving = (self.values, self.probs, self.dot)
        if self.background is None:
            self.canvas = FigureCanvasAgg(self.figure)
            for artist in moving:
                artist.set_visible(False)
            self.canvas.draw()
            for artist in moving:
                artist.set_visible(True)
            self.background = self.canvas.copy_from_bbox(self.figure.bbox)
        self.canvas.restore_region(self.background)
        for artist in moving:
            artist.axes.draw_artist(artist)
        buffer = io.BytesIO()
        pixels = np.asarray(self.canvas.buffer_rgba())
        Image.fromarray(pixels).convert("RGB").save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()


def _pairs(axis: Any, values: np.ndarray, names: Sequence[str], every: int = 1) -> Any:
    """Circles at the values as they are; over them diamonds, which are returned to be moved."""
    rows = np.arange(len(values))
    axis.plot(values, rows, "o", color=COLOURS[0], ms=9, mfc="none", label="as it is")
    [moved] = axis.plot(values, rows, "D", color=COLOURS[1], ms=5, label="moved")
    axis.set_yticks(rows[::every], names[::every], parse_math=False)
    axis.set_ylim(len(values) - 0.4, -0.6)
    return moved


def stacked(pictures: Sequence[bytes]) -> bytes:
    """Pictures below each other, all of them PNGs, as one."""
    from PIL import Image

    images = [Image.open(io.BytesIO(png)).convert("RGB") for png in pictures]
    width, height = max(image.width for image in images), sum(image.height for image in images)
    whole = Image.new("RGB", (width, height), "white")
    top = 0
    for image in images:
        whole.paste(image, (0, top))
        top += image.height
    buffer = io.BytesIO()
    whole.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()

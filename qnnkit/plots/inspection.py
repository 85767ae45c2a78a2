"""What the inspector draws: a layer's gradients, one image through the net, and one weight moved."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import MaxNLocator

from qnnkit.plots.picture import COLOURS, Picture, bare, picture, short, show

WIDTH = 9.0
"""In inches, of every figure here: they are stacked vertically."""
DPI = 110
LIKELIEST = 10
"""Classes whose probabilities are shown."""


class Redrawn:
    """A figure that is laid out and drawn once; what changes is drawn over it in some milliseconds.

    Args:
        figure: Laid out with its first data.
        moving: The artists that change.
    """

    def __init__(self, figure: Picture, moving: Sequence[Any] = ()):
        figure.set_dpi(DPI)
        self.figure, self.canvas, self.moving = figure, FigureCanvasAgg(figure), moving
        for artist in moving:
            artist.set_animated(True)  # not drawn with the rest
        self.canvas.draw()
        self.still = self.canvas.copy_from_bbox(figure.bbox)

    def png(self, more: Sequence[Any] = ()) -> bytes:
        """The figure with what changes as it is now, and more artists drawn last."""
        from PIL import Image

        self.canvas.restore_region(self.still)
        for artist in (*self.moving, *more):
            artist.axes.draw_artist(artist)
        buffer = io.BytesIO()
        pixels = Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")
        pixels.save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()


def layer_gradients(rows: Any, shown: tuple[int, int], gradients: np.ndarray, epoch: int) -> Picture:
    """One layer: its weights' gradients in an epoch, its gradient's norm over training, and signal to noise.

    Args:
        rows: Of the layer, as in `gradients.History.frame`: an observed update each.
        shown: First and last step of what the histogram shows.
        gradients: Of each weight at each step shown, of shape (n_steps, n_weights); without weights, or NaN,
            where only norms were kept.
        epoch: The chosen one.
    """
    figure = picture(WIDTH, 3.0)
    left, middle, right = figure.subplots(1, 3)
    left.set_title("Gradients of its weights", fontsize=10)
    if not np.isfinite(gradients).any():
        _note(left, "single weights' gradients\nare recorded for circuits only")
    else:
        far = np.nanmax(np.abs(gradients)) or 1.0
        left.hist(gradients[np.isfinite(gradients)], np.linspace(-far, far, 32), color=COLOURS[5])
        left.locator_params(axis="x", nbins=3, symmetric=True)
        left.set(xlabel="gradient (loss per radian)", ylabel="weights × updates")
    middle.set_title("Norm of the layer's gradient", fontsize=10)
    if len(rows) < 2:
        _note(middle, f"{rows['norm'].iloc[0]:.3g}\non one batch" if len(rows) else "unknown")
    else:
        known = rows[rows["norm"] > 0]
        middle.axvspan(shown[0] - 0.5, shown[1] + 0.5, color=COLOURS[4], alpha=0.25, lw=0)
        middle.plot(known["step"], known["norm"], "-o", ms=2.5, lw=1, color=COLOURS[0])
        middle.locator_params(axis="x", nbins=4, integer=True)
        middle.set(xlabel="update (shaded: chosen)", ylabel="norm", yscale="log" if len(known) else "linear")
        middle.tick_params(axis="y", which="both", labelsize=8)
    right.set_title("Signal to noise", fontsize=10)
    known = rows.drop_duplicates("epoch").dropna(subset="snr")
    if known.empty:
        _note(right, "needs the gradients\nof several updates")
    else:
        look = {"color": COLOURS[2], "lw": 1}
        right.fill_between(known["epoch"], known["snr_low"], known["snr_high"], alpha=0.2, **look)
        right.plot(known["epoch"], known["snr"], "-o", ms=3, **look)
        right.axvline(epoch, color=COLOURS[4], lw=2, alpha=0.7)
        right.set_ylim(bottom=min(0.0, known["snr_low"].min()))
        right.locator_params(axis="x", nbins=5, integer=True, min_n_ticks=1)
        right.set(xlabel="epoch (line: chosen)", ylabel="mean / spread, 95 % interval")
    return figure


def _note(axis: Any, sentence: str) -> None:
    axis.text(0.5, 0.5, sentence, transform=axis.transAxes, ha="center", va="center", color="#555")
    bare(axis)


class ImageSeen(Redrawn):
    """An image, and what the first quanvolution makes of it.

    Args:
        shapes: Of the image, (channels, height, width), and of each map, (rows, columns).
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        n_maps = len(shapes) - 1
        rows = 1 if n_maps < 4 else 2
        across, figure = -(-n_maps // rows), picture(WIDTH, 2.6)
        grid = figure.add_gridspec(rows, 2 + across)
        axes = [figure.add_subplot(grid[:, :2])]
        show(axes[0], np.zeros(shapes[0]))
        for place, shape in enumerate(shapes[1:]):
            axes.append(figure.add_subplot(grid[place // across, 2 + place % across]))
            drawn = axes[-1].imshow(np.zeros(shape), cmap="RdBu_r", vmin=-1, vmax=1)  # pyright: ignore
            axes[-1].set_title(f"channel {place}", fontsize=8)
        if n_maps:
            label = "expectation value"
            figure.colorbar(drawn, ax=axes[1:], shrink=0.8, ticks=[-1, 0, 1], label=label)
        for axis in axes:
            bare(axis)
        self.images = [axis.images[0] for axis in axes]
        super().__init__(figure, [*self.images, *(one for axis in axes for one in axis.spines.values())])

    def seen(self, images: Sequence[np.ndarray]) -> bytes:
        """A PNG of an image, uint8, and its expectation values."""
        for drawn, values in zip(self.images, images, strict=True):
            drawn.set_data(values if values.ndim == 2 else np.moveaxis(values, 0, -1).squeeze())
        return self.png()


class WhatIfFigure(Redrawn):
    """What a circuit measures and what the net says, with a weight as it is and moved; and the loss along it.

    Args:
        n_outputs: Values that the circuit measures.
        classes: Names.
        n_images: How many images the loss is a mean of.
    """

    def __init__(self, n_outputs: int, classes: Sequence[str], n_images: int):
        self.classes, figure = [*map(short, classes)], picture(WIDTH, 3.3)
        self.axes = left, middle, right = figure.subplots(1, 3)
        shown, looks = min(len(classes), LIKELIEST), {"as it is": ("o", 9, "none"), "moved": ("D", 5, None)}
        self.points = [
            axis.plot([0] * n, range(n), mark, color=COLOURS[place], ms=size, mfc=face, label=name)[0]
            for axis, n in ((left, n_outputs), (middle, shown))
            for place, (name, (mark, size, face)) in enumerate(looks.items())
        ]
        left.axvline(0, color="#999", lw=0.8)
        left.set(
            xlim=(-1.08, 1.08), ylim=(n_outputs - 0.4, -0.6), xlabel="expectation value", ylabel="output"
        )
        left.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        self.title = left.set_title("Measured by circuit 1\nof the image's 1", fontsize=10)
        middle.set(xlim=(-4, 104), ylim=(shown - 0.4, -0.6), xlabel="probability (%); ✓: true class")
        middle.set_title("What the net says\nof the image", fontsize=10)
        # Room for the longest name, so that nothing jumps from image to image.
        middle.set_yticks([0], [f"{max(self.classes, key=len)} ✓"], parse_math=False)
        [self.curve] = right.plot([-np.pi, np.pi], [1.0005, 1.0045], color=COLOURS[0], lw=1.2)
        [self.dot] = right.plot([0], [1.0005], "D", color=COLOURS[1], ms=7)
        right.axvline(0, color="#999", lw=0.8)
        right.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
        right.yaxis.set_major_locator(MaxNLocator(5))
        right.set_xlabel("weight moved by (rad)")
        right.set_title(f"Loss of {n_images} validation\nimages along this weight", fontsize=10)
        figure.legend(handles=self.points[:2], loc="outside lower left", ncols=2, frameon=False, fontsize=8)
        self.rest = [self.title, middle.yaxis, right.yaxis, self.curve, *self.points[::2]]
        super().__init__(figure, [*self.rest, *self.points[1::2], self.dot])
        self.moving, self.empty = [*self.points[1::2], self.dot], self.still

    def begin(self, title: str, now: Any, label: int, curve: tuple[np.ndarray, np.ndarray]) -> WhatIfFigure:
        """Draws a weight as it is, under all that follows.

        Args:
            title: Which circuit's values are shown, in two lines.
            now: `values` of this circuit, of shape (n_outputs,), and `class_probs`, of shape (n_classes,).
            label: Of the true class.
            curve: Shifts in radians, and the loss at each.
        """
        _, middle, right = self.axes
        self.title.set_text(title)
        self.best = np.argsort(-now.class_probs, kind="stable")[:LIKELIEST]
        self.best[-1] = self.best[-1] if label in self.best else label  # the true one is always among them
        names = [self.classes[i] + (" ✓" if i == label else "") for i in self.best]
        middle.set_yticks(range(len(names)), names, parse_math=False)
        self.points[0].set_xdata(now.values)
        self.points[2].set_xdata(100 * now.class_probs[self.best])
        self.curve.set_data(*curve)
        low, high = curve[1].min(), curve[1].max()
        margin = 0.15 * (high - low) or 0.05
        right.set_ylim(low - margin, high + margin)
        self.canvas.restore_region(self.empty)
        for artist in self.rest:
            artist.axes.draw_artist(artist)
        self.still = self.canvas.copy_from_bbox(self.figure.bbox)
        return self

    def moved(self, shift: float, there: Any) -> bytes:
        """A PNG of it moved by a shift in radians: `values`, `class_probs` and `loss` there."""
        self.points[1].set_xdata(there.values)
        self.points[3].set_xdata(100 * there.class_probs[self.best])
        self.dot.set_data([shift], [there.loss])
        return self.png()


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

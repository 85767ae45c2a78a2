"""Figures of the inspector: a layer's gradients, an image in the net, and a weight that is moved."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from qnnkit.plots.picture import COLOURS, Picture, picture, show

WIDTH = 9.0
"""Width of every figure here, in inches. They are stacked vertically."""
DPI = 110


class Redrawn:
    """A figure that is laid out and drawn once. What changes is drawn over it in some milliseconds.

    Args:
        figure: Figure, laid out with its first data.
        moving: Artists that change.
    """

    def __init__(self, figure: Picture, moving: Sequence[Any] = ()):
        figure.set_dpi(DPI)
        self.figure, self.canvas, self.moving = figure, FigureCanvasAgg(figure), moving
        for artist in moving:
            artist.set_animated(True)  # not drawn with the figure
        self.canvas.draw()
        self.still = self.canvas.copy_from_bbox(figure.bbox)

    def png(self, more: Sequence[Any] = ()) -> bytes:
        """The figure as a PNG, with the present state of what changes, and more artists on top."""
        from PIL import Image

        self.canvas.restore_region(self.still)
        for artist in (*self.moving, *more):
            artist.axes.draw_artist(artist)
        buffer = io.BytesIO()
        pixels = Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")
        pixels.save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()


def layer_gradients(rows: Any, shown: tuple[int, int], gradients: np.ndarray, epoch: int) -> Picture:
    """Gradients of a layer: the norm over training, the weights' gradients in an epoch, signal to noise.

    Args:
        rows: Rows of the layer from `gradients.History.frame`, one per observed update.
        shown: First and last step in the histogram.
        gradients: Gradients of each weight at these steps, of shape (n_steps, n_weights). If only norms were
            recorded, it has no weights or is NaN, and there is no histogram.
        epoch: The chosen epoch.
    """
    positive, noisy = rows[rows["norm"] > 0], rows.drop_duplicates("epoch").dropna(subset="snr")
    recorded, figure = gradients[np.isfinite(gradients)], picture(WIDTH, 3.0)
    axis, *others = figure.subplots(1, 1 + bool(len(recorded)) + bool(len(noisy)), squeeze=False)[0]
    axis.axvspan(shown[0] - 0.5, shown[1] + 0.5, color=COLOURS[4], alpha=0.25, lw=0)
    axis.plot(positive["step"], positive["norm"], "-o", ms=2.5, lw=1, color=COLOURS[0])
    axis.locator_params(axis="x", nbins=4, integer=True)
    axis.set(xlabel="update (shaded: chosen)", ylabel="norm", yscale="log" if len(positive) else "linear")
    axis.set_title("Norm of the layer's gradient", fontsize=10)
    if len(recorded):
        axis, *others = others
        axis.hist(recorded, 31, color=COLOURS[5])
        axis.locator_params(axis="x", nbins=3)
        axis.set(xlabel="gradient (loss per radian)", ylabel="weights × updates")
        axis.set_title("Gradients of its weights", fontsize=10)
    for axis in others:
        look = {"color": COLOURS[2], "lw": 1}
        axis.fill_between(noisy["epoch"], noisy["snr_low"], noisy["snr_high"], alpha=0.2, **look)
        axis.plot(noisy["epoch"], noisy["snr"], "-o", ms=3, **look)
        axis.axvline(epoch, color=COLOURS[4], lw=2, alpha=0.7)
        axis.locator_params(axis="x", nbins=5, integer=True, min_n_ticks=1)
        axis.set(xlabel="epoch (line: chosen)", ylabel="mean / spread, 95 % interval")
        axis.set_title("Signal to noise of one update", fontsize=10)
    return figure


class ImageSeen(Redrawn):
    """An image, and the feature maps of the first quanvolution.

    Args:
        shapes: Shape of the image, (channels, height, width), and of each map, (rows, columns).
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
            figure.colorbar(drawn, ax=axes[1:], shrink=0.8, ticks=[-1, 0, 1], label="expectation value")
        for axis in axes:
            axis.set(xticks=[], yticks=[])
        self.images = [axis.images[0] for axis in axes]
        super().__init__(figure, [*self.images, *(one for axis in axes for one in axis.spines.values())])

    def seen(self, images: Sequence[np.ndarray]) -> bytes:
        """A PNG of an image, uint8 of shape (channels, height, width), and its maps of expectation values."""
        for drawn, values in zip(self.images, images, strict=True):
            drawn.set_data(values if values.ndim == 2 else np.moveaxis(values, 0, -1))
        return self.png()


class WhatIfFigure(Redrawn):
    """Values that a circuit measures before and after a weight is moved, and the loss along that weight.

    Args:
        n_outputs: Number of values that the circuit measures.
        n_images: Number of images over which the loss is averaged.
    """

    def __init__(self, n_outputs: int, n_images: int):
        figure, (now, then) = picture(WIDTH, 3.1), COLOURS[:2]
        left, right = figure.subplots(1, 2)
        places: Any = [0] * n_outputs, range(n_outputs)
        [self.before] = left.plot(*places, "o", ms=9, mfc="none", color=now, label="as it is")
        [self.there] = left.plot(*places, "D", ms=5, color=then, label="moved")
        for axis in figure.axes:
            axis.axvline(0, color="#999", lw=0.8)
            axis.locator_params(nbins=5)
        left.set(
            xlim=(-1.08, 1.08), ylim=(n_outputs - 0.4, -0.6), xlabel="expectation value", ylabel="output"
        )
        left.locator_params(axis="y", nbins=8, integer=True)
        self.title = left.set_title("Measured by circuit 1 of 1 for this image", fontsize=10)
        [self.curve] = right.plot([-np.pi, np.pi], [1.0005, 1.0045], lw=1.2, color=now)
        [self.dot] = right.plot([0], [1.0005], "D", ms=7, color=then)
        right.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
        right.set_xlabel("weight moved by (rad)")
        right.set_title(f"Cross-entropy of {n_images} validation images along this weight", fontsize=10)
        figure.legend(handles=[self.before, self.there], loc="outside lower left", ncols=2, frameon=False)
        changing = [self.title, right.yaxis, self.curve, self.before, self.there, self.dot]
        super().__init__(figure, changing)

    def begin(self, title: str, values: np.ndarray, curve: tuple[np.ndarray, np.ndarray]) -> WhatIfFigure:
        """Shows a weight before it is moved.

        Args:
            title: Text that names the circuit whose values are shown.
            values: Values of this circuit, of shape (n_outputs,).
            curve: Shifts in radians, and the loss at each.
        """
        self.title.set_text(title)
        self.before.set_xdata(values)
        self.curve.set_data(*curve)
        low, high = curve[1].min(), curve[1].max()
        margin = 0.15 * (high - low) or 0.05
        self.curve.axes.set_ylim(low - margin, high + margin)
        return self

    def moved(self, shift: float, values: np.ndarray, loss: float) -> bytes:
        """A PNG with the weight moved by `shift` radians: the circuit's values and the loss there."""
        self.there.set_xdata(values)
        self.dot.set_data([shift], [loss])
        return self.png()


def stacked(pictures: Sequence[bytes]) -> bytes:
    """Joins PNGs, at least one, below each other into one PNG."""
    from PIL import Image

    images = [Image.open(io.BytesIO(png)).convert("RGB") for png in pictures]
    heights = [image.height for image in images]
    joined = Image.new("RGB", (max(image.width for image in images), sum(heights)), "white")
    for i, image in enumerate(images):
        joined.paste(image, (0, sum(heights[:i])))
    buffer = io.BytesIO()
    joined.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()

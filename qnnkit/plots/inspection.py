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
"""In inches, of every figure here: they stand below each other."""
DPI = 110
LIKELIEST = 10
"""Classes whose probabilities are shown."""
NAMED_OUTPUTS = 8
"""Measured values that are named on an axis; of more, every so many."""


class Redrawn:
    """A figure that is laid out and drawn once; what changes is drawn over it in some milliseconds.

    Args:
        figure: Laid out with its first data.
        moving: The artists that change.
    """

    def __init__(self, figure: Picture, moving: Sequence[Any] = ()):
        figure.set_dpi(DPI)
        self.figure, self.canvas = figure, FigureCanvasAgg(figure)
        for artist in moving:
            artist.set_animated(True)  # not drawn with the rest
        self.canvas.draw()
        self.still = self.kept = self.canvas.copy_from_bbox(figure.bbox)

    def keep(self, artists: Sequence[Any]) -> None:
        """Draws artists over what never changes, to stay there under all that follows."""
        self.kept = self.still
        self._draw(artists)
        self.kept = self.canvas.copy_from_bbox(self.figure.bbox)

    def png(self, artists: Sequence[Any]) -> bytes:
        """The figure with these artists drawn last."""
        from PIL import Image

        self._draw(artists)
        buffer = io.BytesIO()
        pixels = Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")
        pixels.save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()

    def over(self, artists: Sequence[Any]) -> bytes:
        """The same, and the artists are taken away again."""
        png = self.png(artists)
        for artist in artists:
            artist.remove()
        return png

    def _draw(self, artists: Sequence[Any]) -> None:
        self.canvas.restore_region(self.kept)
        for artist in artists:
            artist.axes.draw_artist(artist)


def layer_gradients(rows: Any, shown: tuple[int, int], gradients: np.ndarray | None, epoch: int) -> Picture:
    """One layer: its weights' gradients in an epoch, its gradient's norm over training, and signal to noise.

    Args:
        rows: Of the layer, as in `gradients.History.frame`: an observed update each.
        shown: First and last step of what the histogram shows.
        gradients: Of each weight at each step shown, of shape (n_steps, n_weights); None where only norms
            were kept.
        epoch: The chosen one.
    """
    figure = picture(WIDTH, 3.0)
    left, middle, right = figure.subplots(1, 3)
    left.set_title("Gradients of its weights", fontsize=10)
    if gradients is None or not np.isfinite(gradients).any():
        _note(left, "single weights' gradients\nare recorded for circuits only")
    else:
        far = np.nanmax(np.abs(gradients)) or 1.0
        left.hist(gradients[np.isfinite(gradients)], np.linspace(-far, far, 32), color=COLOURS[5])
        left.locator_params(axis="x", nbins=3, symmetric=True)
        label = "gradient (loss per radian)\nline: mean of the chosen weight"
        left.set(xlabel=label, ylabel="weights × updates")
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
        image: Any image of the net's, uint8, of shape (channels, height, width).
        maps: Its expectation values, of shape (n_maps, rows, columns); None without a quanvolution.
    """

    def __init__(self, image: np.ndarray, maps: np.ndarray | None):
        n_maps = 0 if maps is None else len(maps)
        rows = 1 if n_maps < 4 else 2
        across, figure = -(-n_maps // rows), picture(WIDTH, 2.6)
        grid = figure.add_gridspec(rows, 2 + across)
        axes = [figure.add_subplot(grid[:, :2])]
        show(axes[0], image)
        for place in range(n_maps):
            axes.append(figure.add_subplot(grid[place // across, 2 + place % across]))
            drawn = axes[-1].imshow(maps[place], cmap="RdBu_r", vmin=-1, vmax=1)  # pyright: ignore
            axes[-1].set_title(f"channel {place}", fontsize=8)
        if n_maps:
            label = "expectation value"
            figure.colorbar(drawn, ax=axes[1:], shrink=0.8, ticks=[-1, 0, 1], label=label)
        for axis in axes:
            bare(axis)
        self.images = [axis.images[0] for axis in axes]
        self.frames = [spine for axis in axes for spine in axis.spines.values()]
        super().__init__(figure)

    def seen(self, image: np.ndarray, maps: np.ndarray | None) -> bytes:
        """A PNG of another image and its maps."""
        pixels = image[0] if len(image) == 1 else np.moveaxis(image, 0, -1)
        for drawn, values in zip(self.images, (pixels, *(() if maps is None else maps)), strict=True):
            drawn.set_data(values)
        return self.png([*self.images, *self.frames])


class WhatIfFigure(Redrawn):
    """What a circuit measures and what the net says, with a weight as it is and moved; and the loss along it.

    Args:
        n_outputs: Values that the circuit measures.
        classes: Names.
        n_images: How many images the loss is a mean of.
    """

    def __init__(self, n_outputs: int, classes: Sequence[str], n_images: int):
        self.classes, figure = list(map(short, classes)), picture(WIDTH, 3.1)
        self.axes = left, middle, right = figure.subplots(1, 3)
        self.values = _pairs(left, n_outputs)
        every = -(-n_outputs // NAMED_OUTPUTS)
        rows = range(0, n_outputs, every)
        left.set_yticks(rows, [f"output {i}" for i in rows])
        left.axvline(0, color="#999", lw=0.8)
        left.set(xlim=(-1.08, 1.08), xlabel="expectation value")
        left.set_ylim(n_outputs + 0.35 * max(1, n_outputs / 4), -0.6)  # room for the legend
        left.legend(loc="lower center", ncols=2, fontsize=8)
        self.title = left.set_title("Measured by circuit 1\nof the image's 1", fontsize=10)
        self.probs = _pairs(middle, min(len(classes), LIKELIEST))
        middle.set(xlim=(-4, 104), xlabel="probability (%); ✓: true class")
        middle.set_title("What the net says\nof the image", fontsize=10)
        _room(middle, [f"{name} ✓" for name in self.classes])
        [self.curve] = right.plot([-np.pi, np.pi], [1.0005, 1.0045], color=COLOURS[0], lw=1.2)
        [self.dot] = right.plot([0], [1.0005], "D", color=COLOURS[1], ms=7)
        right.axvline(0, color="#999", lw=0.8)
        right.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
        right.yaxis.set_major_locator(MaxNLocator(5))
        right.set_xlabel("weight moved by (rad)")
        right.set_title(f"Loss of {n_images} validation\nimages along this weight", fontsize=10)
        self.rest = [self.title, middle.yaxis, right.yaxis, self.curve, self.values[0], self.probs[0]]
        self.moving = [self.values[1], self.probs[1], self.dot]
        super().__init__(figure, [*self.rest, *self.moving])

    def begin(
        self,
        title: str,
        values: np.ndarray,
        probs: np.ndarray,
        label: int,
        curve: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Draws a weight as it is.

        Args:
            title: Which circuit's values are shown, in two lines.
            values: Of this circuit, of shape (n_outputs,).
            probs: Of all classes, of shape (n_classes,).
            label: Of the true class.
            curve: Shifts in radians, and the loss at each.
        """
        _, middle, right = self.axes
        self.title.set_text(title)
        self.best = _likeliest(probs, label)
        names = [self.classes[i] + (" ✓" if i == label else "") for i in self.best]
        middle.set_yticks(range(len(names)), names, parse_math=False)
        self.values[0].set_xdata(values)
        self.probs[0].set_xdata(100 * probs[self.best])
        self.curve.set_data(*curve)
        low, high = curve[1].min(), curve[1].max()
        margin = 0.15 * (high - low) or 0.05
        right.set_ylim(low - margin, high + margin)
        self.keep(self.rest)

    def moved(self, shift: float, values: np.ndarray, probs: np.ndarray, loss: float) -> bytes:
        """A PNG of it moved by a shift in radians: the same values, probabilities and loss there."""
        self.values[1].set_xdata(values)
        self.probs[1].set_xdata(100 * probs[self.best])
        self.dot.set_data([shift], [loss])
        return self.png(self.moving)


def _likeliest(probs: np.ndarray, label: int) -> np.ndarray:
    """The likeliest classes, the likeliest first; the true one is always among them."""
    best = np.argsort(-probs, kind="stable")[:LIKELIEST]
    if label not in best:
        best[-1] = label
    return best


def _pairs(axis: Any, n: int) -> list[Any]:
    """Circles for n values as they are, and over them diamonds for what they are moved to."""
    [before] = axis.plot([0] * n, range(n), "o", color=COLOURS[0], ms=9, mfc="none", label="as it is")
    [moved] = axis.plot([0] * n, range(n), "D", color=COLOURS[1], ms=5, label="moved")
    axis.set_ylim(n - 0.4, -0.6)
    return [before, moved]


def _room(axis: Any, names: Sequence[str]) -> None:
    """Leaves room on the left for the longest of all names, so that nothing jumps from image to image."""
    axis.set_yticks([0], [max(names, key=len)], parse_math=False)


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

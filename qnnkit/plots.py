"""Plain arrays to figures. The only importer of matplotlib; every figure names its axes and units.

Figures are made without pyplot, so nothing global is kept; a notebook shows one that a cell ends in.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito (2008): told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
SIZES = {"quantum": COLOURS[0], "classical": COLOURS[1]}


class Picture(Figure):
    """A figure that a notebook shows by itself."""

    def _repr_png_(self) -> bytes:
        return self.png()

    def png(self, **metadata: str) -> bytes:
        """The figure as a PNG, with metadata such as Title and Description in it."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110, metadata={"Software": "qnnkit"} | metadata)
        return buffer.getvalue()


class Live:
    """A figure that is redrawn in place while a person watches, and costs at most a twentieth of the time.

    Args:
        draw: Makes the figure anew.
    """

    def __init__(self, draw: Callable[[], Picture]):
        self.draw, self.handle = draw, None
        self.last, self.cost = 0.0, 0.0

    def update(self, *, final: bool = False) -> None:
        """Redraws, unless that would come too soon after the last time."""
        start = time.perf_counter()
        if not final and start - self.last < max(1.0, 20 * self.cost):
            return
        from IPython.display import display

        figure = self.draw()
        if self.handle is None:
            self.handle = display(figure, display_id=True)
        else:
            self.handle.update(figure)
        self.last = time.perf_counter()
        self.cost = self.last - start


def class_samples(
    images: np.ndarray, labels: np.ndarray, classes: Sequence[str], per_class: int = 8
) -> Picture:
    """The first images of every class, one class a row.

    Args:
        images: uint8, of shape (n, channels, height, width).
        labels: Index into `classes`, of shape (n,).
        classes: Names.
        per_class: Images in a row.
    """
    figure = _picture(min(9, 0.75 * per_class + 1.2), 0.75 * len(classes) + 0.2)
    axes = figure.subplots(len(classes), per_class, squeeze=False)
    for row, name in enumerate(classes):
        for axis in axes[row]:
            axis.set_axis_off()
        for axis, image in zip(axes[row], images[labels == row], strict=False):
            _show(axis, image)
        _row_name(axes[row][0], name)
    return figure


def class_balance(counts: Mapping[str, Sequence[int]], classes: Sequence[str]) -> Picture:
    """Images per class, one bar per split.

    Args:
        counts: Split -> number of images of each class.
        classes: Names.
    """
    figure = _picture(max(6, min(14, 0.5 * len(classes) + 2)), 3)
    axis = figure.subplots()
    width = 0.8 / len(counts)
    for i, (split, numbers) in enumerate(counts.items()):
        places = np.arange(len(classes)) + (i - (len(counts) - 1) / 2) * width
        axis.bar(places, numbers, width, label=f"{split} ({sum(numbers):,})", color=COLOURS[i])
    axis.set_xticks(range(len(classes)), classes, rotation=0 if max(map(len, classes)) < 4 else 60)
    axis.set(xlabel="class", ylabel="images")
    _legend_beside(figure, axis)
    return figure


def gradient_errors(methods: Sequence[str], errors: Sequence[float], tolerance: float) -> Picture:
    """Largest disagreement of autograd with each independent method, against what is allowed."""
    figure = _picture(7, 0.45 * len(methods) + 1.3)
    axis = figure.subplots()
    shown = np.maximum(errors, 1e-17)  # an error of zero has no place on a logarithmic axis
    colours = [COLOURS[2] if error <= tolerance else COLOURS[1] for error in errors]
    axis.barh(range(len(methods)), shown, color=colours)
    axis.axvline(tolerance, color="black", linestyle="--", label=f"allowed: {tolerance:g}")
    axis.set_yticks(range(len(methods)), methods)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="largest error of a weight's gradient (relative)")
    _legend_beside(figure, axis)
    return figure


def gradient_sizes(names: Sequence[str], kinds: Sequence[str], means: Sequence[float]) -> Picture:
    """Mean absolute gradient of each parameter, quantum and classical told apart."""
    figure = _picture(7, 0.4 * len(names) + 1.3)
    axis = figure.subplots()
    for kind, colour in SIZES.items():
        rows = [i for i, which in enumerate(kinds) if which == kind]
        if rows:
            axis.barh(rows, [max(means[i], 1e-17) for i in rows], color=colour, label=kind)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="mean absolute gradient of one weight")
    _legend_beside(figure, axis)
    return figure


def training_curves(curves: Mapping[str, Mapping[str, np.ndarray]], score: str = "accuracy") -> Picture:
    """Loss and score by epoch on the validation split: the mean over seeds, and their whole range.

    Args:
        curves: Net -> {"loss" and the score: of shape (seeds, epochs); missing epochs are NaN}.
        score: Name of the second panel's number, a fraction.
    """
    figure = _picture(9, 3.4)
    for axis, name, factor in zip(figure.subplots(1, 2), ("loss", score), (1, 100), strict=True):
        for i, (net, numbers) in enumerate(curves.items()):
            values = factor * np.asarray(numbers[name], dtype=float)
            epochs = np.arange(1, values.shape[1] + 1)
            known = np.ma.masked_invalid(values)
            colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
            axis.plot(epochs, known.mean(axis=0), style, color=colour, label=net, marker=".")
            if len(values) > 1:
                axis.fill_between(
                    epochs, known.min(axis=0), known.max(axis=0), color=colour, alpha=0.15, lw=0
                )
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="epoch", ylabel=f"validation {name}" + (" (%)" if factor == 100 else ""))
    _legend_beside(figure, figure.axes[0])
    return figure


def confusion(matrix: np.ndarray, classes: Sequence[str]) -> Picture:
    """Counts of (true class, predicted class); rows are the truth."""
    side = min(10, 0.42 * len(classes) + 1.8)
    figure = _picture(side + 0.6, side)
    axis = figure.subplots()
    image = axis.imshow(matrix, cmap="Blues", vmin=0)
    if len(classes) <= 30:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if count > matrix.max() / 2 else "black"
                axis.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    axis.set_xticks(range(len(classes)), classes, rotation=0 if max(map(len, classes)) < 4 else 90)
    axis.set_yticks(range(len(classes)), classes)
    axis.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(image, ax=axis, label="images", shrink=0.8)
    return figure


def labelled_images(images: np.ndarray, titles: Sequence[str], columns: int = 6) -> Picture:
    """Images in a grid, each under its title.

    Args:
        images: uint8, of shape (n, channels, height, width).
        titles: One per image; may have several lines.
        columns: Images in a row.
    """
    rows = max(1, -(-len(images) // columns))
    figure = _picture(1.5 * columns, 1.95 * rows)
    for axis in figure.subplots(rows, columns, squeeze=False).flat:
        axis.set_axis_off()
    for axis, image, title in zip(figure.axes, images, titles, strict=False):
        _show(axis, image)
        axis.set_title(title, fontsize=8)
    return figure


def feature_maps(images: np.ndarray, maps: np.ndarray, names: Sequence[str]) -> Picture:
    """Images beside what the circuits make of them; every map on one scale from -1 to 1.

    Args:
        images: uint8, of shape (n, channels, height, width).
        maps: Expectation values, of shape (n, n_maps, rows, columns).
        names: One per map.
    """
    n, n_maps = maps.shape[:2]
    figure = _picture(1.25 * (n_maps + 1) + 1, 1.25 * n + 0.4)
    axes = figure.subplots(n, n_maps + 1, squeeze=False)
    scale = {"cmap": "RdBu_r", "norm": Normalize(-1, 1)}
    for row, image in enumerate(images):
        _show(axes[row][0], image)
        for axis, values in zip(axes[row][1:], maps[row], strict=True):
            axis.imshow(values, **scale)
        for axis in axes[row]:
            axis.set_xticks([])
            axis.set_yticks([])
    for axis, name in zip(axes[0], ("image", *names), strict=True):
        axis.set_title(name, fontsize=9)
    figure.colorbar(ScalarMappable(**scale), ax=axes, label="expectation value", shrink=0.8)
    return figure


def comparison(
    nets: Mapping[str, Sequence[float]], intervals: Mapping[str, tuple[float, float | None, float | None]]
) -> Picture:
    """Test accuracy of each net: a dot per seed, the mean and its interval.

    Args:
        nets: Net -> accuracy of each seed, as fractions.
        intervals: Net -> (mean, low, high), as fractions; bounds of None are not drawn.
    """
    figure = _picture(7, 0.55 * len(nets) + 1.1)
    axis = figure.subplots()
    for row, (net, values) in enumerate(nets.items()):
        mean, low, high = intervals[net]
        axis.plot(100 * np.asarray(values), [row] * len(values), "o", color=COLOURS[row], alpha=0.5)
        if low is not None and high is not None:
            axis.plot([100 * low, 100 * high], [row, row], color=COLOURS[row], lw=2)
        axis.plot([100 * mean], [row], "D", color=COLOURS[row], markeredgecolor="black")
    axis.set_yticks(range(len(nets)), list(nets))
    axis.set_ylim(len(nets) - 0.5, -0.5)
    axis.set_xlabel("test accuracy (%): a dot per seed, the mean and its 95 % interval")
    axis.grid(axis="x", alpha=0.3)
    return figure


def circuit(layer: Any, inputs: Any) -> Picture:
    """A quantum layer's circuit, gate by gate.

    Args:
        layer: A TorchLayer, such as `QuantumLayer`.
        inputs: One sample, of shape (n_features,).
    """
    import pennylane as qp
    from matplotlib import pyplot, rc_context

    with rc_context():  # PennyLane's style would stay on
        draw: Any = qp.draw_mpl(layer.qnode, level="device", decimals=2, style="black_white")
        figure, _ = draw(inputs, **layer.qnode_weights)
    pyplot.close(figure)  # PennyLane draws through pyplot, which would keep it and show it twice
    figure.__class__ = Picture
    return figure


def _picture(width: float, height: float) -> Picture:
    return Picture(figsize=(width, height), layout="constrained")


def _show(axis: Any, image: np.ndarray) -> None:
    """An image of shape (channels, height, width), grey or colour."""
    grey = image.shape[0] == 1
    axis.imshow(image[0] if grey else np.moveaxis(image, 0, -1), cmap="gray", vmin=0, vmax=255)


def _row_name(axis: Any, name: str) -> None:
    axis.text(-0.15, 0.5, name, transform=axis.transAxes, ha="right", va="center")


def _legend_beside(figure: Figure, axis: Any) -> None:
    """Outside the axes, where it can cover nothing."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False)

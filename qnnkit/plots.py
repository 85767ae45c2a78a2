"""Plain arrays to figures. The only importer of matplotlib; every figure names its axes and units.

Figures are made without pyplot, so nothing global is kept; a notebook shows one that a cell ends in.
"""

from __future__ import annotations

import io
import math
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

# Okabe and Ito (2008): told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "v", "D", "P", "X")
LONGEST_NAME = 32  # letters of a class name that are shown
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
        per_class: Images in a row, at most.
    """
    per_class = max(1, min(per_class, max(int((labels == row).sum()) for row in range(len(classes)))))
    figure = _picture(0.75 * per_class + 0.7 + _inches(classes), 0.75 * len(classes) + 0.2)
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
    upright = max(map(len, classes)) > 3
    height = 2.8 + (_inches(classes) if upright else 0.2)
    figure = _picture(max(6, min(14, 0.5 * len(classes) + 2)), height)
    axis = figure.subplots()
    width = 0.8 / len(counts)
    for i, (split, numbers) in enumerate(counts.items()):
        places = np.arange(len(classes)) + (i - (len(counts) - 1) / 2) * width
        axis.bar(places, numbers, width, label=f"{split} ({sum(numbers):,})", color=COLOURS[i])
    _name_ticks(axis.xaxis, classes, rotation=90 if upright else 0)
    axis.set(xlabel="class", ylabel="images")
    _legend_beside(figure, axis)
    return figure


def gradient_errors(methods: Sequence[str], errors: Sequence[float], tolerance: float) -> Picture:
    """Largest disagreement of autograd with each independent method, against what is allowed."""
    figure = _picture(7, 0.45 * len(methods) + 1.3)
    axis = figure.subplots()
    colours = [COLOURS[2] if error <= tolerance else COLOURS[1] for error in errors]
    axis.barh(range(len(methods)), _lengths(errors), color=colours)
    axis.axvline(tolerance, color="black", linestyle="--", label=f"allowed: {tolerance:g}")
    _name_rows(axis, methods, errors)
    axis.set_xlabel("largest error of a weight's gradient (relative)")
    _decades(axis, [*_lengths(errors), tolerance])
    _legend_beside(figure, axis)
    return figure


def gradient_sizes(names: Sequence[str], kinds: Sequence[str], means: Sequence[float]) -> Picture:
    """Mean absolute gradient of each parameter, quantum and classical told apart."""
    figure = _picture(7, 0.4 * len(names) + 1.3)
    axis = figure.subplots()
    for kind, colour in SIZES.items():
        rows = [i for i, which in enumerate(kinds) if which == kind]
        if rows:
            axis.barh(rows, _lengths([means[i] for i in rows]), color=colour, label=kind)
    _name_rows(axis, names, means)
    axis.set_xlabel("mean absolute gradient of one weight")
    _decades(axis, _lengths(means))
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
        axis.set_xlim(0.5, max(np.shape(numbers[name])[1] for numbers in curves.values()) + 0.5)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set(xlabel="epoch", ylabel=f"validation {name}" + (" (%)" if factor == 100 else ""))
    _legend_beside(figure, figure.axes[0])
    return figure


def confusion(matrix: np.ndarray, classes: Sequence[str]) -> Picture:
    """Counts of (true class, predicted class); rows are the truth."""
    upright, names = max(map(len, classes)) > 3, _inches(classes)
    side = min(9.2, 0.42 * max(3, len(classes)) + 0.8)
    figure = _picture(side + 1.4 + names, side + 0.6 + (names if upright else 0.2))
    axis = figure.subplots()
    image = axis.imshow(matrix, cmap="Blues", vmin=0, vmax=max(1, matrix.max()))
    if len(classes) <= 30:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if count > matrix.max() / 2 else "black"
                axis.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    _name_ticks(axis.xaxis, classes, rotation=90 if upright else 0)
    _name_ticks(axis.yaxis, classes)
    axis.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(image, ax=axis, label="images", shrink=0.8)
    return figure


def labelled_images(images: np.ndarray, titles: Sequence[str], columns: int = 6) -> Picture:
    """Images in a grid, each under its title.

    Args:
        images: uint8, of shape (n, channels, height, width).
        titles: One per image; may have several lines, and a long line is wrapped.
        columns: Images in a row.
    """
    rows = max(1, -(-len(images) // columns))
    wrapped = ["\n".join(textwrap.fill(line, 20) for line in title.splitlines()) for title in titles]
    lines = max((title.count("\n") + 1 for title in wrapped), default=1)
    figure = _picture(1.5 * columns, (1.6 + 0.16 * lines) * rows)
    for axis in figure.subplots(rows, columns, squeeze=False).flat:
        axis.set_axis_off()
    for axis, image, title in zip(figure.axes, images, wrapped, strict=False):
        _show(axis, image)
        axis.set_title(title, fontsize=8, parse_math=False)
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
        colour = COLOURS[row % len(COLOURS)]
        axis.plot(100 * np.asarray(values), [row] * len(values), "o", color=colour, alpha=0.5)
        if low is not None and high is not None:
            axis.plot([100 * low, 100 * high], [row, row], color=colour, lw=2)
        axis.plot([100 * mean], [row], "D", color=colour, markeredgecolor="black")
    axis.set_yticks(range(len(nets)), list(nets))
    axis.set_ylim(len(nets) - 0.5, -0.5)
    axis.set_xlabel("test accuracy (%): a dot per seed, the mean and its 95 % interval")
    axis.grid(axis="x", alpha=0.3)
    return figure


def benchmark(
    times: Mapping[str, Mapping[str, tuple[float, float, float]]],
    widths: Mapping[str, Mapping[int, tuple[float, float, float]]],
    machine: str,
    peers: Sequence[str],
) -> Picture:
    """Milliseconds of each peer: a row of dots per workload, and lines over the number of wires.

    Args:
        times: Workload -> peer -> (least, median, most), in ms; drawn if there are any.
        widths: Peer -> number of wires -> (least, median, most), in ms; drawn if there are any.
        machine: The kind of machine, as the figure's title.
        peers: All names, in the order of their colours.
    """
    rows = 0.7 * len(times) + 1.2 if times else 0.0
    figure = _picture(11 if times and widths else 8.5, max(rows, 3.6 if widths else 2.4, 0.28 * len(peers)))
    figure.suptitle(textwrap.fill(machine, 90), fontsize=10, parse_math=False)
    panels = list(figure.subplots(1, bool(times) + bool(widths), squeeze=False)[0])
    looks = {peer: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, peer in enumerate(peers)}
    shown: dict[str, Any] = {}
    if times:
        axis = panels.pop(0)
        for row, found in enumerate(times.values()):
            for peer, (least, median, most) in found.items():
                colour, marker = looks[peer]
                place = row + 0.6 * (peers.index(peer) / max(1, len(peers) - 1) - 0.5)  # none hides another
                axis.plot([least, most], [place, place], color=colour, lw=2)
                [shown[peer]] = axis.plot(median, place, marker, color=colour, alpha=0.8, ls="none")
        axis.set_yticks(range(len(times)), [textwrap.fill(name, 22) for name in times], parse_math=False)
        axis.set_ylim(len(times) - 0.5, -0.5)
        axis.set_xlabel("time (ms): median, least to most")
        _decades(axis, [value for found in times.values() for spread in found.values() for value in spread])
        axis.grid(alpha=0.3)
    if widths:
        axis = panels.pop(0)
        for peer, found in widths.items():
            colour, marker = looks[peer]
            wires = sorted(found)
            for n in wires:
                axis.plot([n, n], [found[n][0], found[n][2]], color=colour, lw=2)
            medians = [found[n][1] for n in wires]
            [shown[peer]] = axis.plot(wires, medians, f"-{marker}", color=colour, alpha=0.8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set(xlabel="wires", ylabel="time (ms): median, least to most")
        _decades(axis, [v for found in widths.values() for spread in found.values() for v in spread], "y")
        axis.grid(alpha=0.3)
    known = [peer for peer in peers if peer in shown]
    figure.legend([shown[peer] for peer in known], known, loc="outside right upper", frameon=False)
    return figure


def circuit(layer: Any, inputs: Any) -> Picture:
    """A quantum layer's circuit, gate by gate.

    Args:
        layer: A TorchLayer, such as `QuantumLayer`.
        inputs: One sample, of shape (n_features,).
    """
    import pennylane as qp
    from matplotlib import pyplot

    draw: Any = qp.draw_mpl(layer.qnode, level="device", decimals=2, style="black_white")
    figure, _ = draw(inputs, **layer.qnode_weights)
    pyplot.close(figure)  # PennyLane draws through pyplot, which would keep it and show it twice
    figure.__class__ = Picture
    return figure


def _picture(width: float, height: float) -> Picture:
    # A margin of 1 %: where images keep their shape, the layout is a few pixels off.
    layout = ConstrainedLayoutEngine(rect=(0.01, 0.01, 0.98, 0.98))
    return Picture(figsize=(width, height), layout=layout)


def _show(axis: Any, image: np.ndarray) -> None:
    """An image of shape (channels, height, width), grey or colour."""
    grey = image.shape[0] == 1
    axis.imshow(image[0] if grey else np.moveaxis(image, 0, -1), cmap="gray", vmin=0, vmax=255)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _inches(names: Sequence[str]) -> float:
    """Room for the longest name, at the font's usual size."""
    points = max(TextPath((0, 0), _short(name).replace("$", "S")).get_extents().width for name in names)
    return points / 72 + 0.1


def _row_name(axis: Any, name: str) -> None:
    text = _short(name)
    axis.text(-0.15, 0.5, text, transform=axis.transAxes, ha="right", va="center", parse_math=False)


def _name_ticks(axis: Any, names: Sequence[str], rotation: float = 0) -> None:
    # A folder may well be called "$5 to $10": no name is mathematics.
    axis.set_ticks(range(len(names)), [_short(name) for name in names], rotation=rotation, parse_math=False)


def _lengths(values: Sequence[float]) -> np.ndarray:
    """Of bars on a logarithmic axis, where zero has no place; a stump for NaN and infinity too."""
    return np.where(np.isfinite(values), np.maximum(values, 1e-17), 1e-17)


def _name_rows(axis: Any, names: Sequence[str], values: Sequence[float]) -> None:
    """A row per name, the first on top; a value without a length (NaN, infinite) is told beside its name."""
    told = [
        name if np.isfinite(value) else f"{name}: {value}" for name, value in zip(names, values, strict=True)
    ]
    axis.set_yticks(range(len(names)), told)
    axis.set_ylim(len(names) - 0.5, -0.5)


def _decades(axis: Any, lengths: Any, which: str = "x") -> None:
    """A logarithmic axis over whole decades, with labels at them; bars start a decade below the least."""
    first, last = math.floor(math.log10(min(lengths))) - 1, math.ceil(math.log10(max(lengths)) + 0.1)
    axis.set(**{f"{which}scale": "log", f"{which}lim": (10.0**first, 10.0**last)})
    scale = axis.xaxis if which == "x" else axis.yaxis
    scale.set_major_locator(LogLocator(numticks=8))
    scale.set_minor_formatter(NullFormatter())


def _legend_beside(figure: Figure, axis: Any) -> None:
    """Outside the axes, where it can cover nothing."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False)

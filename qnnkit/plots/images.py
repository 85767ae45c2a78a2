"""Images and what circuits make of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from qnnkit.plots.picture import COLOURS, Picture, inches, legend_beside, name_ticks, picture, row_name, show


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
    figure = picture(0.75 * per_class + 0.7 + inches(classes), 0.75 * len(classes) + 0.2)
    axes = figure.subplots(len(classes), per_class, squeeze=False)
    for row, name in enumerate(classes):
        for axis in axes[row]:
            axis.set_axis_off()
        for axis, image in zip(axes[row], images[labels == row], strict=False):
            show(axis, image)
        row_name(axes[row][0], name)
    return figure


def class_balance(counts: Mapping[str, Sequence[int]], classes: Sequence[str]) -> Picture:
    """Images per class, one bar per split.

    Args:
        counts: Split -> number of images of each class.
        classes: Names.
    """
    upright = max(map(len, classes)) > 3
    height = 2.8 + (inches(classes) if upright else 0.2)
    figure = picture(max(6, min(14, 0.5 * len(classes) + 2)), height)
    axis = figure.subplots()
    width = 0.8 / len(counts)
    for i, (split, numbers) in enumerate(counts.items()):
        places = np.arange(len(classes)) + (i - (len(counts) - 1) / 2) * width
        axis.bar(places, numbers, width, label=f"{split} ({sum(numbers):,})", color=COLOURS[i])
    name_ticks(axis.xaxis, classes, rotation=90 if upright else 0)
    axis.set(xlabel="class", ylabel="images")
    legend_beside(figure, axis)
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
    figure = picture(1.5 * columns, (1.6 + 0.16 * lines) * rows)
    for axis in figure.subplots(rows, columns, squeeze=False).flat:
        axis.set_axis_off()
    for axis, image, title in zip(figure.axes, images, wrapped, strict=False):
        show(axis, image)
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
    figure = picture(1.25 * (n_maps + 1) + 1, 1.25 * n + 0.4)
    axes = figure.subplots(n, n_maps + 1, squeeze=False)
    scale = {"cmap": "RdBu_r", "norm": Normalize(-1, 1)}
    for row, image in enumerate(images):
        show(axes[row][0], image)
        for axis, values in zip(axes[row][1:], maps[row], strict=True):
            axis.imshow(values, **scale)
        for axis in axes[row]:
            axis.set_xticks([])
            axis.set_yticks([])
    for axis, name in zip(axes[0], ("image", *names), strict=True):
        axis.set_title(name, fontsize=9)
    figure.colorbar(ScalarMappable(**scale), ax=axes, label="expectation value", shrink=0.8)
    return figure

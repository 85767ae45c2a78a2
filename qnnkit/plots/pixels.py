"""Images in a grid, and confusion matrices."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from qnnkit.plots.picture import Picture, name_ticks, picture, short, show

LETTERS, ACROSS = 20, 6
"""Letters in a line above an image, and images in a row."""


def labelled_images(images: np.ndarray, titles: Sequence[str]) -> Picture:
    """Images in a grid, each under its title.

    Args:
        images: uint8, of shape (n, channels, height, width), with 1 or 3 channels.
        titles: A title for each image, with one or more lines. Long lines are wrapped.
    """
    rows = max(1, -(-len(images) // ACROSS))
    wrapped = ["\n".join(textwrap.fill(line, LETTERS) for line in title.splitlines()) for title in titles]
    lines = max((title.count("\n") + 1 for title in wrapped), default=1)
    figure = picture(1.5 * ACROSS, (1.6 + 0.16 * lines) * rows)
    for axis in figure.subplots(rows, ACROSS, squeeze=False).flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    for axis, image, title in zip(figure.axes, images, wrapped, strict=False):
        show(axis, image)
        axis.set_title(title, fontsize=8, parse_math=False)
    return figure


def confusion(matrix: np.ndarray, classes: Sequence[str]) -> Picture:
    """A confusion matrix of counts by true class (rows) and predicted class (columns).

    Args:
        matrix: Counts of shape (n_classes, n_classes).
        classes: Name of each class.
    """
    upright, names = max(map(len, classes)) > 3, 0.1 * max(len(short(name)) for name in classes)
    side = min(9.2, 0.42 * max(4, len(classes)) + 0.8)
    figure = picture(side + 1.4 + names, side + 0.6 + (names if upright else 0.2))
    axis = figure.subplots()
    image = axis.imshow(matrix, cmap="Blues", vmin=0, vmax=max(1, matrix.max()))
    if len(classes) <= 30:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if count > matrix.max() / 2 else "black"
                axis.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    name_ticks(axis.xaxis, classes, rotation=90 if upright else 0)
    name_ticks(axis.yaxis, classes)
    axis.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(image, ax=axis, label="test samples", shrink=0.8)
    return figure

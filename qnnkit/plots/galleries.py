"""What a model that reads images and captions finds: galleries, and a matrix of likeness."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from qnnkit.plots.picture import COLOURS, Picture, bare, inches, name_ticks, picture, show, width

RIGHT, WRONG = COLOURS[2], "#999999"
LETTERS, LINES, LONGEST = 30, 4, 64
"""Of a caption beside images, in lines; and of one that stands in a list."""


def images_found(
    captions: Sequence[str], images: np.ndarray, cosines: np.ndarray, right: np.ndarray
) -> Picture:
    """Captions, each beside the images nearest to it; the right ones framed in green.

    Args:
        captions: The queries.
        images: The nearest first, uint8, (n_captions, n_found, channels, height, width).
        cosines: Of each image with its query, (n_captions, n_found).
        right: Whether the caption is one of the image, bool, (n_captions, n_found).
    """
    n, n_found = right.shape
    told = [_wrapped(caption) for caption in captions]
    figure = picture(1.3 * n_found + 0.3 + _room(told), 1.55 * n + 0.2)
    grid = figure.subplots(n, n_found, squeeze=False)
    for row, text in enumerate(told):
        for axis, image, cosine, fits in zip(grid[row], images[row], cosines[row], right[row], strict=True):
            _framed(axis, image, RIGHT if fits else WRONG, 3.0 if fits else 0.8)
            axis.set_title(f"{cosine:.2f}", fontsize=8, color=RIGHT if fits else "black")
        grid[row, 0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8, parse_math=False)
    return figure


def captions_found(
    images: np.ndarray, captions: Sequence[Sequence[str]], cosines: np.ndarray, right: np.ndarray
) -> Picture:
    """Images, each beside the captions nearest to it; the right ones bold and green.

    Args:
        images: The queries, uint8, (n_images, channels, height, width).
        captions: For each image the captions, the nearest first.
        cosines: Of each caption with its image, (n_images, n_found).
        right: Whether it is one of the image, bool, (n_images, n_found).
    """
    n, n_found = right.shape
    told = [
        [text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for text in texts] for texts in captions
    ]
    height = max(1.3, 0.24 * n_found)
    room = 1.2 * _room([f"0.00  {text}" for texts in told for text in texts])  # bold is wider
    figure = picture(height + 0.4 + room, (height + 0.15) * n)
    for row, axis in enumerate(figure.subplots(n, 1, squeeze=False)[:, 0]):
        _framed(axis, images[row], WRONG, 0.8)
        axis.set_anchor("W")
        for place, text in enumerate(told[row]):
            fits = bool(right[row, place])
            look: dict[str, Any] = {"color": RIGHT, "fontweight": "bold"} if fits else {"color": "black"}
            axis.annotate(
                f"{cosines[row, place]:.2f}  {text}",
                (1.0, 1 - (place + 0.5) / n_found),
                xycoords="axes fraction",
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                parse_math=False,
                **look,
            )
    return figure


def similarities(
    cosines: np.ndarray, images: Sequence[str], captions: Sequence[str], right: np.ndarray
) -> Picture:
    """Cosine of every image with every caption; right pairs are marked.

    Args:
        cosines: (n_images, n_captions).
        images: What each image is called.
        captions: In order.
        right: Which belong together, bool, (n_images, n_captions).
    """
    shape = [min(9.0, max(1.4, 0.26 * n)) for n in cosines.shape]
    figure = picture(shape[1] + 1.6 + inches(images), shape[0] + 0.8 + inches(captions))
    axis = figure.subplots()
    most = float(np.abs(cosines).max(initial=1e-6))
    image = axis.imshow(cosines, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    rows, columns = np.nonzero(right)
    axis.plot(columns, rows, "o", color="black", ms=3)
    size = min(10.0, 72 * 0.8 * min(shape[0] / cosines.shape[0], shape[1] / cosines.shape[1]))
    name_ticks(axis.xaxis, captions, rotation=90)
    name_ticks(axis.yaxis, images)
    axis.tick_params(labelsize=max(4.0, size))
    axis.set(xlabel="caption", ylabel="image")
    figure.colorbar(image, ax=axis, label="cosine similarity")
    return figure


def _framed(axis: Any, image: np.ndarray, colour: str, width: float) -> None:
    show(axis, image)
    bare(axis)
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=width)


def _wrapped(caption: str) -> str:
    return "\n".join(textwrap.wrap(caption, LETTERS, max_lines=LINES, placeholder=" …"))


def _room(texts: Sequence[str]) -> float:
    """Width of the longest line, in inches, at a font of 8 points."""
    return width([line for text in texts for line in text.split("\n")], size=8) + 0.2

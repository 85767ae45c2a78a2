"""From images and labels, however they were stored, to splits of one size and mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data import duplicates
from qnnkit.data.duplicates import Content
from qnnkit.data.images import Picture, fit
from qnnkit.data.places import first
from qnnkit.data.splits import SPLITS, ImageSet, ImageSplits, hold_out, stratified_split

SIDES = ("any", *SPLITS)
"""On which side of its dataset an image lies: "any" where the dataset has no sides of its own."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Images of one size and mode, not split yet."""

    images: np.ndarray  # uint8, (n, height, width) or (n, height, width, 3)
    labels: np.ndarray  # indices into the classes, int64, (n,)
    sides: np.ndarray  # indices into SIDES, uint8, (n,)
    sources: tuple[str, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def as_size(image_size: int | None) -> tuple[int, int] | None:
    """(height, width) from a side in pixels; None stays None."""
    if image_size is None:
        return None
    checks.positive("image_size", image_size, "Use a side such as 32, or None for the most common size.")
    return image_size, image_size


def stack_pictures(
    pictures: Sequence[Picture],
    sides: Sequence[str],
    classes: tuple[str, ...],
    notes: Sequence[str],
    *,
    image_size: int | None,
    grey: bool | None,
) -> Stack:
    """Pictures of any size and mode, brought to one, with a note on how many that changed."""
    size = as_size(image_size)
    if size is None:
        counts = Counter(picture.size for picture in pictures)
        size = max(counts, key=lambda found: (counts[found], found))
    if grey is None:
        grey = all(picture.pixels.ndim == 2 for picture in pictures)
    mode, total = "L" if grey else "RGB", len(pictures)
    told = list(notes)
    if n := sum(picture.size != size for picture in pictures):
        told.append(_resized(n, total, size))
    if others := [picture.mode for picture in pictures if picture.mode != mode]:
        told.append(_converted(others, total, grey))
    return Stack(
        np.stack([fit(picture.pixels, size, mode) for picture in pictures]),
        np.array([picture.label for picture in pictures], dtype=np.int64),
        np.array([SIDES.index(side) for side in sides], dtype=np.uint8),
        tuple(picture.source for picture in pictures),
        classes,
        tuple(told),
    )


def stack_arrays(
    parts: dict[str, tuple[np.ndarray, np.ndarray]],
    classes: tuple[str, ...],
    *,
    image_size: int | None,
    grey: bool | None,
    notes: Sequence[str] = (),
    prefix: str = "",
) -> Stack:
    """Images that are of one size already, as arrays.

    Args:
        parts: Side -> images, uint8 (n, height, width) or (n, height, width, 3), and labels, int (n,).
        classes: The name of each label.
        image_size: As in `class_folder`.
        grey: As in `class_folder`.
        notes: What to tell before what happens here.
        prefix: Of the sources, `<prefix><side>/<row>`; without the side where there is only one.
    """
    images = np.concatenate([images for images, _ in parts.values()])
    size, told, total = as_size(image_size) or images.shape[1:3], list(notes), len(images)
    colour = images.ndim == 4
    grey = not colour if grey is None else grey
    if images.shape[1:3] != size:
        told.append(_resized(total, total, size))
        images = np.stack([fit(pixels, size, "RGB" if colour else "L") for pixels in images])
    if colour and grey:
        images = np.stack([fit(pixels, size, "L") for pixels in images])
    elif not colour and not grey:
        images = np.repeat(images[..., None], 3, axis=3)
    if colour == grey:
        told.append(_converted(["RGB" if colour else "L"], total, grey, n=total))
    sources = tuple(
        f"{prefix}{row}" if len(parts) == 1 else f"{prefix}{side}/{row}"
        for side, (_, labels) in parts.items()
        for row in range(len(labels))
    )
    labels = np.concatenate([labels for _, labels in parts.values()]).astype(np.int64)
    sides = [np.full(len(labels), SIDES.index(side), np.uint8) for side, (_, labels) in parts.items()]
    return Stack(images, labels, np.concatenate(sides), sources, classes, tuple(told))


def split_stack(
    name: str,
    stack: Stack,
    *,
    split_seed: int = 0,
    validation_fraction: float = 0.2,
    test_fraction: float = 0.2,
) -> ImageSplits:
    """The dataset called `name`: its own test part where it brings one, else drawn class by class.

    Where it brings one, `validation_fraction` is that of its training part and `test_fraction` is unused.
    """
    labels, classes = stack.labels, stack.classes
    own = [np.flatnonzero(stack.sides == SIDES.index(side)) for side in SPLITS]
    if not len(own[2]):
        parts = stratified_split(labels, classes, split_seed, (validation_fraction, test_fraction))
    else:
        rows = own[0]
        train, validation = (
            (rows, own[1])
            if len(own[1])
            else (rows[part] for part in hold_out(labels[rows], classes, split_seed, validation_fraction))
        )
        parts = (train, validation, own[2])
        _require_classes(labels, classes, parts)

    def gather(chosen: np.ndarray) -> ImageSet:
        pixels = torch.from_numpy(stack.images[chosen])
        images = pixels.reshape(*pixels.shape[:3], -1).permute(0, 3, 1, 2)  # -> (n, channels, height, width)
        return ImageSet(
            images.contiguous(), torch.from_numpy(labels[chosen]), tuple(stack.sources[i] for i in chosen)
        )

    train, validation, test = map(gather, parts)
    splits = ImageSplits(name, train, validation, test, classes, stack.notes)
    found = duplicates.told(
        {
            side: [
                Content(pixels.data, source, label)
                for pixels, source, label in zip(
                    part.images.numpy(), part.sources, part.labels.tolist(), strict=True
                )
            ]
            for side, part in zip(SPLITS, (train, validation, test), strict=True)
        },
        "images",
        "pixel for pixel",
    )
    return replace(splits, notes=(*stack.notes, found)) if found else splits


def _require_classes(labels: np.ndarray, classes: tuple[str, ...], parts: Sequence[np.ndarray]) -> None:
    for name, rows in zip(SPLITS, parts, strict=True):
        counts = np.bincount(labels[rows], minlength=len(classes))
        if missing := [classes[label] for label in np.flatnonzero(counts == 0)]:
            step = f"Missing: {first(missing)}. Add images of these, or leave the classes out everywhere."
            rule = "hold images of every class on each of its sides"
            raise ValueError(checks.message("root", rule, {name: len(rows)}, step))


def _resized(n: int, total: int, size: Sequence[int]) -> str:
    return f"Resized {n:,} of {total:,} images to {size[0]}x{size[1]} (height x width)."


def _converted(modes: list[str], total: int, grey: bool, n: int | None = None) -> str:
    change = f"8-bit {'grey' if grey else 'RGB'}, from mode {', '.join(sorted(set(modes)))}"
    return f"Converted {n or len(modes):,} of {total:,} images to {change}."

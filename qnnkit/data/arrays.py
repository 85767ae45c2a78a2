"""Datasets that are arrays already: the digits inside scikit-learn, and `.npz` files of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qnnkit import checks
from qnnkit.data import fetch
from qnnkit.data.images import split_arrays
from qnnkit.data.places import MAX_BYTES, first, refusal
from qnnkit.data.splits import ImageSplits

NAMES = {
    "train": (("images", "labels"), ("x_train", "y_train"), ("train_images", "train_labels"), ("x", "y")),
    "validation": (
        ("validation_images", "validation_labels"),
        ("val_images", "val_labels"),
        ("x_val", "y_val"),
    ),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}
"""Side -> what its arrays of images and labels may be called, in small or capital letters."""


def digits(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """The 1,797 handwritten digits inside scikit-learn: 10 classes, 8x8, grey 0..16 rescaled to 0..255.

    Takes the options of `class_folder`; `root` must be left out.

    Reference:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998).
    """
    if root:
        step = "To load your own images, use the dataset 'class_folder' with this root."
        raise refusal("be left out for 'digits', which lie inside scikit-learn", str(root), step)
    from sklearn.datasets import load_digits

    levels, labels = map(np.asarray, load_digits(return_X_y=True))
    pixels = np.rint(levels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)  # (1797, 64) -> (1797, 8, 8)
    parts = {"any": (pixels, labels)}
    return split_arrays("digits", parts, tuple("0123456789"), prefix="digits/", **options)


def npz(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """Your own arrays in one NumPy file: images and labels, with a test part or without.

    The names are `images`, `labels`, `test_images` and `test_labels`, or x_train, y_train, x_test, y_test and
    the like (`NAMES`). `classes` may name labels 0, 1, 2, ...; without it the classes are the whole numbers
    found. Objects (pickles) are refused.

    Args:
        root: The file. Images have shape (n, height, width), (n, height, width, 1 or 3) or (n, 1 or 3,
            height, width), with whole numbers 0..255, or real ones 0..1. Labels have shape (n,).
        options: As in `class_folder`; a test part in the file is the test split, and then validation_fraction
            is that of the rest.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or what is in it does not fit together.
    """
    path = fetch.local(root)
    if not path.is_file():
        step = "Check the path; on Colab, mount Drive first."
        raise FileNotFoundError(checks.message("root", "be an existing .npz file", str(path), step))
    arrays = _read(path)
    small = {name.lower(): name for name in arrays}
    used = {
        side: next(([small[x], small[y]] for x, y in names if x in small and y in small), None)
        for side, names in NAMES.items()
    }
    if used["train"] is None:
        shapes = {name: array.shape for name, array in arrays.items()}
        step = "Name the arrays images and labels (and test_images and test_labels)."
        raise refusal("hold arrays of images and labels", shapes, step)
    sides = {side: pair for side, pair in used.items() if pair is not None}
    sides = {side if len(sides) > 1 else "any": pair for side, pair in sides.items()}
    parts = {side: (_pixels(x, arrays[x]), _labels(y, arrays[y])) for side, (x, y) in sides.items()}
    names, parts = _classes(arrays.get("classes"), parts)
    known = {name for pair in sides.values() for name in pair} | {"classes"}
    others = [name for name in arrays if name not in known]
    notes = [f"Left out arrays of other names: {first(others)}."] if others else []
    return split_arrays("npz", parts, names, notes=notes, **options)


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by name; nothing in it is unpickled."""
    arrays = None
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if sum(info.file_size for info in file.zip.infolist()) <= MAX_BYTES:
                arrays = {name: np.asarray(file[name]) for name in file.files}
    except Exception as error:  # a damaged file makes NumPy raise almost anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        step = f"It cannot be read ({reason}): save it anew with np.savez, without objects."
        raise refusal("be a whole .npz file", str(path), step) from None
    if arrays is None:
        raise refusal("unpack to 4 GiB at most", str(path), "Save fewer or smaller images.")
    return arrays


def _pixels(name: str, images: np.ndarray) -> np.ndarray:
    """Images as uint8, (n, height, width) or (n, height, width, 3)."""
    shape = images.shape
    if images.ndim == 4 and shape[3] not in (1, 3) and shape[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3) or 0 in shape:
        rule = "hold images of shape (n, height, width) or (n, height, width, 3)"
        raise refusal(rule, {name: shape}, "Reshape them first.")
    if images.dtype == np.uint8:
        return images
    kind, ends = images.dtype.kind, None
    if kind in "biuf":
        ends = (images.min().item(), images.max().item())
        if kind == "b" or (kind == "f" and ends[0] >= 0 and ends[1] <= 1):
            return np.rint(images * np.float32(255)).astype(np.uint8)
        if kind in "iu" and ends[0] >= 0 and ends[1] <= 255:
            return images.astype(np.uint8)
    value = {name: f"{images.dtype}" + (f" in {ends[0]:g}..{ends[1]:g}" if ends else "")}
    raise refusal("hold images of whole numbers in 0..255 or real ones in 0..1", value, "Rescale them first.")


def _labels(name: str, labels: np.ndarray) -> np.ndarray:
    """Labels as they are, of shape (n,)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biuU":
        rule = "hold labels of shape (n,), whole numbers or names"
        raise refusal(rule, {name: f"{labels.dtype} of shape {labels.shape}"}, "Convert them first.")
    return labels


def _classes(
    named: np.ndarray | None, parts: dict[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[tuple[str, ...], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The names of the classes, and the parts with labels that index them."""
    known = np.unique(next(iter(parts.values()))[1])
    if named is not None:
        if named.ndim != 1:
            step = 'Save one name each, such as np.array(["cat", "dog"]).'
            raise refusal("hold classes of shape (n_classes,)", {"classes": named.shape}, step)
        known = named.astype(str) if known.dtype.kind == "U" else np.arange(len(named))
    for side, (_, labels) in parts.items():
        below = labels[labels < 0] if labels.dtype.kind == "i" else labels[:0]
        if len(wrong := np.union1d(np.setdiff1d(labels, known), below)):
            rule = f"hold labels among {first([str(label) for label in known], 10)}"
            rule = "hold labels of 0 or above" if named is None and len(below) else rule
            step = "Correct these labels, or leave their images out."
            raise refusal(rule, {side: first([str(x) for x in wrong])}, step)
    if len(known) < 2:
        raise refusal("hold two or more classes", known.tolist(), "A net needs something to tell apart.")
    order = np.argsort(known)
    names = tuple(str(label) for label in (known if named is None else named).tolist())
    return names, {
        side: (images, order[np.searchsorted(known, labels, sorter=order)])
        for side, (images, labels) in parts.items()
    }

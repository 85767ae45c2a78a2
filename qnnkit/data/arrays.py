"""Datasets that are arrays already: the digits inside scikit-learn, and `.npz` files of your own."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from qnnkit import checks
from qnnkit.data import fetch, places
from qnnkit.data.assemble import split_stack, stack_arrays
from qnnkit.data.places import first
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


def digits(
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    grey: bool | None = None,
    **options: Any,
) -> ImageSplits:
    """The 1,797 handwritten digits inside scikit-learn: 10 classes, 8x8, grey 0..16 rescaled to 0..255.

    Takes the arguments of `class_folder`, but for `root`, which must be left out.

    Reference:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998).
    """
    if root:
        rule = "be left out for 'digits', which lie inside scikit-learn"
        step = "To load your own images, use the dataset 'class_folder' with this root."
        raise ValueError(checks.message("root", rule, str(root), step))
    from sklearn.datasets import load_digits

    levels, labels = map(np.asarray, load_digits(return_X_y=True))
    pixels = np.rint(levels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)  # (1797, 64) -> (1797, 8, 8)
    stack = stack_arrays(
        {"any": (pixels, labels)}, tuple("0123456789"), image_size=image_size, grey=grey, prefix="digits/"
    )
    return split_stack("digits", stack, **options)


def npz(
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    grey: bool | None = None,
    **options: Any,
) -> ImageSplits:
    """Your own arrays in one NumPy file: images and labels, with a test part or without.

    The names are `images`, `labels`, `test_images` and `test_labels`, or x_train, y_train, x_test, y_test and
    the like (`NAMES`). `classes` may name labels 0, 1, 2, ...; without it the classes are the whole numbers
    found. Objects (pickles) are refused.

    Args:
        root: The file. Images have shape (n, height, width), (n, height, width, 1 or 3) or (n, 1 or 3,
            height, width), with whole numbers 0..255, or real ones 0..1. Labels have shape (n,).
        image_size: As in `class_folder`.
        grey: As in `class_folder`.
        options: `split_seed`, `validation_fraction` and `test_fraction`, as in `class_folder`; a test part in
            the file is the test split, and then validation_fraction is that of the rest.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or what is in it does not fit together.
    """
    if not root:
        rule = "name a .npz file with arrays called images and labels"
        raise ValueError(checks.message("root", rule, root, "Pass the path of an .npz file."))
    path = fetch.local(root)
    if not path.is_file():
        step = "Check the path; on Colab, mount Drive first."
        raise FileNotFoundError(checks.message("root", "be an existing .npz file", str(path), step))
    arrays = _read(path)
    sides = {side: pair for side, names in NAMES.items() if (pair := _pick(arrays, names)) is not None}
    if "train" not in sides:
        shapes = {name: array.shape for name, array in arrays.items()}
        step = "Name the arrays images and labels (and test_images and test_labels)."
        raise ValueError(checks.message("root", "hold arrays of images and labels", shapes, step))
    if "test" not in sides:  # a lone validation part does not say what to test on
        sides = {"any": sides["train"]}
    parts = {side: (_pixels(*images), _labels(*labels)) for side, (images, labels) in sides.items()}
    shapes = {side: images.shape[1:] for side, (images, _) in parts.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(checks.message("root", "hold images of one shape", shapes, "Resize them first."))
    for side, (images, labels) in parts.items():
        if len(images) != len(labels):
            value = {sides[side][0][0]: len(images), sides[side][1][0]: len(labels)}
            raise ValueError(checks.message("root", "hold a label for each image", value, "Write it anew."))
    names, parts = _classes(arrays, parts)
    stack = stack_arrays(parts, names, image_size=image_size, grey=grey)
    return split_stack("npz", stack, **options)


Named = tuple[str, np.ndarray]


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            if sum(info.file_size for info in infos) > places.MAX_BYTES:
                rule = "unpack to 4 GiB at most"
                raise ValueError(checks.message("root", rule, str(path), "Save fewer or smaller images."))
            found = {}
            for info in infos:
                with archive.open(info) as file:
                    found[info.filename.removesuffix(".npy")] = _array(file, info.file_size)
            return found
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, _DamagedError) as error:
        step = f"It cannot be read ({error}): save it anew with np.savez, without objects."
        raise ValueError(checks.message("root", "be a whole .npz file", str(path), step)) from None


class _DamagedError(Exception):
    """What a member says of itself is not so."""


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """One member, judged by its header before memory is taken for it."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read[version](file)
    except (ValueError, KeyError) as error:
        raise _DamagedError(str(error)) from None
    count = int(np.prod([int(n) for n in shape], dtype=object)) if shape else 1
    if dtype.hasobject:
        raise _DamagedError("it holds Python objects, which could run code")
    if count < 0 or count * dtype.itemsize > size:
        raise _DamagedError("an array is cut short")
    content = file.read(count * dtype.itemsize)
    if len(content) < count * dtype.itemsize:
        raise _DamagedError("an array is cut short")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _pick(arrays: dict[str, np.ndarray], names: tuple[tuple[str, str], ...]) -> tuple[Named, Named] | None:
    """The first pair of arrays that is there, each with the name it has in the file."""
    small = {name.lower(): name for name in arrays}
    for pair in names:
        if all(name in small for name in pair):
            images, labels = (small[name] for name in pair)
            return (images, arrays[images]), (labels, arrays[labels])
    return None


def _pixels(name: str, images: np.ndarray) -> np.ndarray:
    """Images as uint8, (n, height, width) or (n, height, width, 3)."""
    shape = images.shape
    if images.ndim == 4 and shape[3] not in (1, 3) and shape[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3) or 0 in shape:
        rule = "hold images of shape (n, height, width) or (n, height, width, 3)"
        raise ValueError(checks.message("root", rule, {name: shape}, "Reshape them first."))
    if images.dtype == np.uint8:
        return images
    kind, ends = images.dtype.kind, None
    if kind in "biuf":
        ends = (images.min().item(), images.max().item())
        if kind == "b" or (kind == "f" and ends[0] >= 0 and ends[1] <= 1):
            return np.rint(images * np.float32(255)).astype(np.uint8)
        if kind in "iu" and ends[0] >= 0 and ends[1] <= 255:
            return images.astype(np.uint8)
    rule = "hold images of whole numbers in 0..255 or real ones in 0..1"
    value = {name: f"{images.dtype}" + (f" in {ends[0]:g}..{ends[1]:g}" if ends else "")}
    raise ValueError(checks.message("root", rule, value, "Rescale them first."))


def _labels(name: str, labels: np.ndarray) -> np.ndarray:
    """Labels as they are, of shape (n,)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biuU":
        value = {name: f"{labels.dtype} of shape {labels.shape}"}
        rule = "hold labels of shape (n,), whole numbers or names"
        raise ValueError(checks.message("root", rule, value, "Convert them first."))
    return labels


def _classes(
    arrays: dict[str, np.ndarray], parts: dict[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[tuple[str, ...], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The names of the classes, and the parts with labels that index them."""
    named = arrays.get("classes")
    known = np.unique(next(iter(parts.values()))[1])
    if named is not None and known.dtype.kind != "U":
        known = np.arange(len(named))
    by_row = {}
    for side, (images, labels) in parts.items():
        wrong = np.setdiff1d(labels, known)
        if len(wrong) or (labels.dtype.kind == "i" and labels.min() < 0):
            wrong = wrong if len(wrong) else labels[labels < 0]
            rule = f"hold labels among {first([str(label) for label in known], 10)}"
            if named is None and labels.dtype.kind == "i" and labels.min() < 0:
                rule = "hold labels of 0 or above"
            step = "Correct these labels, or leave their images out."
            raise ValueError(
                checks.message("root", rule, {side: first([str(x) for x in np.unique(wrong)])}, step)
            )
        by_row[side] = (images, np.searchsorted(known, labels))
    if len(known) < 2:
        step = "A net needs something to tell apart."
        raise ValueError(checks.message("root", "hold two or more classes", known.tolist(), step))
    names = tuple(str(label) for label in (known if named is None else named.tolist()))
    return names, by_row

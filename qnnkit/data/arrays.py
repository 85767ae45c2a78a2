"""Datasets in memory: scikit-learn's digits, and your own tensors or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qnnkit import checks, words
from qnnkit.data.images import Picture, Stack, eight_bit, one_form, split_stack
from qnnkit.data.places import first, refusal
from qnnkit.data.splits import SPLITS, ImageSet, ImageSplits, Part, Splits, duplicates, split_rows
from qnnkit.settings import SPLITTING

Names = Sequence[str] | None
"""Name of the split of each sample, or of each class."""


def digits(**options: Any) -> ImageSplits:
    """The 1,797 handwritten digits of scikit-learn: 10 classes, 8x8, grey 0..16 rescaled to 0..255.

    Takes the options of `class_folder` except `root`; the fractions are exact here.

    Reference:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998).
    """
    from sklearn.datasets import load_digits

    levels, labels = map(np.asarray, load_digits(return_X_y=True))
    images = np.rint(levels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)  # (1797, 64) -> (1797, 8, 8)
    return split_arrays("digits", images, labels, **options)


def split_arrays(
    name: str,
    images: np.ndarray,
    labels: np.ndarray,
    classes: Any = None,
    sides: Names = None,
    **options: Any,
) -> ImageSplits:
    """Returns the dataset called `name`, made from arrays of labelled images.

    Args:
        name: Name of the dataset.
        images: uint8, of shape (n, height, width), (n, height, width, 1 or 3) or (n, 1 or 3, height, width).
        labels: Integers of shape (n,).
        classes: As in `numbered`.
        sides: The split of each image, if the dataset has its own splits.
        options: `image_size` and `grey` as in `class_folder`, and the options of `images.split`.

    Raises:
        ValueError: Images and labels differ in number, or a label has no class.
    """
    names, numbers = numbered(labels, classes)
    if len(images) != len(numbers):
        raise refusal(f"hold a label for each of {len(images):,} images", len(numbers), "Correct the files.")
    if images.ndim == 4 and images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    images = images[..., 0] if images.shape[3:] == (1,) else images
    mode = "L" if images.ndim == 3 else "RGB"
    pictures = [Picture(each, images.shape[1:3], mode) for each in images]
    sources = tuple(f"{name}/{row}" for row in range(len(images)))
    form = (options.pop(option, None) for option in ("image_size", "grey"))
    pixels, notes = one_form(pictures, sources, *form)
    stack = Stack(ImageSet(pixels, torch.from_numpy(numbers), sources), sides, notes)
    return split_stack(name, stack, names, **options)


def numbered(labels: np.ndarray, classes: Any = None) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the class names, and labels that index them, int64 of shape (n,).

    Args:
        labels: Integers of shape (n,).
        classes: Names of labels 0, 1, 2, ...; None takes the labels that occur.

    Raises:
        ValueError: Two classes have the same name, or a label has none.
    """
    values, numbers = np.unique(labels, return_inverse=True)
    if classes is None:
        return tuple(map(str, values.tolist())), numbers.astype(np.int64)
    names = tuple(map(str, np.atleast_1d(classes)))
    if len({*names}) < len(names):
        raise ValueError(checks.message("classes", "be different names", classes, 'Use ["cat", "dog"].'))
    if wrong := [str(value) for value in values.tolist() if not 0 <= value < len(names)]:
        rule = f"hold labels from 0 to {len(names) - 1}, as there are {len(names)} classes"
        raise refusal(rule, first(wrong), "Correct these labels, name their classes, or drop the samples.")
    return names, labels.astype(np.int64)


# --- your own, in memory ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TensorSet(Part):
    """Inputs and targets of one split."""

    inputs: torch.Tensor  # (n, ...)
    targets: torch.Tensor  # (n, ...)
    sources: tuple[str, ...]  # "name/row"

    @property
    def labels(self) -> torch.Tensor:
        """The targets, under the name that classification reads."""
        return self.targets


@dataclass(frozen=True, eq=False)
class TensorSplits(Splits[TensorSet]):
    """Inputs and targets of any shape, split into train, validation and test.

    Attributes:
        classes: Name of each label; None if the targets are not labels.
        columns: Names of the features, if the inputs were a table that has them.
    """

    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()

    @property
    def n_classes(self) -> int | None:
        """Number of classes; None if the targets are not labels."""
        return None if self.classes is None else len(self.classes)

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net needs to know: the shapes of a sample and of its target, without the batch axis.

        For labels, `n_classes` too.
        """
        shapes = self.train.inputs.shape[1:], self.train.targets.shape[1:]
        sizes: dict[str, Any] = {"input_shape": tuple(shapes[0]), "target_shape": tuple(shapes[1])}
        return sizes if self.classes is None else sizes | {"n_classes": len(self.classes)}

    def fingerprint(self) -> str:
        """SHA-256 (hex) of values, shapes and the samples in each split."""
        digest = hashlib.sha256(repr(self.classes).encode() if self.classes else b"")
        for name in SPLITS:
            for tensor in (self.split(name).inputs, self.split(name).targets):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()


def arrays(
    settings: Any,
    inputs: Any,
    targets: Any,
    *,
    sides: Names = None,
    classes: Names = None,
    name: str = "arrays",
) -> TensorSplits | ImageSplits:
    """Splits your own samples by the `split_seed` and the fractions of the settings.

    Integer targets, one per sample, are class labels: they are split class by class. If the inputs are uint8
    in the shape of images too, the result is `ImageSplits`, else `TensorSplits`. Put what is fitted on data,
    as a scaler, into the net (`Standardise` in `docs/table.md`): `qnnkit predict` passes numbers unchanged.

    Args:
        settings: Settings of a recipe, or `qnnkit.Settings()`.
        inputs: Of shape (n, ...): a tensor, or anything that NumPy converts to an array, such as a list of
            arrays of one shape. Numbers become float32, also integers (a net of ids starts with
            `inputs.long()`). Images stay uint8: (n, height, width), (n, height, width, 1 or 3) or
            (n, 1 or 3, height, width).
        targets: Of shape (n, ...) or (n,).
        sides: "train", "validation" or "test" for each sample, if the data have splits of their own; a
            missing split is drawn from train. None draws all three.
        classes: Names of labels 0, 1, 2, ...; None takes the labels that occur.
        name: Name of the dataset in tables.

    Raises:
        ValueError: Shapes or lengths do not match, a number is not finite, a label has no class, or there are
            too few samples.
    """
    x, y = tensor_of("inputs", inputs, 3), tensor_of("targets", targets, 3)
    sides = None if sides is None else [*map(str, sides)]
    for argument, n in (("targets", len(y)), ("sides", len(x if sides is None else sides))):
        if n != len(x):
            rule = f"have as many rows as inputs ({len(x):,})"
            raise ValueError(checks.message(argument, rule, n, "Give one per sample."))
    for side in {*(sides or ())}:
        checks.choice("sides", side, SPLITS)
    labelled = y.ndim == 1 and not y.is_floating_point()
    if classes is not None and not labelled:
        step = "Leave it out, or give integer targets, one per sample."
        raise ValueError(checks.message("classes", "be left out if targets are not labels", classes, step))
    options: dict[str, Any] = {key: getattr(settings, key) for key in SPLITTING[:3]} | {"sides": sides}
    is_image = x.dtype == torch.uint8 and (x.ndim == 3 or (x.ndim == 4 and {1, 3} & {x.shape[1], x.shape[3]}))
    notes = _changed(x, y if labelled and classes is None else y[:0])
    with checks.renamed({"root": "targets" if labelled else "inputs"}):
        if labelled and is_image:
            splits: Any = split_arrays(name, x.numpy(), y.numpy(), classes, notes=notes, **options)
        else:
            names, labels = numbered(y.numpy(), classes) if labelled else (None, np.zeros(len(y), np.int64))
            y = torch.from_numpy(labels) if labelled else y.float() if y.is_floating_point() else y
            sources = tuple(f"{name}/{row}" for row in range(len(y)))
            samples = TensorSet(x if is_image else x.float(), y, sources)
            rows = split_rows(labels, names or ("",), **options)
            parts = [samples.at(torch.from_numpy(part)) for part in rows]
            contents = (zip(part.inputs.numpy(), part.sources, strict=True) for part in parts)
            notes += duplicates(contents, "samples", "number for number")
            splits = TensorSplits(name, *parts, classes=names, columns=_names(inputs), notes=tuple(notes))
    return splits.keep(settings.train_fraction, settings.split_seed)


def _changed(inputs: torch.Tensor, labels: torch.Tensor) -> list[str]:
    """Returns notes on numbers that are rounded, and on targets that become classes."""
    notes, is_wide = [], inputs.dtype in (torch.int64, torch.float64)
    if n := is_wide and int(((inputs.abs() > 2**24) & (inputs != inputs.float().double())).sum()):
        notes.append(f"Rounded {n:,} of the inputs (above 16,777,216) to seven digits. Subtract an offset.")
    if (values := labels.unique().tolist()) and values != [*range(max(2, len(values)))]:
        shown = first([*map(str, values)])
        notes.append(f"Targets {shown} are classes, numbered from 0. For a regression, pass floats.")
    return notes


def _names(inputs: Any) -> tuple[str, ...]:
    """Returns the column names of a table; () if they are not text, or if `inputs` is not a table."""
    names = tuple(getattr(inputs, "columns", ()))
    return names if all(isinstance(name, str) for name in names) else ()


def tensor_of(name: str, values: Any, least: int = 0) -> torch.Tensor:
    """Returns numbers as a tensor (n, ...): floats and uint8 keep their dtype, others become int64.

    Raises:
        ValueError: They are not numbers, differ in shape, are complex or not finite, or there are fewer than
            `least` samples.
    """
    try:
        if isinstance(values, dict):
            raise ValueError(f"a dictionary, whose columns numpy.column_stack([*{name}.values()]) joins")
        if not isinstance(values, torch.Tensor):
            values = values if hasattr(values, "__array__") else [*map(eight_bit, values)]
            values = np.ascontiguousarray(np.ma.filled(values, np.nan))  # masked values are missing
            values = np.array(values.tolist()) if values.dtype == object else values  # of mixed columns
            values = torch.tensor(values.astype(values.dtype.newbyteorder("="), copy=False))
        tensor = values.detach().cpu()
        if tensor.is_complex() or tensor.ndim == 0 or len(tensor) < least or 0 in tensor.shape:
            raise ValueError(f"{tensor.dtype} of shape {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            return tensor if tensor.dtype == torch.uint8 else tensor.long()
        if bad := int((~tensor.float().reshape(len(tensor), -1).isfinite().all(1)).sum()):
            raise ValueError(f"NaN or infinite in {bad:,} of its rows")
    except (ValueError, TypeError, RuntimeError) as error:
        rule = "be finite real numbers of one shape" + f", of {least} samples or more" * (least > 0)
        how = "pandas.factorize(targets, sort=True), or pandas.get_dummies(inputs, dtype=float)"
        step = f"Encode words by {how}; fill gaps by table.fillna(table.median(numeric_only=True))."
        raise ValueError(checks.message(name, rule, words.first_line(error), step)) from None
    return tensor

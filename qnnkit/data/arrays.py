"""Datasets that are arrays already: scikit-learn's digits, `.npz` files, and your own tensors or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from qnnkit import checks, words
from qnnkit.data.folders import SIDES
from qnnkit.data.images import Parts, split_arrays
from qnnkit.data.places import MAX_BYTES, first, left_out, local, refusal
from qnnkit.data.splits import SPLITS, ImageSplits, Part, Splits, split_rows
from qnnkit.settings import SPLITTING

NAMES = {"images": 0, "x": 0, "inputs": 0, "labels": 1, "y": 1, "targets": 1}
"""What samples (0) and labels (1) may be called in a file, in small or capital letters; with train, test or
the like before or behind them (`test_images`, `y_train`), they are of that split."""


def digits(**options: Any) -> ImageSplits:
    """The 1,797 handwritten digits inside scikit-learn: 10 classes, 8x8, grey 0..16 rescaled to 0..255.

    Takes the options of `class_folder`, and no `root`.

    Reference:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998).
    """
    from sklearn.datasets import load_digits

    levels, labels = map(np.asarray, load_digits(return_X_y=True))
    pixels = np.rint(levels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)  # (1797, 64) -> (1797, 8, 8)
    return split_arrays("digits", {"any": (pixels, labels)}, tuple("0123456789"), "digits/", **options)


def npz(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """Your own arrays in one NumPy file: images and labels, with a test part or without.

    The names are `images`, `labels`, `test_images` and `test_labels`, or x_train, y_train, x_test, y_test and
    the like (`NAMES`). `classes` may name labels 0, 1, 2, ...; without it the classes are the labels that
    occur. Objects (pickles) are refused; a note names other arrays.

    Args:
        root: The file. Images have shape (n, height, width), (n, height, width, 1 or 3) or (n, 1 or 3,
            height, width), with whole numbers 0..255, or real ones 0..1. Labels have shape (n,): whole
            numbers or names.
        options: As in `class_folder`; a test part in the file is the test split, and then validation_fraction
            is that of the rest.

    Raises:
        ValueError: It is not there or damaged, or what is in it does not fit together.
    """
    sides, classes, notes = from_file(local(root))
    names, labels = numbered([y for _, y in sides.values()], classes)
    parts = {side: (pixels(x), y) for (side, (x, _)), y in zip(sides.items(), labels, strict=True)}
    parts = parts if len(parts) > 1 else {"any": next(iter(parts.values()))}
    return split_arrays("npz", parts, names, notes=notes, **options)


def from_file(path: Path) -> tuple[Parts, np.ndarray | None, list[str]]:
    """Split -> samples and labels of an .npz file, its array `classes`, and a note on other arrays.

    Nothing in it is unpickled.

    Raises:
        ValueError: It is not there, damaged or too large, or has no samples with labels.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if sum(info.file_size for info in file.zip.infolist()) > MAX_BYTES:
                raise ValueError("it unpacks to more than 4 GiB")
            arrays = dict(file)
    except Exception as error:  # a damaged file makes NumPy raise almost anything
        step = f"It cannot be read ({words.first_line(error)}): save it again with np.savez, without objects."
        raise refusal("be a whole .npz file", str(path), step) from None
    classes, names = arrays.pop("classes", None), {side: {} for side in SPLITS}
    for name in arrays:
        parts = name.lower().split("_")
        side = next((SIDES[each] for each in parts if each in SIDES), "train")
        names[side].setdefault(NAMES.get("_".join(each for each in parts if each not in SIDES)), name)
    pairs = {side: (arrays[each[0]], arrays[each[1]]) for side, each in names.items() if {0, 1} <= {*each}}
    if not pairs:
        step = "Name the arrays images and labels (and test_images and test_labels)."
        raise refusal("hold arrays of images and labels", [*arrays], step)
    used = [names[side][kind] for side in pairs for kind in (0, 1)]
    notes = left_out({"arrays of other names": [name for name in arrays if name not in used]})
    return pairs, classes, notes


def pixels(images: np.ndarray) -> np.ndarray:
    """Images as uint8, (n, height, width) or (n, height, width, 3).

    Raises:
        ValueError: They have another shape, or values out of range.
    """
    shape, highest = images.shape, 1 if images.dtype.kind in "bf" else 255
    if images.ndim == 4 and shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    fits = images.size and images.dtype.kind in "biuf" and images.shape[3:] in ((), (3,)) and images.ndim > 2
    if not fits or not (images.min() >= 0 and images.max() <= highest):
        rule = "hold images of shape (n, height, width[, 3]), of whole numbers in 0..255 or real ones in 0..1"
        raise refusal(rule, f"{images.dtype} of shape {shape}", "Reshape and rescale them first.")
    return np.rint(images * np.float32(255)).astype(np.uint8) if highest == 1 else images.astype(np.uint8)


def numbered(labels: Sequence[np.ndarray], classes: Any) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The names of the classes, and labels that index them, int64 (n,).

    Args:
        labels: Whole numbers or names, of shape (n,) or (n, 1), of each side.
        classes: What labels 0, 1, 2, ... are called, or the order of names; None takes those that occur.

    Raises:
        ValueError: The labels have another shape or kind, or one is of no class.
    """
    import pandas as pd

    labels = [each[:, 0] if each.shape[1:] == (1,) else each for each in labels]
    if any(each.ndim != 1 or each.dtype.kind not in "biuU" for each in labels):
        forms = [f"{each.dtype} of shape {each.shape}" for each in labels]
        raise refusal("hold labels of shape (n,), whole numbers or names", forms, "Convert them first.")
    known = occurring = np.unique(np.concatenate(labels)).tolist()
    if classes is not None:
        classes = list(map(str, classes)) if isinstance(classes, str) or np.ndim(classes) == 1 else []
        known = classes if isinstance(occurring[0], str) else list(range(len(classes)))
    names = tuple(map(str, known if classes is None else classes))
    if not names or len({*names}) < len(names):
        step = 'Give a list such as ["cat", "dog"].'
        raise ValueError(checks.message("classes", "be a list of different names", classes, step))
    if wrong := [str(x) for x in occurring if x not in known or (not isinstance(x, str) and x < 0)]:
        step = "Correct these labels, or leave their samples out."
        raise refusal("hold labels of 0 or above that classes name", first(wrong), step)
    return names, [pd.Index(known).get_indexer(each.tolist()).astype(np.int64) for each in labels]


# --- your own, in memory ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TensorSet(Part):
    """The samples of one split."""

    inputs: torch.Tensor  # (n, ...)
    targets: torch.Tensor  # (n, ...)
    sources: tuple[str, ...]  # "name/row"

    @property
    def labels(self) -> torch.Tensor:
        """The targets, as a classifier is judged by them."""
        return self.targets


@dataclass(frozen=True, eq=False)
class TensorSplits(Splits[TensorSet]):
    """Inputs and targets of any shape, split into train, validation and test."""

    classes: tuple[str, ...] | None = None
    """The name of each label; None where targets are no labels."""

    @property
    def n_classes(self) -> int | None:
        return None if self.classes is None else len(self.classes)

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net must know of the data: shapes of a sample and of its target, without the batch.

        Of labels also `n_classes`.
        """
        shapes = self.train.inputs.shape[1:], self.train.targets.shape[1:]
        found: dict[str, Any] = {"input_shape": tuple(shapes[0]), "target_shape": tuple(shapes[1])}
        return found if self.classes is None else found | {"n_classes": len(self.classes)}

    def map(self, change: Callable[[torch.Tensor], Any]) -> Self:
        """The same splits with `change(inputs)` as the inputs of each, of shape (n, ...) as they come.

        What `change` learns from data, it should learn from the training samples alone.

        Raises:
            ValueError: What comes has other rows, or is not finite.

        Example:
            >>> from sklearn.preprocessing import StandardScaler
            >>> from qnnkit.settings import Settings
            >>> splits = arrays(Settings(), np.arange(40.0).reshape(20, 2), np.arange(20) % 2)
            >>> scaled = splits.map(StandardScaler().fit(splits.train.inputs).transform)
            >>> scaled.train.inputs.mean().abs().item() < 1e-6, scaled.test.inputs.mean().abs().item() < 1e-6
            (True, False)
        """
        parts = {name: self.split(name) for name in SPLITS}
        changed = {name: _tensor("change", change(part.inputs)) for name, part in parts.items()}
        for name, part in parts.items():
            if len(changed[name]) != len(part):
                rule, step = f"return a row for each of the {len(part):,} of {name}", "Change values alone."
                raise ValueError(checks.message("change", rule, tuple(changed[name].shape), step))
        return replace(self, **{name: replace(part, inputs=changed[name]) for name, part in parts.items()})

    def fingerprint(self) -> str:
        """SHA-256 (hex) over numbers, their shapes and who is in which split."""
        digest = hashlib.sha256(repr(self.classes).encode() if self.classes else b"")
        for name in SPLITS:
            for tensor in (self.split(name).inputs, self.split(name).targets):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _strata(self) -> torch.Tensor | None:
        return None if self.classes is None else self.train.targets


def arrays(
    settings: Any, inputs: Any, targets: Any, *, classes: Sequence[str] | None = None, name: str = "arrays"
) -> TensorSplits | ImageSplits:
    """Splits of your own samples, by `split_seed` and the fractions of the settings.

    Whole numbers as targets, one a sample, are classes: they are split class by class. With bytes (uint8) of
    shape (n, height, width), or (n, 1 or 3, height, width), as inputs they make labelled images. What is
    fitted on data, such as a scaler, is fitted on the training samples and applied by `TensorSplits.map`.

    Args:
        settings: Of a recipe.
        inputs: Of shape (n, ...): a tensor, an array, or a list of arrays of one shape. All numbers become
            float32, whole ones too (`splits.map(torch.Tensor.long)` makes ids of them again); bytes of the
            shape of images stay bytes.
        targets: Of shape (n, ...) or (n,).
        classes: What labels 0, 1, 2, ... are called; None takes the labels that occur.
        name: Of the dataset, for tables.

    Raises:
        ValueError: Shapes or lengths do not fit, a number is not finite, or there are too few samples.
    """
    x, y = _tensor("inputs", inputs, 3), _tensor("targets", targets, 3)
    if len(x) != len(y):
        rule, step = f"have as many rows as inputs ({len(x):,})", "Give one target a sample."
        raise ValueError(checks.message("targets", rule, len(y), step))
    labelled = y.ndim == 1 and not y.is_floating_point()
    if classes is not None and not labelled:
        step = "Leave it out, or give whole numbers as targets, one a sample."
        raise ValueError(checks.message("classes", "be left out where targets are no labels", classes, step))
    shares: dict[str, Any] = {option: getattr(settings, option) for option in SPLITTING[:3]}
    is_image = x.dtype == torch.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[1] in (1, 3)))
    with checks.renamed({"root": "targets" if labelled else "inputs"}):
        names, labels = ("",), np.zeros(len(y), np.int64)
        if labelled:
            names, [labels] = numbered([y.numpy()], classes)
            y = torch.from_numpy(labels)
        if labelled and is_image:
            splits: Any = split_arrays(
                name, {"any": (pixels(x.numpy()), labels)}, names, f"{name}/", **shares
            )
        else:
            sources = tuple(f"{name}/{row}" for row in range(len(y)))
            whole = TensorSet(x if is_image else x.float(), y, sources)
            sets = [whole.at(torch.from_numpy(part)) for part in split_rows(labels, names, **shares)]
            splits = TensorSplits(name, *sets, classes=names if labelled else None)
    return splits.keep(settings.train_fraction, settings.split_seed)


def _tensor(name: str, values: Any, least: int = 0) -> torch.Tensor:
    """Numbers of shape (n, ...): float32, uint8 or int64."""
    try:
        if isinstance(values, list | tuple):
            values = np.stack([np.asarray(each) for each in values])
        if not isinstance(values, torch.Tensor):
            values = np.require(values, requirements=["C", "W"])
        tensor = torch.as_tensor(values).detach().cpu()
    except (ValueError, TypeError, RuntimeError) as error:
        how = "pandas.factorize(targets, sort=True), or pandas.get_dummies(inputs, dtype=float)"
        step = f"It says: {words.first_line(error)}. Words become numbers by {how}."
        rule = "be numbers of one shape a sample"
        raise ValueError(checks.message(name, rule, type(values).__name__, step)) from None
    if tensor.is_complex() or tensor.ndim == 0 or len(tensor) < least:
        step = "Give three samples or more, one for each split; of complex ones, both parts as numbers."
        value = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ValueError(checks.message(name, "be real, with a row for each sample", value, step))
    if not tensor.is_floating_point():
        return tensor if tensor.dtype == torch.uint8 else tensor.long()
    tensor = tensor.float()
    if bad := int((~tensor.reshape(len(tensor), -1).isfinite().all(1)).sum()):
        step = "Drop these rows, or fill the gaps, as table.fillna(table.median(numeric_only=True)) does."
        raise ValueError(checks.message(name, "be finite", f"NaN or infinite in {bad:,} of its rows", step))
    return tensor

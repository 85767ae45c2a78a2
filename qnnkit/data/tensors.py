"""Splits of a user's own tensors, arrays or lists of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data.images import split_arrays
from qnnkit.data.splits import SPLITS, ImageSplits, Part, Splits, split_rows


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
class TensorSplits(Splits):
    """Inputs and targets of any shape, split into train, validation and test."""

    train: TensorSet
    validation: TensorSet
    test: TensorSet
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

    def example(self, n: int = 1) -> torch.Tensor:
        """What a net takes, of the first `n` training samples."""
        return self.train.inputs[:n]

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

    def _samples(self, split: str, seed: int) -> Callable[[int], Any]:
        part = self.split(split)
        return lambda epoch: (part.inputs, part.targets)


def arrays(
    settings: Any, inputs: Any, targets: Any, *, classes: Sequence[str] | None = None, name: str = "arrays"
) -> TensorSplits | ImageSplits:
    """Splits of your own samples, by `split_seed` and the fractions of the settings.

    Whole numbers as targets, one a sample, are classes: they are split class by class. With bytes (uint8) of
    shape (n, height, width), or (n, 1 or 3, height, width), as inputs they make labelled images.

    Args:
        settings: Of a recipe.
        inputs: Of shape (n, ...): a tensor, an array, or a list of arrays of one shape. float64 becomes
            float32.
        targets: Of shape (n, ...) or (n,).
        classes: The name of each label; their numbers without it.
        name: Of the dataset, for tables.

    Raises:
        ValueError: Shapes or lengths do not fit, a number is not finite, or there are too few samples.
    """
    x, y = _tensor("inputs", inputs), _tensor("targets", targets)
    if len(x) != len(y):
        rule, step = f"have as many rows as inputs ({len(x):,})", "Give one target a sample."
        raise ValueError(checks.message("targets", rule, len(y), step))
    labelled = y.ndim == 1 and not y.is_floating_point()
    y = y if y.is_floating_point() else y.long()
    names = _names(classes, int(y.max()) + 1) if labelled else ()
    if classes is not None and not labelled:
        step = "Leave it out, or give whole numbers as targets, one a sample."
        raise ValueError(checks.message("classes", "be left out where targets are no labels", classes, step))
    if labelled and (int(y.min()) < 0 or int(y.max()) >= len(names)):
        rule = f"lie in 0..{len(names) - 1}, a label for each of the classes"
        raise ValueError(checks.message("targets", rule, [int(y.min()), int(y.max())], "Name all classes."))
    shares: dict[str, Any] = {
        option: getattr(settings, option) for option in ("split_seed", "validation_fraction", "test_fraction")
    }
    is_image = x.ndim == 3 or (x.ndim == 4 and x.shape[1] in (1, 3))
    if labelled and x.dtype == torch.uint8 and is_image:
        pixels = x.numpy() if x.ndim == 3 else x.permute(0, 2, 3, 1).numpy()
        pixels = pixels[..., 0] if pixels.ndim == 4 and pixels.shape[-1] == 1 else pixels
        images = split_arrays(name, {"any": (pixels, y.numpy())}, names, prefix=f"{name}/", **shares)
        return images.keep(settings.train_fraction, settings.split_seed)
    strata = y.numpy() if labelled else np.zeros(len(y), np.int64)
    with checks.renamed({"root": "targets" if labelled else "inputs"}):
        rows = split_rows(strata, names if labelled else ("",), **shares)
    whole = TensorSet(x, y, tuple(f"{name}/{row}" for row in range(len(y))))
    parts = (whole.at(torch.from_numpy(part)) for part in rows)
    splits = TensorSplits(name, *parts, classes=names if labelled else None)
    return splits.keep(settings.train_fraction, settings.split_seed)


def _tensor(name: str, values: Any) -> torch.Tensor:
    try:
        if isinstance(values, list | tuple):
            values = np.stack([np.asarray(each) for each in values])
        if not isinstance(values, torch.Tensor):
            values = np.require(values, requirements=["C", "W"])
        tensor = torch.as_tensor(values).detach().cpu()
    except (ValueError, TypeError, RuntimeError) as error:
        rule, step = "be numbers of one shape a sample", f"It says: {str(error).splitlines()[0].rstrip('.')}."
        raise ValueError(checks.message(name, rule, type(values).__name__, step)) from None
    if tensor.is_complex():
        step = "Give real and imaginary parts, or angles, as numbers of their own."
        raise ValueError(checks.message(name, "be real", str(tensor.dtype), step))
    if tensor.ndim == 0 or len(tensor) < 3:
        step = "Give at least three samples, one for each split."
        raise ValueError(checks.message(name, "have a row for each sample", tuple(tensor.shape), step))
    if tensor.dtype in (torch.float64, torch.float16, torch.bfloat16):
        tensor = tensor.float()
    if tensor.is_floating_point() and not tensor.isfinite().all():
        bad = int((~tensor.flatten(1).isfinite().all(1) if tensor.ndim > 1 else ~tensor.isfinite()).sum())
        raise ValueError(checks.message(name, "be finite", f"NaN or infinite in {bad} rows", "Drop them."))
    return tensor if tensor.is_floating_point() or tensor.dtype == torch.uint8 else tensor.long()


def _names(classes: Any, n: int) -> tuple[str, ...]:
    """The name of each label: their numbers where none are given."""
    if classes is None:
        return tuple(map(str, range(n)))
    names = () if np.ndim(classes) != 1 and not isinstance(classes, str) else tuple(map(str, classes))
    if not names or len(set(names)) < len(names):
        step = 'Give a list such as ["cat", "dog"].'
        raise ValueError(checks.message("classes", "be a list of different names", classes, step))
    return names

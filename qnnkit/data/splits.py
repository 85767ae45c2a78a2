"""Labelled images in memory, split once and for all into train, validation and test.

A split depends on `split_seed` alone, never on a run's seed, so that all runs of a study share one test set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data.sample import Batches

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class ImageSet:
    """The images of one split, a byte per value: the model scales them, on the device."""

    images: torch.Tensor  # uint8, (n, channels, height, width)
    labels: torch.Tensor  # indices into the classes, int64, (n,)
    sources: tuple[str, ...]  # where each image came from: a file, relative to the root, or "digits/123"

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageSplits:
    """A dataset of images, split into train, validation and test.

    Example:
        >>> from qnnkit.data import load
        >>> splits = load("digits")
        >>> splits.n_classes, splits.channels, splits.image_size, len(splits.train)
        (10, 1, (8, 8), 1079)
        >>> images, labels = next(iter(splits.batches("train", 64, shuffle=True)))
        >>> images.shape, images.dtype, labels.shape
        (torch.Size([64, 1, 8, 8]), torch.uint8, torch.Size([64]))
    """

    name: str
    train: ImageSet
    validation: ImageSet
    test: ImageSet
    classes: tuple[str, ...]  # the name of each label
    notes: tuple[str, ...] = ()  # sentences to show once: what was left out, resized or converted

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self.train.images.shape[2], self.train.images.shape[3]

    def split(self, name: str) -> ImageSet:
        """The split called "train", "validation" or "test"."""
        return getattr(self, checks.choice("split", name, SPLITS))

    def fingerprint(self) -> str:
        """SHA-256 (hex) over pixels, labels and who is in which split; names of files do not count."""
        digest = hashlib.sha256()
        for name in SPLITS:
            part = self.split(name)
            digest.update(f"{name} {tuple(part.images.shape)}\n".encode())
            digest.update(part.labels.numpy().astype("<i8").tobytes())
            digest.update(part.images.numpy().tobytes())
        return digest.hexdigest()

    def batches(self, split: str, batch_size: int, *, shuffle: bool, seed: int = 0) -> Batches:
        """Batches (images, labels) of a split: uint8 (batch, channels, height, width), int64 (batch,).

        The order is a pure function of `seed` and of the epoch given to `set_epoch`, which works alike
        before and after `Accelerator.prepare`. Call it before each epoch: Accelerate counts epochs from 0 by
        itself, and a resumed run has not run the earlier ones. On n processes each gets every n-th batch.
        """
        checks.positive("batch_size", batch_size)
        part = self.split(split)
        return Batches(part.images, part.labels, batch_size, shuffle=shuffle, seed=seed)


def stratified_split(
    labels: np.ndarray, classes: Sequence[str], split_seed: int, fractions: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted indices of train, validation and test, with every class in each of them.

    The labels, of shape (n,), are indices into `classes`; validation and test get these fractions of n.

    Example:
        >>> train, validation, test = stratified_split(np.array([0] * 5 + [1] * 5), "ab", 0, (0.2, 0.2))
        >>> len(train), validation // 5, test // 5
        (6, array([0, 1]), array([0, 1]))
    """
    from sklearn.model_selection import train_test_split

    if not (min(fractions) > 0 and sum(fractions) < 1):
        rule = "be above 0, as validation_fraction must, and leave images for training"
        step = f"With validation_fraction={fractions[0]} that is not so: use 0.2 for both."
        raise ValueError(checks.message("test_fraction", rule, fractions[1], step))
    if not 0 <= split_seed < 2**32:
        raise ValueError(checks.message("split_seed", "lie in 0..4294967295", split_seed, "Use 0."))
    n_validation, n_test = (max(len(classes), round(part * len(labels))) for part in fractions)
    split = partial(train_test_split, random_state=split_seed)
    try:
        rest, test = split(np.arange(len(labels)), test_size=n_test, stratify=labels)
        train, validation = split(rest, test_size=n_validation, stratify=labels[rest])
        complete = all(len(np.unique(labels[part])) == len(classes) for part in (train, validation, test))
    except ValueError:  # scikit-learn refuses a class of one image, and fewer images than classes
        complete = False
    if not complete:
        counts = np.bincount(labels).tolist()
        fewest = {classes[counts.index(min(counts))]: min(counts)}
        rule = "hold enough readable images of every class for all three splits"
        step = "Add images of this class, or bring validation_fraction and test_fraction nearer to 1/3."
        raise ValueError(checks.message("root", rule, fewest, step))
    return np.sort(train), np.sort(validation), np.sort(test)

"""Labelled images in memory, split once and for all into train, validation and test.

A split depends on `split_seed` alone, never on a run's seed, so that all runs of a study share one test set.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data.sample import Batches, seeded

SPLITS = ("train", "validation", "test")


class Splits(Protocol):
    """What runs ask of a dataset, whatever it holds."""

    @property
    def name(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def train(self) -> Any: ...
    @property
    def validation(self) -> Any: ...
    @property
    def test(self) -> Any: ...
    @property
    def sizes(self) -> dict[str, Any]:
        """What a net must know of the data, as `models.build` takes it."""
        ...

    def example(self, n: int = 1) -> Any:
        """What a net takes, of the first `n` training samples."""
        ...

    def split(self, name: str) -> Any: ...
    def fingerprint(self) -> str: ...
    def batches(self, split: str, batch_size: int, *, shuffle: bool, seed: int = 0) -> Any: ...
    def keep(self, train_fraction: float, seed: int = 0) -> Splits: ...


@dataclass(frozen=True, eq=False)
class ImageSet:
    """The images of one split, a byte per value: the model scales them, on the device."""

    images: torch.Tensor  # uint8, (n, channels, height, width)
    labels: torch.Tensor  # indices into the classes, int64, (n,)
    sources: tuple[str, ...]  # where each image came from: a file, relative to the root, or "digits/123"

    def __len__(self) -> int:
        return len(self.labels)

    def fingerprint(self) -> str:
        """SHA-256 (hex) over pixels and labels, in order; names of files do not count."""
        digest = hashlib.sha256()
        self.add_to(digest)
        return digest.hexdigest()

    def add_to(self, digest: hashlib._Hash) -> None:
        """Feeds what `fingerprint` is over to a digest."""
        digest.update(f"{tuple(self.images.shape)}\n".encode())
        digest.update(self.labels.numpy().astype("<i8").tobytes())
        digest.update(self.images.numpy().tobytes())


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

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net must know of the images, as `models.build` takes it."""
        return {"channels": self.channels, "image_size": self.image_size, "n_classes": self.n_classes}

    def example(self, n: int = 1) -> torch.Tensor:
        """What a net takes, of the first `n` training images."""
        return self.train.images[:n]

    def split(self, name: str) -> ImageSet:
        """The split called "train", "validation" or "test"."""
        return getattr(self, checks.choice("split", name, SPLITS))

    def fingerprint(self) -> str:
        """SHA-256 (hex) over pixels, labels and who is in which split; names of files do not count."""
        digest = hashlib.sha256()
        for name in SPLITS:
            digest.update(f"{name} ".encode())
            self.split(name).add_to(digest)
        return digest.hexdigest()

    def keep(self, train_fraction: float, seed: int = 0) -> ImageSplits:
        """The same dataset with a share of its training images; validation, test and notes as they are.

        Each class keeps this share of its images, rounded up or down so that the total comes as near as can
        be to this share of all, and one image at least. Which ones depends on `seed` alone, and a smaller
        share lies inside a larger one.
        """
        rows = share_of_classes(self.train.labels, self.n_classes, train_fraction, seed)
        if rows is None:
            return self
        sources = tuple(self.train.sources[row] for row in rows.tolist())
        return replace(self, train=ImageSet(self.train.images[rows], self.train.labels[rows], sources))

    def batches(self, split: str, batch_size: int, *, shuffle: bool, seed: int = 0) -> Batches:
        """Batches (images, labels) of a split: uint8 (batch, channels, height, width), int64 (batch,).

        The order is a pure function of `seed` and of the epoch given to `set_epoch`, which works alike
        before and after `Accelerator.prepare`. Call it before each epoch: Accelerate counts epochs from 0 by
        itself, and a resumed run has not run the earlier ones. On n processes each gets every n-th batch.
        """
        checks.positive("batch_size", batch_size)
        part = self.split(split)
        return Batches(part.images, part.labels, batch_size, shuffle=shuffle, seed=seed)


def share_of(n: int, train_fraction: float, seed: int) -> torch.Tensor | None:
    """Sorted rows that are a share of n, chosen by the seed; a smaller share lies inside a larger one.

    None stands for all of them.
    """
    _require_fraction(train_fraction)
    if train_fraction == 1:
        return None
    order = torch.randperm(n, generator=seeded("train_fraction", seed))
    return order[: max(1, round(train_fraction * n))].sort().values


def share_of_classes(
    labels: torch.Tensor, n_classes: int, train_fraction: float, seed: int
) -> torch.Tensor | None:
    """As `share_of`, class by class, for labels of shape (n,); see `ImageSplits.keep`."""
    _require_fraction(train_fraction)
    if train_fraction == 1:
        return None
    kept, sizes = [], labels.bincount(minlength=n_classes).tolist()
    for label, n in enumerate(_shares(sizes, train_fraction, seed)):
        rows = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(rows), generator=seeded("train_fraction", seed, label))
        kept.append(rows[order[:n]])
    return torch.cat(kept).sort().values


def _require_fraction(train_fraction: float) -> None:
    if not 0 < train_fraction <= 1:
        step = "Use 0.25 for a quarter, or 1 for all of them."
        raise ValueError(checks.message("train_fraction", "lie above 0 and up to 1", train_fraction, step))


def _shares(sizes: Sequence[int], fraction: float, seed: int) -> list[int]:
    """How many images each class keeps, of so many; no class keeps fewer at a larger fraction.

    The images beyond the first of each class are let in one by one, as the fraction grows from 0. The k-th of
    n may come after (k - 1) / n, so that no class has more than its share rounded up, and is due by k / n; of
    those that may come, the one that is due first does. Rounding each class by its remainder (Hamilton's
    method) would now and then take an image back as the fraction grows. O(total log classes) time.
    """
    n, total = sum(sizes), round(fraction * sum(sizes))
    ranks = torch.randperm(len(sizes), generator=seeded("train_fraction", seed)).tolist()  # between equals
    kept = [min(1, size) for size in sizes]
    waiting = [(1 / size, ranks[label], label) for label, size in enumerate(sizes) if size > 1]
    heapq.heapify(waiting)
    due: list[tuple[float, int, int]] = []
    for position in range(sum(kept), total):
        while waiting and waiting[0][0] < (position + 0.5) / n:
            _, rank, label = heapq.heappop(waiting)
            heapq.heappush(due, ((kept[label] + 1) / sizes[label], rank, label))
        _, rank, label = heapq.heappop(due)
        kept[label] += 1
        if kept[label] < sizes[label]:
            heapq.heappush(waiting, (kept[label] / sizes[label], rank, label))
    return [max(count, int(fraction * size)) for count, size in zip(kept, sizes, strict=True)]


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
    if not (min(fractions) > 0 and sum(fractions) < 1):
        rule = "be above 0, as validation_fraction must, and leave samples for training"
        step = f"With validation_fraction={fractions[0]} that is not so: use 0.2 for both."
        raise ValueError(checks.message("test_fraction", rule, fractions[1], step))
    n_validation, n_test = (max(len(classes), round(part * len(labels))) for part in fractions)
    rest, test, validation = np.arange(len(labels)), None, None
    if (first := _draw(labels, rest, n_test, split_seed)) is not None:
        rest, test = first
        if (second := _draw(labels, rest, n_validation, split_seed)) is not None:
            rest, validation = second
    parts = (rest, validation, test)
    if any(part is None or len(np.unique(labels[part])) < len(classes) for part in parts):
        step = "Add some of this class, or bring validation_fraction and test_fraction nearer to 1/3."
        raise _too_few(labels, classes, "all three splits", step)
    return rest, validation, test  # pyright: ignore[reportReturnType]


def hold_out(
    labels: np.ndarray, classes: Sequence[str], split_seed: int, fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Sorted indices of train and validation, for a dataset that brings its own test part.

    Example:
        >>> train, validation = hold_out(np.array([0] * 5 + [1] * 5), "ab", 0, 0.2)
        >>> len(train), validation // 5
        (8, array([0, 1]))
    """
    if not 0 < fraction < 1:
        step = "Use 0.2 for a fifth."
        raise ValueError(checks.message("validation_fraction", "lie between 0 and 1", fraction, step))
    n_validation = max(len(classes), round(fraction * len(labels)))
    parts = _draw(labels, np.arange(len(labels)), n_validation, split_seed)
    if parts is None or any(len(np.unique(labels[part])) < len(classes) for part in parts):
        step = "Add some of this class, or bring validation_fraction nearer to 1/2."
        raise _too_few(labels, classes, "train and validation", step)
    return parts


def _draw(
    labels: np.ndarray, rows: np.ndarray, n: int, split_seed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The rows without `n` of them, and these, class by class and sorted; None where that cannot be."""
    from sklearn.model_selection import train_test_split

    if not 0 <= split_seed < 2**32:
        raise ValueError(checks.message("split_seed", "lie in 0..4294967295", split_seed, "Use 0."))
    try:
        rest, drawn = train_test_split(rows, test_size=n, stratify=labels[rows], random_state=split_seed)
    except ValueError:  # scikit-learn refuses a class of one image, and fewer images than classes
        return None
    return np.sort(rest), np.sort(drawn)


def _too_few(labels: np.ndarray, classes: Sequence[str], what: str, step: str) -> ValueError:
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    fewest = {classes[counts.index(min(counts))]: min(counts)}
    rule = f"hold enough samples of every class for {what}"
    return ValueError(checks.message("root", rule, fewest, step))

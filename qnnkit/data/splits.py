"""Fixed splits of samples in memory into train, validation and test; labelled images among them.

A split depends only on `split_seed`, never on a run's seed, so that all runs of a study share a test set.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data.batches import DictBatches, keyed_generator
from qnnkit.data.places import first, refusal

SPLITS = ("train", "validation", "test")


P = TypeVar("P", bound="Part")
"""Type of a single split."""


@dataclass(frozen=True, eq=False)
class Splits(Generic[P]):
    """Train, validation and test splits: the interface of all datasets.

    A subclass adds its fields and `sizes`, and if its batches are not pairs, `example` and `_samples`.

    Attributes:
        name: Name of the dataset, in tables.
        train: Training samples; `len(splits.train)` is their number.
        validation: Samples that choose the best epoch.
        test: Samples that judge the trained net.
        notes: Sentences to show once: what was left out, cut, resized or converted.
        sizes: Dictionary of what a net needs to know about the data; qnnkit's nets take it as keyword
            arguments.
    """

    name: str
    train: P
    validation: P
    test: P
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    sizes: ClassVar[Any]

    def example(self, n: int = 1) -> Any:
        """Returns the inputs of the first `n` training samples, as a net takes them."""
        return self.train.pair[0][:n]

    def split(self, name: str) -> Any:
        """Returns the split called "train", "validation" or "test"."""
        return getattr(self, checks.choice("split", name, SPLITS))

    def fingerprint(self) -> str:
        """SHA-256 (hex) of contents, labels and the samples in each split; file names do not count."""
        digest = hashlib.sha256()
        for name in SPLITS:
            digest.update(f"{name} ".encode())
            self.split(name).add_to(digest)
        return digest.hexdigest()

    def keep(self, train_fraction: float, seed: int = 0) -> Self:
        """Returns the dataset with a share of its training samples; validation, test and notes do not change.

        Each class keeps about this share of its samples, and at least one; the total is this share of all.
        The choice depends only on `seed`, and a smaller share is part of a larger one. A `train_fraction`
        above 1 is a number of samples.

        Raises:
            ValueError: The share is not above 0, or exceeds all samples.
        """
        labels = self.split("train").labels if getattr(self, "n_classes", None) else None
        rows = share_of(len(self.train), train_fraction, seed, labels)
        return self if rows is None else replace(self, train=self.train.at(rows))

    def batches(self, split: str, batch_size: int, *, shuffle: bool, seed: int = 0) -> DictBatches:
        """Returns batches of a split: pairs for images and arrays, with labels or targets, else dictionaries.

        The order is a function of `seed` and of the epoch given to `set_epoch`, which works both before and
        after `Accelerator.prepare`. Call it before each epoch: Accelerate itself counts epochs from 0, and a
        resumed run has skipped the earlier ones. Each of n processes gets every n-th batch.

        Args:
            split: "train", "validation" or "test".
            batch_size: Samples in a batch; the last one may be smaller.
            shuffle: Whether to draw a new order in each epoch.
            seed: Determines the order, together with the epoch.

        Raises:
            ValueError: The split is unknown, or `batch_size` is below 1.
        """
        checks.positive("batch_size", batch_size)
        return DictBatches(self._samples(split, seed), batch_size, shuffle=shuffle, seed=seed)

    def _samples(self, split: str, seed: int) -> Callable[[int], Any]:
        """Returns a function of the epoch that returns all samples: tensors in a dictionary or a tuple."""
        return lambda epoch: self.split(split).pair


@dataclass(frozen=True, eq=False)
class Part:
    """The samples of one split: every field has one entry per sample, or is None."""

    hashed: ClassVar[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(self.sources)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def pair(self) -> Any:
        """The two fields that form a batch of pairs: the first two, such as images and labels."""
        return tuple(vars(self).values())[:2]

    def add_to(self, digest: hashlib._Hash) -> None:
        """Adds the fields in `hashed` to the digest of a fingerprint."""
        digest.update(f"{tuple(self.pair[0].shape)}\n".encode())
        for value in map(vars(self).get, self.hashed):
            if isinstance(value, torch.Tensor):
                digest.update(value.numpy().tobytes())
            elif value is not None:
                digest.update(json.dumps(value).encode())

    def at(self, rows: Sequence[int] | torch.Tensor) -> Self:
        """Returns the samples of these rows, in this order."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        chosen = index.tolist()

        def part_of(value: Any) -> Any:
            return value[index] if isinstance(value, torch.Tensor) else tuple(value[i] for i in chosen)

        fields = {name: part_of(value) for name, value in vars(self).items() if value is not None}
        return replace(self, **fields)


@dataclass(frozen=True, eq=False)
class ImageSet(Part):
    """The images of one split, as bytes; the model scales them on the device.

    Attributes:
        images: uint8, of shape (n, channels, height, width).
        labels: Indices into the classes, int64, of shape (n,).
        sources: Where each image came from: a file, relative to the root, or "digits/123".
    """

    hashed = "labels", "images"
    images: torch.Tensor
    labels: torch.Tensor
    sources: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Pictured(Splits[P]):
    """Splits with images in them."""

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return self.split("train").images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return tuple(self.split("train").images.shape[2:])


@dataclass(frozen=True, eq=False)
class ImageSplits(Pictured[ImageSet]):
    """A dataset of images, split into train, validation and test.

    A batch is (images, labels): uint8 (batch, channels, height, width), int64 (batch,).

    Attributes:
        classes: Name of each label; the other attributes are those of `Splits`.

    Example:
        >>> from qnnkit.data import load
        >>> splits = load("digits")
        >>> splits.n_classes, splits.channels, splits.image_size, len(splits.train)
        (10, 1, (8, 8), 1079)
        >>> images, labels = next(iter(splits.batches("train", 64, shuffle=True)))
        >>> images.shape, images.dtype, labels.shape
        (torch.Size([64, 1, 8, 8]), torch.uint8, torch.Size([64]))
    """

    classes: tuple[str, ...]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net needs to know about the images, named as the arguments of `models.QuanvNet`."""
        return {"channels": self.channels, "image_size": self.image_size, "n_classes": self.n_classes}


# --- a share of the training samples -----------------------------------------------------------------------


def share_of(
    n: int, train_fraction: float, seed: int, labels: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Returns the sorted rows of a share of n, chosen by the seed; a smaller share is part of a larger one.

    With labels, of shape (n,), rows are chosen class by class: first one of each class; then the k-th of m
    rows of a class has rank k / m, and the lowest ranks are taken until the total is reached. `seed` breaks
    ties, and no class keeps less than its share, rounded down. A `train_fraction` above 1 is a number of
    rows. Returns None for all rows.
    """
    share = _share(train_fraction, n)
    if not 0 < share <= 1:
        rule = f"be above 0 and at most 1, or a whole number of samples up to {n:,}"
        step = "Use 0.25 for a quarter, 1 for all, or 200 for 200 samples."
        raise ValueError(checks.message("train_fraction", rule, train_fraction, step))
    if share == 1:
        return None

    def order(n: int, *key: int) -> np.ndarray:
        return torch.randperm(n, generator=keyed_generator("train_fraction", seed, *key)).numpy()

    if labels is None:
        return torch.from_numpy(np.sort(order(n)[: max(1, round(share * n))]))
    label, sizes, place = labels.numpy(), labels.bincount().numpy(), np.empty(n)
    for each, size in enumerate(sizes):  # positions 1, 2, ... in each class
        place[np.flatnonzero(label == each)[order(size, each)]] = np.arange(1, size + 1)
    due, ranks = np.where(place == 1, 0.0, place / sizes[label]), order(len(sizes))
    total = max(round(share * n), np.count_nonzero(sizes))
    chosen = place <= (share * sizes).astype(np.int64)[label]
    chosen[np.lexsort((ranks[label], due))[:total]] = True
    return torch.from_numpy(np.flatnonzero(chosen))


def _share(number: float, n: int) -> float:
    """Converts a number of n samples (an integer above 1) to a share; a share stays as it is."""
    return number / max(1, n) if number > 1 and number == int(number) else number


# --- assigning samples to splits ---------------------------------------------------------------------------


def split_rows(
    labels: np.ndarray,
    classes: Sequence[str] = ("",),
    *,
    names: Sequence[str] | None = None,
    sides: Sequence[str] | None = None,
    split_seed: int = 0,
    validation_fraction: float = 0.2,
    test_fraction: float = 0.2,
    what: str = "samples",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the sorted rows of train, validation and test; each has samples of every class.

    Splits that the dataset fixes are kept; others are drawn from its training part, or from all samples if it
    has none. Samples with names (files, documents) are placed by the hash of their name: adding or removing
    one moves no other, and a split has about its fraction of each class, and at least one sample. Rows of an
    array have no names: exact fractions are drawn, class by class.

    Args:
        labels: Indices into `classes`, of shape (n,); all 0 without classes.
        classes: Name of each label, for messages.
        names: Name of each sample, which is hashed.
        sides: Split of each sample, or "any" if the dataset does not fix it.
        split_seed: Determines the splits, together with the names or the number of rows.
        validation_fraction: Share of the samples that splits are drawn from; above 1 their number, which is
            exact without classes, and otherwise divided among them.
        test_fraction: Likewise; unused if the dataset has a test part.
        what: Name of the samples in messages.

    Raises:
        ValueError: A fraction is out of range, or a class has too few samples.

    Example:
        >>> labels, names = np.array([0] * 5 + [1] * 5), [f"{i}.png" for i in range(10)]
        >>> [len(rows) for rows in split_rows(labels, "ab")]
        [6, 2, 2]
        >>> before = split_rows(labels, "ab", names=names)
        >>> after = split_rows(labels[1:], "ab", names=names[1:])
        >>> [set(old - 1) - set(new) <= {-1} for old, new in zip(before, after)]
        [True, True, True]
    """
    placed = np.array(["any"] * len(labels) if sides is None else sides)
    parts = {side: np.flatnonzero(placed == side) for side in SPLITS}
    rows = parts["train"] if len(parts["train"]) else np.flatnonzero(placed == "any")
    drawn = {"test": test_fraction, "validation": validation_fraction}
    drawn = {side: number for side, number in drawn.items() if not len(parts[side])}
    shares = {side: _share(number, len(rows)) for side, number in drawn.items()}
    wrong = [side for side, share in shares.items() if not 0 < share < 1]
    if wrong or sum(shares.values()) >= 1:
        side, rule = (*wrong, *shares)[0], f"be above 0, like all fractions, and leave {what} for training"
        step = f"Use 0.2, or a number of {what}."
        raise ValueError(checks.message(f"{side}_fraction", rule, drawn[side], step))
    if names is None:
        placed = _drawn(labels[rows], [*shares.values()], len(classes), split_seed)
    else:
        keys = [f"{split_seed}/{names[row]}" for row in rows.tolist()]
        placed = _hashed(labels[rows], keys, [*shares.values()], [number > 1 for number in drawn.values()])
    parts |= {side: rows[placed == k] for k, side in enumerate((*shares, "train"))}
    _check_classes(labels, classes, parts, what)
    return parts["train"], parts["validation"], parts["test"]


def _check_classes(labels: np.ndarray, classes: Sequence[str], parts: dict[str, Any], what: str) -> None:
    """Raises a ValueError if a split has no sample of a class."""
    for side, rows in parts.items():
        counts = np.bincount(labels[rows], minlength=len(classes))
        if not counts.all():
            label = int(counts.argmin())
            few = f"{np.count_nonzero(labels == label):,}" + f" of class {classes[label]}" * any(classes)
            step = "add some (at least three), or bring validation_fraction and test_fraction nearer to 1/3."
            rule = f"hold enough {what} of every class for all three splits"
            raise refusal(rule, few, f"None is left for {side}: {step}")


def _drawn(labels: np.ndarray, shares: list[float], n_classes: int, split_seed: int) -> np.ndarray:
    """Returns the index of each sample's share, `len(shares)` for none; exact numbers, class by class."""
    from sklearn.model_selection import train_test_split

    sides, rows = np.full(len(labels), len(shares)), np.arange(len(labels))
    for k, share in enumerate(shares):
        n = max(n_classes, round(share * len(labels)))
        with contextlib.suppress(ValueError):  # for a class of one sample, or fewer samples than classes
            two = train_test_split(rows, test_size=n, stratify=labels[rows], random_state=split_seed % 2**32)
            rows, sides[two[1]] = np.sort(two[0]), k
    return sides


def _hashed(labels: np.ndarray, keys: list[str], shares: list[float], exact: list[bool]) -> np.ndarray:
    """Returns the index of each sample's share, `len(shares)` for none, by the hash of the sample's key.

    Shares of a class are approximate; those in `exact` are exact.
    """
    hashes = [hashlib.sha256(key.encode(errors="surrogatepass")).digest() for key in keys]
    places = np.array([int.from_bytes(digest[:8], "big") / 2**64 for digest in hashes])  # in 0..1
    sides, ends = np.empty(len(labels), np.int64), np.cumsum(shares)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        order = of_class[np.argsort(places[of_class], kind="stable")]
        cuts, n = [0, *np.searchsorted(places[order], ends)], len(order)
        for k, share in enumerate(shares, start=1):  # at least one sample in each, if there are enough
            cut = round(share * n) + cuts[k - 1] if exact[k - 1] else cuts[k]
            cuts[k] = max(min(cut, n - (len(cuts) - k)), cuts[k - 1] + 1)
        sides[order] = np.searchsorted(cuts[1:], np.arange(n), side="right")
    return sides


# --- duplicates in two splits ------------------------------------------------------------------------------


def duplicates(parts: Iterable[Iterable[tuple[Any, str]]], what: str, how: str) -> list[str]:
    """Returns a note on samples that are also in an earlier split; [] if there are none.

    Args:
        parts: Samples of each of SPLITS: content (bytes or an array, compared byte by byte) and source.
        what: Name of the samples, in the plural: images, documents.
        how: How they are equal: pixel for pixel, word for word.

    Example:
        >>> parts = [(b"to be", "a.txt")], [], [(b"to be", "b.txt")]
        >>> duplicates(parts, "documents", "letter for letter")[0].partition(", letter")[0]
        'Duplicates: 1 of 1 documents of validation and test are also in an earlier split'
    """
    seen: dict[bytes, tuple[str, str]] = {}  # digest -> the split and the source that had it first
    pairs, n = [], 0
    for name, contents in zip(SPLITS, parts, strict=True):
        for content, source in contents:
            n += name != SPLITS[0]
            digest = hashlib.blake2b(content, digest_size=16).digest()
            where, earlier = seen.setdefault(digest, (name, source))
            if where != name:
                pairs.append(f"{earlier} ({where}) = {source} ({name})")
    if not pairs:
        return []
    note = f"Duplicates: {len(pairs):,} of {n:,} {what} of validation and test are also in an earlier split"
    return [f"{note}, {how}: {first(pairs, 3)}."]

"""Which images are taken, and in which order: fixed splits, batches, small sample folders.

A split depends on `split_seed` alone, never on a run's seed, so that all runs of a study share one test set.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, SequentialSampler

from qnnkit import checks

if TYPE_CHECKING:
    from qnnkit.data.images import ImageSplits


def seeded(*key: object) -> torch.Generator:
    """A generator whose stream depends on `key` alone, and is unlike that of any neighbouring key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def stratified_split(
    labels: np.ndarray,
    classes: Sequence[str],
    split_seed: int = 0,
    validation_fraction: float = 0.2,
    test_fraction: float = 0.2,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted indices of train, validation and test, with every class in each of them.

    Args:
        labels: Index into `classes` of each image, of shape (n,).
        classes: Their names, for the messages.
        split_seed: Which split.
        validation_fraction: Part of all images that validation gets.
        test_fraction: Part of all images that the test gets.

    Raises:
        ValueError: A fraction is out of range, or a class is too small to be in all three.

    Example:
        >>> train, validation, test = stratified_split(np.array([0] * 5 + [1] * 5), "ab")
        >>> len(train), validation // 5, test // 5
        (6, array([0, 1]), array([0, 1]))
    """
    fractions = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    for name, fraction in fractions.items():
        if not 0 < fraction < 1:
            raise ValueError(checks.message(name, "lie between 0 and 1", fraction, "Use 0.2."))
    if validation_fraction + test_fraction >= 1:
        rule = f"leave images for training beside validation_fraction={validation_fraction}"
        raise ValueError(checks.message("test_fraction", rule, test_fraction, "Use 0.2 for both."))
    if not 0 <= split_seed < 2**32:
        raise ValueError(checks.message("split_seed", "lie in 0..4294967295", split_seed, "Use 0."))

    counts = np.bincount(labels, minlength=len(classes))
    if small := {classes[label]: int(counts[label]) for label in np.flatnonzero(counts < 3)[:5]}:
        rule = "hold at least 3 readable images of every class, one for each split"
        raise ValueError(checks.message("root", rule, small, "Add images of this class, or leave it out."))

    def require(part: np.ndarray, name: str, least: int = 1) -> None:
        missing = np.flatnonzero(np.bincount(labels[part], minlength=len(classes)) < least)
        if missing.size:
            label = missing[counts[missing].argmin()]
            images = f"The {counts[label]} images of {classes[label]!r} are too few"
            step = f"{images} for {name} here: add some, or bring both fractions nearer to 1/3."
            raise ValueError(
                checks.message("test_fraction", "leave every class in every split", fractions, step)
            )

    from sklearn.model_selection import train_test_split

    everything = np.arange(len(labels))
    n_validation, n_test = (max(len(classes), round(part * len(labels))) for part in fractions.values())
    if len(labels) - n_validation - n_test < len(classes):
        require(everything[:0], "train")
    rest, test = map(
        np.asarray, train_test_split(everything, test_size=n_test, stratify=labels, random_state=split_seed)
    )
    require(test, "test")
    require(rest, "train and validation", least=2)
    train, validation = map(
        np.asarray,
        train_test_split(rest, test_size=n_validation, stratify=labels[rest], random_state=split_seed),
    )
    require(train, "train")
    require(validation, "validation")
    return np.sort(train), np.sort(validation), np.sort(test)


class Batches(DataLoader):
    """A DataLoader over tensors: whole batches, no workers, no draw from torch's global generator.

    A `BatchSampler` given as `sampler` with `batch_size=None` would read more simply, but Accelerate 1.15
    then fails in `prepare` with "multiple values for keyword argument 'batch_size'".
    """

    def __init__(
        self, images: torch.Tensor, labels: torch.Tensor, batch_size: int, *, shuffle: bool, seed: int = 0
    ) -> None:
        self.rows = _Rows(images, labels)
        sampler = _EpochSampler(self.rows, seed) if shuffle else SequentialSampler(self.rows)
        super().__init__(
            self.rows,
            batch_sampler=BatchSampler(sampler, batch_size, drop_last=False),
            collate_fn=_unchanged,
            generator=seeded(seed),  # each pass draws one number, which would otherwise move the global state
        )

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next pass; the same name as on a loader that Accelerate prepared."""
        self.rows.set_epoch(epoch)


class _Rows(Dataset):
    """Tensors from which `__getitems__`, which a DataLoader prefers, takes a whole batch by one indexing.

    The epoch is kept here because Accelerate hands `set_epoch` to the dataset on any number of processes;
    a sampler inside a shard, or inside a loader that skips batches, is out of its reach in some versions.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels, self.epoch = images, labels, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.tensor(indices)
        return self.images[rows], self.labels[rows]


class _EpochSampler(Sampler[int]):
    """The indices of all rows, in an order given by the seed and the rows' epoch alone."""

    def __init__(self, rows: _Rows, seed: int) -> None:
        self.rows, self.seed = rows, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(len(self), generator=seeded(self.seed, self.rows.epoch)).tolist())


def _unchanged(batch: Any) -> Any:
    return batch


def write_sample(splits: ImageSplits, folder: str | Path, *, per_class: int, seed: int = 0) -> Path:
    """Writes `per_class` training images of each class to `folder/<class>/<nnnn>.png`, and `sample.json`.

    The folder loads back through `class_folder` with equal pixels. A smaller sample with the same seed is
    part of a larger one. It appears in one piece: written beside under a hidden name, then renamed.

    Args:
        splits: The dataset; only its train split is used.
        folder: Where to write; must be absent or empty.
        per_class: How many images of each class.
        seed: Which images.

    Returns:
        The folder.

    Raises:
        ValueError: A class has too few images, or a name that cannot be a folder's.
        FileExistsError: Something is in the folder's place.
        OSError: Writing failed; nothing is left behind.
    """
    from PIL import Image

    checks.positive("per_class", per_class)
    folder = Path(folder).expanduser().absolute()
    chosen = {name: _choose(splits, label, per_class, seed) for label, name in enumerate(splits.classes)}
    record = {
        "dataset": splits.name,
        "fingerprint": splits.fingerprint(),
        "split": "train",
        "per_class": per_class,
        "seed": seed,
        "sources": {name: [splits.train.sources[row] for row in rows] for name, rows in chosen.items()},
    }
    part = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.part"
    try:
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            step = "Choose another name; nothing is overwritten."
            rule = "be absent or an empty folder"
            raise FileExistsError(checks.message("folder", rule, str(folder), step))
        part.mkdir(parents=True)
        for name, rows in chosen.items():
            (part / name).mkdir()
            for number, row in enumerate(rows):
                pixels = splits.train.images[row].permute(1, 2, 0).squeeze(2).numpy()  # (height, width[, 3])
                Image.fromarray(pixels).save(part / name / f"{number:04d}.png")
        (part / "sample.json").write_text(json.dumps(record, indent=2, ensure_ascii=False), encoding="utf-8")
        part.rename(folder)
    except OSError as error:
        if isinstance(error, FileExistsError) and error.errno is None:
            raise
        step = f"Nothing was written ({error.strerror or error}): free some space or choose another place."
        raise OSError(checks.message("folder", "be in a writable place", str(folder), step)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _choose(splits: ImageSplits, label: int, per_class: int, seed: int) -> list[int]:
    """Rows of the train split that hold this class, `per_class` of them."""
    name = splits.classes[label]
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        step = "Rename the class before taking a sample."
        raise ValueError(checks.message("splits", "have classes that can be names of folders", name, step))
    rows = torch.nonzero(splits.train.labels == label).flatten()
    if per_class > len(rows):
        rule = f"be at most {len(rows)}, the training images of class {name!r}"
        raise ValueError(checks.message("per_class", rule, per_class, "Use fewer, or add images."))
    return rows[torch.randperm(len(rows), generator=seeded(seed, label))[:per_class]].sort().values.tolist()

"""Images drawn from a split: in batches for a net, or as a small folder to keep."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from qnnkit import checks

if TYPE_CHECKING:
    from qnnkit.data.splits import ImageSplits


def seeded(*key: object) -> torch.Generator:
    """A generator whose stream depends on `key` alone, and is unlike that of any neighbouring key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Batches(DataLoader):
    """A DataLoader over tensors: whole batches, no workers, no draw from torch's global generator."""

    def __init__(
        self, images: torch.Tensor, labels: torch.Tensor, batch_size: int, *, shuffle: bool, seed: int = 0
    ) -> None:
        self.rows = _Rows(images, labels, seed if shuffle else None)
        super().__init__(
            self.rows,
            batch_size,
            collate_fn=tuple,  # what the rows give is a batch already
            generator=seeded(seed),  # each pass draws one number, which would otherwise move the global state
        )

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next pass; the same name as on a loader that Accelerate prepared."""
        self.rows.set_epoch(epoch)


class _Rows(TensorDataset):
    """Tensors in an order given by seed and epoch alone; the loader reads them from first to last.

    The order is kept here because Accelerate hands `set_epoch` to the dataset on any number of processes;
    a sampler inside a shard, or inside a loader that skips batches, is out of its reach in some versions.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, seed: int | None) -> None:
        super().__init__(images, labels)
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        n = len(self)
        shuffled = self.seed is not None
        self.order = torch.randperm(n, generator=seeded(self.seed, epoch)) if shuffled else torch.arange(n)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        """A whole batch by one indexing; a DataLoader prefers it to `__getitem__`."""
        return self[self.order[indices]]


def write_sample(splits: ImageSplits, folder: str | Path, *, per_class: int, seed: int = 0) -> Path:
    """Writes `per_class` training images of each class to `folder/<class>/<nnnn>.png`, and `sample.json`.

    The folder loads back through `class_folder` with equal pixels. A smaller sample with the same seed is
    part of a larger one. Nothing is overwritten (FileExistsError), and the folder appears whole or not at
    all: it is written beside under a hidden name, then renamed.
    """
    checks.positive("per_class", per_class)
    folder = Path(folder).expanduser().absolute()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        rule = "be absent or an empty folder"
        raise FileExistsError(checks.message("folder", rule, str(folder), "Choose another name."))
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
        for name, rows in chosen.items():
            (part / name).mkdir(parents=True)
            for number, row in enumerate(rows):
                pixels = splits.train.images[row].permute(1, 2, 0).squeeze(2).numpy()  # (height, width[, 3])
                Image.fromarray(pixels).save(part / name / f"{number:04d}.png")
        (part / "sample.json").write_text(json.dumps(record, indent=2, ensure_ascii=False), encoding="utf-8")
        part.rename(folder)
    except OSError as error:
        step = f"Nothing was written ({error.strerror or error}): free some space or choose another place."
        raise OSError(checks.message("folder", "be in a writable place", str(folder), step)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _choose(splits: ImageSplits, label: int, per_class: int, seed: int) -> list[int]:
    """Rows of the train split that hold this class, `per_class` of them."""
    name = splits.classes[label]
    if not name or name.startswith(".") or "/" in name:  # it would land outside the folder, or not load back
        step = "Rename the class before taking a sample."
        raise ValueError(checks.message("splits", "have classes that can be names of folders", name, step))
    rows = torch.nonzero(splits.train.labels == label).flatten()
    if per_class > len(rows):
        rule = f"be at most {len(rows)}, the training images of class {name!r}"
        raise ValueError(checks.message("per_class", rule, per_class, "Use fewer, or add images."))
    return rows[torch.randperm(len(rows), generator=seeded(seed, label))[:per_class]].sort().values.tolist()

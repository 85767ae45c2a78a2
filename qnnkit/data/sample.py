"""Images drawn from a split: in batches for a net, or as a small folder to keep."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    chosen = {name: _choose(splits, label, per_class, seed) for label, name in enumerate(splits.classes)}
    record = {
        "dataset": splits.name,
        "fingerprint": splits.fingerprint(),
        "split": "train",
        "per_class": per_class,
        "seed": seed,
        "sources": {name: [splits.train.sources[row] for row in rows] for name, rows in chosen.items()},
    }
    with _whole(folder) as part:
        for name, rows in chosen.items():
            (part / name).mkdir(parents=True)
            for number, row in enumerate(rows):
                pixels = splits.train.images[row].permute(1, 2, 0).squeeze(2).numpy()  # (height, width[, 3])
                Image.fromarray(pixels).save(part / name / f"{number:04d}.png")
        _record(part, record)
    return Path(folder).expanduser().absolute()


def sample_files(
    source: str | Path,
    folder: str | Path,
    *,
    per_class: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    link: bool = False,
    pattern: str | None = None,
) -> Path:
    """Copies some files of each class, unchanged and under their own names, and writes `sample.json`.

    Works on what `class_folder` and `flat_folder` read: one folder per class, or one folder whose file names
    carry the label, with sides train/ and test/ or without; each side is sampled alike. A smaller sample with
    the same seed is part of a larger one. The folder appears whole or not at all, and nothing is overwritten.
    Images whose names carry no label are left out: `left_out` in `sample.json` counts and names them.

    Args:
        source: The folder, archive or URL.
        folder: Where the sample goes; absent or empty, and not inside `source`.
        per_class: How many files of each class, on each side.
        fraction: Or which share of them; one file of each class at least.
        seed: Chooses which.
        link: Whether to make hard links in place of copies; on one file system only, and from a folder.
        pattern: The label in a file's name, as `label_pattern` of `flat_folder`. None looks for class folders
            first, and takes the last two digits of the name where there are none.

    Raises:
        FileExistsError: Something is in `folder`.
        ValueError: Not exactly one of `per_class` and `fraction` is given, a class has fewer files, or
            `folder` lies in `source`.
        OSError: The files cannot be read or written.
    """
    if (per_class is None) == (fraction is None):
        rule = "be given, or fraction, but not both"
        raise ValueError(checks.message("per_class", rule, per_class, f"With it, fraction is {fraction}."))
    if fraction is not None and not 0 < fraction <= 1:
        step = "Use 0.1 for a tenth."
        raise ValueError(checks.message("fraction", "lie above 0 and up to 1", fraction, step))
    if per_class is not None:
        checks.positive("per_class", per_class)
    from qnnkit.data import fetch, layout, places

    with places.open_place(fetch.local(source)) as place:
        if place.path.is_dir():
            _require_outside(place.path, folder)
        sides, left_out = layout.of(place, pattern)
        if link and not place.path.is_dir():
            step = "Leave it out to copy."
            raise ValueError(checks.message("link", "be left out for an archive", link, step))
        chosen = {
            side: {
                name: [
                    members[row].name for row in _some(name, len(members), per_class, fraction, seed, side)
                ]
                for name, members in classes.items()
            }
            for side, classes in sides.items()
        }
        n_fitting = sum(len(members) for classes in sides.values() for members in classes.values())
        record = {
            "source": str(source),
            "per_class": per_class,
            "fraction": fraction,
            "seed": seed,
            "pattern": pattern,
            "linked": link,
            "counts": {
                side: {name: len(names) for name, names in classes.items()}
                for side, classes in chosen.items()
            },
            "left_out": {"count": len(left_out), "of": len(left_out) + n_fitting, "first": left_out[:5]},
            "files": [name for classes in chosen.values() for names in classes.values() for name in names],
        }
        with _whole(folder) as part:
            for name in record["files"]:
                target = part / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if link:
                    _link(place.path / name, target)
                else:
                    target.write_bytes(place.read(name))
            _record(part, record)
    return Path(folder).expanduser().absolute()


def _require_outside(source: Path, folder: str | Path) -> None:
    """Refuses a sample that would be read as part of what it is drawn from."""
    there, inside = source.resolve(), Path(folder).expanduser().resolve()
    if there in inside.parents:
        rule, step = f"lie outside of {there}, which the sample is drawn from", "Choose a place beside it."
        raise ValueError(checks.message("folder", rule, str(folder), step))


@contextlib.contextmanager
def _whole(folder: str | Path) -> Iterator[Path]:
    """A hidden folder beside `folder` that takes its name in the end; gone if anything fails before."""
    folder = Path(folder).expanduser().absolute()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        rule = "be absent or an empty folder"
        raise FileExistsError(checks.message("folder", rule, str(folder), "Choose another name."))
    part = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.part"
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(folder)
    except OSError as error:
        if not error.errno:  # told already
            raise
        step = f"Nothing was written ({error.strerror or error}): free some space or choose another place."
        raise OSError(checks.message("folder", "be in a writable place", str(folder), step)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _record(part: Path, record: dict[str, Any]) -> None:
    (part / "sample.json").write_text(json.dumps(record, indent=2, ensure_ascii=False), encoding="utf-8")


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path.resolve(), target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        step = f"Links cannot be made there ({error.strerror}): leave `link` out to copy."
        rule = "stay on one file system that has hard links"
        raise OSError(checks.message("link", rule, True, step)) from None


def _some(
    name: str, n: int, per_class: int | None, fraction: float | None, seed: int, side: str
) -> list[int]:
    """Rows of the files of one class that are taken, of `n`."""
    if fraction is not None:
        per_class = max(1, round(fraction * n))
    assert per_class is not None
    if per_class > n:
        where = "" if side == "any" else f" in {side}/"
        rule = f"be at most {n}, the files of class {name!r}{where}"
        raise ValueError(checks.message("per_class", rule, per_class, "Use fewer, or add images."))
    return torch.randperm(n, generator=seeded("files", seed, side, name))[:per_class].sort().values.tolist()


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

"""A small folder of images to keep: some of each class, from files or from a split."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from qnnkit import checks, workspace
from qnnkit.data import fetch, folders
from qnnkit.data.batches import keyed_generator
from qnnkit.data.places import first, open_place
from qnnkit.data.splits import ImageSplits


def write_sample(splits: ImageSplits, folder: str | Path, *, per_class: int, seed: int = 0) -> Path:
    """Writes `per_class` training images of each class to `folder/<class>/<nnnn>.png`, and `sample.json`.

    A class that has fewer gives all it has. The folder loads back through `class_folder` with equal pixels.
    A smaller sample with the same seed is part of a larger one. Nothing is overwritten (FileExistsError), and
    the folder appears whole or not at all: it is written under a hidden name, then renamed.
    """
    checks.positive("per_class", per_class)
    chosen: dict[str, list[int]] = {}
    for label, name in enumerate(splits.classes):
        if not name or name.startswith(".") or "/" in name:  # it would land outside, or not load back
            step = "Rename the class before taking a sample."
            raise ValueError(
                checks.message("splits", "have classes that can be names of folders", name, step)
            )
        rows = torch.nonzero(splits.train.labels == label).flatten()
        order = torch.randperm(len(rows), generator=keyed_generator(seed, label))
        chosen[name] = rows[order[:per_class]].sort().values.tolist()
    sources = {name: [splits.train.sources[row] for row in rows] for name, rows in chosen.items()}
    record = {"dataset": splits.name, "fingerprint": splits.fingerprint(), "split": "train"}
    record |= {"per_class": per_class, "seed": seed, "sources": sources}
    with _whole(folder, record) as part:
        for name, rows in chosen.items():
            (part / name).mkdir(parents=True)
            for number, row in enumerate(rows):
                pixels = splits.train.images[row].permute(1, 2, 0).squeeze(2).numpy()  # (height, width[, 3])
                Image.fromarray(pixels).save(part / name / f"{number:04d}.png")
    return Path(folder).expanduser().absolute()


def sample_files(
    source: str | Path, folder: str | Path, *, per_class: int, seed: int = 0, pattern: str | None = None
) -> Path:
    """Copies `per_class` image files of each class, with their names, and writes `sample.json`.

    Where the source has train/ and test/, or validation/, each of them is sampled. A smaller sample with the
    same seed is part of a larger one. Nothing is overwritten, and the folder appears whole or not at all.
    `sample.json` has notes on what was left out and on classes that have fewer files than were asked for.

    Args:
        source: Folder, archive or URL of images: class folders, or one folder with the label in the names.
        folder: Where the sample goes; absent or empty, and not inside `source`.
        per_class: How many files of each class; a class that has fewer gives all it has.
        seed: Chooses which.
        pattern: The label in a file's name, as `label_pattern` of `flat_folder`. None looks for class folders
            first, and takes the last number of the name where there are none.

    Raises:
        FileExistsError: Something is in `folder`.
        ValueError: `per_class` is below 1, or `folder` lies in `source`.
        OSError: The files cannot be read or written.
    """
    checks.positive("per_class", per_class)
    place = open_place(fetch.local(source))
    if place.path.is_dir() and place.path.resolve() in Path(folder).expanduser().resolve().parents:
        rule = f"lie outside of {place.path.resolve()}, which the sample is drawn from"
        raise ValueError(checks.message("folder", rule, str(folder), "Choose a place next to it."))
    layout = folders.of(place, pattern)
    files, fewer = [], []
    counts: dict[str, dict[str, int]] = {side: {} for side in layout.sides}
    for side, classes in layout.sides.items():
        for name, members in classes.items():
            order = torch.randperm(len(members), generator=keyed_generator("files", seed, side, name))
            files += [members[row].name for row in order[:per_class].sort().values.tolist()]
            counts[side][name] = min(per_class, len(members))
            if counts[side][name] < per_class:
                under = "" if side == "any" else f" in {side}/"
                fewer.append(f"{name}{under} ({len(members):,} of {per_class:,})")
    notes = [f"Classes with fewer files than were asked for: {first(fewer)}."] if fewer else []
    record = {"source": str(source), "per_class": per_class, "seed": seed, "pattern": pattern}
    record |= {"counts": counts, "notes": [*layout.notes, *notes], "files": files}
    with _whole(folder, record) as part:
        for name in files:
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            (part / name).write_bytes(place.read(name))
    return Path(folder).expanduser().absolute()


@contextlib.contextmanager
def _whole(folder: str | Path, record: dict[str, Any]) -> Iterator[Path]:
    """A hidden folder that takes the name `folder` in the end, with its record; gone if anything fails."""
    folder = Path(folder).expanduser().absolute()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        rule = "be absent or an empty folder"
        raise FileExistsError(checks.message("folder", rule, str(folder), "Choose another name."))
    with workspace.whole_folder(folder) as part:
        yield part
        written = json.dumps(record, indent=2, ensure_ascii=False)
        (part / "sample.json").write_text(written, encoding="utf-8", errors="backslashreplace")

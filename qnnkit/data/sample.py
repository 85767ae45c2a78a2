"""A small folder of images to keep: some of each class, from files or from a split."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from qnnkit import checks, workspace
from qnnkit.data import fetch, folders
from qnnkit.data.batches import keyed_generator
from qnnkit.data.folders import Layout
from qnnkit.data.places import first, open_place
from qnnkit.data.splits import ImageSplits


def write_sample(splits: ImageSplits, folder: str | Path, *, per_class: int, seed: int = 0) -> Path:
    """Writes `per_class` training images of each class to `folder/<class>/<nnnn>.png`, and `sample.json`.

    A class that has fewer gives all it has. The folder loads back through `class_folder` with equal pixels.
    A smaller sample with the same seed is part of a larger one. Nothing is overwritten (FileExistsError), and
    the folder appears whole or not at all: it is written beside under a hidden name, then renamed.
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
    source: str | Path,
    folder: str | Path,
    *,
    per_class: int | Sequence[int] | None = None,
    fraction: float | None = None,
    seed: int = 0,
    link: bool = False,
    pattern: str | None = None,
) -> Path:
    """Copies some image files of each class, with their names, and writes `sample.json`.

    Where the source has train/ and test/, or validation/, each of them is sampled. A smaller sample with the
    same seed is part of a larger one. Nothing is overwritten, and the folder appears whole or not at all.
    `sample.json` has notes on what was left out and on classes that have fewer files than were asked for.

    Args:
        source: Folder, archive or URL of images: class folders, or one folder with the label in the names.
        folder: Where the sample goes; absent or empty, and not inside `source`.
        per_class: How many files of each class; of two numbers the first is for train/, the second for the
            other sides. A class that has fewer gives all it has.
        fraction: Or which share of them; one file of each class at least.
        seed: Chooses which.
        link: Whether to make hard links in place of copies; on one file system only, and from a folder.
        pattern: The label in a file's name, as `label_pattern` of `flat_folder`. None looks for class folders
            first, and takes the last two digits of the name where there are none.

    Raises:
        FileExistsError: Something is in `folder`.
        ValueError: Not exactly one of `per_class` and `fraction` is given, or `folder` lies in `source`.
        OSError: The files cannot be read or written.
    """
    numbers = _numbers(per_class, fraction)
    with open_place(fetch.local(source)) as place:
        is_folder = place.path.is_dir()
        if is_folder and place.path.resolve() in Path(folder).expanduser().resolve().parents:
            rule = f"lie outside of {place.path.resolve()}, which the sample is drawn from"
            raise ValueError(checks.message("folder", rule, str(folder), "Choose a place beside it."))
        if link and not is_folder:
            rule = "be left out for an archive"
            raise ValueError(checks.message("link", rule, link, "Leave it out to copy."))
        layout = folders.of(place, pattern)
        if len(numbers) == 2 and "any" in layout.sides:
            rule = "be one number for images without train/ and test/"
            raise ValueError(checks.message("per_class", rule, per_class, f"Use {numbers[0]}."))
        chosen, notes = _chosen(layout, numbers, fraction, seed)
        files = [name for classes in chosen.values() for names in classes.values() for name in names]
        counts = {side: {k: len(names) for k, names in of.items()} for side, of in chosen.items()}
        asked = {"per_class": numbers if len(numbers) == 2 else numbers[0] or None, "fraction": fraction}
        record = {"source": str(source), **asked, "seed": seed, "pattern": pattern, "linked": link}
        record |= {"counts": counts, "notes": [*layout.notes, *notes], "files": files}
        with _whole(folder, record) as part:
            for name in files:
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                if link:
                    _link((place.path / name).resolve(), part / name)
                else:
                    (part / name).write_bytes(place.read(name))
    return Path(folder).expanduser().absolute()


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError as error:
        step = f"Links cannot be made there ({error.strerror}): leave `link` out to copy."
        raise OSError(checks.message("folder", "be where links can be made", str(target), step)) from None


def _numbers(per_class: int | Sequence[int] | None, fraction: float | None) -> list[int]:
    """`per_class` as one or two numbers; 0 where a fraction is given.

    Raises:
        ValueError: Not exactly one of them is given, or it is out of range.
    """
    if (per_class is None) == (fraction is None):
        rule = "be given, or fraction, but not both"
        raise ValueError(checks.message("per_class", rule, per_class, f"With it, fraction is {fraction}."))
    if fraction is not None and not 0 < fraction <= 1:
        step = "Use 0.1 for a tenth."
        raise ValueError(checks.message("fraction", "lie above 0 and up to 1", fraction, step))
    if per_class is None:
        return [0]
    numbers = [per_class] if isinstance(per_class, int) else list(per_class)
    if not 1 <= len(numbers) <= 2 or min(numbers) < 1:
        step = "Use 20, or 20 and 5 for train/ and test/."
        raise ValueError(checks.message("per_class", "be one or two numbers above 0", per_class, step))
    return numbers


def _chosen(
    layout: Layout, numbers: list[int], fraction: float | None, seed: int
) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Side -> class -> names of the chosen files; and a note on classes that have too few."""
    chosen: dict[str, dict[str, list[str]]] = {side: {} for side in layout.sides}
    fewer = []
    for side, classes in layout.sides.items():
        number = numbers[0] if side in ("any", "train") else numbers[-1]
        for name, members in classes.items():
            n = number if fraction is None else max(1, round(fraction * len(members)))
            if n > len(members):
                under = "" if side == "any" else f" in {side}/"
                fewer.append(f"{name}{under} ({len(members):,} of {n:,})")
            order = torch.randperm(len(members), generator=keyed_generator("files", seed, side, name))
            chosen[side][name] = [members[row].name for row in order[:n].sort().values.tolist()]
    return chosen, [f"Classes with fewer files than were asked for: {first(fewer)}."] if fewer else []


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

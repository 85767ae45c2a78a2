"""Your own images in files: the class and the side of each, by its folder or by its name; and samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from qnnkit import checks, workspace
from qnnkit.data import places
from qnnkit.data.batches import keyed_generator
from qnnkit.data.images import File, split_stack, stack_files
from qnnkit.data.places import SUFFIXES, Member, Place, around, first, natural, open_place, refusal
from qnnkit.data.splits import SPLITS, ImageSplits

SIDES = {
    **dict.fromkeys(("train", "training", "train_images", "train_set", "training_set", "restval"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "val_images", "validation_set"), "validation"),
    **dict.fromkeys(("test", "testing", "test_images", "test_set"), "test"),
}
"""Names of folders that divide a dataset, in small or capital letters -> the split they mean.

Karpathy's "restval" is of COCO's validation part and trained on.
"""
LAST_NUMBER = r"((?:(?<![^_ ])-)?\d+(?:\.\d+)?)$"
"""The label in a file's name where no other pattern is given: the number before the suffix, all of it.
A `-` behind `_` or a space is its sign."""


Layout = tuple[list[File], tuple[str, ...], str, list[str]]
"""Labelled images, side by side and class by class, as people count; the classes; the folder around all that
archives often have, with a `/` at its end, or ""; and sentences on what was left out."""


def layout(place: Place, label_pattern: str | None = None) -> Layout:
    """The class and the side of each image of a place.

    The class is the first folder, of the root or of a side, or what the pattern finds in a file's name. The
    sides are folders such as train/ and test/; without those it is "any".

    Raises:
        ValueError: The pattern is wrong, or no image has a label.
    """
    images = [each for each in place.members if each.is_image]
    label, depth = (label_in(label_pattern), 0) if label_pattern else (_folder, 1)
    bases, top = _bases(images, depth)
    based = [(next(filter(each.name.startswith, bases), None), each) for each in images]
    outside = [each.name for base, each in based if base is None]
    named = [(base, label(each.name.removeprefix(base)), each) for base, each in based if base is not None]
    unfit = [each.name for _, name, each in named if not name]
    labelled = [(bases[base], name, each) for base, name, each in named if name]
    fit = f"whose names do not fit {label_pattern}" if label_pattern else "that lie in no class folder"
    of = f"of {len(images):,} images"
    why = {f"{of} {fit}": unfit, f"{of} that lie outside of {', '.join(sorted(bases))}": outside}
    notes = place.notes(SUFFIXES, "images", why)
    paths = [] if label_pattern else [each.name.removeprefix(base).split("/") for base, _, each in named]
    if inner := sorted({path[1] for path in paths if len(path) > 2}):
        notes.append(f"Classes are the outer folders; those inside ({first(inner)}) are not told apart.")
    if not labelled:
        step = "Put them in <class>/, or train/<class>/ and test/<class>/, or give a pattern for their names."
        rule = "hold images whose names have a label" if label_pattern else "hold two or more class folders"
        raise refusal(rule, str(place.path), " ".join([step, *notes]))
    classes = {name: row for row, name in enumerate(sorted({each[1] for each in labelled}, key=natural))}
    files = [(side, classes[name], member) for side, name, member in labelled]
    files.sort(key=lambda each: (("any", *SPLITS).index(each[0]), each[1]))
    return files, tuple(classes), top, notes


def _folder(name: str) -> str | None:
    return name.partition("/")[0] if "/" in name else None


def _bases(images: list[Member], depth: int) -> tuple[dict[str, str], str]:
    """Folder of each side, with a `/` at its end -> side; and the folder around all.

    There are sides where train is one of two, and else all is of one folder. A dataset of files in folders
    (`depth` 1) may lie next to images.
    """
    top = around(each.name for each in images if each.name.count("/") >= depth)
    heads = {each.name.removeprefix(top).partition("/")[0] for each in images}
    bases = {f"{top}{head}/": SIDES[head.lower()] for head in heads if head.lower() in SIDES}
    has_sides, inside = "train" in bases.values() and len({*bases.values()}) > 1, (*bases,)
    deep = (x.name.startswith(inside) and x.name.removeprefix(top).count("/") > depth for x in images)
    if not has_sides and len(heads) > 1 and any(deep):
        raise refusal("hold train/ next to test/ or validation/", first(sorted(heads)), "Rename its sides.")
    return (bases if has_sides else {top: "any"}), top


def label_in(label_pattern: str) -> Callable[[str], str | None]:
    """A function that gives the label in a file's name, or None.

    Raises:
        ValueError: The pattern is none.
    """
    pattern = places.pattern("label_pattern", label_pattern)

    def label(name: str) -> str | None:
        base = name.rpartition("/")[2]
        fit = pattern.search(base.rpartition(".")[0]) or pattern.search(base)
        return fit[min(1, pattern.groups)] if fit else None

    return label


def class_folder(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """Your own images, one folder per class: `root/<class>/*.png` (or jpg, bmp, gif, webp, tif, ppm, pgm).

    Images of a class may be in folders inside it. Where the root holds train/ and test/ or validation/
    instead (or valid/, val/, dev/, training/, testing/), with the class folders in them, these are the
    splits; a test part that is missing is drawn from train/. Classes and files are sorted as people count (2
    before 10), so a split is the same on every machine. Orientation from EXIF is applied, 16-bit grey scaled
    to 8 bits, transparency laid on white (as a page shows it), and of an animation the first frame taken.
    Files that are not used are counted and named in the notes. In a workspace, what comes of all this is
    kept as one file (`datasets/`) and read from there until a file changes.

    Args:
        root: The folder that holds the class folders; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        options: `image_size`, a side in pixels (None takes the most common size; the aspect ratio is not
            kept); `grey`, one channel (True) or three (False; None takes one if every image is grey);
            `split_seed` (leave it alone within a study), `validation_fraction` and `test_fraction` (0.2
            of all images each, about: each image is placed by the hash of its name, so that one more or less
            moves no other). With a test/ side, test_fraction is unused, and validation_fraction that of
            train/.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: There are no classes, one class, or too few images to split.
    """
    return _load("class_folder", root, None, **options)


def flat_folder(
    root: str | Path | None = None, *, label_pattern: str | None = None, **options: Any
) -> ImageSplits:
    r"""Your own images in one folder, with the label in each file's name: `root/0001_07.png` is of class 07.

    Images in folders below it count, too. Sides are those of `class_folder`, with the images in them.
    Images whose names carry no label are left out, counted and named.

    Args:
        root: The folder of images; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        label_pattern: Regular expression whose first group is the label, such as `label_(\d+)`; None takes
            all of the number before the suffix: 07, -1 of `x_-1.png`, 0.25. Labels are texts: 1 and 01 are
            two classes; `0*(\d+)$` makes them one.
        options: As in `class_folder`.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The pattern is wrong or fits no name, or there are too few images to split.
    """
    return _load("flat_folder", root, label_pattern or LAST_NUMBER, **options)


def _load(name: str, root: str | Path | None, label_pattern: str | None, **options: Any) -> ImageSplits:
    place = open_place(root)
    files, classes, top, notes = layout(place, label_pattern)
    stack = stack_files(place.read, files, options.pop("image_size", None), options.pop("grey", None))
    return split_stack(name, stack, classes, top=top, notes=notes, **options)


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
        pattern: The label in a file's name, as `label_pattern` of `flat_folder`; None takes class folders.

    Returns:
        The folder.

    Raises:
        FileExistsError: Something is in `folder`.
        ValueError: `per_class` is below 1, or `folder` lies in `source`.
        OSError: The files cannot be read or written.
    """
    checks.positive("per_class", per_class)
    place, folder = open_place(source), Path(folder).expanduser().absolute()
    if place.path.is_dir() and place.path.resolve() in folder.resolve().parents:
        rule = f"lie outside of {place.path.resolve()}, which the sample is drawn from"
        raise ValueError(checks.message("folder", rule, str(folder), "Choose a place next to it."))
    images, classes, _, notes = layout(place, pattern)
    files, fewer, counts = [], [], {}
    for (side, label), group in itertools.groupby(images, key=lambda each: each[:2]):
        members, name = [member.name for *_, member in group], classes[label]
        order = torch.randperm(len(members), generator=keyed_generator("files", seed, side, name))
        chosen = order[:per_class].sort().values.tolist()
        files += [members[row] for row in chosen]
        counts.setdefault(side, {})[name] = len(chosen)
        if len(chosen) < per_class:
            fewer.append(f"{name} of {side} ({len(chosen):,} of {per_class:,})")
    if fewer:
        notes.append(f"Classes with fewer files than were asked for: {first(fewer)}.")
    record = {"source": str(source), "per_class": per_class, "seed": seed, "pattern": pattern}
    record |= {"counts": counts, "notes": notes, "files": files}
    with workspace.whole_folder(folder) as draft:
        for name in files:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(place.read(name))
        workspace.write_json(draft / "sample.json", record)
    return folder

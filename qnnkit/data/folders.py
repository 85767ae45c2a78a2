"""Your own image files: their classes and splits, from folders or file names; and sampling them."""

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
"""Folder name, in lower case -> the split that it stands for.

"restval" of Karpathy's splits is the part of COCO's validation images that is used for training.
"""
LAST_NUMBER = r"((?:(?<![^_ ])-)?\d+(?:\.\d+)?)$"
"""Default pattern of the label in a file's name: the whole number before the suffix.
A `-` after `_` or a space is its sign."""


Layout = tuple[list[File], tuple[str, ...], str, list[str]]
"""Labelled images, sorted by split and class; the class names; the folder around everything (archives often
have one), ending in `/`, or ""; and notes on what was left out."""


def layout(place: Place, label_pattern: str | None = None) -> Layout:
    """Returns the class and the split of each image of a place.

    The class is the first folder below the root or below a split, or the pattern's match in the file name.
    Splits are folders such as train/ and test/; without them, the split is "any".

    Raises:
        ValueError: The pattern is invalid, or no image has a label.
    """
    images = [each for each in place.members if each.is_image]
    label, depth = (label_in(label_pattern), 0) if label_pattern else (_folder, 1)
    bases, top = _bases(images, depth)
    based = [(next(filter(each.name.startswith, bases), None), each) for each in images]
    outside = [each.name for base, each in based if base is None]
    named = [(base, label(each.name.removeprefix(base)), each) for base, each in based if base is not None]
    unfit = [each.name for _, name, each in named if not name]
    labelled = [(bases[base], name, each) for base, name, each in named if name]
    fit = f"whose names do not match {label_pattern}" if label_pattern else "that are in no class folder"
    total = f"of {len(images):,} images"
    reasons = {f"{total} {fit}": unfit, f"{total} that are outside of {', '.join(sorted(bases))}": outside}
    notes = place.notes(SUFFIXES, "images", reasons)
    paths = [] if label_pattern else [each.name.removeprefix(base).split("/") for base, _, each in named]
    if inner := sorted({path[1] for path in paths if len(path) > 2}):
        notes.append(f"Classes are the outer folders; folders inside them ({first(inner)}) are ignored.")
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
    """Returns {folder of each split, ending in `/`: split}, and the folder around everything.

    Folders count as splits only if train is one of two or more. If the classes are folders (`depth` 1), loose
    images next to the dataset do not change its outer folder.
    """
    top = around(each.name for each in images if each.name.count("/") >= depth)
    heads = {each.name.removeprefix(top).partition("/")[0] for each in images}
    bases = {f"{top}{head}/": SIDES[head.lower()] for head in heads if head.lower() in SIDES}
    has_sides, inside = "train" in bases.values() and len({*bases.values()}) > 1, (*bases,)
    deep = (x.name.startswith(inside) and x.name.removeprefix(top).count("/") > depth for x in images)
    if not has_sides and len(heads) > 1 and any(deep):
        raise refusal("hold train/ next to test/ or validation/", first(sorted(heads)), "Rename the folders.")
    return (bases if has_sides else {top: "any"}), top


def label_in(label_pattern: str) -> Callable[[str], str | None]:
    """Returns a function that finds the label in a file's name, or None.

    Raises:
        ValueError: The pattern is not a regular expression.
    """
    pattern = places.pattern("label_pattern", label_pattern)

    def label(name: str) -> str | None:
        base = name.rpartition("/")[2]
        fit = pattern.search(base.rpartition(".")[0]) or pattern.search(base)
        return fit[min(1, pattern.groups)] if fit else None

    return label


def class_folder(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """Your own images, one folder per class: `root/<class>/*.png` (or jpg, bmp, gif, webp, tif, ppm, pgm).

    Class folders may have subfolders. If the root has train/ and test/ or validation/ (or valid/, val/, dev/,
    training/, testing/) with the class folders inside, these are the splits; a missing test part is drawn
    from train/. Classes and files are sorted in natural order (2 before 10), so a split is the same on every
    machine. EXIF orientation is applied, 16-bit grey is scaled to 8 bits, transparent pixels are shown on
    white, and only the first frame of an animation is used. Notes count and name files that are not used. In
    a workspace, the decoded images are cached in one file (`datasets/`) until an image file changes.

    Args:
        root: The folder of the class folders; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        options: `image_size`, a side in pixels (None takes the most common size; the aspect ratio is not
            preserved); `grey`, one channel (True) or three (False; None takes one if every image is grey);
            `split_seed` (default: 0; keep it fixed within a study), `validation_fraction` and `test_fraction`
            (default: about 0.2 of all images each; above 1 a number of images; an image is placed by the hash
            of its name, so adding or removing one moves no other). With a test/ folder, test_fraction is
            unused and validation_fraction is a share of train/.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: There are fewer than two classes, or too few images to split; or `root` is empty or a file
            of another kind, or an option is out of range.
    """
    return _load("class_folder", root, None, **options)


def flat_folder(
    root: str | Path | None = None, *, label_pattern: str | None = None, **options: Any
) -> ImageSplits:
    r"""Your own images in one folder, with the label in each file's name: `root/0001_07.png` is of class 07.

    Images in subfolders are included. Split folders are those of `class_folder`, with the images directly
    inside. Notes count and name images without a label in their names; these are omitted.

    Args:
        root: The folder of images; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        label_pattern: Regular expression whose first group is the label, such as `label_(\d+)`; None takes
            the whole number before the suffix: 07, 0.25, or -1 in `x_-1.png`. Labels are strings: 1 and 01
            are two classes; `0*(\d+)$` makes them one.
        options: As in `class_folder`.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: The pattern is invalid or matches no name, or as in `class_folder`.
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

    If the source has train/ and test/ or validation/, each of them is sampled. A smaller sample with the same
    seed is part of a larger one. Nothing is overwritten, and the folder is written completely or not at all.
    `sample.json` has notes on files that were left out, and on classes with fewer than `per_class` files.

    Args:
        source: Folder, archive or URL of images: class folders, or one folder with the label in the names.
        folder: Destination; absent or empty, and not inside `source`.
        per_class: Number of files per class; if a class has fewer, all are copied.
        seed: Chooses the files.
        pattern: The label in a file's name, as `label_pattern` of `flat_folder`; None uses class folders.

    Returns:
        The folder.

    Raises:
        FileExistsError: `folder` is not empty.
        ValueError: `per_class` is below 1, `folder` is inside `source`, the pattern is invalid, or no image
            has a label.
        OSError: The files cannot be read or written.
    """
    checks.positive("per_class", per_class)
    place, folder = open_place(source), Path(folder).expanduser().absolute()
    if place.path.is_dir() and place.path.resolve() in folder.resolve().parents:
        rule = f"be outside of {place.path.resolve()}, which the sample is drawn from"
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
        notes.append(f"Classes with fewer files than per_class: {first(fewer)}.")
    record = {"source": str(source), "per_class": per_class, "seed": seed, "pattern": pattern}
    record |= {"counts": counts, "notes": notes, "files": files}
    with workspace.whole_folder(folder, replaces=False) as draft:
        for name in files:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(place.read(name))
        workspace.write_json(draft / "sample.json", record)
    return folder

"""Your own images in files: the class and the side of each, by its folder or by its name; and samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qnnkit import checks, workspace
from qnnkit.data import places
from qnnkit.data.batches import keyed_generator
from qnnkit.data.images import form_of, split_stack, stack_files, stacked
from qnnkit.data.places import LINKS, Member, Place, around, first, natural, open_place, refusal
from qnnkit.data.splits import ImageSplits

SIDES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of folders that divide a dataset, in small or capital letters -> the split they mean."""
LAST_NUMBER = r"(\d+)$"
"""The label in a file's name where no other pattern is given: the whole number before the suffix."""


class Labelled(NamedTuple):
    """An image file, its class, and its side: "any" where the place has no sides of its own."""

    side: str
    label: str
    file: Member


@dataclass(frozen=True)
class Layout:
    """The labelled images of a place, side by side and class by class, as people count."""

    images: tuple[Labelled, ...]
    classes: tuple[str, ...]
    top: str
    """The folder around everything that archives often have, with a `/` at its end; or ""."""
    notes: tuple[str, ...]
    """Sentences on what was left out."""


def by_folder(place: Place) -> Layout:
    """One folder per class, `<class>/*.png`, or `train/<class>/*.png` and `test/<class>/*.png`.

    Images of a class may be in folders inside it, which a note names. Notes list other images and files.

    Raises:
        ValueError: There are no images in class folders, or none in one of these.
    """
    why = "that lie in no class folder"
    return _layout(place, 1, lambda rest: rest.partition("/")[0] if "/" in rest else None, why)


def by_name(place: Place, label_pattern: str | None = None) -> Layout:
    """Images whose names carry the label, in one folder and those in it.

    Folders train/ and test/ (and validation/ or val/) that hold all images are the sides.

    Raises:
        ValueError: The pattern is wrong or fits no name, or a class is missing on a side.
    """
    pattern = label_pattern or LAST_NUMBER
    label, names = label_in(pattern), [each.name for each in place.members if each.is_image]
    if names and not any(map(label, names)):
        step = f"No name fits, such as {names[0]!r}: write one whose first group is the label."
        raise ValueError(checks.message("label_pattern", "fit the names of the files", pattern, step))
    return _layout(place, 0, label, f"whose names do not fit label_pattern {pattern}")


def label_in(label_pattern: str) -> Callable[[str], str | None]:
    """A function that gives the label in a file's name, or None.

    Raises:
        ValueError: The pattern is none, or has no group.
    """
    pattern = places.pattern("label_pattern", label_pattern)
    if not pattern.groups:
        step = r"Put the label in parentheses, as in label_(\d+)."
        raise ValueError(checks.message("label_pattern", "have a group", label_pattern, step))

    def label(name: str) -> str | None:
        base = name.rpartition("/")[2]
        found = pattern.search(base.rpartition(".")[0]) or pattern.search(base)
        return found[1] if found else None

    return label


def of(place: Place, label_pattern: str | None = None) -> Layout:
    """The classes of a place: by name with a pattern, or where none lies in a folder inside; or by folder."""
    bases, top, _ = _bases(place, 0)
    folders = {each.name.rpartition("/")[0] for each in place.members if each.is_image}
    is_flat = {f"{folder}/" if folder else "" for folder in folders} <= {top, *bases}
    return by_name(place, label_pattern) if label_pattern is not None or is_flat else by_folder(place)


def left_out(
    place: Place, why: dict[str, list[str]], read: tuple[str, ...] = ("sample.json",)
) -> tuple[str, ...]:
    """Sentences on images that are not used, and on files that are neither images nor `read`."""
    others = [each.name for each in place.members if not each.is_image and each.base.lower() not in read]
    groups = {f"of {sum(each.is_image for each in place.members):,} images {x}": why[x] for x in why}
    return tuple(places.left_out(groups | {"files that are no images": others, LINKS: place.left_out}))


def _bases(place: Place, depth: int) -> tuple[dict[str, str], str, tuple[str, ...]]:
    """Folder of each side, with a `/` at its end -> side; the folder around all; and a note.

    Sides hold images `depth` folders below; without them all is of one folder.
    """
    names = [each.name for each in place.members if each.is_image]
    top = around(name for name in names if name.count("/") >= depth)
    inside = [name[len(top) :].split("/") for name in names if name.startswith(top)]
    heads = {path[0] for path in inside if len(path) > 1 and path[0].lower() in SIDES}
    if "train" not in (named := {SIDES[head.lower()] for head in heads}) or len(named) < 2:
        return {top: "any"}, top, ()
    if not depth and any(len(path) == 1 for path in inside):
        folders = ", ".join(f"{top}{head}/" for head in sorted(heads))
        return {top: "any"}, top, (f"Folders {folders} are not taken as splits: images are next to them.",)
    held = {path[0] for path in inside if len(path) > 1 + depth} & heads
    order = sorted(held, key=lambda head: [*SIDES.values()].index(SIDES[head.lower()]))
    bases = {f"{top}{head}/": SIDES[head.lower()] for head in order}
    if "train" not in bases.values():
        return {top: "any"}, top, ()
    return bases if len({*bases.values()}) > 1 else dict.fromkeys(bases, "any"), top, ()


def _layout(place: Place, depth: int, label: Callable[[str], str | None], why: str) -> Layout:
    """The images that have a label, by their paths below the folder of their side; the others in notes."""
    bases, top, notes = _bases(place, depth)
    images, unfit, outside, inner = [], [], [], {}
    for member in filter(lambda each: each.is_image, place.members):
        base = next((base for base in bases if member.name.startswith(base)), None)
        name = None if base is None else label(member.name[len(base) :])
        if base is None or not name:
            (outside if base is None else unfit).append(member.name)
        else:
            images.append(Labelled(bases[base], name, member))
            if depth and member.name.count("/", len(base)) > depth:
                inner[member.name.rpartition("/")[0]] = None
    notes += left_out(place, {why: unfit, f"that lie outside of {', '.join(bases)}": outside})
    if inner:
        folders = first(sorted(inner, key=natural))
        notes += (f"Images in folders inside a class folder are of that class: {folders}.",)
    if not images:
        where = "<class>/, or train/<class>/ and test/<class>/" if depth else "it, or in train/ and test/"
        step = " ".join([f"Put them in {where} there.", *notes])
        raise refusal("hold images of classes", str(place.path), step)
    there = {(each.side, each.label) for each in images}
    labels = {each.label for each in images}
    if depth:  # a class folder without images is one that somebody meant
        above = {folder: f"{folder.rpartition('/')[0]}/".lstrip("/") for folder in place.folders}
        labels |= {folder.rpartition("/")[2] for folder in place.folders if above[folder] in bases}
    classes = {name: row for row, name in enumerate(sorted(labels, key=natural))}
    under = {side: "" if side == "any" else f"{side}/" for side in bases.values()}
    if missing := [under[side] + name for side in under for name in classes if (side, name) not in there]:
        step = f"Missing: {first(missing)}. Add images of these, or leave the classes out."
        value = f"{len(there):,} of {len(under) * len(classes):,}"
        raise refusal("hold images of each class on all its sides", value, " ".join([step, *notes]))
    sides = [*under]
    images.sort(key=lambda each: (sides.index(each.side), classes[each.label]))
    return Layout(tuple(images), tuple(classes), top, notes)


def class_folder(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """Your own images, one folder per class: `root/<class>/*.png` (or jpg, bmp, gif, webp, tif).

    Images of a class may be in folders inside it. Where the root holds train/ and test/ or validation/
    instead (or valid/, val/, dev/, training/, testing/), with the class folders in them, these are the
    splits; a test part that is missing is drawn from train/. Classes and files are sorted as people count (2
    before 10), so a split is the same on every machine. Orientation from EXIF is applied, 16-bit grey scaled
    to 8 bits, transparency laid on white (as a page shows it), and of an animation the first frame taken.
    Files that are not used are counted and named in the notes. In a workspace, what comes of all this is
    kept as one file (`datasets/`) and read from there, but inside of `with data.uncached():`.

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
        ValueError: There are no classes, one class, an empty class, or too few images to split.
    """
    place = open_place(root)
    return _load("class_folder", place, by_folder(place), {}, **options)


def flat_folder(
    root: str | Path | None = None, *, label_pattern: str | None = None, **options: Any
) -> ImageSplits:
    r"""Your own images in one folder, with the label in each file's name: `root/0001_07.png` is of class 07.

    Images in folders below it count, too. Sides are those of `class_folder`, with the images in them.
    Images whose names carry no label are left out, counted and named.

    Args:
        root: The folder of images; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        label_pattern: Regular expression whose first group is the label, such as `label_(\d+)`; None takes
            the whole number before the suffix, `(\d+)$`. Labels are texts: 1 and 01 are two classes;
            `0*(\d+)$` makes them one.
        options: As in `class_folder`.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The pattern is wrong or fits no name, or there are too few images to split.
    """
    place = open_place(root)
    layout = by_name(place, label_pattern)
    return _load("flat_folder", place, layout, {"label_pattern": label_pattern}, **options)


def _load(name: str, place: Place, layout: Layout, wanted: dict[str, Any], **options: Any) -> ImageSplits:
    form = form_of(options)
    number = {label: number for number, label in enumerate(layout.classes)}
    files = [(each.side, number[each.label], each.file.name) for each in layout.images]
    make = partial(stack_files, place.read, files, layout.classes, **form)
    stack = stacked([each.file for each in layout.images], {"dataset": name, **form, **wanted}, make)
    return split_stack(name, stack, top=layout.top, notes=layout.notes, **options)


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
        pattern: The label in a file's name, as `label_pattern` of `flat_folder`. None takes class folders, or
            the last number of the name where all images lie in one folder (or in those of the sides).

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
    layout = of(place, pattern)
    groups: dict[tuple[str, str], list[str]] = {}
    for each in layout.images:
        groups.setdefault((each.side, each.label), []).append(each.file.name)
    files, fewer, counts = [], [], {side: {} for side, _ in groups}
    for (side, name), members in groups.items():
        order = torch.randperm(len(members), generator=keyed_generator("files", seed, side, name))
        files += [members[row] for row in order[:per_class].sort().values.tolist()]
        counts[side][name] = min(per_class, len(members))
        if len(members) < per_class:
            under = "" if side == "any" else f" in {side}/"
            fewer.append(f"{name}{under} ({len(members):,} of {per_class:,})")
    notes = [f"Classes with fewer files than were asked for: {first(fewer)}."] if fewer else []
    record = {"source": str(source), "per_class": per_class, "seed": seed, "pattern": pattern}
    record |= {"counts": counts, "notes": [*layout.notes, *notes], "files": files}
    with workspace.whole_folder(folder) as draft:
        for name in files:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(place.read(name))
        written = json.dumps(record, indent=2, ensure_ascii=False)
        (draft / "sample.json").write_text(written, encoding="utf-8", errors="backslashreplace")
    return folder

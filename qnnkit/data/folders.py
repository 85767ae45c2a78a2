"""Your own images in files: the class and the side of each, by its folder or by its name; and samples."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    """An image file, its class, and its side: "any" where the place has no sides."""

    side: str
    label: str
    file: Member
    inner: str
    """The folders that it lies in, below that of its side."""


@dataclass(frozen=True)
class Layout:
    """The labelled images of a place, side by side and class by class, as people count."""

    images: tuple[Labelled, ...]
    top: str
    """The folder around everything that archives often have, with a `/` at its end; or ""."""
    notes: tuple[str, ...]
    """Sentences on what was left out."""

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted({each.label for each in self.images}, key=natural))


def by_folder(place: Place) -> Layout:
    """One folder per class, `<class>/*.png`, or `train/<class>/*.png` and `test/<class>/*.png`.

    Images of a class may be in folders inside it, which a note names. Notes list other images and files.

    Raises:
        ValueError: There are fewer than two classes, an empty one, or one that a side lacks.
    """
    bases, top, _ = _bases(place, 1)
    images, others = _labelled(place, bases, lambda rest: rest.partition("/")[0] if "/" in rest else None)
    counts = {side: Counter(each.label for each in images if each.side == side) for side in bases.values()}
    for folder in place.folders:
        base, _, name = folder.rpartition("/")
        if (base := f"{base}/" if base else "") in bases:
            counts[bases[base]][name] += 0
    for side, of_class in counts.items():
        if len(of_class) < 2 or not all(of_class.values()):
            folders = "images in every class folder" if len(of_class) > 1 else "two or more class folders"
            under = "<class>/" if side == "any" else f"{side}/<class>/"
            told = first(sorted((f"{n:,} in {name!r}" for name, n in of_class.items()), key=natural))
            step = f"Images found: {told or 'no folder'}. Put them in {under} there."
            raise refusal(f"hold {folders}", str(place.path), " ".join([step, *left_out(place, {})]))
    layout = _layout(place, images, top, {"that lie in no class folder": others})
    inner = sorted({each.file.name.rpartition("/")[0] for each in images if "/" in each.inner}, key=natural)
    note = f"Images in folders inside a class folder are of that class: {first(inner)}."
    return replace(layout, notes=(*layout.notes, *[note] * bool(inner)))


def by_name(place: Place, label_pattern: str | None) -> Layout:
    """Images whose names carry the label, in one folder and those in it.

    Folders train/ and test/ (and validation/ or val/) that hold all images are the sides.

    Raises:
        ValueError: The pattern is wrong or fits no name, or a class is missing on a side.
    """
    pattern = places.pattern("label_pattern", label_pattern or LAST_NUMBER)
    if not pattern.groups:
        step = r"Put the label in parentheses, as in label_(\d+)."
        raise ValueError(checks.message("label_pattern", "have a group", label_pattern, step))

    def label(rest: str) -> str | None:
        base = rest.rpartition("/")[2]
        found = pattern.search(base.rpartition(".")[0]) or pattern.search(base)
        return found[1] if found else None

    bases, top, notes = _bases(place, 0)
    images, others = _labelled(place, bases, label)
    if not images:
        if not others:
            hints = ["Put them there, or in its folders train/ and test/.", *left_out(place, {})]
            raise refusal("hold images", str(place.path), " ".join(hints))
        step = f"No name fits, such as {others[0]!r}: write one whose first group is the label."
        raise ValueError(checks.message("label_pattern", "fit the names of the files", pattern.pattern, step))
    outside = [name for name in others if not name.startswith(tuple(bases))]
    unfit = [name for name in others if name not in {*outside}]
    why = {
        f"whose names do not fit label_pattern {pattern.pattern}": unfit,
        "that lie outside of the sides": outside,
    }
    layout = _layout(place, images, top, why)
    return replace(layout, notes=(*notes, *layout.notes))


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


def _bases(place: Place, depth: int) -> tuple[dict[str, str], str, list[str]]:
    """Folder of each side, with a `/` at its end -> side; the folder around all; and a note.

    Sides hold images `depth` folders below; without them all is of one folder.
    """
    names = [each.name for each in place.members if each.is_image]
    top = around(name for name in names if name.count("/") >= depth)
    inside = [name[len(top) :].split("/") for name in names if name.startswith(top)]
    heads = {path[0] for path in inside if len(path) > 1}
    named = {head: SIDES[head.lower()] for head in heads if head.lower() in SIDES}
    held = {path[0] for path in inside if (len(path) > 2 if depth else len(path) == 2)} & named.keys()
    order = sorted(held, key=lambda head: [*SIDES.values()].index(named[head]))
    bases = {f"{top}{head}/": named[head] for head in order}
    if "train" not in bases.values() or len({*named.values()}) < 2:
        return {top: "any"}, top, []
    if not depth and any(len(path) == 1 for path in inside):
        told = f"Folders {', '.join(bases)} are not taken as splits: images are next to them."
        return {top: "any"}, top, [told]
    return bases if len({*bases.values()}) > 1 else dict.fromkeys(bases, "any"), top, []


def _labelled(
    place: Place, bases: dict[str, str], label: Callable[[str], str | None]
) -> tuple[list[Labelled], list[str]]:
    """The images of a class, in order, and the names of those that are of none."""
    images, others = [], []
    for member in place.members:
        if member.is_image:
            base = next((base for base in bases if member.name.startswith(base)), None)
            inner = member.name[len(base or "") :]
            if base is not None and (name := label(inner)):
                images.append(Labelled(bases[base], name, member, inner.rpartition("/")[0]))
            else:
                others.append(member.name)
    sides, keys = [*bases.values()], {each.label: natural(each.label) for each in images}
    return sorted(images, key=lambda each: (sides.index(each.side), keys[each.label])), others


def _layout(place: Place, images: list[Labelled], top: str, why: dict[str, list[str]]) -> Layout:
    layout = Layout(tuple(images), top, left_out(place, why))
    there = {(each.side, each.label) for each in images}
    for side in {each.side: None for each in images}:
        if missing := [name for name in layout.classes if (side, name) not in there]:
            step = f"Missing there: {first(missing)}. Add images of these, or leave the classes out."
            n = len(layout.classes) - len(missing)
            raise refusal("hold the same classes on all its sides", f"{n} in {side}/", step)
    alike: dict[str, list[str]] = {}
    for name in layout.classes:
        key = re.sub(r"(?<!\d)0+(?=\d)|[\s_-]+", "", name.casefold())
        alike.setdefault(key, []).append(name)
    twins = [" and ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    note = f"Classes with nearly equal names count as different ones: {first(twins)}."
    return replace(layout, notes=(*layout.notes, *[note] * bool(twins)))


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
        FileNotFoundError, NotADirectoryError: There is no such folder.
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
            the whole number before the suffix, `(\d+)$`. Labels are texts: 1 and 01 are two classes, which a
            note says; `0*(\d+)$` makes them one.
        options: As in `class_folder`.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such folder.
        ValueError: The pattern is wrong or fits no name, or there are too few images to split.
    """
    place = open_place(root)
    layout = by_name(place, label_pattern)
    if 3 * (n_classes := len(layout.classes)) > (n_images := len(layout.images)):
        step = f"Some of them: {first([*layout.classes])}. Write one whose first group is the label."
        rule = "find three images or more of each label"
        value = f"{n_classes:,} labels in {n_images:,} images"
        raise ValueError(checks.message("label_pattern", rule, value, step))
    return _load("flat_folder", place, layout, {"label_pattern": label_pattern}, **options)


def _load(name: str, place: Place, layout: Layout, wanted: dict[str, Any], **options: Any) -> ImageSplits:
    form = form_of(options)
    number = {label: number for number, label in enumerate(layout.classes)}
    files = [(each.side, number[each.label], each.file.name) for each in layout.images]
    make = partial(stack_files, place.read, files, layout.classes, **form)
    stack = stacked([each.file for each in layout.images], {"dataset": name, **form, **wanted}, make)
    stack = replace(stack, notes=(*layout.notes, *stack.notes))
    return split_stack(name, stack, top=layout.top, **options)


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
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        rule = "be absent or an empty folder"
        raise FileExistsError(checks.message("folder", rule, str(folder), "Choose another name."))
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

"""Your own images in files: the class and the side of each, by the folder it lies in or by its name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import fetch, places
from qnnkit.data.cache import stacked
from qnnkit.data.images import split_stack, stack_files
from qnnkit.data.places import LINKS, Level, Member, Place, first, natural, open_place, refusal
from qnnkit.data.splits import ImageSplits

SIDES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of folders that divide a dataset, in small or capital letters -> the split they mean."""
LAST_NUMBER = r"(\d+)$"
"""The label in a file's name where no other pattern is given: the whole number before the suffix."""

Classes = dict[str, list[Member]]
"""Class -> its images, both in natural order."""


@dataclass(frozen=True)
class Layout:
    """The labelled images of a place."""

    sides: dict[str, Classes]
    """By side: "any" where the place has no sides."""
    top: str
    """The folder around everything that archives often have, with a `/` at its end; or ""."""
    bases: tuple[str, ...] = ("",)
    """The folder of each split, with a `/` at its end; or `top`."""
    notes: tuple[str, ...] = ()
    """Sentences on what was left out."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, as people count."""
        return tuple(sorted({name for each in self.sides.values() for name in each}, key=natural))

    @property
    def files(self) -> list[tuple[str, int, Member]]:
        """Side, label and file of each image."""
        number = {name: label for label, name in enumerate(self.classes)}
        found = []
        for side, classes in self.sides.items():
            for name in sorted(classes, key=natural):
                found += [(side, number[name], member) for member in classes[name]]
        return found

    def inside(self, depth: int) -> list[str]:
        """The folders of images that are deeper than so many folders in those of the splits."""
        names = [(member.name, base) for _, _, member in self.files for base in self.bases]
        deep = [
            name for name, base in names if name.startswith(base) and name[len(base) :].count("/") > depth
        ]
        return sorted({name.rpartition("/")[0] for name in deep}, key=natural)


def by_folder(place: Place) -> Layout:
    """One folder per class, `<class>/*.png`, or `train/<class>/*.png` and `test/<class>/*.png`.

    Images of a class may be in folders inside it, which a note names. Notes list other images and files.

    Raises:
        ValueError: There are fewer than two classes, an empty one, or one that a side lacks.
    """
    top = outermost(place, lambda _, inner: inner.folders and not inner.images)
    bases = _bases(place, top, lambda level: level.folders)
    sides, others = _labelled(place, bases, lambda rest: rest.partition("/")[0] if "/" in rest else None)
    for base, side in bases.items():
        for name in place.level(base.rstrip("/")).folders:
            sides[side].setdefault(name, [])
    for side, classes in sides.items():
        if len(classes) < 2 or not all(classes.values()):
            counts = sorted((f"{len(images):,} in {name!r}" for name, images in classes.items()), key=natural)
            rule = (
                f"hold {'images in every class folder' if len(classes) > 1 else 'two or more class folders'}"
            )
            under = "<class>/" if side == "any" else f"{side}/<class>/"
            step = f"Images found: {first(counts) or 'no folder'}. Put them in {under} there."
            raise refusal(rule, str(place.path), " ".join([step, *left_out(place, {})]))
    layout = _layout(place, sides, top, bases, {"that lie in no class folder": others})
    inner = layout.inside(1)
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

    top = outermost(place, lambda outer, _: not outer.images)
    bases, notes = _bases(place, top, lambda level: level.images), []
    if len(bases) > 1 and place.level(top.rstrip("/")).images:
        notes = [f"Folders {', '.join(bases)} are not taken as splits: images are next to them."]
        bases = {top: "any"}
    sides, others = _labelled(place, bases, label)
    if not any(sides.values()):
        if not others:
            hints = ["Put them there, or in its folders train/ and test/.", *left_out(place, {})]
            raise refusal("hold images", str(place.path), " ".join(hints))
        step = f"No name fits, such as {others[0]!r}: write one whose first group is the label."
        raise ValueError(checks.message("label_pattern", "fit the names of the files", pattern.pattern, step))
    outside = [name for name in others if not name.startswith(tuple(bases))]
    inside = [name for name in others if name.startswith(tuple(bases))]
    why = f"whose names do not fit label_pattern {pattern.pattern}"
    layout = _layout(place, sides, top, bases, {why: inside, "that lie outside of the sides": outside})
    return replace(layout, notes=(*notes, *layout.notes))


def of(place: Place, label_pattern: str | None = None) -> Layout:
    """The classes of a place: by name with a pattern; without, by folder or else by name."""
    if label_pattern is not None:
        return by_name(place, label_pattern)
    try:
        layout = by_folder(place)
    except ValueError as refused:
        with contextlib.suppress(ValueError):
            layout = by_name(place, None)
            if not layout.inside(0):  # else classes in folders that are wrong
                return layout
        raise refused from None
    if {name.lower() for name in layout.classes} <= set(SIDES):  # rather sides than classes
        with contextlib.suppress(ValueError):
            return by_name(place, None)
    return layout


def left_out(
    place: Place, why: dict[str, list[str]], read: tuple[str, ...] = ("sample.json",)
) -> tuple[str, ...]:
    """Sentences on images that are not used, and on files that are neither images nor `read`."""
    others = [each.name for each in place.members if not each.is_image and each.base.lower() not in read]
    groups = {f"of {sum(each.is_image for each in place.members):,} images {x}": why[x] for x in why}
    return tuple(places.left_out(groups | {"files that are no images": others, LINKS: place.left_out}))


def _labelled(
    place: Place, bases: dict[str, str], label: Callable[[str], str | None]
) -> tuple[dict[str, Classes], list[str]]:
    """Side -> class -> its images, and the names of images that are of none."""
    sides: dict[str, Classes] = {side: {} for side in bases.values()}
    left_out = []
    for member in place.members:
        if member.is_image:
            base = next((base for base in bases if member.name.startswith(base)), None)
            name = None if base is None else label(member.name[len(base) :])
            if base is not None and name:
                sides[bases[base]].setdefault(name, []).append(member)
            else:
                left_out.append(member.name)
    return sides, left_out


def _layout(
    place: Place, sides: dict[str, Classes], top: str, bases: dict[str, str], why: dict[str, list[str]]
) -> Layout:
    layout = Layout(sides, top, tuple(bases), left_out(place, why))
    for side, classes in sides.items():
        if missing := [name for name in layout.classes if name not in classes]:
            step = f"Missing there: {first(missing)}. Add images of these, or leave the classes out."
            raise refusal("hold the same classes on all its sides", f"{len(classes)} in {side}/", step)
    alike: dict[str, list[str]] = {}
    for name in layout.classes:
        key = re.sub(r"(?<!\d)0+(?=\d)|[\s_-]+", "", name.casefold())
        alike.setdefault(key, []).append(name)
    twins = [" and ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    note = f"Classes with nearly equal names count as different ones: {first(twins)}."
    return replace(layout, notes=(*layout.notes, *[note] * bool(twins)))


def outermost(place: Place, goes_on: Callable[[Level, Level], object]) -> str:
    """The innermost folder around everything: while one holds a single folder, and `goes_on`."""
    top, level = "", place.level("")
    while len(level.folders) == 1:
        inner = place.level(top + level.folders[0])
        if not goes_on(level, inner):
            break
        top, level = f"{top}{level.folders[0]}/", inner
    return top


def _bases(place: Place, top: str, holds: Callable[[Level], object]) -> dict[str, str]:
    """Folder of each side, with a `/` at its end -> side; all of `top` where there are no sides."""
    named = {f"{top}{name}/": SIDES.get(name.lower()) for name in place.level(top.rstrip("/")).folders}
    bases = {base: side for base, side in named.items() if side and holds(place.level(base.rstrip("/")))}
    if "train" not in bases.values() or len({*named.values()} - {None}) < 2:
        return {top: "any"}
    ordered = sorted(bases, key=lambda base: list(SIDES.values()).index(bases[base]))
    return {base: bases[base] if len({*bases.values()}) > 1 else "any" for base in ordered}


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
    return _load("class_folder", root, by_folder, {}, **options)


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
    find = partial(by_name, label_pattern=label_pattern)
    return _load("flat_folder", root, find, {"label_pattern": label_pattern}, **options)


def _load(
    name: str,
    root: str | Path | None,
    find: Callable[[Place], Layout],
    wanted: dict[str, Any],
    *,
    image_size: int | None = None,
    grey: bool | None = None,
    **options: Any,
) -> ImageSplits:
    form: dict[str, Any] = {"image_size": image_size, "grey": grey}
    place = open_place(fetch.local(root))
    layout = find(place)
    n_classes, n_images = len(layout.classes), len(layout.files)
    if "label_pattern" in wanted and 3 * n_classes > n_images:
        step = f"Some of them: {first([*layout.classes])}. Write one whose first group is the label."
        rule = "find three images or more of each label"
        value = f"{n_classes:,} labels in {n_images:,} images"
        raise ValueError(checks.message("label_pattern", rule, value, step))
    files = [(side, label, member.name) for side, label, member in layout.files]
    make = partial(stack_files, place.read, files, layout.classes, **form)
    stack = stacked([each for _, _, each in layout.files], {"dataset": name, **form, **wanted}, make)
    stack = replace(stack, notes=(*layout.notes, *stack.notes))
    return split_stack(name, stack, top=layout.top, **options)

"""Which class and which side each image belongs to, by the folder it lies in or by its name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from qnnkit import checks
from qnnkit.data.places import Member, Place, first, natural

SIDES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""What folders that part a dataset may be called, in small or capital letters, and the splits they mean."""
LAST_TWO_DIGITS = r"(\d{2})$"
"""The label in a file's name where no other pattern is given: at its end, before the suffix."""
OURS = ("sample.json",)
"""What the kit itself writes beside images."""

Inside = dict[str, list[Member]]
"""Folder -> all images in it, however deep; under "" those that lie in none."""
Classes = dict[str, list[Member]]
"""Class -> its images, both in natural order."""


@dataclass(frozen=True)
class Layout:
    """The labelled images of a place."""

    sides: dict[str, Classes]
    """By side: "any" where the place has no sides."""
    top: str
    """The folder around everything that archives often have, with a `/` at its end; or ""."""
    notes: tuple[str, ...]
    """Sentences on what was left out."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, as people count."""
        return tuple(sorted({name for each in self.sides.values() for name in each}, key=natural))

    @property
    def files(self) -> list[tuple[str, int, Member]]:
        """Side, label and file of each image."""
        number = {name: label for label, name in enumerate(self.classes)}
        return [
            (side, number[name], member)
            for side, classes in self.sides.items()
            for name, members in classes.items()
            for member in members
        ]


def by_folder(place: Place) -> Layout:
    """One folder per class, `<class>/*.png`, or `train/<class>/*.png` and `test/<class>/*.png`.

    Images of a class may lie in folders of its own. Other images and files are told in the notes.

    Raises:
        ValueError: There are fewer than two classes, an empty one, or one that a side lacks.
    """
    top = _top(place, lambda _, below: not below[""] and len(below) > 1)
    found = _sides(place, top, lambda inner: len(inner) > 1) or {"any": [_inside(place, top)]}
    sides: dict[str, Classes] = {}
    for side, folders in found.items():
        sides[side] = {}
        for name, images in ((name, images) for inner in folders for name, images in inner.items() if name):
            sides[side].setdefault(name, []).extend(images)
        classes = sides[side]
        if len(classes) < 2 or not all(classes.values()):
            counts = sorted((f"{len(images):,} in {name!r}" for name, images in classes.items()), key=natural)
            rule = (
                "hold images in every class folder" if len(classes) > 1 else "hold two or more class folders"
            )
            under = "<class>/" if side == "any" else f"{side}/<class>/"
            step = f"Images found: {first(counts) or 'no folder'}. Put them in {under} there."
            step = f"{step} {other_files(place)}".rstrip()
            raise ValueError(checks.message("root", rule, str(place.path), step))
    return _layout(place, sides, top, [], "that lie in no class folder")


def by_name(place: Place, label_pattern: str | None) -> Layout:
    """Images whose names carry the label, in one folder and those in it.

    Folders train/ and test/ (and validation/ or val/) that hold all images are the sides.

    Raises:
        ValueError: The pattern is wrong or fits no name, or a class is missing on a side.
    """
    pattern = _compiled(label_pattern or LAST_TWO_DIGITS)
    top = _top(place, lambda inner, _: not inner[""])
    around = _inside(place, top)
    found = _sides(place, top, lambda inner: any(inner.values())) if not around[""] else {}
    sides: dict[str, Classes] = {}
    malformed: list[str] = []
    for side, folders in (found or {"any": [around]}).items():
        labelled: Classes = {}
        for image in (image for inner in folders for images in inner.values() for image in images):
            match = pattern.search(image.base.rpartition(".")[0]) or pattern.search(image.base)
            if match and match[1]:
                labelled.setdefault(match[1], []).append(image)
            else:
                malformed.append(image.name)
        sides[side] = labelled
    if not any(sides.values()):
        if not malformed:
            step = f"Put them there, or in its folders train/ and test/. {other_files(place)}".rstrip()
            raise ValueError(checks.message("root", "hold images", str(place.path), step))
        step = f"No name fits, such as {malformed[0]!r}: write one whose first group is the label."
        raise ValueError(checks.message("label_pattern", "fit the names of the files", pattern.pattern, step))
    return _layout(place, sides, top, malformed, "that lie outside of train/ and test/", pattern.pattern)


def of(place: Place, label_pattern: str | None = None) -> Layout:
    """The classes of a place: by name with a pattern; without, by folder or else by name."""
    if label_pattern is not None:
        return by_name(place, label_pattern)
    try:
        layout = by_folder(place)
    except ValueError as told:
        try:
            return by_name(place, None)
        except ValueError:
            raise told from None
    if {name.lower() for name in layout.classes} <= set(SIDES):  # rather sides than classes
        with contextlib.suppress(ValueError):
            return by_name(place, None)
    return layout


def left_out(images: Iterable[str], total: int, why: str) -> list[str]:
    """A sentence on images that are not used, if there are any."""
    names = list(images)
    return [f"Left out {len(names):,} of {total:,} images {why}: {first(names)}."] if names else []


def other_files(place: Place, read: Collection[str] = ()) -> str:
    """A sentence on files that are neither images nor `read`; hidden ones are the system's."""
    names = [each.name for each in place.members if not each.is_image]
    names = [name for name in names if name not in (*read, *OURS)]
    return f"Left out {len(names):,} other file{'s' * (len(names) > 1)}: {first(names)}." if names else ""


def _layout(
    place: Place, sides: dict[str, Classes], top: str, malformed: list[str], why: str, pattern: str = ""
) -> Layout:
    """The layout, with notes on all that is not in it."""
    sides = {
        side: {
            name: sorted(classes[name], key=lambda each: natural(each.name))
            for name in sorted(classes, key=natural)
        }
        for side, classes in sides.items()
    }
    layout = Layout(sides, top, ())
    for side, classes in sides.items():
        if missing := [name for name in layout.classes if name not in classes]:
            step = f"Missing there: {first(missing)}. Add images of these, or leave the classes out."
            rule = "hold the same classes on all its sides"
            raise ValueError(checks.message("root", rule, f"{len(classes)} in {side}/", step))
    images = [member.name for member in place.members if member.is_image]
    used = {member.name for _, _, member in layout.files} | set(malformed)
    notes = left_out(malformed, len(images), f"whose names do not fit label_pattern {pattern}")
    notes += left_out((name for name in images if name not in used), len(images), why)
    return Layout(sides, top, (*notes, *filter(None, [other_files(place)])))


def _inside(place: Place, top: str) -> Inside:
    """What lies below `top`, by the folders directly there."""
    found: Inside = {"": []}
    for folder in place.levels:
        if folder.startswith(top) and folder != top.rstrip("/"):
            found.setdefault(folder[len(top) :].partition("/")[0], [])
    for member in place.members:
        if member.is_image and member.name.startswith(top):
            head, slash, _ = member.name[len(top) :].partition("/")
            found.setdefault(head if slash else "", []).append(member)
    return found


def _top(place: Place, goes_on: Callable[[Inside, Inside], bool]) -> str:
    """The innermost folder around everything: while one holds a single folder, and `goes_on`."""
    top, inner = "", _inside(place, "")
    while len(inner) == 2:
        below = _inside(place, f"{top}{max(inner)}/")
        if not goes_on(inner, below):
            break
        top, inner = f"{top}{max(inner)}/", below
    return top


def _sides(place: Place, top: str, holds: Callable[[Inside], bool]) -> dict[str, list[Inside]]:
    """Side -> what is in its folders; nothing where the folders are no sides."""
    found: dict[str, list[Inside]] = {side: [] for side in ("train", "validation", "test")}
    inner = _inside(place, top)
    named = [name for name in inner if name.lower() in SIDES]
    for name in named:
        below = _inside(place, f"{top}{name}/")
        if holds(below):
            found[SIDES[name.lower()]].append(below)
    if not found["train"] or len({SIDES[name.lower()] for name in named}) < 2:
        return {}
    sides = {side: folders for side, folders in found.items() if folders}
    return sides if len(sides) > 1 else {"any": found["train"]}


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        step = f"Python says: {error}."
        raise ValueError(checks.message("label_pattern", "be a regular expression", pattern, step)) from None
    if not compiled.groups:
        step = r"Put the label in parentheses, as in label_(\d+)."
        raise ValueError(checks.message("label_pattern", "have a group", pattern, step))
    return compiled

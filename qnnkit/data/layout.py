"""Which class and which side each image belongs to, by the folder it lies in or by its name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from qnnkit import checks
from qnnkit.data.places import Level, Member, Place, first, natural

SIDES = {"train": "train", "test": "test", "validation": "validation", "val": "validation"}
"""What folders may be called that part a dataset into sides, and the splits they mean."""
LAST_TWO_DIGITS = r"(\d{2})$"
"""The label in a file's name where no other pattern is given: at its end, before the suffix."""

Layout = dict[str, dict[str, list[Member]]]
"""Side ("any" without sides) -> class -> its images, in natural order."""


def by_folder(place: Place) -> Layout:
    """One folder per class, `<class>/*.png`, or `train/<class>/*.png` and `test/<class>/*.png`.

    A single folder around everything, as archives often have it, is passed over.

    Raises:
        ValueError: There are fewer than two classes, an empty one, or one that is missing in train.
    """
    top, level = "", place.level("")
    while len(level.folders) == 1 and not level.images:
        inner = top + level.folders[0]
        if place.level(inner).images or not place.level(inner).folders:
            break
        top, level = f"{inner}/", place.level(inner)
    sides = _sides(place, top, lambda inner: inner.folders and not inner.images)
    layout = {
        side: {
            name: place.level(f"{folder}{name}").images for name in place.level(folder.rstrip("/")).folders
        }
        for side, folder in sides.items()
    }
    for side, classes in layout.items():
        if len(classes) < 2 or not all(classes.values()):
            found = sorted((f"{len(images):,} in {name!r}" for name, images in classes.items()), key=natural)
            rule = (
                "hold images in every class folder" if len(classes) > 1 else "hold two or more class folders"
            )
            under = "<class>/" if side == "any" else f"{side}/<class>/"
            step = f"Images found: {first(found) or 'no folder'}. Put them in {under} there."
            raise ValueError(checks.message("root", rule, str(place.path), step))
    _same_classes(layout)
    return layout


def by_name(place: Place, label_pattern: str | None) -> tuple[Layout, list[str]]:
    """One folder of images whose names carry the label; and the images whose names do not.

    Folders train/ and test/ (and validation/ or val/) that hold the images are the sides. A single folder
    around everything is passed over.

    Raises:
        ValueError: The pattern is wrong or fits no name, or a class is missing in train.
    """
    pattern = _compiled(label_pattern or LAST_TWO_DIGITS)
    top, level = "", place.level("")
    while len(level.folders) == 1 and not level.images:
        top = f"{top}{level.folders[0]}/"
        level = place.level(top.rstrip("/"))
    sides = {"any": top} if level.images else _sides(place, top, lambda inner: inner.images)
    layout: Layout = {}
    malformed: list[str] = []
    for side, folder in sides.items():
        found: dict[str, list[Member]] = {}
        for image in place.level(folder.rstrip("/")).images:
            label = _label(pattern, image.base)
            if label:
                found.setdefault(label, []).append(image)
            else:
                malformed.append(image.name)
        layout[side] = {label: found[label] for label in sorted(found, key=natural)}
    if not any(layout.values()):
        if not malformed:
            step = "Put them there, or in its folders train/ and test/."
            raise ValueError(checks.message("root", "hold images", str(place.path), step))
        step = f"No name fits, such as {malformed[0]!r}: write one whose first group is the label."
        raise ValueError(checks.message("label_pattern", "fit the names of the files", pattern.pattern, step))
    _same_classes(layout)
    return layout, malformed


def of(place: Place, label_pattern: str | None = None) -> tuple[Layout, list[str]]:
    """The classes of a place: by name with a pattern; without, by folder or else by name.

    And the images that are left out, because their names do not fit.
    """
    if label_pattern is not None:
        return by_name(place, label_pattern)
    try:
        layout = by_folder(place)
    except ValueError as told:
        try:
            return by_name(place, None)
        except ValueError:
            raise told from None
    if set(classes_of(layout)) <= set(SIDES):  # images right in train/ and test/: rather sides than classes
        with contextlib.suppress(ValueError):
            return by_name(place, None)
    return layout, []


def classes_of(layout: Mapping[str, Mapping[str, object]]) -> tuple[str, ...]:
    """The names of the classes, as people count."""
    return tuple(sorted({name for classes in layout.values() for name in classes}, key=natural))


def _sides(place: Place, top: str, holds_images) -> dict[str, str]:
    """Side -> its folder, with a `/` at its end; "any" -> `top` where there are no sides."""
    names = place.level(top.rstrip("/")).folders
    levels: list[Level] = [place.level(top + name) for name in names]
    is_sided = {"train", "test"} <= set(names) <= set(SIDES) and {"validation", "val"} - set(names)
    if is_sided and all(map(holds_images, levels)):
        return {SIDES[name]: f"{top}{name}/" for name in sorted(names, key=list(SIDES).index)}
    return {"any": top}


def _same_classes(layout: Layout) -> None:
    """Refuses sides of which one has classes that another has not."""
    every = set(classes_of(layout))
    for side, classes in layout.items():
        if missing := sorted(every - set(classes), key=natural):
            step = f"Missing there: {first(missing)}. Add images of these, or leave the classes out."
            rule = "hold the same classes on all its sides"
            raise ValueError(checks.message("root", rule, f"{len(classes)} in {side}/", step))


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


def _label(pattern: re.Pattern[str], base: str) -> str | None:
    """The label in a file's name: without its suffix if the pattern fits there, else with it."""
    found = pattern.search(base.rpartition(".")[0]) or pattern.search(base)
    return found[1] if found else None

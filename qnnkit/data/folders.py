"""Your own images in files: one folder per class, or one folder whose file names carry the label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import fetch
from qnnkit.data.assemble import Stack, as_size, split_stack, stack_pictures
from qnnkit.data.cache import stacked
from qnnkit.data.images import Picture, read
from qnnkit.data.layout import LAST_TWO_DIGITS, Layout, by_folder, by_name, classes_of
from qnnkit.data.places import MAX_BYTES, Member, Place, first, open_place
from qnnkit.data.splits import ImageSplits


def class_folder(
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    grey: bool | None = None,
    cached: bool = True,
    **options: Any,
) -> ImageSplits:
    """Your own images, one folder per class: `root/<class>/*.png` (or jpg, bmp, gif, webp, tif).

    Where the root holds train/ and test/ instead (and perhaps validation/ or val/), with the class folders in
    them, these are the splits. Classes and files are sorted as people count (2 before 10), so a split is the
    same on every machine. Orientation from EXIF is applied, 16-bit grey scaled to 8 bits, transparency laid
    on white (as a page shows it), and of an animation the first frame taken. Files that cannot be read are
    left out and named. In a workspace, what comes of all this is kept as one file (`datasets/`) and read from
    there.

    Args:
        root: The folder that holds the class folders; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        image_size: Side in pixels; None takes the most common size. The aspect ratio is not kept.
        grey: One channel (True) or three (False); None takes one if every image is grey.
        cached: Whether a file kept from before may stand for the images.
        options: `split_seed` (leave it alone within a study), `validation_fraction` and `test_fraction` (0.2
            of all images each). With a test/ side, test_fraction is unused, and validation_fraction that of
            train/.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such folder.
        ValueError: There are no classes, one class, an empty class, or too few images to split.
    """
    if not root:
        rule = "name a folder with one folder of images per class"
        raise ValueError(checks.message("root", rule, root, "Pass the path of a folder of images."))
    with open_place(fetch.local(root)) as place:
        layout = by_folder(place)
        wanted = {"dataset": "class_folder", "image_size": image_size, "grey": grey}
        files = _files(layout)
        stack = stacked(files, wanted, lambda: _gather(place, layout, [], image_size, grey), cached)
    return split_stack("class_folder", stack, **options)


def flat_folder(
    root: str | Path | None = None,
    *,
    label_pattern: str | None = None,
    image_size: int | None = None,
    grey: bool | None = None,
    cached: bool = True,
    **options: Any,
) -> ImageSplits:
    r"""Your own images in one folder, with the label in each file's name: `root/0001_07.png` is of class 07.

    Where the root holds train/ and test/ instead (and perhaps validation/ or val/), with the images in them,
    these are the splits. Images whose names carry no label are left out, counted and named.

    Args:
        root: The folder of images; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        label_pattern: Regular expression whose first group is the label, such as `label_(\d+)`; None takes
            the last two digits before the suffix. Labels are texts: 1 and 01 are two classes.
        image_size: As in `class_folder`.
        grey: As in `class_folder`.
        cached: As in `class_folder`.
        options: As in `class_folder`.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such folder.
        ValueError: The pattern is wrong or fits no name, or there are too few images to split.
    """
    if not root:
        rule = "name a folder of images with the label in their names"
        raise ValueError(checks.message("root", rule, root, "Pass the path of a folder of images."))
    with open_place(fetch.local(root)) as place:
        layout, malformed = by_name(place, label_pattern)
        if len(classes_of(layout)) < 2:
            step = f"All are of class {classes_of(layout)[0]!r}: check label_pattern."
            raise ValueError(checks.message("root", "hold two or more classes", str(place.path), step))
        notes = []
        if malformed:
            fitting = sum(len(found) for classes in layout.values() for found in classes.values())
            of_all = f"{len(malformed):,} of {fitting + len(malformed):,} images"
            pattern = label_pattern or LAST_TWO_DIGITS
            notes = [f"Left out {of_all} whose names do not fit label_pattern {pattern}: {first(malformed)}."]
        wanted = {
            "dataset": "flat_folder",
            "image_size": image_size,
            "grey": grey,
            "notes": notes,
            "label_pattern": label_pattern,
        }
        files = _files(layout)
        stack = stacked(files, wanted, lambda: _gather(place, layout, notes, image_size, grey), cached)
    return split_stack("flat_folder", stack, **options)


def _files(layout: Layout) -> list[Member]:
    return [member for found in layout.values() for members in found.values() for member in members]


def _gather(
    place: Place, layout: Layout, notes: list[str], image_size: int | None, grey: bool | None
) -> Stack:
    """Every image that can be read, and a note on those that cannot."""
    size, classes = as_size(image_size), classes_of(layout)
    pictures: list[Picture] = []
    sides: list[str] = []
    failed: list[str] = []
    n_bytes = 0
    for side, label, member in (
        (side, classes.index(name), member)
        for side, found in layout.items()
        for name, members in found.items()
        for member in members
    ):
        try:
            pictures.append(read(place.read(member.name), label, member.name, size))
        except Exception as error:  # a damaged file makes Pillow raise almost anything
            failed.append(f"{member.name} ({str(error).partition(' <_io')[0][:80]})")  # without the open file
            continue
        sides.append(side)
        n_bytes += pictures[-1].pixels.nbytes
        if n_bytes > MAX_BYTES:
            step = "Pass a smaller one, such as 32."
            raise ValueError(checks.message("image_size", "keep all images under 4 GiB", image_size, step))
    if failed:
        of_all = f"{len(failed):,} of {len(failed) + len(pictures):,} files"
        notes = [*notes, f"Left out {of_all} that cannot be read: {first(failed)}."]
    there = {(side, picture.label) for side, picture in zip(sides, pictures, strict=True)}
    if len(there) < sum(len(found) for found in layout.values()):
        rule = "hold a readable image in every class folder"
        raise ValueError(checks.message("root", rule, str(place.path), notes[-1]))
    return stack_pictures(pictures, sides, classes, notes, image_size=image_size, grey=grey)

"""Your own images in files: one folder per class, or one folder whose file names carry the label."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import fetch
from qnnkit.data.assemble import split_stack, stack_files
from qnnkit.data.cache import stacked
from qnnkit.data.layout import by_folder, by_name
from qnnkit.data.places import open_place
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

    Images of a class may lie in folders of their own. Where the root holds train/ and test/ or validation/
    instead (or valid/, val/, dev/, training/, testing/), with the class folders in them, these are the
    splits; a test part that is missing is drawn from train/. Classes and files are sorted as people count (2
    before 10), so a split is the same on every machine. Orientation from EXIF is applied, 16-bit grey scaled
    to 8 bits, transparency laid on white (as a page shows it), and of an animation the first frame taken.
    Files that are not used are counted and named in the notes. In a workspace, what comes of all this is
    kept as one file (`datasets/`) and read from there.

    Args:
        root: The folder that holds the class folders; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        image_size: Side in pixels; None takes the most common size. The aspect ratio is not kept.
        grey: One channel (True) or three (False); None takes one if every image is grey.
        cached: Whether a file kept from before may stand for the images.
        options: `split_seed` (leave it alone within a study), `validation_fraction` and `test_fraction` (0.2
            of all images each, about: each image is placed by the hash of its name, so that one more or less
            moves no other). With a test/ side, test_fraction is unused, and validation_fraction that of
            train/.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such folder.
        ValueError: There are no classes, one class, an empty class, or too few images to split.
    """
    return _load("class_folder", root, by_folder, image_size, grey, cached, {}, options)


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

    Images in folders below it are of it too. Sides are those of `class_folder`, with the images in them.
    Images whose names carry no label are left out, counted and named.

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
    find = partial(by_name, label_pattern=label_pattern)
    return _load(
        "flat_folder", root, find, image_size, grey, cached, {"label_pattern": label_pattern}, options
    )


def _load(
    name: str,
    root: str | Path | None,
    find: Any,
    image_size: int | None,
    grey: bool | None,
    cached: bool,
    wanted: dict[str, Any],
    options: dict[str, Any],
) -> ImageSplits:
    if not root:
        step = "Pass the path of a folder of images."
        raise ValueError(checks.message("root", "name a folder of labelled images", root, step))
    with open_place(fetch.local(root)) as place:
        layout = find(place)
        if len(layout.classes) < 2:
            step = f"All are of class {layout.classes[0]!r}: check label_pattern."
            raise ValueError(checks.message("root", "hold two or more classes", str(place.path), step))
        wanted = {"dataset": name, "image_size": image_size, "grey": grey, **wanted}
        files = [member for _, _, member in layout.files]
        stack = stacked(
            files,
            wanted,
            lambda: stack_files(place, layout.files, layout.classes, image_size=image_size, grey=grey),
            cached,
        )
    stack = replace(stack, notes=(*layout.notes, *stack.notes))
    return split_stack(name, stack, top=layout.top, **options)

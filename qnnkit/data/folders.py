"""Your own images, one folder per class."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data.images import Picture, as_size, assemble, read
from qnnkit.data.splits import ImageSplits

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
MAX_BYTES = 4 * 2**30


def class_folder(
    root: str | Path | None = None, *, image_size: int | None = None, **options: Any
) -> ImageSplits:
    """Your own images, one folder per class: `root/<class>/*.png` (or jpg, bmp, gif, webp, tif).

    Classes and files are sorted as people count (2 before 10), so a split is the same on every machine.
    Orientation from EXIF is applied, 16-bit grey scaled to 8 bits, transparency laid on white (as a page
    shows it), and of an animation the first frame taken. Files that cannot be read are left out and named.

    Args:
        root: The folder that holds the class folders.
        image_size: Side in pixels; None takes the most common size. The aspect ratio is not kept.
        options: `grey` (one channel instead of three; by default if every image is grey), `split_seed` (leave
            it alone within a study), `validation_fraction` and `test_fraction` (0.2 of all images each).

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such folder.
        ValueError: There are no classes, one class, an empty class, or too few images to split.
    """
    if not root:
        rule = "name a folder with one folder of images per class"
        raise ValueError(checks.message("root", rule, root, "Pass root='path/to/images'."))
    folder = checks.folder("root", Path(root).expanduser(), "Check the path; on Colab, mount Drive first.")
    size, files = as_size(image_size), _find(folder)
    pictures: list[Picture] = []
    failed: list[str] = []
    n_bytes = 0
    for label, path in ((label, path) for label, paths in enumerate(files.values()) for path in paths):
        source = path.relative_to(folder).as_posix()
        try:
            pictures.append(read(path, label, source, size))
        except Exception as error:  # a damaged file makes Pillow raise almost anything
            failed.append(f"{source} ({str(error).partition(' <_io')[0][:80]})")  # without the open file
            continue
        n_bytes += pictures[-1].pixels.nbytes
        if n_bytes > MAX_BYTES:
            step = "Pass a smaller one, such as 32."
            raise ValueError(checks.message("image_size", "keep all images under 4 GiB", image_size, step))
    notes = []
    if failed:
        of_all = f"{len(failed):,} of {len(failed) + len(pictures):,} files"
        notes = [f"Left out {of_all} that cannot be read: {_first(failed)}."]
    if len({picture.label for picture in pictures}) < len(files):
        rule = "hold a readable image in every class folder"
        raise ValueError(checks.message("root", rule, str(folder), notes[0]))
    return assemble("class_folder", pictures, tuple(files), notes, size=size, **options)


def _find(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class folder, in natural order; all other files are passed over."""
    files = {
        place.name: [path for path in _visible(place) if path.name.lower().endswith(SUFFIXES)]
        for place in _visible(folder)
        if place.is_dir()
    }
    if len(files) < 2 or not all(files.values()):
        found = sorted((f"{len(paths):,} in {name!r}" for name, paths in files.items()), key=_natural)
        rule = "hold images in every class folder" if len(files) > 1 else "hold two or more class folders"
        step = f"Images found: {_first(found) or 'no folder'}. Put them in root/<class>/."
        raise ValueError(checks.message("root", rule, str(folder), step))
    return files


def _visible(folder: Path) -> list[Path]:
    """What lies in a folder, in natural order, without what systems and editors hide there."""
    found = (path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX")))
    return sorted(found, key=lambda path: _natural(path.name))


def _natural(name: str) -> tuple[list[str | int], str]:
    """A sort key by which 2 comes before 10."""
    parts = re.split(r"([0-9]+)", name)  # text at even places, digits at odd ones
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def _first(names: list[str], most: int = 5) -> str:
    """The first few of a list, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")

"""Images of any size and mode, from files or arrays: read, converted to one size and mode, and split."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
from PIL import Image, ImageOps

from qnnkit import __version__, checks
from qnnkit.data import cache
from qnnkit.data.places import MAX_BYTES, Member, first, left_out, refusal
from qnnkit.data.splits import ImageSet, ImageSplits, duplicates, split_rows

# Pillow supports more formats; one of them (EPS) starts Ghostscript, whatever the file's suffix.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
Size = int | tuple[int, int] | None
"""A side in pixels, or (height, width); None takes the most common size."""


class Picture(NamedTuple):
    """One image, uint8 (height, width) or (height, width, 3), and its original size, mode and frames."""

    pixels: np.ndarray
    size: tuple[int, int]
    mode: str
    n_frames: int = 1


def read(content: bytes, image_size: Size = None) -> Picture:
    """Decodes a file's bytes to 8-bit grey or colour, first frame only, and resizes if a size is given."""
    with warnings.catch_warnings(action="ignore"):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # Given a path, Pillow would map the file into memory, and 13.0 then loses the orientation of a TIFF.
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            mode, n_frames = opened.mode, getattr(opened, "n_frames", 1)
            ImageOps.exif_transpose(opened, in_place=True)
            pixels = eight_bit(opened)  # (height, width[, 3])
    if mode.startswith("I") and pixels.max() <= 64:
        mode += " (dark: at most a quarter of 16 bits)"
    size = (pixels.shape[0], pixels.shape[1])
    wanted = (image_size, image_size) if isinstance(image_size, int) else image_size
    return Picture(fit(pixels, wanted or size, "L" if pixels.ndim == 2 else "RGB"), size, mode, n_frames)


def eight_bit(image: Any) -> Any:
    """Returns 8-bit pixels, (height, width) for grey, else (height, width, 3), with transparency on white.

    Anything but a Pillow image is returned unchanged.
    """
    if not isinstance(image, Image.Image):
        return image
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):
        tags = getattr(image, "tag_v2", {})  # of a TIFF: bits of a pixel, and whether 0 is white
        highest = 2 ** tags.get(258, (16,))[0] - 1
        pixels = np.rint(np.asarray(image) * (255 / highest)).astype(np.uint8)  # Pillow's clips at 255
        return 255 - pixels if tags.get(262) == 0 else pixels
    if image.mode in ("I", "F"):
        raise ValueError("signed, 32-bit and float pixels have no fixed range")
    mode = image.mode
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    wanted = "L" if mode in ("1", "L", "LA") else "RGB"
    pixels = np.asarray(image if image.mode == wanted else image.convert(wanted))
    only_greys = mode == "P" and (pixels == pixels[..., :1]).all()  # a palette has no grey mode
    return pixels[..., 0] if only_greys else pixels


def fit(pixels: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    """Returns pixels in the given mode and size (height, width), antialiased when shrunk."""
    if pixels.shape[:2] == size and (pixels.ndim == 2) == (mode == "L"):
        return pixels
    image = Image.fromarray(pixels).convert(mode)
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))


FORMAT = 5
"""Version of the cached files. Raise it when the same key would stand for different values."""
File = tuple[str, int, Member]
"""Split ("any" if not fixed), label and file of an image."""


class Stack(NamedTuple):
    """Images of one size and mode, not split yet."""

    images: ImageSet
    sides: Sequence[str] | None
    """Split of each image; "any", or None for all, if the dataset does not fix it."""
    notes: Sequence[str]


def stack_files(
    content: Callable[[str], bytes], files: Sequence[File], image_size: Size = None, grey: bool | None = None
) -> Stack:
    """Returns all readable images in one size and mode, with a note on the others.

    The result is cached in `datasets/` of the workspace until a file changes.

    Args:
        content: Returns the bytes of the file of a given name.
        files: The images.
        image_size: As in `class_folder`; or (height, width).
        grey: As in `class_folder`.

    Raises:
        ValueError: A class has no readable image, or the images take more than 4 GiB.
    """
    names = [file.name for _, _, file in files]
    checks.positive("image_size", 1 if image_size is None else min(np.atleast_1d(image_size).tolist()))

    def make() -> dict[str, torch.Tensor]:
        pictures: dict[int, Picture] = {}
        failed, n_bytes = [], 0
        for row, name in enumerate(names):
            try:
                pictures[row] = read(content(name), image_size)
                n_bytes += pictures[row].pixels.nbytes
            except Exception as error:  # a damaged file makes Pillow raise almost anything
                if isinstance(error, MemoryError) or getattr(error, "errno", None):
                    raise  # a fault of the disk or machine, which may pass, must not be cached
                failed.append(f"{name} ({str(error).partition(' <_io')[0][:80]})")  # without the open file
            if n_bytes > MAX_BYTES:
                rule, step = "keep all images under 4 GiB", "Pass a smaller one, such as 32."
                raise ValueError(checks.message("image_size", rule, image_size, step))
        notes = left_out({f"of {len(files):,} images that cannot be read": failed})
        if not pictures or {file[:2] for file in files} - {files[row][:2] for row in pictures}:
            step = " ".join(["Add some.", *notes])
            raise refusal("hold readable images of every class", f"{len(files):,} files", step)
        images, changed = one_form([*pictures.values()], [names[row] for row in pictures], image_size, grey)
        written = np.frombuffer(json.dumps([*notes, *changed]).encode(), np.uint8)
        return {"images": images, "rows": torch.tensor([*pictures]), "notes": torch.tensor(written)}

    about = (FORMAT, __version__, PIL.__version__, image_size, grey, [file for _, _, file in files])
    tensors = cache.kept("datasets", hashlib.sha256(repr(about).encode(errors="replace")).hexdigest(), make)
    sides, labels, members = zip(*(files[row] for row in tensors["rows"].tolist()), strict=True)
    images = ImageSet(tensors["images"], torch.tensor(labels), tuple(member.name for member in members))
    return Stack(images, sides, json.loads(bytes(tensors["notes"].tolist())))


def one_form(
    pictures: Sequence[Picture], names: Sequence[str], image_size: Size, grey: bool | None
) -> tuple[torch.Tensor, list[str]]:
    """Converts pictures to uint8 (n, channels, height, width); also returns notes on what changed."""
    checks.positive("image_size", 1 if image_size is None else min(np.atleast_1d(image_size).tolist()))
    notes, total, counts = [], len(pictures), Counter(picture.size for picture in pictures)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    size = size or max(counts, key=lambda each: (counts[each], each))
    grey = all(picture.pixels.ndim == 2 for picture in pictures) if grey is None else grey
    mode = "L" if grey else "RGB"
    if films := [name for name, picture in zip(names, pictures, strict=True) if picture.n_frames > 1]:
        notes.append(f"Took only the first frame of {len(films):,} of {total:,} images: {first(films)}.")
    if n := total - counts[size]:
        notes.append(f"Resized {n:,} of {total:,} images to {size[0]}x{size[1]} (height x width).")
    if modes := [picture.mode for picture in pictures if picture.mode != mode]:
        change = f"8-bit {'grey' if grey else 'RGB'}, from mode {', '.join(sorted(set(modes)))}"
        notes.append(f"Converted {len(modes):,} of {total:,} images to {change}.")
    images = np.empty((total, 1 if grey else 3, *size), np.uint8)
    for row, picture in enumerate(pictures):
        images[row] = fit(picture.pixels, size, mode).reshape(*size, -1).transpose(2, 0, 1)
    return torch.from_numpy(images), notes


def split_stack(name: str, stack: Stack, classes: tuple[str, ...], **options: Any) -> ImageSplits:
    """Returns the dataset called `name`; `options` are those of `split`."""
    if len(classes) < 2:
        raise refusal("hold two or more classes", [*classes], "Check the files, or label_pattern.")
    sets, notes = split(stack, classes, **options)
    return ImageSplits(name, *sets, classes=classes, notes=notes)


def split(
    stack: Stack, classes: Sequence[str] = ("",), top: str | None = None, notes: Any = (), **options: Any
) -> tuple[list[ImageSet], tuple[str, ...]]:
    """Returns the images of train, validation and test, and all notes.

    Args:
        stack: The images; splits that it fixes are kept. If it has a test part, `validation_fraction` is a
            share of its training part and `test_fraction` is unused.
        classes: Name of each label.
        top: The folder around everything if the images are files, which are placed by hashes of their names.
        notes: Notes that come first.
        options: `split_seed`, `validation_fraction` and `test_fraction` of `split_rows`.
    """
    images, notes = stack.images, [*notes, *stack.notes]
    names = None if top is None else [source.removeprefix(top) for source in images.sources]
    rows = split_rows(images.labels.numpy(), classes, names=names, sides=stack.sides, **options)
    if {"train", "test"} & {*(stack.sides or ())} == {"train"}:
        notes.append("There is no test part: test_fraction of the training part is used.")
    parts = [images.at(torch.from_numpy(chosen)) for chosen in rows]
    contents = [zip(part.images.numpy(), part.sources, strict=True) for part in parts]
    notes += duplicates(contents, "images", "pixel for pixel")
    return parts, tuple(notes)

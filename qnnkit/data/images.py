"""Images of any size and mode, as files or as arrays: read, brought to one size and mode, and split."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
from PIL import Image, ImageOps

from qnnkit import __version__, checks
from qnnkit.data import cache
from qnnkit.data.places import MAX_BYTES, Member, first, refusal
from qnnkit.data.splits import SIDES, SPLITS, ImageSet, ImageSplits, duplicates, split_rows

# Pillow knows more formats; one of them (EPS) starts Ghostscript, whatever the file is called.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
MOST_PIXELS = 2**27
"""A picture of more is not decoded, even where someone has lifted Pillow's own limit, which is lower."""


class Picture(NamedTuple):
    """One image, uint8 (height, width) or (height, width, 3), and what it was: size, mode, frames."""

    pixels: np.ndarray
    size: tuple[int, int]
    mode: str
    n_frames: int = 1


def read(content: bytes, size: tuple[int, int] | None = None) -> Picture:
    """A file's bytes as 8-bit grey or colour, resized if a size is given; of several frames the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # Given a path, Pillow would map the file into memory, and 13.0 then loses the orientation of a TIFF.
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ValueError(f"{opened.width:,} x {opened.height:,} pixels are too many to decode")
            mode, n_frames = opened.mode, getattr(opened, "n_frames", 1)
            ImageOps.exif_transpose(opened, in_place=True)
            pixels = _eight_bit(opened)  # (height, width[, 3])
    found = (pixels.shape[0], pixels.shape[1])
    pixels = fit(pixels, size or found, "L" if pixels.ndim == 2 else "RGB")
    return Picture(pixels, found, mode, n_frames)


def _eight_bit(image: Image.Image) -> np.ndarray:
    """Pixels, (height, width) where grey and (height, width, 3) where not, transparent ones on white."""
    if image.mode.startswith("I;16"):  # Pillow's own conversion clips at 255 instead of scaling
        return ((np.asarray(image).astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels have no fixed range")
    mode = image.mode
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    wanted = "L" if mode in ("1", "L", "LA") else "RGB"
    pixels = np.asarray(image if image.mode == wanted else image.convert(wanted))
    only_greys = mode == "P" and (pixels == pixels[..., :1]).all()  # a palette does not say
    return pixels[..., 0] if only_greys else pixels


def fit(pixels: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    """Pixels in the given mode and size (height, width), antialiased where they shrink."""
    if pixels.shape[:2] == size and (pixels.ndim == 2) == (mode == "L"):
        return pixels
    image = Image.fromarray(pixels).convert(mode)
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))


@dataclass(frozen=True, eq=False)
class Stack:
    """Images of one size and mode, not split yet."""

    whole: ImageSet
    sides: np.ndarray  # indices into SIDES, uint8, (n,)
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


FORMAT = 3
"""Of what is kept; another number when the same key is to mean other values."""


def stacked(members: Iterable[Member], options: Mapping[str, object], make: Callable[[], Stack]) -> Stack:
    """What `make` gives, read from `datasets/` of the workspace once it has been made; see `cache.kept`.

    The key is over names, sizes and times of the files, and over the options.
    """
    digest = hashlib.sha256(repr((FORMAT, __version__, PIL.__version__, sorted(options.items()))).encode())
    for member in members:
        digest.update(repr((member.name, member.size, member.stamp)).encode())

    def tensors() -> dict[str, torch.Tensor]:
        stack = make()
        texts = json.dumps([stack.whole.sources, stack.classes, stack.notes]).encode()
        images, labels, sides = stack.whole.images, stack.whole.labels, torch.from_numpy(stack.sides)
        texts = torch.frombuffer(bytearray(texts), dtype=torch.uint8)
        return {"images": images, "labels": labels, "sides": sides, "texts": texts}

    values = cache.kept("datasets", digest.hexdigest(), tensors, what="Images")
    sources, classes, notes = map(tuple, json.loads(values["texts"].numpy().tobytes()))
    return Stack(
        ImageSet(values["images"], values["labels"], sources), values["sides"].numpy(), classes, notes
    )


File = tuple[str, int, str]
"""Side, label and source of an image."""
Parts = dict[str, tuple[np.ndarray, np.ndarray]]
"""Side -> images, uint8 (n, height, width) or (n, height, width, 3), and labels, int (n,)."""


def stack_files(
    content: Callable[[str], bytes],
    files: Sequence[File],
    classes: tuple[str, ...],
    *,
    image_size: int | tuple[int, int] | None,
    grey: bool | None,
) -> Stack:
    """Every image that can be read, brought to one size and mode, with a note on those that cannot.

    Args:
        content: Source -> the bytes of that file.
        files: Each image.
        classes: The name of each label.
        image_size: As in `class_folder`; or (height, width).
        grey: As in `class_folder`.

    Raises:
        ValueError: No image can be read, or they do not fit into memory.
    """
    size, n_bytes = _as_size(image_size), 0
    pictures: dict[File, Picture] = {}
    failed: list[str] = []
    for file in files:
        try:
            pictures[file] = read(content(file[2]), size)
        except Exception as error:  # a damaged file makes Pillow raise almost anything
            failed.append(f"{file[2]} ({str(error).partition(' <_io')[0][:80]})")  # without the open file
            continue
        n_bytes += pictures[file].pixels.nbytes
        if n_bytes > MAX_BYTES:
            step = "Pass a smaller one, such as 32."
            raise ValueError(checks.message("image_size", "keep all images under 4 GiB", image_size, step))
    of_all = f"{len(failed):,} of {len(files):,} images"
    notes = [f"Left out {of_all} that cannot be read: {first(failed)}."] if failed else []
    if not pictures:
        raise refusal("hold images that can be read", of_all, " ".join([*notes, "Add some."]))
    stack = _of_one_form(pictures, list(pictures.values()), classes, size, grey)
    return replace(stack, notes=(*notes, *stack.notes))


def stack_arrays(
    parts: Parts,
    classes: tuple[str, ...],
    *,
    image_size: int | tuple[int, int] | None = None,
    grey: bool | None = None,
    prefix: str = "",
) -> Stack:
    """Images that are of one size already, as arrays.

    Args:
        parts: The arrays.
        classes: The name of each label.
        image_size: As in `class_folder`; or (height, width).
        grey: As in `class_folder`.
        prefix: Of the sources, `<prefix><side>/<row>`; without the side where there is only one.

    Raises:
        ValueError: A part has not as many labels as images, or other sizes than the next.
    """
    if uneven := [f"{len(x):,} images, {len(y):,} labels" for x, y in parts.values() if len(x) != len(y)]:
        raise refusal("hold a label for each image", uneven, "Get both from the same place.")
    if len(shapes := {images.shape[1:] for images, _ in parts.values()}) > 1:
        raise refusal("hold images of one size", sorted(shapes), "Resize them first.")
    files, pictures = [], []
    for side, (images, labels) in parts.items():
        before = prefix if len(parts) == 1 else f"{prefix}{side}/"
        files += [(side, label, f"{before}{row}") for row, label in enumerate(labels.tolist())]
        mode, size = "L" if images.ndim == 3 else "RGB", (images.shape[1], images.shape[2])
        pictures += [Picture(pixels, size, mode) for pixels in images]
    return _of_one_form(files, pictures, classes, _as_size(image_size), grey)


def _as_size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """(height, width) from a side in pixels; None stays None."""
    if image_size is None or isinstance(image_size, tuple):
        return image_size
    checks.positive("image_size", image_size, "Use a side such as 32, or None for the most common size.")
    return image_size, image_size


def _of_one_form(
    files: Iterable[File],
    pictures: Sequence[Picture],
    classes: tuple[str, ...],
    size: tuple[int, int] | None,
    grey: bool | None,
) -> Stack:
    """Pictures of any size and mode, brought to one, with a note on how many that changed."""
    notes, total = [], len(pictures)
    sides, labels, sources = zip(*files, strict=True)
    if films := [source for source, picture in zip(sources, pictures, strict=True) if picture.n_frames > 1]:
        notes.append(f"Took the first frame alone of {len(films):,} of {total:,} images: {first(films)}.")
    counts = Counter(picture.size for picture in pictures)
    size = size or max(counts, key=lambda each: (counts[each], each))
    grey = all(picture.pixels.ndim == 2 for picture in pictures) if grey is None else grey
    mode = "L" if grey else "RGB"
    if n := total - counts[size]:
        notes.append(f"Resized {n:,} of {total:,} images to {size[0]}x{size[1]} (height x width).")
    if others := [picture.mode for picture in pictures if picture.mode != mode]:
        change = f"8-bit {'grey' if grey else 'RGB'}, from mode {', '.join(sorted(set(others)))}"
        notes.append(f"Converted {len(others):,} of {total:,} images to {change}.")
    images = np.empty((total, 1 if grey else 3, *size), np.uint8)
    for row, picture in enumerate(pictures):
        images[row] = fit(picture.pixels, size, mode).reshape(*size, -1).transpose(2, 0, 1)
    whole = ImageSet(torch.from_numpy(images), torch.tensor(labels), sources)
    return Stack(whole, np.array([SIDES.index(side) for side in sides], np.uint8), classes, tuple(notes))


def form_of(options: dict[str, Any]) -> dict[str, Any]:
    """What is asked of the form of images, `image_size` and `grey`, taken out of the options of a dataset."""
    return {name: options.pop(name, None) for name in ("image_size", "grey")}


def split_arrays(name: str, parts: Parts, classes: tuple[str, ...], prefix: str = "", **options: Any) -> Any:
    """The dataset called `name`, of arrays: `stack_arrays`, then `split_stack`, each with its options."""
    stack = stack_arrays(parts, classes, prefix=prefix, **form_of(options))
    return split_stack(name, stack, **options)


def split_stack(name: str, stack: Stack, **options: Any) -> ImageSplits:
    """The dataset called `name`, split by `split` with its options."""
    if len(stack.classes) < 2:
        step = "A net needs something to tell apart: check the files, or label_pattern."
        raise refusal("hold two or more classes", list(stack.classes), step)
    sets, notes = split(stack, **options)
    return ImageSplits(name, *sets, classes=stack.classes, notes=notes)


def split(
    stack: Stack, top: str | None = None, notes: Sequence[str] = (), **options: Any
) -> tuple[list[ImageSet], tuple[str, ...]]:
    """The images of train, validation and test; and the notes, with those on splits.

    Args:
        stack: Its own parts are kept where it brings them. Where it brings a test part, `validation_fraction`
            is that of its training part and `test_fraction` is unused.
        top: The folder around everything where images are files: the hashes of their names decide then.
        notes: What to tell first.
        options: `split_seed`, `validation_fraction` and `test_fraction` of `split_rows`.
    """
    whole, notes = stack.whole, [*notes, *stack.notes]
    names = None if top is None else [source.removeprefix(top) for source in whole.sources]
    labels, classes = whole.labels.numpy(), stack.classes or ("",)
    rows = split_rows(labels, classes, names=names, sides=stack.sides, **options)
    if stack.sides.any() and SIDES.index("test") not in stack.sides:
        notes.append("There is no test part: one is drawn from the training part, by test_fraction.")
    every = whole.images.numpy()
    same = {
        side: ((every[i].data, whole.sources[i], int(labels[i])) for i in chosen)
        for side, chosen in zip(SPLITS, rows, strict=True)
    }
    notes += duplicates(same, "images", "pixel for pixel")
    return [whole.at(torch.from_numpy(chosen)) for chosen in rows], tuple(notes)

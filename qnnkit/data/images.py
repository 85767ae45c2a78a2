"""Pictures of any size and mode: read from files, and brought to one size and mode as splits."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from qnnkit import checks
from qnnkit.data.splits import ImageSet, ImageSplits, stratified_split

# Pillow knows more formats; one of them (EPS) starts Ghostscript, whatever the file is called.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")


@dataclass(frozen=True, eq=False)
class Picture:
    """One image, (height, width) or (height, width, 3) in uint8, and its file's size and Pillow mode."""

    pixels: np.ndarray
    label: int
    source: str
    size: tuple[int, int]
    mode: str


def digits(root: str | Path | None = None, *, image_size: int | None = None, **options: Any) -> ImageSplits:
    """The 1,797 handwritten digits inside scikit-learn: 10 classes, 8x8, grey 0..16 rescaled to 0..255.

    Takes the arguments of `class_folder`, but for `root`, which must be left out.

    Reference:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998).
    """
    if root:
        rule = "be left out for 'digits', which lie inside scikit-learn"
        step = "To load your own images, use the dataset 'class_folder' with this root."
        raise ValueError(checks.message("root", rule, str(root), step))
    from sklearn.datasets import load_digits

    levels, labels = map(np.asarray, load_digits(return_X_y=True))
    pixels = np.rint(levels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)  # (1797, 64) -> (1797, 8, 8)
    pictures = [Picture(p, int(labels[i]), f"digits/{i}", (8, 8), "L") for i, p in enumerate(pixels)]
    return assemble("digits", pictures, tuple("0123456789"), [], size=as_size(image_size), **options)


def as_size(image_size: int | None) -> tuple[int, int] | None:
    """(height, width) from a side in pixels; None stays None."""
    if image_size is None:
        return None
    checks.positive("image_size", image_size, "Use a side such as 32, or None for the most common size.")
    return image_size, image_size


def assemble(
    name: str,
    pictures: Sequence[Picture],
    classes: tuple[str, ...],
    notes: list[str],
    *,
    size: tuple[int, int] | None = None,
    grey: bool | None = None,
    split_seed: int = 0,
    validation_fraction: float = 0.2,
    test_fraction: float = 0.2,
) -> ImageSplits:
    """Splits pictures and brings them to one size and mode, with a note on how many that changed."""
    if size is None:
        counts = Counter(picture.size for picture in pictures)
        size = max(counts, key=lambda found: (counts[found], found))
    if grey is None:
        grey = all(picture.pixels.ndim == 2 for picture in pictures)
    mode, total = "L" if grey else "RGB", len(pictures)
    if n := sum(picture.size != size for picture in pictures):
        notes.append(f"Resized {n:,} of {total:,} images to {size[0]}x{size[1]} (height x width).")
    if others := [picture.mode for picture in pictures if picture.mode != mode]:
        change = f"8-bit {'grey' if grey else 'RGB'}, from mode {', '.join(sorted(set(others)))}"
        notes.append(f"Converted {len(others):,} of {total:,} images to {change}.")
    labels = np.array([picture.label for picture in pictures])

    def gather(chosen: np.ndarray) -> ImageSet:
        pixels = torch.tensor(np.stack([fit(pictures[i].pixels, size, mode) for i in chosen]))
        images = pixels.reshape(*pixels.shape[:3], -1).permute(0, 3, 1, 2)  # -> (n, channels, height, width)
        sources = tuple(pictures[i].source for i in chosen)
        return ImageSet(images.contiguous(), torch.tensor(labels[chosen]), sources)

    parts = stratified_split(labels, classes, split_seed, (validation_fraction, test_fraction))
    train, validation, test = map(gather, parts)
    return ImageSplits(name, train, validation, test, classes, tuple(notes))


def read(path: Path, label: int, source: str, size: tuple[int, int] | None) -> Picture:
    """One file as 8-bit grey or colour, resized if a size is given."""
    if not path.is_file():  # a pipe would wait for ever
        raise ValueError("not a regular file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # Given a path, Pillow maps the file into memory, and 13.0 then loses the orientation of a TIFF.
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as opened:
            mode = opened.mode
            pixels = _eight_bit(ImageOps.exif_transpose(opened))  # (height, width[, 3])
    found = (pixels.shape[0], pixels.shape[1])
    pixels = fit(pixels, size or found, "L" if pixels.ndim == 2 else "RGB")
    return Picture(pixels, label, source, found, mode)


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
    pixels = np.asarray(image.convert("L" if mode in ("1", "L", "LA") else "RGB"))
    only_greys = mode == "P" and (pixels == pixels[..., :1]).all()  # a palette does not say
    return pixels[..., 0] if only_greys else pixels


def fit(pixels: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    """Pixels in the given mode and size (height, width), antialiased where they shrink."""
    image = Image.fromarray(pixels).convert(mode)
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))

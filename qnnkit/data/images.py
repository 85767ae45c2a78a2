"""One picture of any size and mode, read from a file's bytes."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

# Pillow knows more formats; one of them (EPS) starts Ghostscript, whatever the file is called.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
MOST_PIXELS = 2**27
"""A picture of more is not decoded, even where someone has lifted Pillow's own limit, which is lower."""


@dataclass(frozen=True, eq=False)
class Picture:
    """One image, uint8 (height, width) or (height, width, 3), and its file's size, Pillow mode and frames."""

    pixels: np.ndarray
    label: int
    source: str
    size: tuple[int, int]
    mode: str
    n_frames: int = 1


def read(content: bytes, label: int, source: str, size: tuple[int, int] | None) -> Picture:
    """A file's bytes as 8-bit grey or colour, resized if a size is given; of several frames the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # Given a path, Pillow would map the file into memory, and 13.0 then loses the orientation of a TIFF.
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ValueError(f"{opened.width:,} x {opened.height:,} pixels are too many to decode")
            mode, n_frames = opened.mode, getattr(opened, "n_frames", 1)
            pixels = _eight_bit(ImageOps.exif_transpose(opened))  # (height, width[, 3])
    found = (pixels.shape[0], pixels.shape[1])
    pixels = fit(pixels, size or found, "L" if pixels.ndim == 2 else "RGB")
    return Picture(pixels, label, source, found, mode, n_frames)


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
    if pixels.shape[:2] == size and (pixels.ndim == 2) == (mode == "L"):
        return pixels
    image = Image.fromarray(pixels).convert(mode)
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))

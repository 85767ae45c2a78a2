"""Labelled images in memory: uint8 pixels, integer labels, fixed splits, whole batches.

Scaling to [0, 1] happens on the device, inside the model: a byte per pixel is all that is stored and sent.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data.sample import Batches, stratified_split

if TYPE_CHECKING:
    from PIL import Image

SPLITS = ("train", "validation", "test")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# Pillow knows more formats; one of them (EPS) starts Ghostscript, whatever the file is called.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
MIN_SIDE, MAX_SIDE = 2, 4096
MAX_BYTES = 4 * 2**30


@dataclass(frozen=True, eq=False)
class ImageSet:
    """The images of one split.

    Attributes:
        images: Pixels, uint8, of shape (n, channels, height, width).
        labels: Indices into the classes, int64, of shape (n,).
        sources: Where each image came from: a file, relative to the root, or "digits/123".
    """

    images: torch.Tensor
    labels: torch.Tensor
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageSplits:
    """A dataset of images, split into train, validation and test.

    Attributes:
        name: The dataset's name in `DATASETS`.
        classes: The name of each label.
        notes: Sentences to show once: what was left out, resized or converted.

    Example:
        >>> splits = digits()
        >>> splits.n_classes, splits.channels, splits.image_size
        (10, 1, (8, 8))
        >>> [len(s) for s in (splits.train, splits.validation, splits.test)]
        [1079, 359, 359]
        >>> images, labels = next(iter(splits.batches("train", 64, shuffle=True)))
        >>> images.shape, images.dtype, labels.shape
        (torch.Size([64, 1, 8, 8]), torch.uint8, torch.Size([64]))
    """

    name: str
    train: ImageSet
    validation: ImageSet
    test: ImageSet
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self.train.images.shape[2], self.train.images.shape[3]

    def split(self, name: str) -> ImageSet:
        """The split called "train", "validation" or "test"."""
        return getattr(self, checks.choice("split", name, SPLITS))

    def fingerprint(self) -> str:
        """SHA-256 (hex) over pixels, labels and who is in which split; names of files do not count."""
        digest = hashlib.sha256()
        for name in SPLITS:
            part = self.split(name)
            digest.update(f"{name} {tuple(part.images.shape)}\n".encode())
            digest.update(part.labels.numpy().astype("<i8").tobytes())
            digest.update(part.images.numpy().tobytes())
        return digest.hexdigest()

    def batches(self, split: str, batch_size: int, *, shuffle: bool, seed: int = 0) -> Batches:
        """Batches (images, labels) of a split: uint8 (batch, channels, height, width), int64 (batch,).

        The order is a pure function of `seed` and of the epoch given to `set_epoch`, which works alike
        before and after `Accelerator.prepare`. Call it before each epoch: Accelerate counts epochs from 0 by
        itself, and a resumed run has not run the earlier ones. The last batch may be smaller. On n processes
        each gets every n-th batch, so a step sees n x batch_size images; the end is filled up with the
        epoch's first ones.

        Raises:
            ValueError: The split is unknown or `batch_size` is not above zero.
        """
        checks.positive("batch_size", batch_size)
        part = self.split(split)
        return Batches(part.images, part.labels, batch_size, shuffle=shuffle, seed=seed)


def digits(
    root: str | Path | None = None,
    *,
    image_size: int | Sequence[int] | None = None,
    grey: bool | None = None,
    split_seed: int = 0,
    validation_fraction: float = 0.2,
    test_fraction: float = 0.2,
) -> ImageSplits:
    """The 1,797 handwritten digits inside scikit-learn: 10 classes, 8x8, grey 0..16 rescaled to 0..255.

    Args:
        root: Must be left out; it exists because every dataset takes the same arguments.
        image_size: As in `class_folder`, and so are the others.

    Raises:
        ValueError: An argument is out of range.

    Reference:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI (1998).
    """
    if root not in (None, ""):
        rule = "be left out for 'digits', which lie inside scikit-learn"
        step = "To load your own images, use the dataset 'class_folder' with this root."
        raise ValueError(checks.message("root", rule, str(root), step))
    size = _as_size(image_size)
    from sklearn.datasets import load_digits

    levels, labels = load_digits(return_X_y=True)
    pixels = np.rint(levels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    pictures = [
        _Picture(image, "L", (8, 8), f"digits/{index}", int(label))
        for index, (image, label) in enumerate(zip(pixels, labels, strict=True))
    ]
    fractions = (validation_fraction, test_fraction)
    classes = tuple("0123456789")
    return _assemble("digits", pictures, classes, [], size, grey, split_seed, fractions)


def class_folder(
    root: str | Path | None = None,
    *,
    image_size: int | Sequence[int] | None = None,
    grey: bool | None = None,
    split_seed: int = 0,
    validation_fraction: float = 0.2,
    test_fraction: float = 0.2,
) -> ImageSplits:
    """Your own images, one folder per class: `root/<class>/*.png` (or jpg, bmp, gif, webp, tif).

    Classes and files are sorted as people count (2 before 10), so a split is the same on every machine.
    Orientation from EXIF is applied, 16-bit grey scaled to 8 bits, transparency laid on white (as a page
    shows it), and of an animation the first frame taken. A palette counts as grey if the pixels are. Files
    that cannot be read are left out and named in the notes.

    Args:
        root: The folder that holds the class folders.
        image_size: Side, or (height, width), in pixels; None takes the most common size. The others are
            resized with antialiasing, without keeping their aspect ratio.
        grey: One channel instead of three; None means grey if every image is.
        split_seed: Which split; leave it alone within a study.
        validation_fraction: Part of all images that validation gets.
        test_fraction: Part of all images that the test gets.

    Raises:
        FileNotFoundError: The folder is missing.
        NotADirectoryError: `root` is a file.
        PermissionError: The folder, or a class folder, may not be read.
        ValueError: There are no classes, one class, an empty class, or too few images to split.
    """
    size = _as_size(image_size)
    folder, files, notes = _find(root)
    pictures: list[_Picture] = []
    failed: dict[str, str] = {}
    n_bytes = 0
    for label, (name, paths) in enumerate(files.items()):
        before = len(pictures)
        for path in paths:
            source = path.relative_to(folder).as_posix()
            try:
                picture = _read(path, source, label, size)
            except MemoryError:
                raise
            except Exception as error:  # a damaged file makes Pillow raise almost anything
                failed[source] = _reason(error)
                continue
            pictures.append(picture)
            n_bytes = _within_memory(n_bytes + picture.pixels.nbytes, image_size)
        if len(pictures) == before:
            source, reason = next((s, r) for s, r in failed.items() if s.startswith(f"{name}/"))
            step = f"None of {_plural(len(paths), 'file')} of {name!r} can be read: {source} ({reason})."
            rule = "hold a readable image in every class folder"
            raise ValueError(checks.message("root", rule, str(folder), f"{step} Replace or remove them."))
    if failed:
        total = _plural(len(pictures) + len(failed), "file")
        named = [f"{source} ({reason})" for source, reason in failed.items()]
        notes.append(f"Left out {len(failed):,} of {total} that cannot be read: {_first(named)}.")
    fractions = (validation_fraction, test_fraction)
    classes = tuple(unicodedata.normalize("NFC", name) for name in files)
    return _assemble("class_folder", pictures, classes, notes, size, grey, split_seed, fractions)


@dataclass(frozen=True, eq=False)
class _Picture:
    """One image as read, (height, width) or (height, width, 3) in uint8, and what its file was."""

    pixels: np.ndarray
    mode: str
    size: tuple[int, int]
    source: str
    label: int
    transparent: bool = False
    animated: bool = False


def _find(root: str | Path | None) -> tuple[Path, dict[str, list[Path]], list[str]]:
    """The image files of each class folder, in a fixed order, and notes on what was ignored."""

    def refuse(rule: str, step: str, kind: type[OSError | ValueError] = ValueError) -> OSError | ValueError:
        return kind(checks.message("root", rule, str(root), step))

    if root in (None, ""):
        raise refuse("name a folder with one folder of images per class", "Pass root='path/to/images'.")
    folder = Path(str(root)).expanduser()
    try:
        folder = checks.folder("root", folder, "Check the path; on Colab, mount Drive first.")
        names, loose = _listing(folder)
        inside = {name: _listing(folder / name) for name in names}
    except OSError as error:
        if error.errno is None:  # the sentence of checks.folder
            raise
        failed = f"Reading {error.filename} failed ({error.strerror})"
        step = f"{failed}: allow it with chmod u+rX, or copy the folder."
        kind = PermissionError if isinstance(error, PermissionError) else OSError
        raise refuse("be readable, class folders included", step, kind) from error

    images = {name: [f for f in files if _has_suffix(f)] for name, (_, files) in inside.items()}
    others = [f"{name}/{f}" for name, (_, files) in inside.items() for f in files if not _has_suffix(f)]
    nested = [f"{name}/{sub}" for name, (folders, _) in inside.items() for sub in folders]
    loose = [name for name in loose if _has_suffix(name)]
    if not names:
        found = f"It holds {_plural(len(loose), 'image')} but no folder. " if loose else ""
        raise refuse(
            "hold one folder of images per class", f"{found}Put images in root/<class>/, as in cat/1.png."
        )
    if empty := [name for name in names if not images[name]]:
        step = f"No images lie in {_first([repr(name) for name in empty])}: add some or remove the folder."
        if inside[empty[0]][0]:
            step += f" If {inside[empty[0]][0][0]!r} in it is a class, pass {str(folder / empty[0])!r}."
        raise refuse("hold images in every class folder", step)
    if len(names) == 1:
        raise refuse("hold two or more class folders", f"It holds one, {names[0]!r}: add another class.")

    ignored = (("file", "without an image's suffix", others), ("folder", "inside class folders", nested))
    ignored += (("image", "outside the class folders", loose),)
    notes = [f"Ignored {_plural(len(f), noun)} {what}: {_first(f)}." for noun, what, f in ignored if f]
    return folder, {name: [folder / name / f for f in files] for name, files in images.items()}, notes


def _has_suffix(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _listing(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the other entries in a folder, sorted; the hidden ones are dropped."""
    folders, files = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link in a circle
                is_folder = False
            (folders if is_folder else files).append(entry.name)
    return sorted(folders, key=_natural), sorted(files, key=_natural)


def _natural(name: str) -> tuple[list[str | int], str]:
    """A sort key by which 2 comes before 10, the same for both ways in which systems spell an accent."""
    name = unicodedata.normalize("NFC", name)
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def _read(path: Path, source: str, label: int, size: tuple[int, int] | None) -> _Picture:
    """One file as 8-bit grey or colour, resized if a size is given.

    Raises:
        Exception: The file is damaged; which exception is up to Pillow.
    """
    from PIL import Image, ImageOps

    if not path.is_file():  # before opening: a pipe would wait for ever
        raise ValueError("not a regular file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # Given a path, Pillow maps the file into memory, and 13.0 then loses the orientation of a TIFF.
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as opened:
            mode, is_png = opened.mode, opened.format == "PNG"
            animated = getattr(opened, "is_animated", False)
            if min(opened.size) < MIN_SIDE:
                raise ValueError(f"smaller than {MIN_SIDE}x{MIN_SIDE} pixels")
            opened.load()
            try:
                image = ImageOps.exif_transpose(opened)
            except Exception:  # EXIF that cannot be parsed says nothing on the orientation
                image = opened.copy()
        transparent, image = _on_white(_eight_bit(image, is_png))
        target = "L" if _is_grey(image, mode) else "RGB"
        pixels = np.asarray(image.convert(target))  # (height, width[, 3])
    return _Picture(_fit(pixels, size, target), mode, pixels.shape[:2], source, label, transparent, animated)


def _eight_bit(image: Image.Image, is_png: bool) -> Image.Image:
    """16-bit grey scaled to 8 bits (65535 -> 255, rounded); Pillow's own conversion would clip it."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and is_png):
        wide = np.asarray(image).astype(np.int64)
        return Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (mode {image.mode}) have no fixed range")
    return image


def _on_white(image: Image.Image) -> tuple[bool, Image.Image]:
    """Whether any pixel is transparent, and the image laid on white if so."""
    from PIL import Image

    if not image.has_transparency_data:
        return False, image
    layered = image.convert("RGBA")
    if layered.getchannel("A").getextrema()[0] == 255:
        return False, image
    return True, Image.alpha_composite(Image.new("RGBA", image.size, "white"), layered)


def _is_grey(image: Image.Image, mode: str) -> bool:
    if mode in ("P", "PA"):  # what a palette holds shows in the pixels
        pixels = np.asarray(image.convert("RGB"))
        return bool((pixels == pixels[..., :1]).all())
    return mode in ("1", "L", "LA", "I") or mode.startswith("I;16")


def _reason(error: Exception) -> str:
    """Why a file cannot be read, in a few words and without its path."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "too many pixels"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return (str(error).splitlines() or [type(error).__name__])[0][:80]


def _assemble(
    name: str,
    pictures: list[_Picture],
    classes: tuple[str, ...],
    notes: list[str],
    size: tuple[int, int] | None,
    grey: bool | None,
    split_seed: int,
    fractions: tuple[float, float],
) -> ImageSplits:
    """Brings all pictures to one size and mode, says what that took, and splits them."""
    labels = np.array([picture.label for picture in pictures])
    indices = stratified_split(labels, classes, split_seed, *fractions)
    if size is None:
        sizes = Counter(picture.size for picture in pictures)
        size = max(sizes, key=lambda s: (sizes[s], s[0] * s[1], s))
    if grey is None:
        grey = all(picture.pixels.ndim == 2 for picture in pictures)
    _within_memory(len(pictures) * size[0] * size[1] * (1 if grey else 3), size)

    def gather(chosen: np.ndarray) -> ImageSet:
        part = [pictures[index] for index in chosen]
        images = torch.empty((len(part), 1 if grey else 3, *size), dtype=torch.uint8)
        for row, picture in enumerate(part):
            pixels = _fit(picture.pixels, size, "L" if grey else "RGB")  # (height, width[, 3])
            images[row] = torch.tensor(pixels).reshape(*size, -1).permute(2, 0, 1)
        return ImageSet(images, torch.tensor(labels[chosen]), tuple(picture.source for picture in part))

    notes = [*notes, *_changes(pictures, size, grey)]
    train, validation, test = (gather(chosen) for chosen in indices)
    return ImageSplits(name, train, validation, test, classes, tuple(notes))


def _changes(pictures: list[_Picture], size: tuple[int, int], grey: bool) -> list[str]:
    """One sentence for each kind of change that some pictures went through."""
    target, total, notes = "L" if grey else "RGB", _plural(len(pictures), "image"), []
    if sizes := Counter(f"{p.size[0]}x{p.size[1]}" for p in pictures if p.size != size):
        found = _first([text for text, _ in sizes.most_common()])
        notes.append(
            f"Resized {sizes.total():,} of {total} to {size[0]}x{size[1]} (height x width), from {found}."
        )
    if modes := Counter(p.mode for p in pictures if p.mode != target):
        found = _first([f"{mode} ({count:,})" for mode, count in modes.most_common()])
        kind = "8-bit grey" if grey else "8-bit RGB"
        notes.append(f"Converted {modes.total():,} of {total} to {kind}, from mode {found}.")
    if count := sum(p.transparent for p in pictures):
        notes.append(f"Laid {_plural(count, 'image')} with transparent parts on white.")
    if count := sum(p.animated for p in pictures):
        notes.append(f"Took only the first frame of {_plural(count, 'file')} with several.")
    return notes


def _fit(pixels: np.ndarray, size: tuple[int, int] | None, mode: str) -> np.ndarray:
    """Pixels in the given mode and size (height, width); None keeps the size."""
    from PIL import Image

    image = Image.fromarray(pixels).convert(mode)
    if size not in (None, pixels.shape[:2]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)  # antialiased when it shrinks
    return np.asarray(image)


def _as_size(image_size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """`image_size` as (height, width), or None."""
    if image_size is None:
        return None
    sides = (image_size, image_size) if isinstance(image_size, int) else image_size
    step = "Use a side such as 32, or None for the most common size."
    if (
        isinstance(image_size, bool | str)
        or not isinstance(sides, Sequence)
        or len(sides) != 2
        or not all(isinstance(side, int) for side in sides)
    ):
        raise TypeError(checks.message("image_size", "be an int, (height, width) or None", image_size, step))
    if not all(MIN_SIDE <= side <= MAX_SIDE for side in sides):
        rule = f"have sides of {MIN_SIDE}..{MAX_SIDE} pixels"
        raise ValueError(checks.message("image_size", rule, image_size, step))
    return sides[0], sides[1]


def _within_memory(n_bytes: int, image_size: object) -> int:
    if n_bytes > MAX_BYTES:
        rule = f"keep all images together under {MAX_BYTES / 2**30:.0f} GiB"
        raise ValueError(checks.message("image_size", rule, image_size, "Pass a smaller one, such as 32."))
    return n_bytes


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _first(names: Sequence[str], most: int = 5) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

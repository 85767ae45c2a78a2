"""Datasets in idx files: MNIST, Fashion-MNIST, KMNIST and EMNIST."""

from __future__ import annotations

import math
import string
import struct
from pathlib import Path
from typing import Any

import numpy as np

from qnnkit import checks
from qnnkit.data.cache import stacked
from qnnkit.data.images import Stack, split_stack, stack_arrays
from qnnkit.data.places import Member, Place, first, natural, open_place, refusal, unpacked
from qnnkit.data.public import missing, obtain
from qnnkit.data.splits import ImageSplits

IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
MAGIC = {IMAGES: 0x803, LABELS: 0x801}
"""Numbers that files begin with: bytes (08) in three axes, and in one."""
MNIST = tuple("0123456789")
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip
KMNIST = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
_MERGED = "cijklmopsuvwxyz"  # letters whose capital looks the same
_EVERY = string.digits + string.ascii_uppercase + string.ascii_lowercase
EMNIST = {
    "balanced": tuple(letter for letter in _EVERY if letter not in _MERGED),
    "letters": tuple(string.ascii_lowercase),
    "digits": MNIST,
    "mnist": MNIST,
    "bymerge": tuple(letter for letter in _EVERY if letter not in _MERGED),
    "byclass": tuple(_EVERY),
}
"""Variant -> its classes; where several are there and none is asked for, the first of them is taken."""


def mnist(
    root: str | Path | None = None, *, download: bool = False, cached: bool = True, **options: Any
) -> ImageSplits:
    """MNIST: 70,000 handwritten digits, 28x28 grey; its 10,000 test images are the test split.

    Args:
        root: A folder or archive (or a URL of one) with the four idx files, gzipped or not, of any depth and
            size; None looks where downloads go.
        download: Whether to fetch what is missing, 11 MB, with checksums, into the root or `datasets/mnist`
            of the workspace (without one: the user's cache).
        cached: As in `class_folder`, where an image_size is given.
        options: As in `class_folder`; test_fraction is unused.

    Raises:
        FileNotFoundError: The files are not there; the message says where to get them.
        ValueError: One is cut short, of another kind, or does not fit the others.

    Reference:
        Y. LeCun, C. Cortes and C. J. C. Burges, "The MNIST database of handwritten digits" (1998).
    """
    return _load("mnist", root, download, MNIST, cached=cached, **options)


def fashion_mnist(
    root: str | Path | None = None, *, download: bool = False, cached: bool = True, **options: Any
) -> ImageSplits:
    """Fashion-MNIST: 70,000 photographs of clothes in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        H. Xiao, K. Rasul and R. Vollgraf, arXiv:1708.07747 (2017).
    """
    return _load("fashion_mnist", root, download, FASHION, cached=cached, **options)


def kmnist(
    root: str | Path | None = None, *, download: bool = False, cached: bool = True, **options: Any
) -> ImageSplits:
    """Kuzushiji-MNIST: 70,000 Japanese characters in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        T. Clanuwat et al., arXiv:1812.01718 (2018).
    """
    return _load("kmnist", root, download, KMNIST, cached=cached, **options)


def emnist(
    root: str | Path | None = None,
    *,
    variant: str | None = None,
    download: bool = False,
    cached: bool = True,
    **options: Any,
) -> ImageSplits:
    """EMNIST: handwritten letters and digits, 28x28 grey; its files hold them transposed.

    Args:
        root: As for `mnist`; `gzip.zip`, as NIST gives it, will do. `download` fetches that: 560 MB.
        variant: balanced (47 classes), letters (26), digits, mnist (10), bymerge (47) or byclass (62); None
            takes the one whose files are there, and of several the first in this order, which is noted.
        download: As for `mnist`.
        cached: As for `mnist`.
        options: As for `mnist`.

    Reference:
        G. Cohen et al., arXiv:1702.05373 (2017).
    """
    if variant is not None:
        checks.choice("variant", variant, EMNIST)
    return _load("emnist", root, download, (), variant=variant, cached=cached, **options)


def _load(
    name: str,
    root: str | Path | None,
    download: bool,
    classes: tuple[str, ...],
    *,
    variant: str | None = None,
    image_size: int | None = None,
    grey: bool | None = None,
    cached: bool = True,
    **options: Any,
) -> ImageSplits:
    notes: list[str] = []
    with open_place(obtain(name, root, download)) as place:
        packed = sorted(place.members, key=lambda each: (each.base.endswith(".gz"), natural(each.name)))
        files = {each.base.removesuffix(".gz").replace(".idx", "-idx"): each for each in reversed(packed)}
        stems = {"train": "train", "test": "t10k"}
        if name == "emnist":
            there = [each for each in EMNIST if f"emnist-{each}-train-{IMAGES}" in files]
            chosen = variant or next(iter(there), "balanced")
            if variant is None and len(there) > 1:
                notes = [f"Took the variant {chosen!r} of {', '.join(there)}."]
            stems = {side: f"emnist-{chosen}-{side}" for side in stems}
            classes = EMNIST[chosen]
        names = [f"{stem}-{kind}" for stem in stems.values() for kind in (IMAGES, LABELS)]
        if lacking := [each for each in names if each not in files]:
            raise missing(name, root, lacking)
        lowest = int(name == "emnist" and len(classes) == 26)  # its letters are counted from 1

        def make() -> Stack:
            parts = {}
            for side, stem in stems.items():
                pixels, labels = (_array(place, files[f"{stem}-{kind}"]) for kind in (IMAGES, LABELS))
                file = files[f"{stem}-{LABELS}"].base
                require_within("labels", file, labels, lowest, lowest + len(classes) - 1)
                parts[side] = (pixels.transpose(0, 2, 1) if name == "emnist" else pixels, labels - lowest)
            return stack_arrays(parts, classes, image_size=image_size, grey=grey, notes=notes)

        wanted = {"dataset": name, "stem": stems, "image_size": image_size, "grey": grey, "notes": notes}
        kept = cached and image_size is not None  # as they are, they load as fast from their own files
        stack = stacked([files[each] for each in names], wanted, make, kept)
    return split_stack(name, stack, **options)


def require_within(what: str, name: str, values: np.ndarray, lowest: int, highest: int) -> None:
    """Raises ValueError unless all values of a file lie in `lowest`..`highest`, naming the first others."""
    wrong = np.argwhere((values < lowest) | (values > highest))
    if len(wrong):
        rows = first([f"{values[tuple(at)]} in row {at[0]:,}" for at in wrong], 3)
        rule = f"hold {what} in {lowest}..{highest}"
        raise refusal(rule, {name: rows}, "Get the file anew, or correct it.")


def _array(place: Place, member: Member) -> np.ndarray:
    """The bytes of an idx file, (n, height, width) or (n,), after its header has been checked."""
    magic = MAGIC[IMAGES if "images" in member.base else LABELS]
    try:
        content = place.read(member.name)
        content = unpacked(content) if content[:2] == b"\x1f\x8b" else content
        if len(content) < 4 + 4 * (magic & 0xFF):
            raise ValueError("without a header")
        found, *shape = struct.unpack_from(f">{1 + (magic & 0xFF)}I", content)
        size, n = math.prod(shape), len(content) - 4 - 4 * len(shape)
        if found != magic:
            raise ValueError(f"magic number {found} instead of {magic}")
        if n != size or not size:
            raise ValueError(f"{n:,} bytes instead of {size:,}")
    except ValueError as error:
        raise refusal("hold whole idx files", {member.base: str(error)}, "Get the file anew.") from None
    return np.frombuffer(content, np.uint8, offset=len(content) - size).reshape(shape)

"""Public datasets: MNIST and its kin in idx files, and AHCD; `public.yaml` says where they can be had."""

from __future__ import annotations

import io
import itertools
import math
import re
import urllib.parse
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from qnnkit import checks, words
from qnnkit.data.arrays import split_arrays
from qnnkit.data.places import fetch, left_out, open_place, refusal, store
from qnnkit.data.splits import ImageSplits

_TABLE = resources.files("qnnkit.data").joinpath("public.yaml").read_text(encoding="utf-8")
PUBLIC: dict[str, dict[str, Any]] = yaml.safe_load(_TABLE)
"""Dataset -> its page, address, files with checksums, classes and needs, as the head of the file explains."""
IDX = r"(train|t10k)-(image|label)s[-.]idx[13]-ubyte(\.gz)?"
CSV = r"csv(train|test)(image|label).*\.csv"
"""The groups are train or another word for test, and image or label."""
SIDE = 32
"""Of a letter of AHCD, in pixels."""


def _load(name: str, root: str | Path | None, **options: Any) -> ImageSplits:
    """Images and labels out of four files, which are fetched where no root is given.

    Raises:
        OSError: They cannot be fetched, or nothing is at the root.
        ValueError: A file is missing or damaged, or holds other numbers.
    """
    about, files = PUBLIC[name], {}
    pattern, read = (CSV, _csv) if name == "ahcd" else (IDX, _idx)
    place = open_place(root or _fetched(name))
    for member in place.members:
        if fit := re.fullmatch(pattern, member.base.lower()):
            files.setdefault(("train" if fit[1] == "train" else "test", f"{fit[2]}s"), member.name)
    contents: dict[str, list[np.ndarray]] = {"images": [], "labels": []}
    for side, kind in itertools.product(("train", "test"), contents):
        try:
            content = place.read(files.get((side, kind), "no file"))
            contents[kind].append(read(content, kind == "images"))
        except (ValueError, KeyError) as error:
            reason = f"Its {side} {kind}: {words.first_line(error)[:80]}"
            step = f"{reason}. Get them from {about['page']}, or name no place, and they are fetched."
            raise refusal(f"hold {about['needs']}", str(place.path), step) from None
    if len(shapes := {each.shape[1:] for each in contents["images"]}) > 1:
        raise refusal("hold images of one size", sorted(shapes), "Get its files from the same place.")
    images, labels = map(np.concatenate, contents.values())
    sides = ["train"] * len(contents["labels"][0]) + ["test"] * len(contents["labels"][1])
    others = [each.name for each in place.members if each.name not in files.values()]
    notes = left_out({f"files that are not of {name}": others})
    return split_arrays(name, images, labels, about["classes"], sides, notes=notes, **options)


def _fetched(name: str) -> Path:
    """The folder or the archive that is a dataset, in `store()`, fetched once and checked."""
    about, folder = PUBLIC[name], store() / name
    for file, checksum in about["files"].items():
        try:
            fetch(about["address"] + urllib.parse.quote(file), folder / file, checksum)
        except (OSError, ValueError) as error:  # of requests; of a wrong checksum
            step = f"It says: {words.first_line(error)}. Or get it from {about['page']} and name its folder."
            raise OSError(checks.message("root", "be within reach", about["address"], step)) from None
    return folder if len(about["files"]) > 1 else folder / next(iter(about["files"]))


def _idx(content: bytes, are_images: bool) -> np.ndarray:
    """The bytes of an idx file, (n, height, width) or (n,); ValueError with the reason."""
    axes = 3 if are_images else 1
    magic, *shape = np.frombuffer(content, ">u4", 1 + axes).tolist()
    n = len(content) - 4 - 4 * axes
    if magic != 0x800 + axes or n != math.prod(shape) or not n:  # bytes (08), and the number of axes
        raise ValueError(f"{n:,} bytes of shape {tuple(shape)}, under the magic number {magic}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _csv(content: bytes, are_images: bool) -> np.ndarray:
    """Labels from 0, (n,), or images, (n, 32, 32), of a CSV without a header; ValueError with the reason."""
    table = np.loadtxt(io.BytesIO(content), np.int32, delimiter=",", ndmin=2)
    columns = SIDE * SIDE if are_images else 1
    if table.shape[1] != columns or table.min() < 0 or table.max() > 255:
        raise ValueError(f"{table.shape[1]:,} columns of {table.min()} to {table.max()}")
    return table.reshape(-1, SIDE, SIDE).transpose(0, 2, 1) if are_images else table[:, 0] - 1  # by columns


def mnist(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """MNIST: 70,000 handwritten digits, 28x28 grey; its 10,000 test images are the test split.

    Args:
        root: A folder or archive (or a URL of one) with the four idx files, gzipped or not, of any depth and
            size; None fetches them once, 11 MB, with checksums, into the user's cache.
        options: As in `class_folder`; test_fraction is unused.

    Raises:
        OSError: They cannot be fetched, or nothing is at the root.
        ValueError: One is missing (the message says where to get it), cut short, of another kind, or does not
            fit the others.

    Reference:
        Y. LeCun, C. Cortes and C. J. C. Burges, "The MNIST database of handwritten digits" (1998).
    """
    return _load("mnist", root, **options)


def fashion_mnist(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """Fashion-MNIST: 70,000 photographs of clothes in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        H. Xiao, K. Rasul and R. Vollgraf, arXiv:1708.07747 (2017).
    """
    return _load("fashion_mnist", root, **options)


def kmnist(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """Kuzushiji-MNIST: 70,000 Japanese characters in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        T. Clanuwat et al., arXiv:1812.01718 (2018).
    """
    return _load("kmnist", root, **options)


def ahcd(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """AHCD: 16,800 Arabic characters in 28 classes, 32x32 grey, ink light on black.

    Its own test part of 3,360 images, by other writers, is the test split.

    Args:
        root: The zip of four CSV files as it comes, or a folder with them; None fetches it, 3 MB, as `mnist`.
        options: As in `class_folder`; test_fraction is unused.

    Reference:
        A. El-Sawy, M. Loey and H. EL-Bakry, "Arabic Handwritten Characters Recognition using Convolutional
        Neural Network", WSEAS Transactions on Computer Research 5 (2017).
    """
    return _load("ahcd", root, **options)

"""Public datasets: MNIST and similar ones in idx files, and AHCD; `public.yaml` lists their addresses."""

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
"""Dataset -> page, address, files with checksums, classes and needs; see the comment in `public.yaml`."""
IDX = r"(train|t10k)-(image|label)s[-.]idx[13]-ubyte(\.gz)?"
CSV = r"csv(train|test)(image|label).*\.csv"
"""Patterns of file names; the groups are the split (train, or another word for test), and image or label."""
SIDE = 32
"""Height and width of a letter of AHCD, in pixels."""


def _load(name: str, root: str | Path | None, **options: Any) -> ImageSplits:
    """Loads images and labels from four files, which are downloaded if no root is given.

    Raises:
        OSError: They cannot be downloaded, or nothing is at the root.
        ValueError: A file is missing, damaged, or of another format.
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
            step = f"{reason}. Get them from {about['page']}, or give no place to download them."
            raise refusal(f"hold {about['needs']}", str(place.path), step) from None
    if len(shapes := {each.shape[1:] for each in contents["images"]}) > 1:
        raise refusal("hold images of one size", sorted(shapes), "Get its files from the same place.")
    images, labels = map(np.concatenate, contents.values())
    sides = ["train"] * len(contents["labels"][0]) + ["test"] * len(contents["labels"][1])
    unread = [each.name for each in place.members if each.name not in files.values()]
    notes = left_out({f"files that do not belong to {name}": unread})
    return split_arrays(name, images, labels, about["classes"], sides, notes=notes, **options)


def _fetched(name: str) -> Path:
    """Returns the folder or archive of a dataset in `store()`, downloaded once and checked."""
    about, folder = PUBLIC[name], store() / name
    for file, checksum in about["files"].items():
        try:
            fetch(about["address"] + urllib.parse.quote(file), folder / file, checksum)
        except (OSError, ValueError) as error:  # of requests; of a wrong checksum
            step = f"Error: {words.first_line(error)}. Or get it from {about['page']} and name its folder."
            raise OSError(checks.message("root", "be reachable", about["address"], step)) from None
    return folder if len(about["files"]) > 1 else folder / next(iter(about["files"]))


def _idx(content: bytes, are_images: bool) -> np.ndarray:
    """Returns the values of an idx file, (n, height, width) or (n,); a ValueError gives the reason."""
    axes = 3 if are_images else 1
    magic, *shape = np.frombuffer(content, ">u4", 1 + axes).tolist()
    n = len(content) - 4 - 4 * axes
    if magic != 0x800 + axes or n != math.prod(shape) or not n:  # bytes (08), and the number of axes
        raise ValueError(f"{n:,} bytes of shape {tuple(shape)}, under the magic number {magic}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _csv(content: bytes, are_images: bool) -> np.ndarray:
    """Returns labels from 0, (n,), or images, (n, 32, 32), of a CSV without header; ValueError as `_idx`."""
    table = np.loadtxt(io.BytesIO(content), np.int32, delimiter=",", ndmin=2)
    columns = SIDE * SIDE if are_images else 1
    if table.shape[1] != columns or table.min() < 0 or table.max() > 255:
        raise ValueError(f"{table.shape[1]:,} columns of {table.min()} to {table.max()}")
    return table.reshape(-1, SIDE, SIDE).transpose(0, 2, 1) if are_images else table[:, 0] - 1  # by columns


def mnist(root: str | Path | None = None, **options: Any) -> ImageSplits:
    """MNIST: 70,000 handwritten digits, 28x28 grey; its 10,000 test images are the test split.

    Args:
        root: A folder or archive (or a URL of one) with the four idx files, gzipped or not, at any depth and
            of any size; None downloads them once (11 MB) to the user's cache and checks them.
        options: As in `class_folder`; test_fraction is unused.

    Raises:
        OSError: The files cannot be downloaded, or nothing is at the root.
        ValueError: A file is missing (the message says where to get it), truncated, of another format, or
            does not match the others.

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

    Its 3,360 test images, by other writers, are the test split.

    Args:
        root: The published zip of four CSV files, or a folder with them; None downloads it (3 MB) as `mnist`.
        options: As in `class_folder`; test_fraction is unused.

    Raises:
        OSError, ValueError: As in `mnist`.

    Reference:
        A. El-Sawy, M. Loey and H. EL-Bakry, "Arabic Handwritten Characters Recognition using Convolutional
        Neural Network", WSEAS Transactions on Computer Research 5 (2017).
    """
    return _load("ahcd", root, **options)

"""Public datasets: MNIST and its kin in idx files, and AHCD; `public.yaml` says where they can be had."""

from __future__ import annotations

import io
import math
import re
import urllib.parse
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from qnnkit import checks, words
from qnnkit.data.images import split_arrays
from qnnkit.data.places import ARCHIVES, fetch, gunzipped, left_out, local, open_place, refusal, store
from qnnkit.data.splits import ImageSplits

_TABLE = resources.files("qnnkit.data").joinpath("public.yaml").read_text(encoding="utf-8")
PUBLIC: dict[str, dict[str, Any]] = yaml.safe_load(_TABLE)
"""Dataset -> its page, address, files with checksums, classes and needs, as the head of the file explains."""
IDX = r"(train|t10k)-(image|label)s[-.]idx[13]-ubyte(\.gz)?"
CSV = r"csv(train|test)(image|label).*\.csv"
"""The groups are train or another word for test, and image or label."""
SIDE = 32
"""Of a letter of AHCD, in pixels."""


def _load(
    name: str,
    root: str | Path | None,
    download: bool,
    pattern: str,
    read: Callable[[bytes, bool], np.ndarray],
    lowest: int = 0,
    **options: Any,
) -> ImageSplits:
    """Images and labels out of four files, by `read(content, are_images)`; labels count from `lowest`.

    With `download`, what a folder lacks is fetched into it.

    Raises:
        FileNotFoundError: A file is missing; the message says where to get it and how to ask.
        OSError: It cannot be fetched.
        ValueError: One is damaged, or holds other numbers.
    """
    path, about = local(root) if root else store() / name, PUBLIC[name]
    classes = tuple(about["classes"])
    if download and not path.name.lower().endswith(ARCHIVES):
        _download(path, about)
    packed = path / next(iter(about["files"]))  # an archive that is all of a dataset
    path = packed if packed.is_file() and packed.name.endswith(ARCHIVES) else path
    place: Any = open_place(path) if path.exists() else None
    arrays, others = {}, []
    for member in place.members if place else ():
        fit = re.fullmatch(pattern, member.base, re.IGNORECASE)
        part = fit and ("train" if fit[1].lower() == "train" else "test", f"{fit[2].lower()}s")
        if not part or part in arrays:
            others.append(member.name)
            continue
        low, high = (lowest, lowest + len(classes) - 1) if part[1] == "labels" else (0, 255)
        try:
            values = read(place.read(member.name), part[1] == "images")
            if values.min() < low or values.max() > high:
                raise ValueError(f"{values.min()} to {values.max()} instead of {low} to {high}")
            arrays[part] = (values - low).astype(np.uint8)
        except ValueError as error:
            step = f"It holds {words.first_line(error)[:80]}: get it again."
            raise refusal(f"hold whole files of {name}", member.name, step) from None
    parts = [(side, kind) for side in ("train", "test") for kind in ("images", "labels")]
    if missing := [" ".join(part) for part in parts if part not in arrays]:
        step = f"Missing: {', '.join(missing)}. Get it from {about['page']}, or set download to true."
        rule = f"name a folder or an archive with {about['needs']}"
        raise FileNotFoundError(checks.message("root", rule, root and str(root), step))
    pairs = {side: (arrays[side, "images"], arrays[side, "labels"]) for side in ("train", "test")}
    notes = left_out({f"files that are not of {name}": others})
    return split_arrays(name, pairs, classes, notes=notes, **options)


def _download(folder: Path, about: dict[str, Any]) -> None:
    """Fetches the files that a folder lacks; those that are there are taken as they are."""
    for file in about["files"]:
        if not any(folder.rglob(f"{file.removesuffix('.gz')}*")):
            try:
                fetch(about["address"] + urllib.parse.quote(file), folder / file, about["files"][file])
            except (OSError, ValueError) as error:  # of requests; of a wrong checksum
                step = f"Check the connection and try again, or put the file at {folder / file} yourself."
                reason = f"{about['address']} ({words.first_line(error)})"
                raise OSError(checks.message("download", "be within reach", reason, step)) from None


def _idx(content: bytes, are_images: bool) -> np.ndarray:
    """The bytes of an idx file, gzipped or not, (n, height, width) or (n,); ValueError with the reason."""
    content = gunzipped(content) if content[:2] == b"\x1f\x8b" else content
    axes = 3 if are_images else 1
    magic, *shape = np.frombuffer(content, ">u4", 1 + axes).tolist()
    n = len(content) - 4 - 4 * axes
    if magic != 0x800 + axes:  # bytes (08), and the number of axes
        raise ValueError(f"magic number {magic} instead of {0x800 + axes}")
    if n != math.prod(shape) or not n:
        raise ValueError(f"{n:,} bytes instead of {math.prod(shape):,}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _csv(content: bytes, are_images: bool) -> np.ndarray:
    """Labels, (n,), or images, (n, 32, 32), from a CSV without a header; ValueError with the reason."""
    table = np.loadtxt(io.BytesIO(content), np.int32, delimiter=",", ndmin=2)
    columns = SIDE * SIDE if are_images else 1
    if table.shape[1] != columns:
        raise ValueError(f"{table.shape[1]:,} columns instead of {columns:,}")
    return table.reshape(-1, SIDE, SIDE).transpose(0, 2, 1) if are_images else table[:, 0]  # by columns


def mnist(root: str | Path | None = None, *, download: bool = False, **options: Any) -> ImageSplits:
    """MNIST: 70,000 handwritten digits, 28x28 grey; its 10,000 test images are the test split.

    Args:
        root: A folder or archive (or a URL of one) with the four idx files, gzipped or not, of any depth and
            size; None looks where downloads go.
        download: Whether to fetch what is missing, 11 MB, with checksums, into the root or `datasets/mnist`
            of the workspace (without one: the user's cache).
        options: As in `class_folder`; test_fraction is unused.

    Raises:
        FileNotFoundError: The files are not there; the message says where to get them.
        ValueError: One is cut short, of another kind, or does not fit the others.

    Reference:
        Y. LeCun, C. Cortes and C. J. C. Burges, "The MNIST database of handwritten digits" (1998).
    """
    return _load("mnist", root, download, IDX, _idx, **options)


def fashion_mnist(root: str | Path | None = None, *, download: bool = False, **options: Any) -> ImageSplits:
    """Fashion-MNIST: 70,000 photographs of clothes in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        H. Xiao, K. Rasul and R. Vollgraf, arXiv:1708.07747 (2017).
    """
    return _load("fashion_mnist", root, download, IDX, _idx, **options)


def kmnist(root: str | Path | None = None, *, download: bool = False, **options: Any) -> ImageSplits:
    """Kuzushiji-MNIST: 70,000 Japanese characters in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        T. Clanuwat et al., arXiv:1812.01718 (2018).
    """
    return _load("kmnist", root, download, IDX, _idx, **options)


def ahcd(root: str | Path | None = None, *, download: bool = False, **options: Any) -> ImageSplits:
    """AHCD: 16,800 Arabic characters in 28 classes, 32x32 grey, ink light on black.

    Its own test part of 3,360 images, by other writers, is the test split.

    Args:
        root: The zip of four CSV files as it comes, or a folder with them; None looks where downloads go.
        download: Whether to fetch it where it is missing, 3 MB, as in `mnist`.
        options: As in `class_folder`; test_fraction is unused.

    Reference:
        A. El-Sawy, M. Loey and H. EL-Bakry, "Arabic Handwritten Characters Recognition using Convolutional
        Neural Network", WSEAS Transactions on Computer Research 5 (2017).
    """
    return _load("ahcd", root, download, CSV, _csv, lowest=1, **options)

"""Public datasets: MNIST and its kin in idx files, and AHCD; `public.yaml` says where they can be had."""

from __future__ import annotations

import io
import math
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from qnnkit import checks, words
from qnnkit.data import fetch
from qnnkit.data.archives import ARCHIVES, store
from qnnkit.data.cache import stacked
from qnnkit.data.images import Stack, split_stack, stack_arrays
from qnnkit.data.places import Member, Place, first, left_out, natural, open_place, refusal, unpacked
from qnnkit.data.splits import ImageSplits

_TABLE = resources.files("qnnkit.data").joinpath("public.yaml").read_text(encoding="utf-8")
PUBLIC: dict[str, dict[str, Any]] = yaml.safe_load(_TABLE)
"""Dataset -> its page, address, files with checksums, and what it needs, as the head of the file explains."""


def obtain(name: str, root: str | Path | None, download: bool) -> Path:
    """The folder or archive of a public dataset on local disk.

    Args:
        name: Entry of PUBLIC.
        root: Where it is; None looks where downloads go.
        download: Whether to fetch into a folder what is not there; an archive is read as it is.

    Raises:
        FileNotFoundError: It is not there; the message says where to get it and how to ask.
        OSError: It cannot be fetched.
    """
    path, files = fetch.local(root) if root else store() / name, PUBLIC[name]["files"]
    if download and (path.is_dir() or not (path.exists() or path.name.lower().endswith(ARCHIVES))):
        for file, checksum in files.items():
            if not (root and any(path.rglob(f"{file.removesuffix('.gz')}*"))):  # yours are taken as they are
                fetch.download(PUBLIC[name]["address"] + urllib.parse.quote(file), path / file, checksum)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        raise _missing(name, root, download)
    inside = path / next(iter(files))  # an archive that is all of a dataset
    return inside if len(files) == 1 and inside.is_file() else path


def _missing(name: str, root: str | Path | None, download: bool, files: str = "") -> FileNotFoundError:
    """What is not there, where to get it, and how to have it fetched."""
    ask = (
        "name an empty folder for download to fill" if download else "set download to true to have it fetched"
    )
    step = f"Get the dataset from {PUBLIC[name]['page']}, or {ask}."
    step = f"Missing there: {files}. {step}" if files else step
    rule = f"name a folder or an archive with {PUBLIC[name]['needs']}"
    return FileNotFoundError(checks.message("root", rule, None if root is None else str(root), step))


def _load(
    name: str,
    root: str | Path | None,
    download: bool,
    patterns: dict[tuple[str, str], str],
    read: Callable[[Place, Member], np.ndarray],
    classes: tuple[str, ...],
    *,
    lowest: int = 0,
    image_size: int | None = None,
    grey: bool | None = None,
    **options: Any,
) -> ImageSplits:
    """Images and labels by `read` from the files that fit `patterns`, (side, kind) -> regular expression.

    Labels are counted from `lowest`.
    """
    place = open_place(obtain(name, root, download))
    files, others = {}, []
    for member in sorted(place.members, key=lambda each: (each.base.endswith(".gz"), natural(each.name))):
        fits = [key for key in patterns if re.fullmatch(patterns[key], member.base, re.IGNORECASE)]
        for key in fits:
            files.setdefault(key, member)
        others += [] if fits else [member.name]
    if lacking := [" ".join(key) for key in patterns if key not in files]:
        raise _missing(name, root, download, ", ".join(lacking))

    def make() -> Stack:
        parts = {}
        for side in ("train", "test"):
            labels = read(place, files[side, "labels"]).reshape(-1)
            _require_within("labels", files[side, "labels"], labels, lowest, lowest + len(classes) - 1)
            parts[side] = (read(place, files[side, "images"]), labels - lowest)
        return stack_arrays(parts, classes, **form)

    form: dict[str, Any] = {"image_size": image_size, "grey": grey}
    stack = stacked(list(files.values()), {"dataset": name, **form}, make)
    notes = left_out({f"files that are not of {name}": others})
    return split_stack(name, replace(stack, notes=(*notes, *stack.notes)), **options)


def _require_within(what: str, file: Member, values: np.ndarray, lowest: int, highest: int) -> None:
    """Raises ValueError unless all values of a file lie in `lowest`..`highest`, naming the first others."""
    wrong = np.argwhere((values < lowest) | (values > highest))
    if len(wrong):
        rows = first([f"{values[tuple(at)]} in row {at[0]:,}" for at in wrong], 3)
        rule = f"hold {what} in {lowest}..{highest}"
        raise refusal(rule, {file.base: rows}, "Get the file again, or correct it.")


# --- idx files ---------------------------------------------------------------------------------------------

IDX = {
    (side, kind): rf"{stem}-{kind}[-.]idx{axes}-ubyte(\.gz)?"
    for side, stem in (("train", "train"), ("test", "t10k"))
    for kind, axes in (("images", 3), ("labels", 1))
}
MNIST = tuple("0123456789")
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip
KMNIST = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


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
    return _load("mnist", root, download, IDX, _idx, MNIST, **options)


def fashion_mnist(root: str | Path | None = None, *, download: bool = False, **options: Any) -> ImageSplits:
    """Fashion-MNIST: 70,000 photographs of clothes in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        H. Xiao, K. Rasul and R. Vollgraf, arXiv:1708.07747 (2017).
    """
    return _load("fashion_mnist", root, download, IDX, _idx, FASHION, **options)


def kmnist(root: str | Path | None = None, *, download: bool = False, **options: Any) -> ImageSplits:
    """Kuzushiji-MNIST: 70,000 Japanese characters in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        T. Clanuwat et al., arXiv:1812.01718 (2018).
    """
    return _load("kmnist", root, download, IDX, _idx, KMNIST, **options)


def _idx(place: Place, file: Member) -> np.ndarray:
    """The bytes of an idx file, (n, height, width) or (n,), after its header has been checked."""
    try:
        content = place.read(file.name)
        content = unpacked(content) if content[:2] == b"\x1f\x8b" else content
        axes = 3 if "idx3" in file.base.lower() else 1
        magic, *shape = np.frombuffer(content, ">u4", 1 + axes).tolist()
        size, n = math.prod(shape), len(content) - 4 - 4 * axes
        if magic != 0x800 + axes:  # bytes (08), and the number of axes
            raise ValueError(f"magic number {magic} instead of {0x800 + axes}")
        if n != size or not size:
            raise ValueError(f"{n:,} bytes instead of {size:,}")
    except ValueError as error:
        raise refusal("hold whole idx files", {file.base: str(error)}, "Get the file again.") from None
    return np.frombuffer(content, np.uint8, offset=len(content) - size).reshape(shape)


# --- AHCD --------------------------------------------------------------------------------------------------

LETTERS = (
    "alef", "beh", "teh", "theh", "jeem", "hah", "khah", "dal", "thal", "reh", "zain", "seen", "sheen", "sad",
    "dad", "tah", "zah", "ain", "ghain", "feh", "qaf", "kaf", "lam", "meem", "noon", "heh", "waw", "yeh",
)  # fmt: skip
SIDE = 32
CSV = {
    (side, kind): rf"csv{side}{kind[:5]}.*\.csv"
    for side in ("train", "test")
    for kind in ("images", "labels")
}


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
    return _load("ahcd", root, download, CSV, _table, LETTERS, lowest=1, **options)


def _table(place: Place, file: Member) -> np.ndarray:
    """Labels, (n, 1), or images, uint8 (n, 32, 32), from a CSV of whole numbers without a header."""
    import pandas as pd

    try:
        table = pd.read_csv(io.BytesIO(place.read(file.name)), header=None, dtype=np.int32).to_numpy()
    except (ValueError, OverflowError, UnicodeDecodeError) as error:  # pandas' own errors are ValueErrors
        reason = words.first_line(error)[:80]
        rule = "hold CSV files of whole numbers"
        raise refusal(rule, file.name, f"It cannot be read ({reason}): get the file again.") from None
    columns = SIDE * SIDE if "images" in file.base.lower() else 1
    if table.shape[1] != columns:
        raise refusal(f"hold rows of {columns:,} numbers", {file.base: table.shape[1]}, "Get the file again.")
    if columns == 1:
        return table
    _require_within("pixels", file, table, 0, 255)
    return table.reshape(-1, SIDE, SIDE).transpose(0, 2, 1).astype(np.uint8)  # a row goes down the columns

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
from qnnkit.data.archives import ARCHIVES, store
from qnnkit.data.images import Stack, form_of, split_stack, stack_arrays, stacked
from qnnkit.data.places import Member, fetch, left_out, local, natural, open_place, refusal, unpacked
from qnnkit.data.splits import ImageSplits

_TABLE = resources.files("qnnkit.data").joinpath("public.yaml").read_text(encoding="utf-8")
PUBLIC: dict[str, dict[str, Any]] = yaml.safe_load(_TABLE)
"""Dataset -> its page, address, files with checksums, and what it needs, as the head of the file explains."""


def _load(
    name: str,
    root: str | Path | None,
    download: bool,
    pattern: str,
    read: Callable[[bytes, str], np.ndarray],
    classes: tuple[str, ...],
    lowest: int = 0,
    **options: Any,
) -> ImageSplits:
    """Images and labels out of four files, by `read(content, file's name)`; labels count from `lowest`.

    The groups of `pattern` are train or another word for test, and image or label. With `download`, what a
    folder lacks is fetched into it.

    Raises:
        FileNotFoundError: A file is missing; the message says where to get it and how to ask.
        OSError: It cannot be fetched.
    """
    path, about, form = local(root) if root else store() / name, PUBLIC[name], form_of(options)
    if download and not path.name.lower().endswith(ARCHIVES):
        _download(path, about)
    packed = path / next(iter(about["files"]))  # an archive that is all of a dataset
    path = packed if packed.is_file() and packed.name.endswith(ARCHIVES) else path
    place, files, others = open_place(path) if path.exists() else None, {}, []
    members: list[Member] = place.members if place else []
    for member in sorted(members, key=lambda each: (each.base.endswith(".gz"), natural(each.name))):
        if fit := re.fullmatch(pattern, member.base, re.IGNORECASE):
            side = "train" if fit[1].lower() == "train" else "test"
            files.setdefault(f"{side} {fit[2].lower()}s", member)
        else:
            others.append(member.name)
    parts = {side: (f"{side} images", f"{side} labels") for side in ("train", "test")}
    missing = [each for pair in parts.values() for each in pair if each not in files]
    if place is None or missing:
        ask = "name an empty folder for download to fill" if download else "set download to true"
        step = f"Missing: {', '.join(missing)}. Get the dataset from {about['page']}, or {ask}."
        rule = f"name a folder or an archive with {about['needs']}"
        raise FileNotFoundError(checks.message("root", rule, root and str(root), step))

    def make() -> Stack:
        arrays = {part: read(place.read(file.name), file.base) for part, file in files.items()}
        for _, y in parts.values():
            _require_within("labels", files[y].base, arrays[y], lowest, lowest + len(classes) - 1)
        pairs = {side: (arrays[x], arrays[y].reshape(-1) - lowest) for side, (x, y) in parts.items()}
        return stack_arrays(pairs, classes, **form)

    stack = stacked(files.values(), {"dataset": name, **form}, make)
    notes = left_out({f"files that are not of {name}": others})
    return split_stack(name, stack, notes=notes, **options)


def _download(folder: Path, about: dict[str, Any]) -> None:
    """Fetches the files that a folder lacks; those that are there are taken as they are."""
    for file, checksum in about["files"].items():
        if not any(folder.rglob(f"{file.removesuffix('.gz')}*")):
            url = about["address"] + urllib.parse.quote(file)
            try:
                fetch(url, folder / file, checksum)
            except (OSError, ValueError) as error:  # of requests; of a wrong checksum
                step = f"Check the connection and try again, or put the file at {folder / file} yourself."
                rule, reason = "find the file at its address", {url: words.first_line(error)}
                raise OSError(checks.message("download", rule, reason, step)) from None


def _require_within(what: str, file: str, values: np.ndarray, lowest: int, highest: int) -> None:
    if values.min() < lowest or values.max() > highest:
        found = {file: [int(values.min()), int(values.max())]}
        raise refusal(f"hold {what} in {lowest}..{highest}", found, "Get the file again, or correct it.")


# --- idx files ---------------------------------------------------------------------------------------------

IDX = r"(train|t10k)-(image|label)s[-.]idx[13]-ubyte(\.gz)?"
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


def _idx(content: bytes, file: str) -> np.ndarray:
    """The bytes of an idx file, (n, height, width) or (n,), after its header has been checked."""
    try:
        content = unpacked(content) if content[:2] == b"\x1f\x8b" else content
        axes = 3 if "idx3" in file.lower() else 1
        magic, *shape = np.frombuffer(content, ">u4", 1 + axes).tolist()
        size, n = math.prod(shape), len(content) - 4 - 4 * axes
        if magic != 0x800 + axes:  # bytes (08), and the number of axes
            raise ValueError(f"magic number {magic} instead of {0x800 + axes}")
        if n != size or not size:
            raise ValueError(f"{n:,} bytes instead of {size:,}")
    except ValueError as error:
        raise refusal("hold whole idx files", {file: str(error)}, "Get the file again.") from None
    return np.frombuffer(content, np.uint8, offset=len(content) - size).reshape(shape)


# --- AHCD --------------------------------------------------------------------------------------------------

LETTERS = (
    "alef", "beh", "teh", "theh", "jeem", "hah", "khah", "dal", "thal", "reh", "zain", "seen", "sheen", "sad",
    "dad", "tah", "zah", "ain", "ghain", "feh", "qaf", "kaf", "lam", "meem", "noon", "heh", "waw", "yeh",
)  # fmt: skip
SIDE = 32
CSV = r"csv(train|test)(image|label).*\.csv"


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


def _table(content: bytes, file: str) -> np.ndarray:
    """Labels, (n, 1), or images, uint8 (n, 32, 32), from a CSV of whole numbers without a header."""
    import pandas as pd

    columns = SIDE * SIDE if "images" in file.lower() else 1
    try:
        table = pd.read_csv(io.BytesIO(content), header=None, dtype=np.int32).to_numpy()
    except (ValueError, OverflowError, UnicodeDecodeError) as error:  # pandas' own errors are ValueErrors
        step = f"It cannot be read ({words.first_line(error)[:80]}): get the file again."
        raise refusal("hold CSV files of whole numbers", file, step) from None
    if table.shape[1] != columns:
        raise refusal(f"hold rows of {columns:,} numbers", {file: table.shape[1]}, "Get the file again.")
    if columns == 1:
        return table
    _require_within("pixels", file, table, 0, 255)
    return table.reshape(-1, SIDE, SIDE).transpose(0, 2, 1).astype(np.uint8)  # a row goes down the columns

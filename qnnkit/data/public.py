"""Public datasets: MNIST and those in its form, and AHCD; where they can be had, as `public.yaml` tells."""

from __future__ import annotations

import io
import math
import re
import string
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from qnnkit import checks, words
from qnnkit.data import fetch
from qnnkit.data.cache import stacked
from qnnkit.data.images import Stack, split_stack, stack_arrays
from qnnkit.data.places import ARCHIVES, Member, Place, first, natural, open_place, refusal, unpacked
from qnnkit.data.splits import ImageSplits

_TABLE = resources.files("qnnkit.data").joinpath("public.yaml").read_text(encoding="utf-8")
PUBLIC: dict[str, dict[str, Any]] = yaml.safe_load(_TABLE)
"""Dataset -> its page, mirrors, files with checksums, and what it needs, as the head of the file explains."""


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
    public = PUBLIC[name]
    path = fetch.local(root) if root else fetch.store() / name
    fills = path.is_dir() or not (path.exists() or path.name.lower().endswith(ARCHIVES))
    if download and fills:
        for file, checksum in public["files"].items():
            plain = path / file.replace("%20", " ")
            if not (root and _is_there(plain)):  # files of your own are taken as they are
                fetch.download([mirror + file for mirror in public["mirrors"]], plain, checksum=checksum)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        raise missing(name, root, [public["needs"]], download)
    if len(public["files"]) == 1 and path.is_dir():  # an archive stands for the folder it was packed from
        inside = path / next(iter(public["files"])).replace("%20", " ")
        return inside if inside.is_file() else path
    return path


def missing(name: str, root: str | Path | None, files: list[str], download: bool) -> FileNotFoundError:
    """What is not there, where to get it, and how to have it fetched."""
    asked = (
        "name an empty folder for download to fill" if download else "set download to true to have it fetched"
    )
    step = f"Get the dataset from {PUBLIC[name]['page']}, or {asked}."
    rule = f"name a folder or an archive with {', '.join(files)}"
    return FileNotFoundError(checks.message("root", rule, None if root is None else str(root), step))


def _is_there(path: Path) -> bool:
    """Whether a folder has a file, packed or not, perhaps deeper down."""
    plain = re.sub(r"\.gz$", "", path.name)
    return any(path.parent.rglob(f"{plain}*")) if path.parent.is_dir() else False


# --- idx files ---------------------------------------------------------------------------------------------

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
    return _load("mnist", root, download, MNIST, **options)


def fashion_mnist(root: str | Path | None = None, *, download: bool = False, **options: Any) -> ImageSplits:
    """Fashion-MNIST: 70,000 photographs of clothes in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        H. Xiao, K. Rasul and R. Vollgraf, arXiv:1708.07747 (2017).
    """
    return _load("fashion_mnist", root, download, FASHION, **options)


def kmnist(root: str | Path | None = None, *, download: bool = False, **options: Any) -> ImageSplits:
    """Kuzushiji-MNIST: 70,000 Japanese characters in 10 classes, 28x28 grey; arguments as for `mnist`.

    Reference:
        T. Clanuwat et al., arXiv:1812.01718 (2018).
    """
    return _load("kmnist", root, download, KMNIST, **options)


def emnist(
    root: str | Path | None = None, *, variant: str | None = None, download: bool = False, **options: Any
) -> ImageSplits:
    """EMNIST: handwritten letters and digits, 28x28 grey; its files hold them transposed.

    Args:
        root: As for `mnist`; `gzip.zip`, as NIST gives it, will do. `download` fetches that: 560 MB.
        variant: balanced (47 classes), letters (26), digits, mnist (10), bymerge (47) or byclass (62); None
            takes the one whose files are there, and of several the first in this order, which is noted.
        download: As for `mnist`.
        options: As for `mnist`.

    Reference:
        G. Cohen et al., arXiv:1702.05373 (2017).
    """
    if variant is not None:
        checks.choice("variant", variant, EMNIST)
    return _load("emnist", root, download, (), variant=variant, **options)


def _load(
    name: str,
    root: str | Path | None,
    download: bool,
    classes: tuple[str, ...],
    *,
    variant: str | None = None,
    image_size: int | None = None,
    grey: bool | None = None,
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
            raise missing(name, root, lacking, download)
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
        if image_size is None:  # as they are, they load as fast from their own files
            return split_stack(name, make(), **options)
        stack = stacked([files[each] for each in names], wanted, make)
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
        found, *shape = np.frombuffer(content, ">u4", 1 + (magic & 0xFF)).tolist()  # one number an axis
        size, n = math.prod(shape), len(content) - 4 - 4 * len(shape)
        if found != magic:
            raise ValueError(f"magic number {found} instead of {magic}")
        if n != size or not size:
            raise ValueError(f"{n:,} bytes instead of {size:,}")
    except ValueError as error:
        raise refusal("hold whole idx files", {member.base: str(error)}, "Get the file anew.") from None
    return np.frombuffer(content, np.uint8, offset=len(content) - size).reshape(shape)


# --- AHCD --------------------------------------------------------------------------------------------------

LETTERS = (
    "alef", "beh", "teh", "theh", "jeem", "hah", "khah", "dal", "thal", "reh", "zain", "seen", "sheen", "sad",
    "dad", "tah", "zah", "ain", "ghain", "feh", "qaf", "kaf", "lam", "meem", "noon", "heh", "waw", "yeh",
)  # fmt: skip
SIDE = 32


def ahcd(
    root: str | Path | None = None,
    *,
    download: bool = False,
    image_size: int | None = None,
    grey: bool | None = None,
    **options: Any,
) -> ImageSplits:
    """AHCD: 16,800 Arabic characters in 28 classes, 32x32 grey, ink light on black.

    Its own test part of 3,360 images, by other writers, is the test split.

    Args:
        root: The zip of four CSV files as it comes, or a folder with them; None looks where downloads go.
        download: Whether to fetch it where it is missing, 3 MB, as in `mnist`.
        image_size: As in `class_folder`.
        grey: As in `class_folder`.
        options: As in `class_folder`; test_fraction is unused.

    Reference:
        A. El-Sawy, M. Loey and H. EL-Bakry, "Arabic Handwritten Characters Recognition using Convolutional
        Neural Network", WSEAS Transactions on Computer Research 5 (2017).
    """

    def make() -> Stack:
        parts = {}
        for side in ("train", "test"):
            pixels = _table(place, found[f"csv{side}images"], "pixels", SIDE * SIDE, 0, 255)
            labels = _table(place, found[f"csv{side}label"], "labels", 1, 1, len(LETTERS))[:, 0]
            upright = pixels.reshape(-1, SIDE, SIDE).transpose(0, 2, 1)  # a row goes down the columns
            parts[side] = (upright.astype(np.uint8), labels - 1)
        return stack_arrays(parts, LETTERS, image_size=image_size, grey=grey)

    with open_place(obtain("ahcd", root, download)) as place:
        pattern = re.compile(r"(csv(?:train|test)(?:images|label)).*\.csv", re.IGNORECASE)
        matches = [(pattern.fullmatch(each.base), each) for each in reversed(place.members)]
        found = {match[1].lower(): each for match, each in matches if match}
        wanted = [f"csv{side}{kind}" for side in ("Train", "Test") for kind in ("Images", "Label")]
        if lacking := [f"{name}*.csv" for name in wanted if name.lower() not in found]:
            raise missing("ahcd", root, lacking, download)
        key = {"dataset": "ahcd", "image_size": image_size, "grey": grey}
        stack = stacked(list(found.values()), key, make)
    return split_stack("ahcd", stack, **options)


def _table(place: Place, file: Member, what: str, columns: int, lowest: int, highest: int) -> np.ndarray:
    """Whole numbers of a range from a CSV without a header, int32 (n, columns)."""
    import pandas as pd

    try:
        table = pd.read_csv(io.BytesIO(place.read(file.name)), header=None, dtype=np.int32).to_numpy()
    except (ValueError, OverflowError, UnicodeDecodeError) as error:  # pandas' own errors are ValueErrors
        reason = words.first_line(error)[:80]
        rule = "hold CSV files of whole numbers"
        raise refusal(rule, file.name, f"It cannot be read ({reason}): get the file anew.") from None
    if table.shape[1] != columns:
        raise refusal(f"hold rows of {columns:,} numbers", {file.base: table.shape[1]}, "Get the file anew.")
    require_within(what, file.base, table, lowest, highest)
    return table

"""The Arabic Handwritten Characters Dataset, from its zip of CSV files."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from qnnkit import checks
from qnnkit.data.assemble import Stack, split_stack, stack_arrays
from qnnkit.data.cache import stacked
from qnnkit.data.idx import require_labels
from qnnkit.data.places import Place, open_place
from qnnkit.data.public import missing, obtain
from qnnkit.data.splits import ImageSplits

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
    cached: bool = True,
    **options: Any,
) -> ImageSplits:
    """AHCD: 16,800 Arabic characters in 28 classes, 32x32 grey, ink light on black.

    Its own test part of 3,360 images, by other writers, is the test split.

    Args:
        root: The zip of four CSV files as it comes, or a folder with them; None looks where downloads go.
        download: Whether to fetch it where it is missing, 3 MB, as in `mnist`.
        image_size: As in `class_folder`.
        grey: As in `class_folder`.
        cached: As in `class_folder`: reading 37 MB of text takes a second or two.
        options: As in `class_folder`; test_fraction is unused.

    Reference:
        A. El-Sawy, M. Loey and H. EL-Bakry, "Arabic Handwritten Characters Recognition using Convolutional
        Neural Network", WSEAS Transactions on Computer Research 5 (2017).
    """
    with open_place(obtain("ahcd", root, download)) as place:
        wanted = {"dataset": "ahcd", "image_size": image_size, "grey": grey}
        files = [member for member in place.members if member.base.lower().endswith(".csv")]
        stack = stacked(files, wanted, lambda: _read(place, root, image_size, grey), cached)
    return split_stack("ahcd", stack, **options)


def _read(place: Place, root: str | Path | None, image_size: int | None, grey: bool | None) -> Stack:
    parts = {}
    for side in ("train", "test"):
        found = {}
        for kind in ("images", "label"):
            pattern = rf"csv{side}{kind}.*\.csv"
            found[kind] = next(
                (each for each in place.members if re.fullmatch(pattern, each.base, re.IGNORECASE)), None
            )
            if found[kind] is None:
                raise missing("ahcd", root, [f"csv{side.title()}{kind.title()}*.csv"])
        images, labels = found["images"], found["label"]
        pixels = _table(place, images.name, SIDE * SIDE)
        values = _table(place, labels.name, 1)[:, 0]
        if pixels.min() < 0 or pixels.max() > 255:
            value = {images.base: f"{pixels.min()}..{pixels.max()}"}
            raise ValueError(checks.message("root", "hold pixels in 0..255", value, "Get the file anew."))
        require_labels(labels.base, values, 1, len(LETTERS))
        upright = pixels.reshape(-1, SIDE, SIDE).transpose(0, 2, 1)  # a row goes down the columns
        parts[side] = (upright.astype(np.uint8), values - 1)
    return stack_arrays(parts, LETTERS, image_size=image_size, grey=grey)


def _table(place: Place, name: str, columns: int) -> np.ndarray:
    """Whole numbers from a CSV without a header, int32 (n, columns)."""
    import pandas as pd

    try:
        table = pd.read_csv(io.BytesIO(place.read(name)), header=None, dtype=np.int32).to_numpy()
    except (ValueError, OverflowError, UnicodeDecodeError) as error:  # pandas' own errors are ValueErrors
        told = str(error).partition("\n")[0][:80]
        rule, step = "hold CSV files of whole numbers", f"It cannot be read ({told}): get the file anew."
        raise ValueError(checks.message("root", rule, name, step)) from None
    if table.shape[1] != columns:
        value = {name: table.shape[1]}
        step = "Get the file anew."
        raise ValueError(checks.message("root", f"hold rows of {columns:,} numbers", value, step))
    return table

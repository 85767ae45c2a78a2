"""The Arabic Handwritten Characters Dataset, from its zip of CSV files."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from qnnkit.data.cache import stacked
from qnnkit.data.idx import require_within
from qnnkit.data.images import Stack, split_stack, stack_arrays
from qnnkit.data.places import Member, Place, open_place, refusal
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
            raise missing("ahcd", root, lacking)
        key = {"dataset": "ahcd", "image_size": image_size, "grey": grey}
        stack = stacked(list(found.values()), key, make, cached)
    return split_stack("ahcd", stack, **options)


def _table(place: Place, file: Member, what: str, columns: int, lowest: int, highest: int) -> np.ndarray:
    """Whole numbers of a range from a CSV without a header, int32 (n, columns)."""
    import pandas as pd

    try:
        table = pd.read_csv(io.BytesIO(place.read(file.name)), header=None, dtype=np.int32).to_numpy()
    except (ValueError, OverflowError, UnicodeDecodeError) as error:  # pandas' own errors are ValueErrors
        reason = str(error).partition("\n")[0][:80]
        rule = "hold CSV files of whole numbers"
        raise refusal(rule, file.name, f"It cannot be read ({reason}): get the file anew.") from None
    if table.shape[1] != columns:
        raise refusal(f"hold rows of {columns:,} numbers", {file.base: table.shape[1]}, "Get the file anew.")
    require_within(what, file.base, table, lowest, highest)
    return table

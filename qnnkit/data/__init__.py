"""Datasets: `load("digits")`, `load("class_folder", root=...)`; every one gives fixed, stratified splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qnnkit import checks
from qnnkit.data.folders import class_folder
from qnnkit.data.images import digits
from qnnkit.data.sample import write_sample
from qnnkit.data.splits import ImageSet, ImageSplits

DATASETS: dict[str, Callable[..., ImageSplits]] = {"digits": digits, "class_folder": class_folder}


def load(name: str, **options: Any) -> ImageSplits:
    """The dataset called `name` in `DATASETS`, with that function's own options.

    Example:
        >>> len(load("digits", test_fraction=0.1).test)
        180
    """
    return DATASETS[checks.choice("dataset", name, DATASETS)](**options)


__all__ = ["DATASETS", "ImageSet", "ImageSplits", "class_folder", "digits", "load", "write_sample"]

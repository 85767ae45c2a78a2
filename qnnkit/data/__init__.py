"""Datasets: `load("digits")`, `load("class_folder", root=...)`; every one gives fixed, stratified splits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from qnnkit import checks
from qnnkit.data.arrays import TensorSplits, arrays, digits
from qnnkit.data.captions import captions, digit_captions
from qnnkit.data.folders import class_folder, flat_folder, sample_files
from qnnkit.data.kinds import Captions, Images, Music, Text, of
from qnnkit.data.pieces import music
from qnnkit.data.public import ahcd, fashion_mnist, kmnist, mnist
from qnnkit.data.splits import ImageSet, ImageSplits, Splits
from qnnkit.data.text import text
from qnnkit.settings import SPLITTING

_LOADERS: tuple[Callable[..., Splits], ...] = (
    *(digits, class_folder, flat_folder, mnist, fashion_mnist, kmnist, ahcd),
    *(captions, digit_captions, text, music),
)
DATASETS = {loader.__name__: loader for loader in _LOADERS}
"""Name of a dataset -> what loads it."""

_KINDS = {"captions": "captions", "digit_captions": "captions", "text": "tokens", "music": "tokens"}
"""Of those that hold no labelled images."""


def load(name: str, *, train_fraction: float = 1.0, **options: Any) -> Splits:
    """The dataset called `name` in `DATASETS`, with that function's own options.

    Args:
        name: Which dataset.
        train_fraction: Share of the training samples that is kept, or above 1 their number; class by class,
            chosen by `split_seed`: a smaller share lies inside a larger one. Validation and test stay whole.
        options: `root`, `image_size`, `grey`, `split_seed`, `validation_fraction`, `test_fraction`, and the
            dataset's own, such as `label_pattern`.

    Raises:
        ValueError: The name is unknown, the dataset does not take an option, or its files are wrong.
        OSError: They are not there.

    Example:
        >>> splits = load("digits", test_fraction=0.1)
        >>> len(splits.test), len(load("digits", test_fraction=0.1, train_fraction=0.1).train)
        (180, 126)
    """
    options = {option: value for option, value in options.items() if option != "root" or value}
    known = options_of(name)
    if unknown := [option for option in options if option not in known]:
        step = f"Leave it out; the options are {', '.join(sorted(known))}."
        raise ValueError(checks.message(unknown[0], f"be left out for {name!r}", options[unknown[0]], step))
    return DATASETS[name](**options).keep(train_fraction, options.get("split_seed", 0))


def kind(name: str) -> str:
    """What the dataset called `name` holds: "images", "captions" (with images) or "tokens".

    Example:
        >>> kind("digits")
        'images'
    """
    return _KINDS.get(checks.choice("dataset", name, DATASETS), "images")


def options_of(name: str) -> set[str]:
    """The options of `load` that the dataset called `name` has.

    Example:
        >>> options_of("flat_folder") - options_of("class_folder")
        {'label_pattern'}
    """
    loader = DATASETS[checks.choice("dataset", name, DATASETS)]
    names = {*inspect.signature(loader).parameters, "train_fraction"}  # which `load` sees to itself
    if "options" in names:  # those of all images, handed on
        names |= {"image_size", "grey", *SPLITTING}
    return names - {"options"}


__all__ = [
    "DATASETS", "Captions", "ImageSet", "ImageSplits", "Images", "Music", "Splits", "TensorSplits", "Text",
    "ahcd", "arrays", "captions", "class_folder", "digit_captions", "digits", "fashion_mnist", "flat_folder",
    "kind", "kmnist", "load", "mnist", "music", "of", "options_of", "sample_files", "text",
]  # fmt: skip

"""Datasets: `load("digits")`, `load("class_folder", root=...)`. All have fixed splits, by class if labelled.

`DATASETS` has the function of each by name: labelled images (`digits`, `class_folder`, `flat_folder`,
`mnist`, `fashion_mnist`, `kmnist`, `ahcd`), images with captions (`captions`, `digit_captions`), and tokens
(`text`, `music`). `arrays` makes a dataset of your own tensors or tables. The result is a `Splits`.
"""

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
"""Dataset name -> function that loads it."""

_KINDS = {"captions": "captions", "digit_captions": "captions", "text": "tokens", "music": "tokens"}
"""Kind of each dataset that does not hold labelled images."""


def load(name: str, *, train_fraction: float = 1.0, **options: Any) -> Splits:
    """Loads the dataset called `name`, with the options of its function in `DATASETS`.

    Args:
        name: Name of the dataset, a key of `DATASETS`.
        train_fraction: Share of the training samples to use, or their number if above 1. `split_seed` chooses
            them class by class; a smaller share is part of a larger one. Validation and test do not change.
        options: `root`, `image_size`, `grey`, `split_seed`, `validation_fraction`, `test_fraction`, and
            options of the dataset itself, such as `label_pattern`: see `options_of`.

    Raises:
        ValueError: The name is unknown, the dataset does not take an option, an option is out of range, or
            its files are invalid.
        OSError: The files are missing or cannot be fetched.

    Example:
        >>> splits = load("digits", test_fraction=0.1)
        >>> len(splits.test), len(load("digits", test_fraction=0.1, train_fraction=0.1).train)
        (180, 126)
    """
    options = {option: value for option, value in options.items() if option != "root" or value}
    accepted = options_of(name)
    if unknown := [option for option in options if option not in accepted]:
        step = f"Leave it out; the options are {', '.join(sorted(accepted))}."
        raise ValueError(checks.message(unknown[0], f"be left out for {name!r}", options[unknown[0]], step))
    return DATASETS[name](**options).keep(train_fraction, options.get("split_seed", 0))


def kind(name: str) -> str:
    """Returns what the dataset called `name` holds: "images", "captions" (with images) or "tokens".

    Raises:
        ValueError: The name is unknown.

    Example:
        >>> kind("digits")
        'images'
    """
    return _KINDS.get(checks.choice("dataset", name, DATASETS), "images")


def options_of(name: str) -> set[str]:
    """Returns the options that `load` takes for the dataset called `name`.

    Raises:
        ValueError: The name is unknown.

    Example:
        >>> options_of("flat_folder") - options_of("class_folder")
        {'label_pattern'}
    """
    loader = DATASETS[checks.choice("dataset", name, DATASETS)]
    names = {*inspect.signature(loader).parameters, "train_fraction"}  # `load` itself takes the latter
    if "options" in names:  # options of all image datasets, passed on
        names |= {"image_size", "grey", *SPLITTING}
    return names - {"options"}


__all__ = [
    "DATASETS", "Captions", "ImageSet", "ImageSplits", "Images", "Music", "Splits", "TensorSplits", "Text",
    "ahcd", "arrays", "captions", "class_folder", "digit_captions", "digits", "fashion_mnist", "flat_folder",
    "kind", "kmnist", "load", "mnist", "music", "of", "options_of", "sample_files", "text",
]  # fmt: skip

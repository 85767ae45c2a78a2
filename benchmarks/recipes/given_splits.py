"""Splits that a paper fixes, for the recipes in this folder: no sample moves to another split."""

import torch

from qnnkit.data import TensorSplits
from qnnkit.data.arrays import TensorSet


def of(name, parts, classes=None):
    """(inputs, targets) of train, validation and test, as splits."""
    sets = []
    for split, (inputs, targets) in zip(("train", "validation", "test"), parts, strict=True):
        sources = tuple(f"{name}/{split}/{i}" for i in range(len(inputs)))
        sets.append(TensorSet(torch.as_tensor(inputs).float(), torch.as_tensor(targets), sources))
    return TensorSplits(name, *sets, classes=classes)

"""The state of every random generator that a training may draw from."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

NUMPY = ("kind", "key", "position", "has_gauss", "cached")
"""Names of the parts of NumPy's generator state."""


def seed_all(*key: object) -> None:
    """Seeds Python's, NumPy's and torch's global generators by a hash of `key`, so similar keys differ.

    `key` is any number of values with a fixed `repr`, such as a seed and an epoch.
    """
    number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002  user code may draw from it
    torch.manual_seed(number)


def random_state() -> dict[str, Any]:
    """The state of every generator that a training may draw from, in the form of a checkpoint."""
    version, words, gauss = random.getstate()
    numpy: dict[str, Any] = dict(zip(NUMPY, np.random.get_state(legacy=True), strict=True))  # noqa: NPY002
    numpy["key"] = torch.from_numpy(np.asarray(numpy["key"]).astype(np.int64))
    return {
        "python": {"version": version, "words": torch.tensor(words, device="cpu"), "gauss": gauss},
        "numpy": numpy,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restores a state from `random_state`; skips devices that this machine does not have."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    numpy = numpy | {"key": numpy["key"].numpy().astype(np.uint32)}
    np.random.set_state(tuple(numpy[name] for name in NUMPY))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count() > 0:
        torch.cuda.set_rng_state_all(state["cuda"])
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


@contextlib.contextmanager
def own_generators() -> Iterator[None]:
    """A context after which every generator returns to its previous state."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)

"""Operations of the hand-written passes that tensors and NumPy arrays spell differently.

On a CPU, NumPy starts an operation in a third of the time that torch takes. Small batches therefore run on
arrays that share the tensors' memory, through the same code.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Array = Any
"""A tensor, or a NumPy array."""


def xp(array: Array) -> Any:
    """The module of an array, torch or NumPy, for functions that both have: cos, sin, concatenate."""
    return np if isinstance(array, np.ndarray) else torch


def empty(like: Array, rows: int) -> Array:
    """An uninitialised array of `rows` rows for the same batch."""
    shape = *like.shape[:-2], rows, like.shape[-1]
    return np.empty(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_empty(shape)


def product(matrix: Array, state: Array) -> Array:
    """matrix @ state, for a state of shape (rows, batch) or (chunks, rows, batch)."""
    if state.ndim == 2 or isinstance(state, np.ndarray):
        return matrix @ state
    return torch.bmm(matrix.expand(len(state), -1, -1), state)


def outer(gradient: Array, state: Array) -> Array:
    """The gradient with respect to the matrix of a product, from that of its result and the old state."""
    return gradient @ state.T if state.ndim == 2 else (gradient @ state.swapaxes(-1, -2)).sum(0)


def picked(state: Array, rows: Array) -> Array:
    return state.index_select(-2, rows) if isinstance(state, Tensor) else state[..., rows, :]


def add_product(target: Array, a: Array, b: Array, sign: int) -> None:
    """target += sign * a * b, in place."""
    if isinstance(target, Tensor):
        target.addcmul_(a, b, value=sign)
    elif sign > 0:
        target += a * b
    else:
        target -= a * b


@functools.cache
def keep_freed_memory() -> None:
    """Makes glibc keep up to 62 MiB of freed memory instead of returning states to the system at every step.

    Its thresholds follow the largest block that was freed (`man mallopt`, M_MMAP_THRESHOLD; 32 MiB at most).
    Each returned page costs a page fault when it is used again: W1 took 2.2 ms instead of 1.9, W2 up to 11
    instead of 6.3 (two x86 cores, 2026-11-24).
    """
    np.empty(31 * 2**20, np.uint8)


def in_numpy(given: Any) -> Any:
    """The same value with arrays in place of tensors, sharing memory.

    Converts tensors in lists, in tuples and in the simulator's objects.
    """

    def converted(leaf: Any) -> Any:
        if type(leaf).__module__.startswith("qnnkit."):
            twin = copy.copy(leaf)
            twin.__dict__ = tree_map(converted, vars(leaf))
            return twin
        return leaf.numpy() if isinstance(leaf, Tensor) else leaf

    return tree_map(converted, given)


# --- float32 matrix products in full precision, whatever the user has set in torch ----------------


def autocasts(kind: str) -> bool:
    """Whether autocast is on for a type of device; False if the type has no autocast."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def rounds(kind: str) -> bool:
    """Whether the user lets torch round float32 matrix products on a type of device."""
    return kind in PRECISION and torch._C._get_fp32_precision_getter(*PRECISION[kind]) not in EXACT


PRECISION = {"cpu": ("mkldnn", "matmul"), "cuda": ("cuda", "matmul")}
"""torch's names of the precision setting, by type of device; other types have no such setting."""
EXACT = "none", "ieee"
"""Values of the precision setting under which torch does not round."""


@contextlib.contextmanager
def _exact(kind: str) -> Iterator[None]:
    """A context in which a type of device does not round or autocast, and NumPy does not warn."""
    of, put = PRECISION.get(kind, PRECISION["cpu"]), torch._C._set_fp32_precision_setter
    before = torch._C._get_fp32_precision_getter(*of)
    put(*of, "ieee")
    try:
        with np.errstate(all="ignore"), torch.autocast(kind, enabled=False):
            yield
    finally:
        put(*of, "none")
        if torch._C._get_fp32_precision_getter(*of) != before:  # it was set explicitly, not inherited
            put(*of, before)


def exactly(kind: str, in_numpy: bool) -> Any:
    """A context in which float32 keeps all its digits, whatever the user has set outside.

    Args:
        kind: Type of device.
        in_numpy: Whether everything runs on NumPy arrays, which ignore these settings.
    """
    return np.errstate(all="ignore") if in_numpy or not (rounds(kind) or autocasts(kind)) else _exact(kind)

"""Orthogonal matrices from a circuit of RY rotations and CZ gates, many at once, in real arithmetic."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def n_wires(dim: int) -> int:
    """The fewest wires whose basis states number `dim` or more, and 1 at least.

    Example:
        >>> n_wires(128), n_wires(129), n_wires(1)
        (7, 8, 1)
    """
    return max(1, (dim - 1).bit_length())


def gates(angles: Any, wires: Sequence[int], entangled: bool = True) -> None:
    """The circuit, in PennyLane's words: RY on every wire, then layers of CZ on all neighbours and RY.

    Args:
        angles: Of shape (n_layers + 1, n_wires), in radians.
        wires: As many.
        entangled: Without it there are no CZ.
    """
    import pennylane as qp

    for layer, of_wires in enumerate(angles):
        if layer and entangled:
            for one, other in itertools.pairwise(wires):
                qp.CZ(wires=(one, other))
        for wire, angle in zip(wires, of_wires, strict=True):
            qp.RY(angle, wires=wire)


def columns(angles: Tensor, n_columns: int, *, entangled: bool = True) -> Tensor:
    """The first columns of the circuits' matrices, which are real and orthogonal.

    The rotations of a layer are two matrices, one for each half of the wires, and the CZ are signs. Memory
    and time grow as (n_layers + 1) * n_columns * 2**n_wires a circuit, the time by 2**(n_wires / 2) more.

    Args:
        angles: Of shape (batch, n_layers + 1, n_wires), in radians; RY(t) = exp(-i t Y / 2).
        n_columns: Up to 2**n_wires.
        entangled: Without it, CZ are left out.

    Returns:
        Of shape (batch, 2**n_wires, n_columns), in the dtype of the angles.

    Example:
        >>> matrix = columns(torch.rand(1, 3, 2, dtype=torch.float64), 4)[0]
        >>> torch.allclose(matrix.T @ matrix, torch.eye(4, dtype=torch.float64))
        True
    """
    batch, n_rounds, n = angles.shape
    half = (n + 1) // 2
    first = _rotations(angles[..., :half])  # (batch, n_rounds, rows, rows)
    second = _rotations(angles[..., half:]).mT  # (batch, n_rounds, cols, cols)
    start, signs = _constants(n, n_columns, angles.device, angles.dtype)
    rows, _, cols = start.shape
    state = start.expand(batch, -1, -1, -1)  # (batch, rows, n_columns, cols)
    for layer in range(n_rounds):
        if layer and entangled:
            state = state * signs
        state = first[:, layer] @ state.reshape(batch, rows, -1)
        state = state.reshape(batch, rows * n_columns, cols) @ second[:, layer]
        state = state.view(batch, rows, n_columns, cols)
    return state.transpose(2, 3).reshape(batch, rows * cols, n_columns)


def _rotations(angles: Tensor) -> Tensor:
    """RY on each of k wires as one matrix: (..., k) -> (..., 2**k, 2**k)."""
    cos, sin = (angles / 2).cos(), (angles / 2).sin()
    each = torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2)).unbind(-3)  # k of (..., 2, 2)
    if not each:
        return angles.new_ones(*angles.shape[:-1], 1, 1)
    whole = each[0]
    for one in each[1:]:  # the Kronecker product
        whole = whole[..., :, None, :, None] * one[..., None, :, None, :]
        whole = whole.flatten(-4, -3).flatten(-2)
    return whole


@functools.lru_cache(maxsize=64)
def _constants(n: int, n_columns: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The first basis states, of shape (rows, n_columns, cols), and the signs of CZ on all neighbours."""
    cols = 2 ** (n // 2)
    rows = 2**n // cols
    with torch.inference_mode(False), torch.no_grad():  # it outlives the caller's mode
        states = torch.arange(2**n)
        pairs = states & (states >> 1)  # a set bit for every pair of neighbouring ones
        odd = sum((pairs >> bit) & 1 for bit in range(n)) % 2
        signs = (1 - 2 * torch.as_tensor(odd)).reshape(rows, 1, cols)
        start = torch.eye(2**n, n_columns).reshape(rows, cols, n_columns).transpose(1, 2).contiguous()
        return start.to(device, dtype), signs.to(device, dtype)

"""Orthogonal matrices from circuits of RY rotations and CZ gates, batched, in real arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor


def n_wires(dim: int) -> int:
    """Returns the smallest number of wires with `dim` or more basis states, at least 1.

    Example:
        >>> n_wires(128), n_wires(129), n_wires(1)
        (7, 8, 1)
    """
    return max(1, (dim - 1).bit_length())


def columns(angles: Tensor, n_columns: int, *, entangled: bool = True) -> Tensor:
    """Returns the first columns of the circuits' matrices, which are real and orthogonal.

    A circuit has RY on every wire, then layers of CZ on all neighbouring wires followed by RY. The rotations
    of a layer are applied as two matrices, one for each half of the wires, and the CZ gates as signs. Memory
    and time grow as (n_layers + 1) * n_columns * 2**n_wires per circuit, time by another 2**(n_wires / 2).

    Args:
        angles: Of shape (batch, n_layers + 1, n_wires), in radians; RY(t) = exp(-i t Y / 2).
        n_columns: Number of columns, at most 2**n_wires.
        entangled: Whether to apply the CZ gates.

    Returns:
        Matrices of shape (batch, 2**n_wires, n_columns), in the dtype of the angles.

    Example:
        >>> matrix = columns(torch.rand(1, 3, 2, dtype=torch.float64), 4)[0]
        >>> torch.allclose(matrix.T @ matrix, torch.eye(4, dtype=torch.float64))
        True
    """
    batch, n_rounds, n = angles.shape
    cols = 2 ** (n // 2)
    rows = 2**n // cols
    first, second = _rotations(angles[..., : n - n // 2]), _rotations(angles[..., n - n // 2 :]).mT
    states = torch.arange(2**n, device=angles.device)
    bits = (states.unsqueeze(1) >> torch.arange(n, device=angles.device)) & 1
    signs = (1 - 2 * ((bits[:, 1:] & bits[:, :-1]).sum(1) % 2)).to(angles)  # of CZ on all neighbours
    start = torch.eye(2**n, n_columns, device=angles.device, dtype=angles.dtype)
    state = start.view(rows, cols, n_columns).transpose(1, 2).expand(batch, -1, -1, -1)
    for layer in range(n_rounds):  # state: (batch, rows, n_columns, cols)
        if layer and entangled:
            state = state * signs.view(rows, 1, cols)
        state = torch.bmm(first[:, layer], state.reshape(batch, rows, -1))
        state = torch.bmm(state.view(batch, rows * n_columns, cols), second[:, layer])
        state = state.view(batch, rows, n_columns, cols)
    return state.transpose(2, 3).reshape(batch, -1, n_columns)


def _rotations(angles: Tensor) -> Tensor:
    """Returns RY on each of k wires as one matrix: (..., k) -> (..., 2**k, 2**k)."""
    cos, sin = (angles / 2).cos(), (angles / 2).sin()
    each = torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2))  # (..., k, 2, 2)
    product = angles.new_ones(*angles.shape[:-1], 1, 1)
    for wire in range(angles.shape[-1]):  # the Kronecker product
        product = product[..., :, None, :, None] * each[..., wire, None, :, None, :]
        product = product.flatten(-4, -3).flatten(-2, -1)
    return product

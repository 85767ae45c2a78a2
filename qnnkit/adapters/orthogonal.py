"""Orthogonal matrices from circuits of RY rotations and CZ gates, many at once, in real arithmetic."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


def n_wires(dim: int) -> int:
    """The fewest wires whose basis states number `dim` or more, and 1 at least.

    Example:
        >>> n_wires(128), n_wires(129), n_wires(1)
        (7, 8, 1)
    """
    return max(1, (dim - 1).bit_length())


def columns(angles: Tensor, n_columns: int, *, entangled: bool = True) -> Tensor:
    """The first columns of the circuits' matrices, which are real and orthogonal.

    A circuit has RY on every wire, then layers of CZ on all neighbouring wires and RY again.
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
    by_autograd = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    run = _states if by_autograd or not (torch.is_grad_enabled() and angles.requires_grad) else _Columns.apply
    state = run(angles, n_columns, entangled)  # (batch, rows, n_columns, cols)
    return state.transpose(2, 3).reshape(len(angles), -1, n_columns)


def _states(angles: Tensor, n_columns: int, entangled: bool, tape: list[Tensor] | None = None) -> Tensor:
    """The columns, of shape (batch, rows, n_columns, cols); those after each layer go on the tape."""
    half = (angles.shape[-1] + 1) // 2
    first, second = _rotations(angles[..., :half]), _rotations(angles[..., half:]).mT
    start, signs = _constants(angles.shape[-1], n_columns, angles.device, angles.dtype)
    state = start.expand(len(angles), -1, -1, -1)
    for layer in range(angles.shape[1]):
        if layer and entangled:
            state = state * signs
        state = _turned(state, first[:, layer], second[:, layer])
        if tape is not None:
            tape.append(state)
    if tape is not None:
        tape += [first, second]
    return state


def _turned(state: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """first @ state @ second, over rows and columns of basis states: all rotations of a layer."""
    batch, rows, n_columns, cols = state.shape
    state = torch.bmm(first, state.reshape(batch, rows, -1))
    return torch.bmm(state.view(batch, rows * n_columns, cols), second).view(batch, rows, n_columns, cols)


class _Columns(torch.autograd.Function):
    """`_states` with gradients by hand, in half of autograd's time: no gradient of a matrix is needed.

    With psi the state after the rotations of a layer and g its gradient, that of an angle of wire w is
    <g, (-i Y_w) psi> / 2, since RY(t) = exp(-i t Y / 2). For all wires of a half it is read off g psi^T.
    """

    @staticmethod
    def forward(ctx: Any, angles: Tensor, n_columns: int, entangled: bool) -> Tensor:
        tape: list[Tensor] = []
        state = _states(angles, n_columns, entangled, tape)
        ctx.save_for_backward(angles, *tape)
        ctx.given = n_columns, entangled
        return state

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        with torch.autocast(gradient.device.type, enabled=False):  # it may still hold around backward()
            angles, *states, first, second = ctx.saved_tensors
            n_columns, entangled = ctx.given
            if torch.is_grad_enabled():  # to be differentiated again: by autograd, through plain torch
                values = _states(angles, n_columns, entangled)
                [found] = torch.autograd.grad(values, angles, gradient, create_graph=True)
                return found, None, None
            _, signs = _constants(angles.shape[-1], n_columns, angles.device, angles.dtype)
            gradients = [gradient]
            for layer in range(len(states) - 1, 0, -1):
                gradient = _turned(gradient, first[:, layer].mT, second[:, layer].mT)
                gradients.append(gradient := gradient * signs if entangled else gradient)
            g, psi = (
                torch.stack(gradients[::-1], 1),
                torch.stack(states, 1),
            )  # (batch, n_rounds, rows, ., cols)
            of_rows = g.flatten(-2) @ psi.flatten(-2).mT  # (batch, n_rounds, rows, rows)
            of_cols = g.flatten(2, 3).mT @ psi.flatten(2, 3)
            found = [
                square.flatten(-2) @ _turns(square.shape[-1], square.device, square.dtype)
                for square in (of_rows, of_cols)
            ]
            return torch.cat(found, dim=-1), None, None


def _rotations(angles: Tensor) -> Tensor:
    """RY on each of k wires as one matrix: (..., k) -> (..., 2**k, 2**k)."""
    cos, sin = (angles / 2).cos(), (angles / 2).sin()
    each = torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2)).unbind(-3)  # k of (..., 2, 2)
    if not each:
        return angles.new_ones(*angles.shape[:-1], 1, 1)
    whole = each[0]
    for one in each[1:]:  # the Kronecker product, in rows as long as can be
        wide = whole.unsqueeze(-1).expand(*whole.shape, 2).flatten(-2)
        tiled = one.unsqueeze(-2).expand(*one.shape[:-1], whole.shape[-1], 2).flatten(-2)
        whole = (wide.unsqueeze(-2) * tiled.unsqueeze(-3)).flatten(-3, -2)
    return whole


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Tensors made inside outlive the caller's modes: no graph, no inference mode, and none without data."""
    with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
        yield


@functools.lru_cache(maxsize=64)
def _constants(n: int, n_columns: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The first basis states, of shape (rows, n_columns, cols), and the signs of CZ on all neighbours."""
    cols = 2 ** (n // 2)
    rows = 2**n // cols
    with _plain():
        states = torch.arange(2**n)
        pairs = states & (states >> 1)  # a set bit for every pair of neighbouring ones
        odd = sum((pairs >> bit) & 1 for bit in range(n)) % 2
        signs = (1 - 2 * torch.as_tensor(odd)).reshape(rows, 1, cols)
        start = torch.eye(2**n, n_columns).reshape(rows, cols, n_columns).transpose(1, 2).contiguous()
        return start.to(device, dtype), signs.to(device, dtype)


@functools.lru_cache(maxsize=64)
def _turns(dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """-i Y / 2 of each wire of a half, as a matrix of the half: of shape (dim * dim, wires)."""
    k = dim.bit_length() - 1
    with _plain():
        states = torch.arange(dim)
        found = torch.zeros(dim, dim, k)
        for wire in range(k):
            bit = 1 << (k - 1 - wire)  # <1| -i Y |0> = 1, <0| -i Y |1> = -1
            found[states, states ^ bit, wire] = torch.where(states & bit > 0, 0.5, -0.5)
        return found.flatten(0, 1).to(device, dtype)

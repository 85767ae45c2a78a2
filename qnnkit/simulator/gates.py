"""Gates as numbers: how a gate's matrix depends on its angle, and how it acts on more wires."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pennylane as qp
import torch

EXACT = 1e-12
"""Largest deviation that counts as rounding, in float64."""
PROBE = 0.37
"""Angle in radians: small enough that no eigenphase wraps, odd enough that no two coincide by chance."""
CHECKED = (1.9, -1.3, 2.9, 3.9)
ROUNDED = 1e-6
"""Largest deviation from a unitary matrix that counts as rounding in float32."""


is_wrapped: Any = vars(torch._C)["_functorch"].is_functorch_wrapped_tensor
"""Whether a tensor stands for a batch of tensors, or belongs to a transform of torch.func."""


class NotFusable(Exception):
    """A circuit has no fused program. The message completes "because ..."."""


class TakeApart(NotFusable):
    """An operator must be decomposed with the numbers of each call.

    Args:
        name: Name of the operator.
        reason: The reason, which completes "because ...".
    """

    def __init__(self, name: str, reason: str):
        super().__init__(reason)
        self.name = name


@dataclass(frozen=True)
class Turn:
    """A gate of one angle on its wires: U(t) = basis diag(exp(-i rates t)) basis^dagger start."""

    basis: np.ndarray
    rates: np.ndarray
    start: np.ndarray

    def at(self, angle: float) -> np.ndarray:
        return (self.basis * np.exp(-1j * angle * self.rates)) @ self.basis.conj().T @ self.start


@dataclass(frozen=True)
class Gate:
    """A unitary gate with at most one angle, on its wires."""

    wires: tuple[int, ...]
    """Positions, most significant first."""
    form: Turn | np.ndarray
    """Its matrix if the gate is constant, else how the matrix depends on the angle."""
    angle: int | None = None
    """Index of its angle; None for a constant gate."""
    on_rows: bool = False
    """Whether the angle differs from sample to sample."""

    @property
    def permutes(self) -> bool:
        """Whether the gate is constant and only permutes basis states and changes their phases."""
        return isinstance(self.form, np.ndarray) and is_monomial(self.form)


def constant(operation: qp.operation.Operator) -> np.ndarray:
    """The matrix of a gate without a traced angle."""
    return np.asarray(qp.matrix(operation, wire_order=operation.wires), dtype=complex)


def is_unitary(matrix: np.ndarray, tolerance: float = ROUNDED) -> bool:
    return bool(np.abs(matrix.conj().T @ matrix - np.eye(len(matrix))).max() < tolerance)


def turn(operation: qp.operation.Operator) -> Turn:
    """How a gate's matrix depends on its angle: derived from two angles, checked at four others.

    Raises:
        NotFusable: It is not of the form exp(-i t G) U(0), with multiples of 1/8 as eigenvalues of G.
    """
    # For PennyLane's own gates without settings, the class determines the matrix.
    plain = type(operation).__module__.startswith("pennylane.ops.qubit") and not operation.hyperparameters
    return _turn_of(type(operation), len(operation.wires)) if plain else _derive_turn(operation)


@functools.cache
def _turn_of(kind: type[qp.operation.Operator], n_wires: int) -> Turn:
    return _derive_turn(kind(PROBE, wires=range(n_wires)))


def _derive_turn(operation: qp.operation.Operator) -> Turn:
    start = at(operation, 0.0)
    start = np.where(np.abs(start) < EXACT, 0, start)
    unitary = at(operation, PROBE) @ start.conj().T
    basis = np.eye(len(unitary), dtype=complex)
    if np.abs(unitary - np.diag(np.diag(unitary))).max() >= EXACT:
        # Hermitian, with the same eigenvectors: eigh returns orthonormal ones even if eigenvalues repeat.
        _, basis = np.linalg.eigh((unitary - unitary.conj().T) / 2j)
    # multiples of 1/4, or of 1/8 in excitations of half an angle
    rates = -np.angle(np.diag(basis.conj().T @ unitary @ basis)) / PROBE
    turn = Turn(basis, np.round(rates * 8) / 8, start)
    if not is_unitary(start, 1e-10):
        raise NotFusable(f"the matrix of {operation.name} is not unitary")
    is_off = any(np.abs(turn.at(angle) - at(operation, angle)).max() > 1e-10 for angle in CHECKED)
    if is_off or not turn.rates.any():  # some operators store their numbers twice
        raise NotFusable(f"the matrix of {operation.name} depends on its angle in an unknown way")
    return turn


def at(operation: qp.operation.Operator, angle: float) -> np.ndarray:
    """The matrix of a gate of one angle, at another angle."""
    return constant(with_numbers(operation, [angle]))


def with_numbers(operation: qp.operation.Operator, numbers: Sequence[Any]) -> qp.operation.Operator:
    """The same operator with other numbers.

    Raises:
        TakeApart: PennyLane cannot rebuild the operator with these numbers.
    """
    if isinstance(operation, qp.ops.Evolution):
        return qp.ops.Evolution(operation.base, *numbers)
    if isinstance(operation, qp.ops.Adjoint) and isinstance(operation.base, qp.ops.Evolution):
        return qp.ops.Adjoint(qp.ops.Evolution(operation.base.base, *numbers))
    if isinstance(operation, qp.StatePrep):  # the constructor would check its norm
        twin = copy.copy(operation)
        twin.data = tuple(numbers)
        return twin
    try:
        return qp.ops.functions.bind_new_parameters(operation, numbers)
    except Exception as error:
        raise TakeApart(operation.name, f"{operation.name} reads the values of its numbers") from error


def real_form(matrix: np.ndarray) -> np.ndarray:
    """Complex matrices as real ones that act on columns (re, im): (..., m, n) -> (..., 2 m, 2 n)."""
    re, im = matrix.real, matrix.imag
    return np.concatenate([np.concatenate([re, -im], -1), np.concatenate([im, re], -1)], -2)


def is_monomial(matrix: np.ndarray) -> bool:
    """Whether a matrix only permutes basis states and changes their phases, like CNOT, SWAP, CZ and T."""
    size = np.abs(matrix)
    is_one = abs(size - 1) < EXACT
    return bool(np.all(is_one | (size < EXACT)) and np.all(is_one.sum(0) == 1))


def local_states(wires: Sequence[Any], among: Sequence[Any]) -> np.ndarray:
    """For each basis state of `among`, the state of `wires` in it."""
    states, n = np.arange(2 ** len(among)), len(among)
    local = np.zeros_like(states)
    for wire in wires:
        local = 2 * local + (states >> (n - 1 - among.index(wire)) & 1)
    return local


def states_of(wires: Sequence[int], n_wires: int) -> np.ndarray:
    """For each state of `wires`, the basis state of all wires in which the others are 0."""
    others = [wire for wire in range(n_wires) if wire not in wires]
    grid = np.arange(2**n_wires).reshape([2] * n_wires).transpose(*others, *wires)
    return grid[(0,) * len(others)].ravel()

"""Gates as numbers: how a matrix depends on its one angle, and how it acts on more wires."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pennylane as qp

from qnnkit.simulator.graph import NotFusable

EXACT = 1e-12
"""Largest deviation that counts as rounding, in float64."""
FREQUENCIES = (0.5, 1.0, 0.25, 2.0)


@dataclass(frozen=True)
class TrigForm:
    """U(t) = fixed + cos(frequency t) cosine + sin(frequency t) sine, on the gate's own wires.

    Every gate exp(-i t G) whose generator has eigenvalues {-f, f}, {-f, 0, f} or {0, f} is of this form:
    rotations, phase shifts, their controlled forms, excitations.
    """

    fixed: np.ndarray
    cosine: np.ndarray
    sine: np.ndarray
    frequency: float

    def at(self, angle: float) -> np.ndarray:
        turned = self.frequency * angle
        return self.fixed + np.cos(turned) * self.cosine + np.sin(turned) * self.sine


def constant(operation: qp.operation.Operator) -> np.ndarray:
    """Matrix of a gate without a traced angle."""
    return np.asarray(qp.matrix(operation, wire_order=operation.wires), dtype=complex)


def trig_form(operation: qp.operation.Operator) -> TrigForm:
    """How the gate's matrix depends on its angle: found from five angles, checked at a sixth.

    Raises:
        NotFusable: It is no trigonometric polynomial of one frequency.
    """
    # PennyLane's own gates without settings: the class alone tells the matrix.
    plain = type(operation).__module__.startswith("pennylane.ops.qubit") and not operation.hyperparameters
    if not plain:
        return _found_form(operation)
    kind = (type(operation), len(operation.wires))
    return _FORMS.get(kind) or _FORMS.setdefault(kind, _found_form(operation))


_FORMS: dict[tuple[type, int], TrigForm] = {}


def _found_form(operation: qp.operation.Operator) -> TrigForm:
    angles = np.array([0.0, 0.7, 1.9, -1.3, 2.6, 3.9])
    matrices = np.stack([at(operation, angle) for angle in angles])
    for frequency in FREQUENCIES:
        basis = np.stack([np.ones(6), np.cos(frequency * angles), np.sin(frequency * angles)], axis=1)
        parts, *_ = np.linalg.lstsq(basis[:5], matrices[:5].reshape(5, -1), rcond=None)
        if np.abs(basis @ parts - matrices.reshape(6, -1)).max() < EXACT:
            parts[np.abs(parts) < EXACT] = 0
            fixed, cosine, sine = parts.reshape(3, *matrices.shape[1:])
            return TrigForm(fixed, cosine, sine, frequency)
    raise NotFusable(f"{operation.name} depends on its angle in an unknown way")


def at(operation: qp.operation.Operator, angle: float) -> np.ndarray:
    """Matrix of a gate of one angle, at another angle."""
    return constant(qp.ops.functions.bind_new_parameters(operation, [angle]))


def eigenbasis(form: TrigForm) -> tuple[np.ndarray, np.ndarray]:
    """(V, rates) with U(t) = V diag(exp(-i rates t)) V^dagger U(0) for every t.

    Raises:
        NotFusable: There is no such pair.
    """
    probe = 0.37  # small enough that no eigenphase wraps, odd enough that no two coincide by chance
    start = form.at(0.0)
    unitary = form.at(probe) @ start.conj().T
    if np.abs(unitary - np.diag(np.diag(unitary))).max() < EXACT:
        basis = np.eye(len(unitary), dtype=complex)
    else:
        # Hermitian, with the same eigenvectors: eigh gives orthonormal ones also where eigenvalues repeat.
        hermitian = (unitary - unitary.conj().T) / 2j
        _, basis = np.linalg.eigh(hermitian)
    rates = -np.angle(np.diag(basis.conj().T @ unitary @ basis)) / probe
    rates = np.round(rates * 8) / 8  # they are multiples of 1/4, or of 1/8 in excitations of half an angle
    rebuilt = (basis * np.exp(-1j * rates * 2.9)) @ basis.conj().T @ start
    if np.abs(rebuilt - form.at(2.9)).max() > 1e-10:
        raise NotFusable("a gate on the inputs is not of the form exp(-i t G)")
    return basis, rates


def real_form(matrix: np.ndarray) -> np.ndarray:
    """A complex matrix as it acts on columns (re, im): a stack (..., m, n) -> (..., 2 m, 2 n) real."""
    re, im = matrix.real, matrix.imag
    return np.concatenate([np.concatenate([re, -im], -1), np.concatenate([im, re], -1)], -2)


def is_monomial(matrix: np.ndarray) -> bool:
    """Whether it only renames basis states and turns their phases, as CNOT, SWAP, CZ and T do."""
    return bool((np.count_nonzero(np.abs(matrix) > EXACT, axis=0) == 1).all())


def local_states(wires: Sequence[Any], among: Sequence[Any]) -> np.ndarray:
    """For each basis state of `among`, the state of `wires` in it."""
    states, n = np.arange(2 ** len(among)), len(among)
    local = np.zeros_like(states)
    for wire in wires:
        local = 2 * local + (states >> (n - 1 - among.index(wire)) & 1)
    return local


def states_of(wires: Sequence[int], n_wires: int) -> np.ndarray:
    """For each state of `wires`, the basis state of all wires in which the others are 0."""
    local, states = np.arange(2 ** len(wires)), np.zeros(2 ** len(wires), dtype=int)
    for place, wire in enumerate(reversed(wires)):
        states |= (local >> place & 1) << (n_wires - 1 - wire)
    return states

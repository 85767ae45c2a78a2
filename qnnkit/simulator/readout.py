"""Measurements as sums over basis states: <O> from the rows of the final state, in real arithmetic."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pennylane as qp

from qnnkit.simulator.gates import NotFusable, local_states

MOST_COLUMNS = 4096
MOST_NUMBERS = 2**25
"""Most numbers of all columns together; each takes 16 bytes while the columns are built."""


@dataclass
class Readout:
    """Every measured number as a column of phases.

    A Pauli word sends basis state i to phase(i) |i ^ flip>. Words with the same flip are summed. For a state
    a + ib and its flipped copy c + id, the column's value is
    sum_i real_i (c a + d b)_i - imag_i (c b - d a)_i, summed over all flips.

    Reference: Aaronson and Gottesman (2004), arXiv:quant-ph/0406196, for words as bit masks.
    """

    flips: dict[int, np.ndarray] = field(default_factory=dict)
    """flip -> complex phases, of shape (2**n_wires, n_columns)."""
    shapes: list[tuple[str, int, int]] = field(default_factory=list)
    """(kind, first column, number of columns) of each measurement; kind is expval, var, probs or state."""


def readout(measurements: tuple[Any, ...], wires: tuple[Any, ...]) -> Readout:
    """How to compute the measurements from the final state.

    Raises:
        NotFusable: A measurement is not an expectation value, variance, probability or state.
    """
    reading, columns = Readout(), []
    for measurement in measurements:
        first = len(columns)
        match measurement:
            case qp.measurements.ExpectationMP():
                columns.append(_words(measurement.obs, wires))
                kind = "expval"
            case qp.measurements.VarianceMP():
                columns += [_words(measurement.obs, wires, squared=squared) for squared in (False, True)]
                kind = "var"
            case qp.measurements.ProbabilityMP() if measurement.obs is None:
                columns += _projectors(measurement.wires or wires, wires)
                kind = "probs"
            case qp.measurements.StateMP() if type(measurement) is qp.measurements.StateMP:
                if len(measurements) > 1 or measurement.wires:
                    raise NotFusable("it measures a state together with something else")
                kind = "state"
            case _:
                raise NotFusable(f"it measures {type(measurement).__name__.removesuffix('MP').lower()}")
        reading.shapes.append((kind, first, len(columns) - first))
    if len(columns) * 2 ** len(wires) > MOST_NUMBERS:
        raise NotFusable("it measures too many numbers of too many wires")
    for i, column in enumerate(columns):
        for flip, phases in column.items():
            table = reading.flips.setdefault(flip, np.zeros((2 ** len(wires), len(columns)), dtype=complex))
            table[:, i] += phases
    return reading


def _words(observable: Any, wires: tuple[Any, ...], *, squared: bool = False) -> dict[int, np.ndarray]:
    if observable is None:
        raise NotFusable("it measures eigenvalues without an observable")
    if isinstance(observable, qp.ops.qubit.observables.BasisStateProjector):  # its own square
        outcome = int("".join(str(int(bit)) for bit in observable.data[0]), 2)
        return {0: (local_states(observable.wires, wires) == outcome) + 0j}  # too many words otherwise
    # rebuilt, because PennyLane caches its Pauli form even if a coefficient changes in place
    observable = qp.ops.functions.bind_new_parameters(observable, observable.data)
    sentence: Any = observable.pauli_rep
    if sentence is None:
        if not observable.has_matrix or len(observable.wires) > 6:
            raise NotFusable(f"the observable {observable.name} has no Pauli form")
        matrix = np.asarray(qp.matrix(observable, wire_order=observable.wires))
        sentence = qp.pauli_decompose(matrix, wire_order=observable.wires, pauli=True, check_hermitian=False)
    n, states, column = len(wires), np.arange(2 ** len(wires)), {}
    for word, coefficient in (sentence @ sentence if squared else sentence).items():
        flip, phases = 0, np.full(2**n, complex(coefficient))
        for wire, letter in word.items():
            shift = n - 1 - wires.index(wire)
            sign = 1 - 2 * (states >> shift & 1)
            if letter in "XY":
                flip |= 1 << shift
            if letter in "YZ":
                phases = phases * (1j * sign if letter == "Y" else sign)
        column[flip] = column.get(flip, 0) + phases
    return column


def _projectors(wires: Any, among: tuple[Any, ...]) -> list[dict[int, np.ndarray]]:
    """Projectors on each basis state of some wires."""
    if 2 ** len(wires) > MOST_COLUMNS:
        raise NotFusable(f"it measures probabilities of {len(wires)} wires")
    state_of = local_states(tuple(wires), among)
    return [{0: (state_of == outcome) + 0j} for outcome in range(2 ** len(wires))]

"""A batch in which every row has its own weights, compared with `default.qubit` row by row."""

import itertools
import math

import pennylane as qp
import pytest
import torch

from qnnkit import circuits
from qnnkit.simulator import OverWeights
from tests.toys import mixed_gradients, same, uniform

FLOAT64 = 1e-10
ROWS = 3


def row_by_row(qnode, rows):
    """Values of `default.qubit`, of shape (batch, n_outputs)."""
    outputs = []
    for i in range(ROWS):
        values = qnode(**{name: each[i] for name, each in rows.items()})
        outputs.append(torch.stack(list(values)) if isinstance(values, list | tuple) else values)
    return torch.stack(outputs)


def check(qnode, shapes, n_features):
    """Compares values, and gradients of a mixture of all outputs with respect to inputs and weights."""
    named = ({"inputs": (n_features,)} if n_features else {}) | shapes
    rows = {
        name: uniform(ROWS, *shape, seed=i, top=2 * math.pi, dtype=torch.float64).requires_grad_()
        for i, (name, shape) in enumerate(named.items())
    }
    inputs = rows.get("inputs", torch.zeros(0, dtype=torch.float64))
    ours = OverWeights(qnode, shapes, n_features)(inputs, {name: rows[name] for name in shapes})
    both = [(each, *mixed_gradients(each, [*rows.values()])) for each in (ours, row_by_row(qnode, rows))]
    same(*both, FLOAT64)
    assert all(each.abs().max() > 1e-3 for each in both[0]), "all outputs are zero"


@pytest.mark.parametrize(
    ("ansatz", "embedding", "n_qubits"),
    [*itertools.product(circuits.ANSAETZE, ["angle"], [2, 7])]  # as one matrix, and in blocks
    + [("hardware_efficient", embedding, 3) for embedding in ("amplitude", "iqp")],
)
def test_values_and_gradients_of_every_circuit(ansatz, embedding, n_qubits):
    n_features = circuits.embedding_of(ansatz, embedding).n_features(n_qubits)
    check(*circuits.build(ansatz, n_qubits=n_qubits, n_layers=2, embedding=embedding), n_features)


def odd_gates(inputs, weights, other):
    qp.Hadamard(0)
    qp.CRY(inputs[0] * weights[0], wires=(0, 2))
    qp.RX(torch.sin(weights[1]) + 0.3, wires=1)
    qp.IsingXY(other[0, 0], wires=(1, 2))
    qp.Rot(weights[2], 0.4, 2 * other[0, 1] - inputs[1], wires=2)
    qp.adjoint(qp.PhaseShift)(weights[3], wires=0)
    return [qp.expval(qp.X(0) @ qp.Y(2)), qp.expval(qp.Projector([1, 0], wires=(2, 1))), qp.var(qp.Z(1))]


def wide_projector(weights):
    for wire in range(9):
        qp.RY(weights[wire] / 9, wires=wire)
    return [qp.expval(qp.Projector([0] * 9, wires=range(9)))]


OTHERS = [(odd_gates, {"weights": (4,), "other": (1, 2)}, 2), (wide_projector, {"weights": (9,)}, 0)]


@pytest.mark.parametrize(("circuit", "shapes", "n_features"), OTHERS)
def test_other_gates_and_measurements(circuit, shapes, n_features):
    check(qp.QNode(circuit, circuits.make_device("default.qubit", 9)), shapes, n_features)

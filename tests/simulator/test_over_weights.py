"""A batch in which every row has weights of its own, against `default.qubit` row by row."""

from __future__ import annotations

import itertools
import math

import pennylane as qp
import pytest
import torch

from qnnkit import circuits
from qnnkit.simulator import NotFusable, OverWeights

FLOAT64 = 1e-10
ROWS = 3


def row_by_row(qnode, inputs, weights):
    """Values of `default.qubit`, of shape (batch, n_outputs)."""
    rows = []
    for i in range(ROWS):
        given = {name: each[i] for name, each in weights.items()}
        found = qnode(**({} if inputs is None else {"inputs": inputs[i]}), **given)
        rows.append(torch.stack(list(found)) if isinstance(found, list | tuple) else found)
    return torch.stack(rows)


def check(qnode, shapes, n_features, *, real=True):
    """Values, and gradients by inputs and weights, of a fixed mixture of all outputs."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return 2 * math.pi * torch.rand(*shape, generator=generator, dtype=torch.float64)

    program = OverWeights(qnode, shapes, n_features)
    inputs = draw(ROWS, n_features).requires_grad_() if n_features else None
    weights = {name: draw(ROWS, *shape).requires_grad_() for name, shape in shapes.items()}
    leaves = [*([] if inputs is None else [inputs]), *weights.values()]
    ours = program(torch.zeros(0, dtype=torch.float64) if inputs is None else inputs, weights)
    theirs = row_by_row(qnode, inputs, weights)
    assert ours.shape == theirs.shape
    if not real:
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    assert (ours - theirs).abs().max() < FLOAT64
    mixture = draw(*ours.shape) - 3
    found, wanted = (torch.autograd.grad(each, leaves, mixture, allow_unused=True) for each in (ours, theirs))
    for mine, other, leaf in zip(found, wanted, leaves, strict=True):
        other = torch.zeros_like(leaf) if other is None else other
        assert (mine - other).abs().max() < FLOAT64 * max(1, float(other.abs().max()))
    assert max(float(each.abs().max()) for each in found) > 0.01  # there was something to compare


@pytest.mark.parametrize(
    ("ansatz", "embedding", "n_qubits"),
    [*itertools.product(circuits.ANSAETZE, ["angle"], [2, 7])]  # in one matrix, and in blocks
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


def state(weights):
    for wire in range(3):
        qp.RX(weights[wire], wires=wire)
        qp.CNOT(wires=(wire, (wire + 1) % 3))
        qp.RZ(weights[wire] + 1, wires=wire)
    return qp.state()


def on_device(function, wires=3):
    return qp.QNode(function, circuits.make_device("default.qubit", range(wires)))


def test_products_and_functions_of_weights_and_other_gates():
    check(on_device(odd_gates), {"weights": (4,), "other": (1, 2)}, 2)


def test_states_of_a_circuit_without_inputs():
    check(on_device(state), {"weights": (3,)}, 0, real=False)


def test_transforms_of_the_qnode_hold():
    qnode, shapes = circuits.build("data_reuploading", n_qubits=3)
    check(circuits.drop_entanglement(qnode), shapes, 3)


def test_one_input_serves_every_row():
    program = OverWeights(*circuits.build("data_reuploading", n_qubits=2, n_layers=1), 2)
    weights = {"weights": torch.rand(5, 1, 2, 3, generator=torch.Generator().manual_seed(0))}
    one = torch.tensor([0.3, 0.4])
    assert torch.equal(program(one, weights), program(one.expand(5, -1), weights))


@pytest.mark.parametrize("n_wires", [3, 9])
def test_a_projector_on_many_wires(n_wires):
    def function(weights):
        for wire in range(n_wires):
            qp.RY(weights[wire], wires=wire)
        return [qp.expval(qp.Projector([0] * n_wires, wires=range(n_wires)))]

    angles = torch.linspace(0.1, 1.2, n_wires, dtype=torch.float64)
    program = OverWeights(on_device(function, n_wires), {"weights": (n_wires,)}, 0)
    value = program(angles.new_zeros(0), {"weights": angles[None]})
    assert torch.allclose(value, (angles / 2).cos().square().prod(), rtol=0, atol=FLOAT64)


def test_what_has_no_fused_form_is_refused():
    def noisy(inputs, weights):
        qp.RX(inputs[0] + weights[0], wires=0)
        qp.DepolarizingChannel(0.1, wires=0)
        return [qp.expval(qp.Z(0))]

    with pytest.raises(NotFusable, match="is no unitary gate"):
        OverWeights(qp.QNode(noisy, qp.device("default.mixed", wires=1, seed=None)), {"weights": (1,)}, 1)

"""Which weights can learn: light cones, gates that commute, and nets that were built to fail."""

from __future__ import annotations

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, circuits, gradients, plots
from tests.toys import uniform


def layer_of(function, shapes, n_wires: int, n_features: int) -> QuantumLayer:
    start = {name: uniform(*shape, seed=1) for name, shape in shapes.items()}
    layer = QuantumLayer(qp.QNode(function, circuits.make_device("default.qubit", n_wires)), shapes, start)
    layer(uniform(1, n_features))
    return layer


def named(ansatz: str, n_qubits: int, **sizes) -> QuantumLayer:
    qnode, shapes = circuits.build(ansatz, n_qubits=n_qubits, **sizes)
    return layer_of(qnode.func, shapes, n_qubits, n_qubits)


def silent(layer: QuantumLayer, rows: torch.Tensor) -> set[int]:
    """Weights on which no output depends: by PennyLane alone, output by output."""
    witness = layer.with_qnode(layer.qnode, backend="default.qubit").double().requires_grad_(True)
    largest = torch.zeros(sum(weight.numel() for weight in witness.parameters()), dtype=torch.float64)
    for value in witness(rows.double()).flatten():
        parts = torch.autograd.grad(value, list(witness.parameters()), retain_graph=True)
        largest = torch.maximum(largest, torch.cat([part.flatten() for part in parts]).abs())
    return set((largest < 1e-9).nonzero().flatten().tolist())


@pytest.mark.parametrize("ansatz", circuits.ANSAETZE)
@pytest.mark.parametrize("n_qubits", [1, 4])
def test_dead_weights_are_those_without_influence_and_every_weight_turns_a_gate(ansatz, n_qubits):
    layer, rows = named(ansatz, n_qubits, n_layers=2), uniform(5, n_qubits)
    assert {i for each in gradients.dead(layer, rows) for i in each.weights} == silent(layer, rows)
    gates = gradients.gates(layer)
    turned = [i for gate in gates for i in gate.weights]
    assert sorted(turned) == list(range(len(gradients.weight_names(layer))))
    assert sum(bool(gate.features) for gate in gates) >= n_qubits


def staircase(inputs, weights):
    """Wire 0 is measured; what is turned after the CNOTs on other wires cannot reach it."""
    qp.AngleEmbedding(inputs, wires=range(3))
    for wire in range(3):
        qp.RY(weights[0, wire], wires=wire)
    qp.CNOT(wires=(1, 0))
    for wire in range(3):
        qp.RX(weights[1, wire], wires=wire)
    return [qp.expval(qp.Z(0))]


def commuting(inputs, weights):
    qp.RY(inputs[..., 0] + 0 * weights[2], wires=0)
    qp.RY(weights[0], wires=0)
    qp.RZ(weights[1], wires=0)
    return [qp.expval(qp.Z(0))]


def measured(inputs, weights, other):
    """What is measured on the way leads on."""
    qp.RY(inputs[..., 0], wires=0)
    qp.RX(weights[0], wires=0)
    qp.RX(other, wires=2)
    qp.cond(qp.measure(0), qp.X)(wires=1)
    return [qp.expval(qp.Z(1))]


def tiny(inputs, weights):
    """A gradient far below what float32 can tell from nothing is one."""
    qp.RY(inputs[..., 0], wires=0)
    qp.RX(1e-5 * weights[0] + weights[1], wires=0)
    return [qp.expval(qp.Z(0))]


LEADS = "no gate after it leads to a wire that is measured: "
MOVES = "nothing that is measured changes with it on this sample, at any weights: "
DEAD = {  # circuit -> shapes, wires, and what is said: the weights, and why
    staircase: ({"weights": (2, 3)}, 3, [
        ((2, 4, 5), f"3 weights cannot learn, because {LEADS}weights[0, 2] (RY on wire 2), weights[1, "
         "1] (RX on wire 1), weights[1, 2] (RX on wire 2)")]),
    commuting: ({"weights": (3,)}, 1, [
        ((1,), f"{MOVES}weights[1] (RZ on wire 0)"),
        ((2,), "1 weight cannot learn, because no angle depends on it: weights[2] (no gate)")]),
    measured: ({"weights": (1,), "other": ()}, 3, [((1,), f"{LEADS}other (RX on wire 2)")]),
    tiny: ({"weights": (2,)}, 1, []),
}  # fmt: skip


@pytest.mark.parametrize("circuit", DEAD)
def test_dead_weights_have_their_reason_and_frozen_ones_are_no_news(circuit):
    shapes, n_wires, expected = DEAD[circuit]
    layer, rows = layer_of(circuit, shapes, n_wires, n_wires), uniform(4, n_wires)
    found = gradients.dead(layer, rows)
    assert [each.weights for each in found] == [weights for weights, _ in expected]
    assert all(why in each.value for each, (_, why) in zip(found, expected, strict=True))
    assert {i for each in found for i in each.weights} == silent(layer, rows)
    list(layer.parameters())[-1].requires_grad_(False)
    assert [each.weights for each in gradients.dead(layer, rows)] == []


def test_an_unlucky_start_is_told_apart_and_the_model_is_left_as_it_was():
    model = nn.Sequential(layer_of(commuting, {"weights": (3,)}, 1, 1), nn.BatchNorm1d(1)).train()
    with torch.no_grad():
        model[0].qnode_weights["weights"].copy_(torch.tensor([0.0, 1.0, 1.0]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    unlucky, always, _ = gradients.dead(model, torch.zeros(3, 1))
    assert "zero on the whole sample, at the weights as they are: weights[0] (RY on wire 0)" in unlucky.value
    assert unlucky.remedy.startswith("Choose another") and always.remedy.startswith("Change what")
    assert model.training and all(map(torch.equal, model.state_dict().values(), before.values()))


@pytest.mark.parametrize("values", [[1e-3, 2.0, 0.5, 1, 1, 1], [0.0] * 6, [float("nan")] * 6])
def test_the_coloured_circuit_shows_every_gate_where_its_wires_are_free(values):
    gates = gradients.gates(layer_of(staircase, {"weights": (2, 3)}, 3, 3))
    figure = plots.coloured_circuit(gates, 3, np.array(values), "size", dead={2, 4, 5})
    boxes = [box for box in figure.axes[0].patches if box.get_zorder() == 4]
    assert [bool(box.get_hatch()) for box in boxes] == [False] * 5 + [True, False, True, True]
    assert (boxes[3].get_facecolor() != boxes[4].get_facecolor()) == (values[1] == 2.0)
    columns = [round(box.get_x() + box.get_width() / 2) for box in boxes]
    assert columns == [0, 0, 0, 1, 1, 1, 3, 3, 2]
    assert plots.as_png(figure)


def test_gates_of_every_form_are_drawn_and_a_long_circuit_goes_on_below():
    forms = [("Hadamard", (0,), 0), ("IsingXX", (0, 2), 0), ("CRX", (2, 0), 1), ("CZ", (0, 1), 1)]
    forms += [("CNOT", (2, 1), 1), ("Toffoli", (0, 1, 2), 2), ("MottonenStatePreparation", (), 0)]
    gates = [gradients.Gate(*form, (i,), (), True) for i, form in enumerate(forms)]
    figure = plots.coloured_circuit(gates, 3, np.full(7, 0.5), "size")
    boxes = [box.get_gid() for box in figure.axes[0].patches if box.get_gid()]
    assert boxes == [(0,), (1,), (1,), (2,), (3,), (5,), (6,)]
    names = {text.get_text() for text in figure.axes[0].texts}
    assert {"0", "1", "2", "Hadamard", "IsingXX", "RX", "Z", "Toffoli"} < names
    assert len(plots.outlines(figure, 1)) == 2 and plots.outlines(figure, 4) == []
    gates = gradients.gates(named("strongly_entangling", 4, n_layers=4, mirrored=True))
    assert {gate.name for gate in gates} == {"RY", "RZ", "CNOT"}, "inverse gates are gates"
    figure = plots.coloured_circuit(gates, 4, np.ones(48), "size")
    assert figure.get_figheight() > 5 and figure.get_figwidth() < 12

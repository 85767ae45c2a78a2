"""Which weights can learn: light cones, gates that commute, and nets that were built to fail."""

from __future__ import annotations

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, Quanv2d, circuits, gradients, plots
from tests.toys import refused, uniform


def layer_of(function, shapes, n_wires: int, n_features: int) -> QuantumLayer:
    start = {name: uniform(*shape, seed=1) for name, shape in shapes.items()}
    layer = QuantumLayer(qp.QNode(function, circuits.make_device("default.qubit", n_wires)), shapes, start)
    layer(uniform(1, n_features))
    return layer


def named(ansatz: str, n_features: int = 3, **sizes) -> QuantumLayer:
    qnode, shapes = circuits.build(ansatz, **sizes)
    layer = QuantumLayer(qnode, shapes, {"weights": uniform(*shapes["weights"], seed=1)})
    layer(uniform(1, n_features))
    return layer


def staircase(inputs, weights):
    """Wire 0 is measured; what is turned after the CNOTs on other wires cannot reach it."""
    qp.AngleEmbedding(inputs, wires=range(3))
    for wire in range(3):
        qp.RY(weights[0, wire], wires=wire)
    qp.CNOT(wires=(1, 0))
    for wire in range(3):
        qp.RX(weights[1, wire], wires=wire)
    return [qp.expval(qp.Z(0))]


def influence(layer: QuantumLayer, rows: torch.Tensor) -> np.ndarray:
    """Largest |d output / d weight| over rows and outputs: by PennyLane alone, output by output."""
    witness = layer.with_qnode(layer.qnode, backend="default.qubit").double().requires_grad_(True)
    largest = torch.zeros(sum(weight.numel() for weight in witness.parameters()), dtype=torch.float64)
    for value in witness(rows.double()).flatten():
        parts = torch.autograd.grad(value, list(witness.parameters()), retain_graph=True)
        largest = torch.maximum(largest, torch.cat([part.flatten() for part in parts]).abs())
    return largest.numpy()


@pytest.mark.parametrize("ansatz", circuits.ANSAETZE)
@pytest.mark.parametrize("n_qubits", [1, 4])
def test_dead_weights_are_those_without_influence_and_every_weight_turns_a_gate(ansatz, n_qubits):
    layer, rows = named(ansatz, n_qubits, n_qubits=n_qubits, n_layers=2), uniform(5, n_qubits)
    found = {i for each in gradients.dead(layer, rows) for i in each.weights}
    assert found == set(np.flatnonzero(influence(layer, rows) < 1e-9))
    gates = gradients.gates(layer)
    turned = [i for gate in gates for i in gate.weights]
    assert sorted(turned) == list(range(len(gradients.weight_names(layer))))
    assert sum(bool(gate.features) for gate in gates) >= n_qubits


def test_a_light_cone_by_hand():
    layer = layer_of(staircase, {"weights": (2, 3)}, 3, 3)
    gates = [gate for gate in gradients.gates(layer) if gate.weights]
    assert [(str(gate), gate.reaches) for gate in gates] == [
        ("RY on wire 0", True), ("RY on wire 1", True), ("RY on wire 2", False),
        ("RX on wire 0", True), ("RX on wire 1", False), ("RX on wire 2", False),
    ]  # fmt: skip
    [found] = gradients.dead(layer, uniform(4, 3))
    assert found.weights == (2, 4, 5) and found.value == (
        "3 weights cannot learn, because no gate after it leads to a wire that is measured: "
        "weights[0, 2] (RY on wire 2), weights[1, 1] (RX on wire 1), weights[1, 2] (RX on wire 2)"
    )


def test_names_are_the_places_in_the_tensors_of_a_layer_that_has_run():
    layer = layer_of(lambda inputs, b, a: [qp.expval(qp.Z(0))], {"b": (2, 2), "a": ()}, 1, 1)
    assert gradients.weight_names(layer) == ["b[0, 0]", "b[0, 1]", "b[1, 0]", "b[1, 1]", "a"]
    with refused("layer"):
        gradients.gates(QuantumLayer(layer.qnode, {"b": (2, 2), "a": ()}, torch.zeros_like))


@pytest.mark.parametrize(("factor", "found"), [(0, [("0", (0,))]), (1e-5, [])])
def test_an_angle_times_zero_learns_nothing_and_a_tiny_gradient_is_one(factor, found):
    """Tiny: far below what float32 can tell from nothing."""

    def circuit(inputs, weights):
        qp.RY(inputs[..., 0], wires=0)
        qp.RX(factor * weights[0], wires=0)
        qp.RX(weights[1], wires=0)
        return [qp.expval(qp.Z(0))]

    dead = gradients.dead(nn.Sequential(layer_of(circuit, {"weights": (2,)}, 1, 1)), uniform(3, 1))
    assert [(each.layer, each.weights) for each in dead] == found
    assert all("because no angle depends on it: weights[0] (no gate)" in each.value for each in dead)


def test_a_gate_that_commutes_with_what_is_measured_is_told_apart_from_an_unlucky_start():
    def circuit(inputs, weights):
        qp.RY(inputs[..., 0], wires=0)
        qp.RY(weights[0], wires=0)
        qp.RZ(weights[1], wires=0)
        return [qp.expval(qp.Z(0))]

    layer = layer_of(circuit, {"weights": (2,)}, 1, 1)
    with torch.no_grad():
        layer.qnode_weights["weights"].copy_(torch.tensor([0.0, 1.0]))
    unlucky, always = gradients.dead(layer, torch.zeros(3, 1))
    assert "zero on the whole sample, at the weights as they are: weights[0] (RY on wire 0)" in unlucky.value
    assert "changes with it on this sample, at any weights: weights[1] (RZ on wire 0)" in always.value
    assert unlucky.remedy.startswith("Choose another") and always.remedy.startswith("Change what")
    assert [each.weights for each in gradients.dead(layer, uniform(3, 1))] == [(1,)]


def test_shots_hide_nothing():
    device = circuits.make_device("default.qubit", 3)
    qnode = qp.set_shots(qp.QNode(staircase, device, diff_method="parameter-shift"), 10)
    layer = QuantumLayer(qnode, {"weights": (2, 3)}, {"weights": uniform(2, 3, seed=1)})
    assert [each.weights for each in gradients.dead(layer, uniform(2, 3))] == [(2, 4, 5)]
    assert layer.qnode.shots.total_shots == 10


def test_what_is_measured_on_the_way_leads_on():
    def circuit(inputs, weights):
        qp.RY(inputs[..., 0], wires=0)
        qp.RX(weights[0], wires=0)
        qp.RX(weights[1], wires=2)
        qp.cond(qp.measure(0), qp.X)(wires=1)
        return [qp.expval(qp.Z(1))]

    layer = layer_of(circuit, {"weights": (2,)}, 3, 1)
    assert [gate.reaches for gate in gradients.gates(layer) if gate.weights] == [True, False]
    [found] = gradients.dead(layer, uniform(4, 1))
    assert found.weights == (1,) and "weights[1] (RX on wire 2)" in found.value
    assert influence(layer, uniform(4, 1))[0] > 0.1


def test_a_model_is_left_as_it_was_and_frozen_layers_are_no_news():
    model = nn.Sequential(Quanv2d(1, "strongly_entangling"), nn.BatchNorm2d(4)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = uniform(2, 1, 4, 4)
    [found] = gradients.dead(model, images)
    assert all(f"weights[1, {wire}, 2] (" in found.value for wire in range(4)) and len(found.weights) == 4
    assert model.training and all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    assert gradients.dead(model.requires_grad_(False), images) == []
    assert gradients.dead(nn.ReLU(), uniform(2, 2)) == []


def test_of_a_circuit_that_is_partly_frozen_only_the_rest_is_told():
    def circuit(inputs, weights, others):
        qp.RY(inputs[..., 0], wires=0)
        qp.RX(weights[0], wires=1)
        qp.RX(others[0], wires=1)
        return [qp.expval(qp.Z(0))]

    layer = layer_of(circuit, {"weights": (1,), "others": (1,)}, 2, 1)
    assert [each.weights for each in gradients.dead(layer, uniform(3, 1))] == [(0, 1)]
    layer.qnode_weights["weights"].requires_grad_(False)
    [found] = gradients.dead(layer, uniform(3, 1))
    assert found.weights == (1,) and "1 weight cannot learn" in found.value and "others[0]" in found.value


@pytest.mark.parametrize("values", [[1e-3, 2.0, 0.5, 1, 1, 1], [0.0] * 6, [float("nan")] * 6])
def test_the_coloured_circuit_shows_every_gate_where_its_wires_are_free(values):
    gates = gradients.gates(layer_of(staircase, {"weights": (2, 3)}, 3, 3))
    figure = plots.coloured_circuit(gates, 3, np.array(values), "size", dead={2, 4, 5})
    boxes = [box for box in figure.axes[0].patches if box.get_zorder() == 4]
    assert [bool(box.get_hatch()) for box in boxes] == [False] * 5 + [True, False, True, True]
    faces = [box.get_facecolor() for box in boxes]
    assert (faces[3] != faces[4]) == (values[1] == 2.0)
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

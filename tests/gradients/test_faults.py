"""Each net that is built to fail gets its reason, weight by weight; healthy nets get none."""

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, circuits, gradients, plots
from qnnkit.gradients import faults
from tests.toys import layer_on, shipped, uniform
from tests.watched import TASK, Turned, data, layer, net, trained

# --- one batch --------------------------------------------------------------------------------------------


def turned(inputs, weights, factors=(1, 1), measured=(0, 1)):
    for wire in (0, 1):
        qp.RX(factors[wire] * inputs[:, wire], wires=wire)
        qp.RY(weights[wire], wires=wire)
    return [qp.expval(qp.Z(wire)) if wire < 2 else qp.expval(qp.X(wire - 2)) for wire in measured]


def built(weights=None, first=True, **options) -> Turned:
    """A net around `turned`."""
    model = Turned(layer(lambda inputs, weights: turned(inputs, weights, **options), (2,), weights))
    model.first = model.first if first else nn.Identity()
    return model


def computing(forward) -> Turned:
    """A net that computes its logits by `forward`."""
    model = built()
    model.forward = lambda points: forward(model, points)
    return model


def global_observable(inputs, weights):
    """A product of cosines of about 1.45 rad: each wire makes it eight times smaller."""
    qp.AngleEmbedding(0.05 * inputs, wires=range(8))
    for wire in range(8):
        qp.RX(weights[wire], wires=wire)
    return [qp.expval(qp.prod(*(qp.Z(wire) for wire in range(8))))]


def flat() -> Turned:
    return Turned(layer(global_observable, (8,), torch.full((8,), 1.45), n_qubits=8), 8, 1)


def amplitudes(inputs, weights):
    qp.AmplitudeEmbedding(inputs, wires=[0, 1], normalize=True)
    qp.RY(weights[0], wires=0)
    return [qp.expval(qp.Z(0))]


MISSED, SHOTS = {"measured": (0, 2)}, {"diff_method": "parameter-shift", "shots": 50}
SAME = "Constant output in `circuit`: its output is the same for every sample"
MISSING = "Unused inputs in `circuit`: … depends on its features 1 (counted from 0)"
CASES = {  # net -> parts of each expected sentence
    "healthy": (net, []),
    "a wire that is not measured": (lambda: built(**MISSED), [
        MISSING, "Dead weights … 1 weight … leads to a measured wire: weights[1] (RY on"]),
    "one wire that is not read": (lambda: computing(
        lambda net, points: net.last(net.circuit(net.first(points)) * torch.tensor([1.0, 0.0]))), [
        "No gradient in `circuit`: 1 weight with … 0 on this batch: weights[1]"]),
    "amplitudes": (lambda: Turned(layer(amplitudes, (1,)), 4, 1), []),
    "a cut path": (lambda: net(factor=0.0), ["No gradient in `circuit`: it was exactly 0 in every"]),
    "a reader with small weights": (lambda: net(factor=1e-4), [
        "Vanishing gradient in `circuit`: … per radian (limit: at least 0.0001, … scale them up"]),
    "a flat circuit": (flat, ["Vanishing gradient … while its outputs change by … Use fewer qubits"]),
    "inputs times zero": (lambda: built(factors=(0, 0), first=False), [
        f"{SAME}: no angle that reaches a measured wire depends on its inputs."]),
    "equal inputs": (
        lambda: computing(lambda net, points: net.last(net.circuit(0 * net.first(points)))), [
        f"{SAME}: its inputs are all equal."]),
    "a start that hides all features": (lambda: built(weights=torch.zeros(2), measured=(2, 3)), [
        f"{SAME}, at the present weights."]),
    "inputs with shots": (lambda: Turned(layer(amplitudes, (1,), **SHOTS), 4, 1), [
        "No gradient of the loss in `model` … `circuit` (parameter-shift) … broadcast_expand"]),
    "never called": (lambda: computing(lambda net, points: net.last(net.first(points))), [
        "Unused circuit in `circuit`: nothing calls it, so the net does not depend on it"]),
    "frozen": (lambda: Turned(net().circuit.requires_grad_(False)), ["No circuit trains in `model`"]),
    "no circuit": (lambda: net().last, ["No circuit in `model`"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_batch_shows_each_fault_and_nothing_else(name):
    make, expected = CASES[name]
    model = make()
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 7)
    result = gradients.diagnose(model, TASK, next(iter(data()["train"])))
    sentences = [str(fault) for fault in result]
    assert len(sentences) == len(expected), sentences
    for sentence, parts in zip(sentences, expected, strict=True):
        assert all(part in sentence for part in parts.split(" … ")), sentence
    assert all((weight.grad == 7).all() for weight in model.parameters())


# --- an epoch ---------------------------------------------------------------------------------------------


def row(norm=0.5, step=0.01, snr=(0.5, 1.0), others=0.5, other_snr=0.1, ratio=(0.1,), **layer) -> dict:
    """An epoch of 16 updates of a circuit and optionally of a classical part, with four weights each."""
    circuit = {"layer": "q", "group": "quantum", "n_weights": 4, "norm": [norm] * 4, "step": [step] * 4}
    circuit |= {"snr_low": snr[0], "snr_high": snr[1], **layer}
    reader = {"layer": "head", "group": "classical", "n_weights": 4, "norm": [others] * 4}
    quantum = {"group": "quantum", "ratio": [0.1], "snr_low": snr[0]}
    classical = {"group": "classical", "ratio": [*ratio], "snr_low": other_snr}
    n = 1 if others is None else 2
    return {"updates": 16, "layers": [circuit, reader][:n], "groups": [quantum, classical][:n]}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, []),
        ({"norm": 1.9e-4}, ["Vanishing gradient"]),  # the limit of 1e-4 per weight is 2e-4 here
        ({"norm": 2.1e-4}, []),
        ({"norm": 1.9e-4, "others": 1.8e-2}, []),  # more than a hundredth of the classical norm
        ({"norm": 1.9e-4, "others": None}, ["Vanishing gradient"]),
        ({"norm": 19.0}, []),
        ({"norm": 21.0}, ["Exploding gradient"]),
        ({"step": 1.5}, []),
        ({"step": 1.6}, ["Steps too long"]),
        ({"snr": (0.0, 0.24), "step": 0.31}, ["Steps too long"]),  # reported before noise
        ({"snr": (0.0, 0.24), "step": 0.29}, ["Noise drowns the gradient"]),  # also over 16 steps together
        ({"snr": (0.0, 0.26), "other_snr": 0.1}, []),
        ({"snr": (0.0, 0.26), "other_snr": 0.3}, ["Noise drowns the gradient"]),
        ({"snr": (0.1, 0.26), "other_snr": 0.3}, []),  # the lower end is not zero
        ({"ratio": (0.1, 1.1)}, ["Learning rate too high"]),
        ({"ratio": (None, 5.0)}, []),  # weights that start at zero
        ({"input_dtype": "bfloat16", "norm": 0}, ["Half precision", "No gradient"]),
    ],
)
def test_faults_in_an_epoch(numbers, expected):
    result = faults.of_epoch(row(**numbers))
    assert [fault.kind for fault in result] == expected
    assert all("{" not in str(fault) for fault in result)


# --- training runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({"rate": 0.05}, [], []),
        ({"optimizer": "adam", "rate": 10.0, "quantum_rate": 0.01}, ["Learning rate too high"], []),
        ({"precision": "bfloat16"}, ["Half precision"], ["Half precision"]),
    ],
)
def test_training_prints_warnings(settings, first, second):
    rows = trained(net(), **settings)
    assert [[text.partition(" in `")[0] for text in row["warnings"]] for row in rows] == [first, second]


# --- which weights can learn --------------------------------------------------------------------------------


def silent(layer: QuantumLayer, rows: torch.Tensor) -> set[int]:
    """Weights that no output depends on, computed by PennyLane output by output."""
    witness = layer.with_qnode(layer.qnode, backend="default.qubit").double().requires_grad_(True)
    largest = torch.zeros(sum(weight.numel() for weight in witness.parameters()), dtype=torch.float64)
    for value in witness(rows.double()).flatten():
        parts = torch.autograd.grad(value, list(witness.parameters()), retain_graph=True)
        largest = torch.maximum(largest, torch.cat([part.flatten() for part in parts]).abs())
    return set((largest < 1e-9).nonzero().flatten().tolist())


@pytest.mark.parametrize("ansatz", circuits.ANSAETZE)
def test_dead_weights_have_no_influence_and_every_weight_is_used_by_a_gate(ansatz):
    layer, rows = shipped(ansatz, n_qubits=4), uniform(5, 4)
    assert {i for each in gradients.dead(layer, rows) for i in each.weights} == silent(layer, rows)
    gates = gradients.gates(layer)
    turned = [i for gate in gates for i in gate.weights]
    assert sorted(turned) == list(range(len(gradients.weight_names(layer))))
    assert sum(bool(gate.features) for gate in gates) >= 4


def staircase(inputs, weights):
    """Wire 0 is measured; rotations of other wires after the CNOTs cannot reach it."""
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
    """A mid-circuit measurement influences later gates."""
    qp.RY(inputs[..., 0], wires=0)
    qp.RX(weights[0], wires=0)
    qp.RX(other, wires=2)
    qp.cond(qp.measure(0), qp.X)(wires=1)
    return [qp.expval(qp.Z(1))]


LEADS = "no gate after it leads to a measured wire: "
MOVES = "no measured value depends on it for this sample, at any weights: "
DEAD = {  # circuit -> shapes, wires, and the expected dead weights with their reasons
    staircase: ({"weights": (2, 3)}, 3, [
        ((2, 4, 5), f"3 weights cannot learn, because {LEADS}weights[0, 2] (RY on wire 2), weights[1, "
         "1] (RX on wire 1), weights[1, 2] (RX on wire 2)")]),
    commuting: ({"weights": (3,)}, 1, [
        ((1,), f"{MOVES}weights[1] (RZ on wire 0)"),
        ((2,), "1 weight cannot learn, because no angle depends on it: weights[2] (no gate)")]),
    measured: ({"weights": (1,), "other": ()}, 3, [((1,), f"{LEADS}other (RX on wire 2)")]),
}  # fmt: skip


@pytest.mark.parametrize("circuit", DEAD)
def test_dead_weights_have_a_reason_and_frozen_ones_are_not_reported(circuit):
    shapes, n_wires, expected = DEAD[circuit]
    layer, rows = layer_on(n_wires, circuit, shapes), uniform(4, n_wires)
    result = gradients.dead(layer, rows)
    assert [each.weights for each in result] == [weights for weights, _ in expected]
    assert all(why in each.value for each, (_, why) in zip(result, expected, strict=True))
    assert {i for each in result for i in each.weights} == silent(layer, rows)
    list(layer.parameters())[-1].requires_grad_(False)
    assert [each.weights for each in gradients.dead(layer, rows)] == []


def test_an_unlucky_start_is_recognised_and_the_model_is_unchanged():
    model = nn.Sequential(layer_on(1, commuting, {"weights": (3,)}), nn.BatchNorm1d(1)).train()
    with torch.no_grad():
        model[0].qnode_weights["weights"].copy_(torch.tensor([0.0, 1.0, 1.0]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    unlucky, always, _ = gradients.dead(model, torch.zeros(3, 1))
    assert "zero on the whole sample, at the present weights: weights[0] (RY on wire 0)" in unlucky.value
    assert unlucky.remedy.startswith("Choose another") and always.remedy.startswith("Change its")
    assert model.training and all(map(torch.equal, model.state_dict().values(), before.values()))


@pytest.mark.parametrize("values", [[1e-3, 2.0, 0.5, 1, 1, 1], [0.0, np.nan] * 3])
def test_the_coloured_circuit_draws_every_gate_on_free_wires(values):
    gates = gradients.gates(layer_on(3, staircase, {"weights": (2, 3)}))
    figure = plots.coloured_circuit(gates, np.array(values), "size", dead={2, 4, 5})
    boxes = [box for box in figure.axes[0].patches if box.get_zorder() == 4]
    assert [bool(box.get_hatch()) for box in boxes] == [False] * 5 + [True, False, True, True]
    assert (boxes[3].get_facecolor() != boxes[4].get_facecolor()) == (values[1] == 2.0)
    assert [round(box.get_x() + box.get_width() / 2) for box in boxes] == [0, 0, 0, 1, 1, 1, 3, 3, 2]
    assert plots.as_png(figure)


def test_gates_of_every_form_are_drawn_and_a_long_circuit_wraps():
    forms = [("Hadamard", (0,), 0), ("IsingXX", (0, 2), 0), ("CRX", (2, 0), 1), ("CZ", (0, 1), 1)]
    forms += [("CNOT", (2, 1), 1), ("Toffoli", (0, 1, 2), 2), ("MottonenStatePreparation", (), 0)]
    gates = [gradients.Gate(*form, (i,), (), True) for i, form in enumerate(forms)]
    figure = plots.coloured_circuit(gates, np.full(7, 0.5), "size")
    boxes = [box.get_gid() for box in figure.axes[0].patches if box.get_gid()]
    assert boxes == [(0,), (1,), (1,), (2,), (3,), (5,), (6,)]
    assert len(plots.outlines(figure, 1)) == 2 and plots.outlines(figure, 4) == []
    gates = gradients.gates(shipped("strongly_entangling", n_qubits=4, n_layers=4, mirrored=True))
    assert {gate.name for gate in gates} == {"RY", "RZ", "CNOT"}, "inverse gates count as gates"
    assert plots.coloured_circuit(gates, np.ones(48), "size").get_figheight() > 5

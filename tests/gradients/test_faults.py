"""Nets that were built to fail are told why; healthy ones are told nothing."""

from __future__ import annotations

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import gradients
from qnnkit.gradients import faults
from tests.watched import TASK, Turned, data, layer, net, trained

# --- one batch --------------------------------------------------------------------------------------------


def turned(inputs, weights, factors=(1, 1), measured=(0, 1)):
    for wire in (0, 1):
        qp.RX(factors[wire] * inputs[:, wire], wires=wire)
        qp.RY(weights[wire], wires=wire)
    return [qp.expval(qp.Z(wire)) if wire < 2 else qp.expval(qp.X(0)) for wire in measured]


def built(shots=None, weights=None, first=True, **options) -> Turned:
    """A net around `turned`."""
    method = {"diff_method": "parameter-shift", "shots": shots} if shots else {}
    model = Turned(layer(lambda inputs, weights: turned(inputs, weights, **options), (2,), weights, **method))
    model.first = model.first if first else nn.Identity()
    return model


def computing(forward) -> Turned:
    """A net with another way from the points to the logits."""
    model = built()
    model.forward = lambda points: forward(model, points)
    return model


def global_observable(inputs, weights):
    """A product of cosines of 1.45 rad or so: each wire makes it eight times smaller."""
    qp.AngleEmbedding(0.05 * inputs, wires=range(8))
    for wire in range(8):
        qp.RX(weights[wire], wires=wire)
    return [qp.expval(qp.prod(*(qp.Z(wire) for wire in range(8))))]


def flat() -> Turned:
    return Turned(layer(global_observable, (8,), torch.full((8,), 1.45), n_qubits=8), 8, 1)


def phases_only(inputs, weights):
    """RZ of |0>: every feature turns an angle, and nothing comes of it."""
    qp.AngleEmbedding(inputs, wires=(0, 1), rotation="Z")
    qp.RY(weights[0], wires=0)
    qp.RY(weights[1], wires=1)
    return [qp.expval(qp.Z(wire)) for wire in (0, 1)]


def amplitudes(inputs, weights):
    qp.AmplitudeEmbedding(inputs, wires=[0, 1], normalize=True)
    qp.RY(weights[0], wires=0)
    return [qp.expval(qp.Z(0))]


MISSED = {"measured": (0, 2)}
SAME = "Constant output in `circuit`: it gives the same for every sample"
MISSING = "Unused inputs in `circuit`: … depends on its features 1 (counted from 0)"
CASES = {  # net, and what is said: parts of each sentence
    "healthy": (net, []),
    "a wire that is not measured": (lambda: built(**MISSED), [
        MISSING, "Dead weights … 1 weight … leads to a wire that is measured: weights[1] (RY on"]),
    "one wire that is not read": (lambda: computing(
        lambda net, points: net.last(net.circuit(net.first(points)) * torch.tensor([1.0, 0.0]))), [
        "No gradient in `circuit`: 1 weight with … 0 on this batch: weights[1]"]),
    "amplitudes": (lambda: Turned(layer(amplitudes, (1,)), 4, 1), []),
    "a way that is cut": (lambda: net(factor=0.0), ["No gradient in `circuit`: it was exactly 0 in every"]),
    "a reader that weighs little": (lambda: net(factor=1e-4), [
        "Vanishing gradient in `circuit`: … per radian (limit: at least 0.0001, … scale them up"]),
    "a flat circuit": (flat, ["Vanishing gradient … while its outputs change by … Use fewer qubits"]),
    "an exploding one": (lambda: net(factor=1e4), ["Exploding gradient in `circuit`"]),
    "float16": (lambda: Turned(net().circuit.half()), [
        "Half precision in `circuit`: its weights are float16, which resolves angles near pi to 0.002"]),
    "inputs times zero": (lambda: built(factors=(0, 0), first=False), [
        f"{SAME}: its inputs turn no angle that reaches a measured wire."]),
    "one input times zero, shots": (lambda: built(shots=50, factors=(0, 1), first=False), [
        "Unused inputs in `circuit` … its features 0 "]),
    "equal inputs": (
        lambda: computing(lambda net, points: net.last(net.circuit(0 * net.first(points)))), [
        f"{SAME}: its inputs are all equal."]),
    "inputs that turn phases": (lambda: Turned(layer(phases_only, (2,))), [
        f"{SAME}, at the weights as they are."]),
    "inputs with shots": (lambda: built(shots=50, **MISSED), [
        "No gradient of the loss in `model` … `circuit` (parameter-shift) … broadcast_expand",
        MISSING, "Dead weights … weights[1]"]),
    "never called": (lambda: computing(lambda net, points: net.last(net.first(points))), [
        "Unused circuit in `circuit`: nothing calls it, so the net does not depend on it"]),
    "frozen": (lambda: Turned(net().circuit.requires_grad_(False)), ["No circuit trains in `model`"]),
    "no circuit": (lambda: net().last, ["No circuit in `model`"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_batch_tells_what_is_wrong_and_nothing_else(name):
    make, expected = CASES[name]
    model = make()
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 7)
    found = gradients.diagnose(model, TASK, next(iter(data()["train"])))
    sentences = [str(fault) for fault in found]
    assert len(sentences) == len(expected), sentences
    for sentence, parts in zip(sentences, expected, strict=True):
        assert all(part in sentence for part in parts.split(" … ")), sentence
    assert all((weight.grad == 7).all() for weight in model.parameters())


# --- an epoch ---------------------------------------------------------------------------------------------


def row(
    norm=0.5, step=0.01, snr=(0.5, 1.0), others=0.5, other_snr=0.1, ratio=(0.1,), size=4, **layer
) -> dict:
    """An epoch of 16 updates of a circuit, and maybe of classical weights, each with so many weights."""
    norms = [*np.broadcast_to(norm, 4).tolist()]
    circuit = {"layer": "q", "group": "quantum", "n_weights": size, "norm": norms, "step": [step] * 4}
    circuit |= {"snr_low": snr[0], "snr_high": snr[1], **layer}
    reader = {"layer": "head", "group": "classical", "n_weights": size, "norm": [others] * 4}
    parts = [
        {"group": "quantum", "ratio": [0.1], "snr_low": snr[0]},
        {"group": "classical", "ratio": [*ratio], "snr_low": other_snr},
    ]
    n = 1 if others is None else 2
    return {"updates": 16, "layers": [circuit, reader][:n], "groups": parts[:n]}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, []),
        ({"norm": 0}, ["No gradient"]),
        ({"norm": 1.9e-4}, ["Vanishing gradient"]),  # 1e-4 is the limit, of a weight: half of it
        ({"norm": 2.1e-4}, []),
        ({"norm": 1.9e-4, "others": 1.8e-2}, []),  # more than a hundredth of the classical one
        ({"norm": 1.9e-4, "others": None}, ["Vanishing gradient"]),
        ({"norm": 19.0}, []),
        ({"norm": 21.0}, ["Exploding gradient"]),
        ({"step": 1.5}, []),
        ({"step": 1.6}, ["Steps too long"]),
        ({"snr": (0.0, 0.24), "step": 0.31}, ["Steps too long"]),  # it is blamed before noise is
        ({"snr": (0.0, 0.24), "step": 0.29}, ["Noise drowns the gradient"]),  # 16 steps together, too
        ({"snr": (0.0, 0.26), "other_snr": 0.1}, []),
        ({"snr": (0.0, 0.26), "other_snr": 0.3}, ["Noise drowns the gradient"]),
        ({"snr": (0.1, 0.26), "other_snr": 0.3}, []),  # not zero
        ({"snr": (None, None)}, []),
        ({"ratio": (0.1, 1.1)}, ["Learning rate too high"]),
        ({"ratio": (None, 5.0)}, []),  # weights that begin at zero
        ({"dtype": "float16"}, ["Half precision"]),
        ({"input_dtype": "bfloat16", "norm": 0}, ["Half precision", "No gradient"]),
    ],
)
def test_what_an_epoch_shows(numbers, expected):
    found = faults.of_epoch(row(**numbers))
    assert [fault.kind for fault in found] == expected
    assert all("{" not in str(fault) for fault in found)


# --- trainings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "settings", "first", "second"),
    [
        (net, {"rate": 0.05}, [], []),
        (lambda: net(factor=1e-3), {}, ["Vanishing gradient"], ["Vanishing gradient"]),
        (net, {"optimizer": "adam", "quantum_rate": 10.0}, ["Steps too long"], ["Steps too long"]),
        (net, {"optimizer": "adam", "rate": 10.0, "quantum_rate": 0.01}, ["Learning rate too high"], []),
        (net, {"precision": "bfloat16"}, ["Half precision"], ["Half precision"]),
    ],
)
def test_a_training_warns(make, settings, first, second):
    rows = trained(make(), **settings)
    assert [[told.partition(" in `")[0] for told in row["warnings"]] for row in rows] == [first, second]

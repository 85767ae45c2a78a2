"""The `fourier` control spans a circuit's function class; other circuits raise an error with the reason."""

import copy
import pickle

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, circuits, controls
from qnnkit.layers import FourierLayer, control, count_parameters, fourier_fit
from tests.toys import layer_on, linear, shipped, uniform

AGREEMENT = 1e-6
"""Largest error of the map that is fitted to a circuit, at inputs outside the fit."""


def random_circuit(n_wires: int, seed: int):
    """Encoding gates of several kinds and slopes between entangling layers, re-uploaded at random."""

    def circuit(inputs, weights):
        draw = np.random.default_rng(seed)
        for layer in range(2):
            qp.StronglyEntanglingLayers(weights[layer : layer + 1], wires=range(n_wires))
            for wire in range(n_wires):
                angle = draw.choice([0.5, 1, 2]) * inputs[..., wire] + draw.normal()
                gate = draw.choice([qp.RX, qp.RY, qp.RZ, qp.PhaseShift])
                if layer == 0 or draw.random() < 0.5:
                    gate(angle + (weights[0, 0, 0] if draw.random() < 0.5 else 0), wires=wire)
            if n_wires > 1 and draw.random() < 0.5:
                qp.CRY(inputs[..., 0], wires=[0, 1])
        qp.StronglyEntanglingLayers(weights[2:], wires=range(n_wires))
        return [qp.expval(qp.Z(wire)) for wire in range(n_wires)]

    return layer_on(n_wires, circuit, {"weights": (3, n_wires, 3)})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("n_wires", [1, 2, 3, 4])
def test_the_fitted_map_equals_the_circuit(n_wires, seed):
    twin, difference = fourier_fit(random_circuit(n_wires, seed))
    assert difference < AGREEMENT and not twin.is_sampled


@pytest.mark.parametrize("ansatz", circuits.ANSAETZE)
def test_the_number_of_fourier_features(ansatz):
    """3 wires and 2 layers: each wire's rotation is uploaded once or, before each layer, twice."""
    layer, per_wire = shipped(ansatz), 5 if ansatz == "data_reuploading" else 3
    assert FourierLayer(layer).linear.in_features == per_wire**3
    assert fourier_fit(layer)[1] < AGREEMENT


def encoded(gate, measure=qp.expval, device="default.qubit") -> QuantumLayer:
    def circuit(inputs, weights):
        gate(inputs, weights)
        qp.StronglyEntanglingLayers(weights, wires=range(3))
        return [measure(qp.Z(0)), measure(qp.X(1) @ qp.Y(2))]

    return layer_on(3, circuit, {"weights": (1, 3, 3)}, device)


INSIDE = {
    "arccos": lambda x, w: [qp.RY(torch.arccos(x[..., i]), i) for i in range(3)],
    "products": lambda x, w: qp.IQPEmbedding(x, wires=range(3)),
    "even": lambda x, w: qp.RX(x[..., 0] ** 2, 0),
    "evolution": lambda x, w: (qp.Hadamard(0), qp.evolve(qp.Z(0) @ qp.X(1), x[..., 0])),
    "power": lambda x, w: (qp.pow(qp.RY(x[..., 0], 0), 2), qp.adjoint(qp.RX(x[..., 1], 1))),
    "three angles": lambda x, w: qp.CRot(x[..., 0], 0.3, 2 * x[..., 1], wires=[0, 1]),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_kinds_of_embeddings(kind):
    layer = encoded(INSIDE[kind])
    explained = layer.explain()
    twin, difference = fourier_fit(layer)
    assert difference < AGREEMENT and FourierLayer(layer) and layer.explain() == explained
    rows = uniform(4, 3, seed=2, top=0.9).requires_grad_()
    ours, theirs = (torch.autograd.grad(net(rows).sum(), rows)[0] for net in (twin, layer))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    for copied in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert torch.equal(copied(rows), twin(rows))


def test_noise_and_shots_change_the_map_but_not_the_features():
    noisy = encoded(
        lambda x, w: (qp.RX(x[..., 0], 0), qp.DepolarizingChannel(0.1, 0)), device="default.mixed"
    )
    layer = shipped("random")
    layer.qnode = qp.set_shots(layer.qnode, 20)
    assert fourier_fit(noisy)[1] < AGREEMENT and fourier_fit(layer)[1] < AGREEMENT
    assert layer.qnode.shots.total_shots == 20


def branching(x, w):
    if x.sum() > 0:
        qp.RX(x[..., 0], 0)


OUTSIDE = {  # gates, reason, measurement
    "amplitudes": (lambda x, w: qp.AmplitudeEmbedding(x[..., :2], 0, normalize=True), "first state depends"),
    "branch": (branching, "list of gates depends"),
    "nothing": (lambda x, w: None, "no gate has a separate angle"),
    "statistic": (lambda x, w: qp.RX(x.mean(), 0), "a separate angle for each sample"),
    "trained": (lambda x, w: qp.RX(w[0, 0, 0] * x[..., 0], 0), "weights multiply the inputs"),
    "variance": (lambda x, w: qp.RX(x[..., 0] + w[0, 0, 0], 0), "not linear", qp.var),
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_other_circuits_raise_an_error_with_the_reason(kind):
    gate, reason, *measure = OUTSIDE[kind]
    layer = encoded(gate, *measure)
    for make in (FourierLayer, lambda layer: control(layer, "fourier")):
        with pytest.raises(NotImplementedError, match=reason):
            make(layer)
    assert "fourier" not in controls(layer)


def test_large_spectra_are_sampled_instead_of_fitted():
    layer = shipped("strongly_entangling", n_qubits=9)
    one, same, other = (FourierLayer(layer, seed=seed) for seed in (0, 0, 1))
    assert one.is_sampled and one.linear.in_features == 6561
    assert set(one.frequencies.unique().tolist()) == {-1, 0, 1}
    assert torch.equal(one.frequencies, same.frequencies)
    assert not torch.equal(one.frequencies, other.frequencies)
    with pytest.raises(NotImplementedError, match="6,561"):
        fourier_fit(layer)


def test_random_frequencies_have_the_spread_of_the_circuits_frequencies():
    layer = random_circuit(3, 1)
    exact, drawn = FourierLayer(layer), FourierLayer(layer, random=True, seed=3)
    assert exact.frequencies.shape == drawn.frequencies.shape
    assert (drawn.frequencies[0] == 0).all() and not torch.equal(exact.frequencies, drawn.frequencies)
    spreads = [each.frequencies.square().mean(0).sqrt() for each in (exact, drawn)]
    torch.testing.assert_close(*spreads, rtol=0.25, atol=0)


# --- as controls ----------------------------------------------------------------------------------------


class Hybrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = linear(5, 3), linear(3, 2)
        self.aside = linear(5, 2)
        self.circuit = shipped("strongly_entangling")

    def forward(self, inputs):
        return self.last(self.circuit(self.first(inputs))) + self.aside(inputs)


def test_additional_controls():
    model, example = Hybrid(), uniform(4, 5)
    outputs = model(example)
    nets = controls(model, example=example)
    assert list(nets)[-4:] == ["fourier", "fourier_random", "compute_matched", "frozen_classical"]
    for name in ("fourier", "fourier_random"):
        assert count_parameters(nets[name])["classical"] == 18 + 8 + 12 + 27 * 3
    weights = nets["frozen_classical"].named_parameters()
    assert [name for name, each in weights if not each.requires_grad] == ["first.weight", "first.bias"]
    assert torch.equal(nets["frozen_classical"](example), outputs)
    # 3 rotations and, in each of 2 layers, 3 of three angles and 3 entangling gates on two of three wires
    n_multiplications = 4 * (3 * 2**4 + 2 * (3 * 2**4 + 3 * 2**5))
    n_hidden = n_multiplications // (3 + 3)
    assert nets["compute_matched"].circuit[0].weight.shape == (n_hidden, 3)
    assert "frozen_classical" not in controls(model)
    with pytest.raises(ValueError, match="example"):
        control(model, "frozen_classical")
    with pytest.raises(NotImplementedError, match="before its circuit"):
        control(model.circuit, "frozen_classical", example=uniform(2, 3))

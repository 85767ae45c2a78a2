"""Pauli weights, tangent kernels and effective dimensions, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, circuits, gradients
from tests.toys import linear, refused, uniform

CLOSE = 1e-6
ANGLE = float(uniform(1, seed=3, top=2 * np.pi))


def layer_of(after, observable, weights=(1,)) -> QuantumLayer:
    """RX embeds three inputs, then `after`."""

    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs, wires=range(3))
        after(weights)
        return [qp.expval(observable), qp.expval(qp.Z(2))]

    device = circuits.make_device("default.qubit", range(3))
    start = {"weights": uniform(*weights, seed=3, top=2 * np.pi)}
    return QuantumLayer(qp.QNode(circuit, device), {"weights": weights}, start)


@pytest.mark.parametrize(
    ("after", "observable", "shares"),
    [
        (lambda w: qp.RZ(w[0], 0), qp.Z(0), [0, 1, 1, 1]),  # commutes with what is measured
        (lambda w: qp.CNOT([0, 1]), qp.Z(1), [0, 0, 1, 1]),  # Z of the target becomes Z Z
        (lambda w: (qp.CNOT([0, 1]), qp.CNOT([1, 2])), qp.Z(2), [0, 0, 0, 1]),
        # RX turns Z into cos Z + sin Y, and CZ turns Y into Z Y.
        (lambda w: (qp.CZ([0, 1]), qp.RX(w[0], 1)), qp.Z(1), [0, math.cos(ANGLE) ** 2, 1, 1]),
    ],
)
def test_shares_in_closed_form(after, observable, shares):
    frame = gradients.pauli_weights(layer_of(after, observable), uniform(6, 3, seed=1, top=3.0))
    assert list(frame.columns) == ["output", "weight", "share", "explained"]
    first = frame[frame["output"] == 0]
    np.testing.assert_allclose(first["share"], shares, atol=CLOSE)
    assert first["explained"].iloc[0] == pytest.approx(0, abs=CLOSE)
    np.testing.assert_allclose(first["explained"][first["share"] > 1 - CLOSE], 1, atol=CLOSE)


def test_what_has_no_strings_is_refused():
    device = circuits.make_device("default.qubit", [0])
    probs = qp.QNode(lambda inputs, weights: (qp.RX(inputs[..., 0] + weights[0], 0), qp.probs(0))[1], device)
    with refused("inputs"):
        gradients.pauli_weights(layer_of(lambda w: qp.RZ(w[0], 0), qp.Z(0)), torch.zeros(1, 3))
    with refused("layer"):
        gradients.pauli_weights(QuantumLayer(probs, {"weights": (1,)}, torch.zeros_like), torch.zeros(2, 1))


def test_tangent_kernels_of_a_linear_model_and_of_a_circuit():
    model, inputs = linear(3, 2), uniform(5, 3)
    expected = 2 * (inputs @ inputs.T + 1)
    torch.testing.assert_close(gradients.tangent_kernel(model, inputs), expected)
    model.bias.requires_grad_(False)
    torch.testing.assert_close(gradients.tangent_kernel(model, inputs), expected - 2)
    layer = layer_of(lambda w: qp.RX(w[0], 0), qp.Z(0))
    model, inputs = nn.Sequential(layer, nn.Dropout(0.5)).train(), uniform(4, 3, seed=5, top=3.0)
    slopes = -torch.sin(inputs[:, 0] + layer.weights.detach()[0])  # Z of wire 2 does not depend on w
    kernel = gradients.tangent_kernel(model, inputs)
    torch.testing.assert_close(kernel, torch.outer(slopes, slopes), rtol=0, atol=1e-5)
    assert model.training and model[1].training and layer.weights.grad is None


def test_alignment_is_one_for_the_labels_own_kernel_and_small_for_noise():
    labels = torch.tensor([0, 1, 2] * 20)
    own = (labels[:, None] == labels[None]).double()
    assert gradients.alignment(3 * own + 2, labels) == pytest.approx(1, abs=CLOSE)
    noise, centre = uniform(60, 60).double(), torch.eye(60).double() - 1 / 60
    one, two = centre @ noise @ noise.T @ centre, centre @ own @ centre
    cosine = float((one * two).sum() / one.norm() / two.norm())
    assert gradients.alignment(noise @ noise.T, labels) == pytest.approx(cosine, abs=CLOSE) and cosine < 0.3
    assert gradients.alignment(-own, labels) == pytest.approx(-1, abs=CLOSE)


class Coin(nn.Module):
    """p = cos(w / 2) ** 2, whose Fisher information is 1 at every w; and weights that do nothing."""

    def __init__(self, n_idle: int):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(1 + n_idle).double())

    def forward(self, inputs):
        half = self.weights[0] / 2
        return torch.stack([half.cos() ** 2, half.sin() ** 2]).log().expand(len(inputs), 2)


@pytest.mark.parametrize("n_idle", [0, 3])
def test_effective_dimension_of_a_constant_fisher_information(n_idle):
    model, n_data = Coin(n_idle), 1000
    kappa, size = n_data / (2 * math.pi * math.log(n_data)), 1 + n_idle
    expected = math.log(1 + size * kappa) / math.log(kappa) / size
    found = gradients.effective_dimension(model, torch.zeros(3, 1), n_data=n_data, n_weights=7)
    assert found == pytest.approx(expected, rel=CLOSE) and (model.weights == 1).all()


def test_effective_dimension_of_a_circuit_is_seeded_and_in_evaluation_mode():
    layer = layer_of(lambda w: qp.StronglyEntanglingLayers(w, range(3)), qp.Z(0), (1, 3, 3))
    model = nn.Sequential(layer, linear(2, 3))
    dropped = nn.Sequential(model, nn.Dropout(0.5)).train()
    one, same, other = (
        gradients.effective_dimension(net, uniform(8, 3, top=3.0), n_data=500, n_weights=5, seed=seed)
        for net, seed in ((model, 0), (dropped, 0), (model, 1))
    )
    assert one == same != other and 0 < one < 1.5
    with refused("n_data"):
        gradients.effective_dimension(model, torch.zeros(8, 3), n_data=49)

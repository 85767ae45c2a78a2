"""Scripts as users write them, with either layer: the examples of TorchLayer's page, a public demo."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import Tensor, nn

from qnnkit import QuantumLayer, circuits
from tests.layers.test_torchlayer import make, qnode_of
from tests.toys import linear, measured, same, two_expvals, uniform

CURVE = 1e-4
"""Largest relative difference allowed of two losses, at any step of a training."""
TorchLayer = qp.qnn.TorchLayer
INPUTS = uniform(5, 2)


# --- the examples of TorchLayer's page ----------------------------------------------------------------


def several_weights(inputs, weights_0, weights_1, weights_2, weight_3, weight_4):
    qp.AngleEmbedding(inputs, wires=range(2))
    qp.StronglyEntanglingLayers(weights_0, wires=range(2))
    qp.BasicEntanglerLayers(weights_1, wires=range(2))
    qp.Rot(*weights_2, wires=0)
    qp.RY(weight_3, wires=1)
    qp.RZ(weight_4, wires=1)
    qp.CNOT(wires=[0, 1])
    return two_expvals()


SEVERAL_SHAPES = dict(weights_0=(3, 2, 3), weights_1=(3, 2), weights_2=3, weight_3=1, weight_4=(1,))
SEVERAL_INITS = {
    "weights_0": torch.nn.init.normal_,
    "weights_1": torch.nn.init.uniform_,
    "weights_2": torch.tensor([1.0, 2.0, 3.0]),
    "weight_3": torch.tensor(1.0),
    "weight_4": torch.tensor([1.0]),
}


@pytest.mark.parametrize("init", [None, torch.nn.init.normal_, SEVERAL_INITS], ids=["none", "one", "dict"])
@pytest.mark.parametrize("shape", [(2,), (1, 2), (5, 2), (2, 3, 2)])
def test_initial_weights(init, shape):
    layers = []
    for kind in (QuantumLayer, TorchLayer):
        qnode = qp.QNode(several_weights, circuits.make_device("default.qubit", 2))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            layers.append(kind(qnode, weight_shapes=SEVERAL_SHAPES, init_method=copy.deepcopy(init)))
    ours, theirs = layers
    assert list(ours.state_dict()) == list(theirs.state_dict()) == list(SEVERAL_SHAPES)
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
    same(measured(ours, uniform(*shape)), measured(theirs, uniform(*shape)))


def test_another_input_name_and_order():
    @qp.qnode(circuits.make_device("default.qubit", 2))
    def circuit(weights, features=None):
        qp.AngleEmbedding(features, wires=range(2))
        qp.StronglyEntanglingLayers(weights, wires=range(2))
        return two_expvals()

    TorchLayer.set_input_argument("features")
    try:
        same(*(measured(make(kind, circuit), INPUTS) for kind in (QuantumLayer, TorchLayer)))
    finally:
        TorchLayer.set_input_argument()


def test_states_are_alike_on_every_path():
    layers = [make(QuantumLayer, qnode_of(qp.state), backend=path) for path in ("auto", "default.qubit")]
    for inputs in (INPUTS, INPUTS.reshape(5, 1, 2), INPUTS[0]):
        batched, device = (layer(inputs).detach() for layer in layers)
        same([batched], [device])
        assert batched.dtype == torch.complex64 and batched.shape == (*inputs.shape[:-1], 4)
    assert [(layer.n_features, layer.n_outputs) for layer in layers] == [(2, None)] * 2


# --- a public demo -------------------------------------------------------------------------------------


def fit(model: nn.Module, cost: Callable, x: Tensor, y: Tensor, batch_size: int, lr: float) -> list[float]:
    """The losses of twelve steps over the batches in turn."""
    opt, losses = torch.optim.Adam(model.parameters(), lr=lr), []
    for step in range(12):
        rows = slice(step * batch_size % len(x), step * batch_size % len(x) + batch_size)
        opt.zero_grad()
        loss = cost(model(x[rows]), y[rows])
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def transfer_learning(kind: type) -> list[float]:
    """A dressed circuit behind a frozen feature extractor, after "Quantum transfer learning"."""
    n_qubits, q_depth = 4, 3

    @qp.qnode(circuits.make_device("default.qubit", n_qubits), interface="torch")
    def quantum_net(inputs, q_weights_flat):
        q_weights = q_weights_flat.reshape(q_depth, n_qubits)
        for idx in range(n_qubits):
            qp.Hadamard(wires=idx)
        for idx in range(n_qubits):
            qp.RY(inputs[..., idx], wires=idx)
        for k in range(q_depth):
            for i in [*range(0, n_qubits - 1, 2), *range(1, n_qubits - 1, 2)]:
                qp.CNOT(wires=[i, i + 1])
            for idx, w in enumerate(q_weights[k]):
                qp.RY(w, wires=idx)
        return [qp.expval(qp.PauliZ(position)) for position in range(n_qubits)]

    class DressedQuantumNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.extractor = nn.Sequential(linear(16, 512), nn.ReLU()).requires_grad_(False)
            self.pre_net = linear(512, n_qubits)
            self.q_net = make(kind, quantum_net, {"q_weights_flat": uniform(q_depth * n_qubits, seed=6)})
            self.post_net = linear(n_qubits, 2)

        def forward(self, input_features):
            pre_out = self.pre_net(self.extractor(input_features) / 16)
            return self.post_net(self.q_net(torch.tanh(pre_out) * np.pi / 2.0))

    images = uniform(24, 16, seed=2) - np.pi / 2
    labels = (images[:, :8].sum(1) > images[:, 8:].sum(1)).long()
    return fit(DressedQuantumNet(), nn.CrossEntropyLoss(), images, labels, batch_size=8, lr=0.01)


def test_a_dressed_circuit_trains_alike():
    ours, theirs = transfer_learning(QuantumLayer), transfer_learning(TorchLayer)
    assert ours == pytest.approx(theirs, rel=CURVE)
    assert len(ours) == 12 and np.std(ours) > 100 * CURVE  # it moved, so gradients were compared as well

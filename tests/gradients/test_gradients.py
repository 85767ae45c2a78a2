"""Gradients: correct ones pass, and every planted fault is caught."""

import functools
import re

import pennylane as qp
import pytest
import torch
from pennylane_lightning.lightning_qubit import LightningQubit
from torch import nn
from torch.utils._pytree import tree_map

from qnnkit import QuantumLayer, circuits, controls, gradients, noise
from qnnkit.simulator import NotFusable, OverWeights, steps
from qnnkit.simulator.matrices import Matrices
from qnnkit.tasks import Classification
from tests.toys import layer_on, linear, refused, shipped, uniform

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-7, torch.bfloat16: 2**-7}
BACKENDS = ("auto", "default.qubit", "lightning.qubit")
CASES = [("data_reuploading", "angle", backend, torch.float32) for backend in BACKENDS]
CASES += [("data_reuploading", "angle", "auto", dtype) for dtype in (torch.float64, torch.bfloat16)]
CASES += [("hardware_efficient", each, "auto", torch.float32) for each in circuits.EMBEDDINGS]
CASES += [(each, "angle", "auto", torch.float32) for each in ("strongly_entangling", "random")]
PENNYLANES = ["backprop", "parameter-shift", "adjoint", "finite-diff"]


layer_of = functools.partial(shipped, n_qubits=2, n_layers=1, seed=1)


class FaultyDevice(LightningQubit):
    """A simulator with derivatives that are wrong by a factor."""

    name, factor = "faulty.qubit", 1.0

    def execute_and_compute_derivatives(self, *args):
        values, jacobian = super().execute_and_compute_derivatives(*args)
        return values, tree_map(lambda value: self.factor * value, jacobian)


# --- check ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ansatz", "embedding", "backend", "dtype"), CASES)
def test_every_circuit_passes_in_every_precision_on_every_backend(ansatz, embedding, backend, dtype):
    rows = gradients.check(layer_of(ansatz, embedding, backend=backend).to(dtype), samples=2)
    assert rows["method"].tolist() == [*PENNYLANES, "fused"]
    assert rows["passed"].all() and (rows["n_weights"] > 0).all()
    assert (rows["tolerance"] == TOLERANCES[dtype]).all()
    assert (rows[["seconds", "autograd_seconds"]] > 0).all(axis=None)
    gradients.require(rows)


@pytest.mark.parametrize("factor", [1.0, 1.001, float("nan")])
def test_a_wrong_gradient_is_caught_and_a_correct_one_passes(factor):
    layer, device = layer_of(), FaultyDevice((0, 1), seed=None)
    device.factor, layer.qnode = factor, layer.qnode.update(device=device, diff_method="adjoint")
    rows = gradients.check(nn.ModuleDict({"head": layer}), samples=2)
    assert rows["passed"].tolist() == [factor == 1.0] * 4 + [True], "the circuit has no fused form"
    if factor == 1.0:
        return gradients.require(rows)
    with pytest.raises(gradients.GradientError) as caught:
        gradients.require(rows)
    assert re.search(r"`head` .* backprop to 1e-05, but .* at weights\[\d, \d, \d\]", str(caught.value))


def test_check_leaves_the_model_unchanged_and_is_reproducible_by_seed():
    model = nn.ModuleList([layer_of("random"), layer_of("hardware_efficient")]).requires_grad_(False)
    before = [weight.clone() for weight in model.parameters()]
    one, same, other = (gradients.check(model, samples=1, seed=seed) for seed in (0, 0, 1))
    assert one["layer"].tolist() == ["0"] * 5 + ["1"] * 5 and one["passed"].all()
    assert one["error"].tolist() == same["error"].tolist() != other["error"].tolist()
    assert all(map(torch.equal, model.parameters(), before))
    assert not any(weight.requires_grad or weight.grad is not None for weight in model.parameters())


def test_check_without_layers_and_of_a_layer_that_has_not_run():
    weightless = layer_on(1, lambda inputs: (qp.RY(inputs[..., 0], 0), qp.expval(qp.Z(0)))[1], {})
    for empty in (nn.Identity(), weightless):
        assert gradients.check(empty).empty
        gradients.require(gradients.check(empty))
    fresh = QuantumLayer(*circuits.build("random", n_qubits=2), torch.zeros_like)
    with refused("a"):
        gradients.check(nn.ModuleDict({"a": fresh}))


@pytest.mark.parametrize("place", ["inputs", "weights"])
def test_a_wrong_sign_in_the_fused_program_is_caught(monkeypatch, place):
    part, name = {"inputs": (steps.StartOfOneCell, "forward"), "weights": (Matrices, "backward")}[place]
    right = getattr(part, name)

    def wrong(self, *args):
        grads = right(self, *args)
        return -grads if place == "weights" else (-grads[0], grads[1])  # flipping both is a phase, no fault

    layer = layer_of()
    monkeypatch.setattr(part, name, wrong)
    assert gradients.check(layer, samples=2)["passed"].tolist() == [False] * 4 + [True]


class OneByOne(nn.ModuleList):
    def forward(self, rows):
        return torch.stack([*map(self[0], rows)])


def test_a_circuit_of_single_samples_is_examined_one_by_one():
    """Its Python would read a batch of four samples as four features."""

    def circuit(inputs, weights):
        for wire, angle in enumerate(inputs):
            qp.RX(angle + weights[wire], wires=wire)
        return [qp.expval(qp.Z(wire)) for wire in range(4)]

    qnode, rows = qp.QNode(circuit, circuits.make_device("default.qubit", 4)), uniform(4, 4)
    model, labels = OneByOne([QuantumLayer(qnode, {"weights": (4,)}, nn.init.ones_)]), torch.arange(4)
    assert torch.equal(model(rows), model[0].by_row(rows))
    assert gradients.check(model)["passed"].all()
    assert gradients.diagnose(model, Classification(), (rows, labels)) == []
    noisy = noise.robustness(model, rows, labels, shots=(), depolarizing=(), readout=(0.0,))[1]
    assert noisy["change"] < 1e-6 and "fourier" not in controls(model)


@pytest.mark.parametrize(
    ("measure", "device", "shots", "lacking"),
    [
        (lambda: qp.state(), "default.qubit", None, {"parameter-shift", "finite-diff"}),
        (lambda: [qp.expval(qp.Z(0))], "default.mixed", None, {"fused", "adjoint"}),
        (lambda: [qp.expval(qp.Z(0))], "default.qubit", 10, set()),
    ],
    ids=["state", "noise", "shots"],
)
def test_unsuitable_methods_for_a_circuit_are_reported(measure, device, shots, lacking):
    @qp.qnode(qp.device(device, wires=2, seed=0), shots=shots)
    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs, wires=(0, 1))
        qp.RY(weights[0], wires=0)
        qp.CNOT(wires=(0, 1))
        qp.RX(weights[1], wires=1)
        if device == "default.mixed":
            qp.DepolarizingChannel(0.1, wires=0)
        return measure()

    layer = QuantumLayer(circuit, {"weights": (2,)}, {"weights": uniform(2, seed=1)})
    layer(uniform(1, 2))
    rows = gradients.check(layer, samples=2)
    assert set(rows.query("unavailable != ''")["method"]) == lacking and rows["passed"].all()
    for row in rows.query("unavailable == ''").itertuples():
        assert row.error < 1e-5 and row.weights == gradients.weight_names(layer)
        assert row.gradient == pytest.approx(row.autograd, abs=1e-5) and max(map(abs, row.autograd)) > 0.05
    assert layer.qnode.shots.total_shots == shots
    if "fused" in lacking:
        with pytest.raises(NotImplementedError, match="Use auto"):
            layer.with_qnode(circuit, backend="batched")(uniform(1, 2))
        with pytest.raises(NotFusable, match="is not a unitary gate"):
            OverWeights(circuit, {"weights": (2,)}, 2)
    gradients.require(rows)
    with pytest.raises(gradients.GradientError, match="`layer` must be compared"):
        gradients.require(rows.assign(unavailable="of a test"))


# --- one batch ------------------------------------------------------------------------------------------


def test_the_gradient_of_a_batch_equals_that_of_backward():
    model = nn.Sequential(layer_of(), linear(2, 3), nn.BatchNorm1d(3, affine=False))
    model.register_parameter("factor", nn.Parameter(torch.tensor([1 + 2j, 2 - 1j, 0.5j])))
    model.register_forward_hook(lambda net, inputs, outputs: (net.factor * outputs - 0.5).abs())
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    model[1].bias.requires_grad_(False)
    model[1].weight.grad = torch.full((3, 2), 7.0)
    task, batch = Classification(label_smoothing=0.1), (uniform(5, 2), torch.tensor([0, 1, 2, 1, 0]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = gradients.of_batch(model, task, batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model[1].weight.grad == 7).all() and model[0].weights.grad is None
    model.zero_grad()
    task(model, batch).loss.backward()
    assert set(grads) == {"unused", "0.weights", "1.weight", "factor"} and not grads.pop("unused").any()
    for name, gradient in grads.items():
        expected = model.get_parameter(name).grad
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7, check_dtype=False)
        assert gradient.norm() > 1e-4 and gradient.dtype in (torch.float64, torch.complex128)
    norm = gradients.on_batch(model, task, batch).frame("all")["norm"].item()
    squares = [float(each.abs().square().sum()) for each in grads.values()]
    assert norm == pytest.approx(sum(squares) ** 0.5, rel=1e-3)
    assert gradients.of_batch(model.requires_grad_(False), task, batch) == {}

"""Gradients: right ones pass, and every planted fault is found."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pennylane as qp
import pytest
import torch
from pennylane_lightning.lightning_qubit import LightningQubit
from torch import nn
from torch.utils._pytree import tree_map

from qnnkit import QuantumLayer, Quanv2d, circuits, gradients
from qnnkit.simulator import steps
from qnnkit.simulator.matrices import Matrices
from qnnkit.tasks import Classification
from tests.toys import linear, refused, uniform

CASES = [
    ("data_reuploading", "angle"),
    *itertools.product(("strongly_entangling", "hardware_efficient", "random"), circuits.EMBEDDINGS),
]
PENNYLANES = ["backprop", "parameter-shift", "adjoint", "finite-diff"]


def layer_of(ansatz: str = "data_reuploading", embedding: str = "angle", *, kind=QuantumLayer, **options):
    """A layer on two wires that has run once."""
    qnode, shapes = circuits.build(ansatz, n_qubits=2, n_layers=1, embedding=embedding)
    layer = kind(qnode, shapes, {"weights": uniform(*shapes["weights"], seed=1)}, **options)
    layer(uniform(1, circuits.embedding_of(ansatz, embedding).n_features(2)))
    return layer


class Scale(torch.autograd.Function):
    """The identity, with a gradient that is wrong by `factor`."""

    @staticmethod
    def forward(ctx, values, factor):
        ctx.factor = factor
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


class Faulty(QuantumLayer):
    """Right values and wrong gradients, in this layer and its copies, but not around another QNode."""

    factor = 1.0

    def forward(self, inputs):
        return Scale.apply(super().forward(inputs), self.factor)

    def with_qnode(self, qnode, backend=None):
        layer = super().with_qnode(qnode, backend)
        if qnode is self.qnode:
            layer.__class__ = Faulty
            layer.factor = self.factor
        return layer


class FaultyDevice(LightningQubit):
    """A simulator that is wrong in its values or in its derivatives."""

    name = "faulty.qubit"

    def __init__(self, wires, *, value_error: float = 0.0, factor: float = 1.0):
        super().__init__(wires=wires, seed=None)
        self.value_error, self.factor = value_error, factor

    def execute(self, *given, **named):
        return tree_map(lambda value: value + self.value_error, super().execute(*given, **named))

    def execute_and_compute_derivatives(self, *given):
        values, jacobian = super().execute_and_compute_derivatives(*given)
        scaled = tree_map(lambda value: self.factor * value, jacobian)
        return tree_map(lambda value: value + self.value_error, values), scaled


# --- check ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ansatz", "embedding"), CASES)
def test_every_circuit_passes(ansatz, embedding):
    rows = gradients.check(layer_of(ansatz, embedding), samples=2)
    assert rows["method"].tolist() == [*PENNYLANES, "fused"]
    assert rows["passed"].all() and (rows["n_weights"] > 0).all() and (rows["tolerance"] == 1e-5).all()
    assert (rows[["seconds", "autograd_seconds"]] > 0).all(axis=None)
    gradients.require(rows)


@pytest.mark.parametrize("backend", ["auto", "default.qubit", "lightning.qubit"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-7)])
def test_every_precision_and_backend_passes(backend, dtype, tolerance):
    rows = gradients.check(layer_of(backend=backend).to(dtype), samples=2)
    assert rows["passed"].all() and (rows["tolerance"] == tolerance).all()


@pytest.mark.parametrize("factor", [-1.0, 0.0, 1.001, float("nan"), float("inf")])
def test_a_wrong_gradient_is_found(factor):
    layer = layer_of(kind=Faulty)
    layer.factor = factor
    rows = gradients.check(nn.ModuleDict({"head": layer}), samples=2)
    assert len(rows) == 5  # the fused program has the same fault, and so agrees where that is a number
    assert not rows.query("method in @PENNYLANES")["passed"].any()
    with pytest.raises(gradients.GradientError) as caught:
        gradients.require(rows)
    assert re.search(r"`head` .* backprop to 1e-05, but .* at weights\[\d, \d, \d\]", str(caught.value))
    layer.factor = 1.0
    gradients.require(gradients.check(layer, samples=2))


def test_a_wrong_device_is_found_and_a_right_one_passes():
    qnode, shapes = circuits.build("data_reuploading", n_qubits=2)
    for factor in (1.0, -1.0):
        faulty = qnode.update(device=FaultyDevice((0, 1), factor=factor), diff_method="adjoint")
        layer = QuantumLayer(faulty, shapes, {"weights": uniform(*shapes["weights"], seed=1)})
        layer(uniform(1, 2))
        assert layer.backend == "faulty.qubit"
        assert gradients.check(layer, samples=2)["passed"].tolist() == [factor == 1.0] * 4 + [True]


def test_check_leaves_the_model_as_it_was_and_is_fixed_by_its_seed():
    model = Quanv2d(1, "random", filters=2, trainable=False)
    before = [weight.clone() for weight in model.parameters()]
    one, same, other = (gradients.check(model, samples=1, seed=seed) for seed in (0, 0, 1))
    assert one["layer"].tolist() == ["filters.0"] * 5 + ["filters.1"] * 5 and one["passed"].all()
    assert one["error"].tolist() == same["error"].tolist() != other["error"].tolist()
    assert all(map(torch.equal, model.parameters(), before))
    assert not any(weight.requires_grad or weight.grad is not None for weight in model.parameters())


def test_check_of_nothing_and_of_a_layer_that_has_not_run():
    @qp.qnode(circuits.make_device("default.qubit", 1))
    def circuit(inputs):
        qp.RY(inputs[..., 0], wires=0)
        return [qp.expval(qp.Z(0))]

    for empty in (nn.Identity(), QuantumLayer(circuit, {})):
        assert gradients.check(empty).empty
        gradients.require(gradients.check(empty))
    layer = QuantumLayer(*circuits.build("random", n_qubits=2), torch.zeros_like)
    with refused("a"):
        gradients.check(nn.ModuleDict({"a": layer}))


@pytest.mark.parametrize("place", ["inputs", "weights"])
def test_a_wrong_sign_in_the_fused_program_is_found(monkeypatch, place):
    part, name = {"inputs": (steps.StartOfOneCell, "forward"), "weights": (Matrices, "backward")}[place]
    right = getattr(part, name)

    def wrong(self, *given):
        found = right(self, *given)
        return -found if place == "weights" else (-found[0], found[1])  # of both, a phase: no fault

    layer = layer_of()
    monkeypatch.setattr(part, name, wrong)
    rows = gradients.check(layer, samples=2)
    assert rows["passed"].tolist() == [False] * 4 + [True]


def circuit_of(measure, device: str = "default.qubit"):
    @qp.qnode(qp.device(device, wires=2, seed=0))
    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs, wires=(0, 1))
        qp.RY(weights[0], wires=0)
        qp.CNOT(wires=(0, 1))
        qp.RX(weights[1], wires=1)
        if device == "default.mixed":
            qp.DepolarizingChannel(0.1, wires=0)
        return measure()

    return circuit


@pytest.mark.parametrize(
    ("measure", "device", "lacking"),
    [
        (lambda: qp.probs(wires=(0, 1)), "default.qubit", {"adjoint"}),
        (lambda: [qp.var(qp.Z(0))], "default.qubit", {"adjoint"}),
        (lambda: qp.state(), "default.qubit", {"parameter-shift", "finite-diff"}),
        (lambda: [qp.expval(qp.Z(0))], "default.mixed", {"fused", "adjoint"}),
        (lambda: [qp.expval(qp.Z(0))], "shots", set()),
    ],
    ids=["probs", "var", "state", "noise", "shots"],
)
def test_methods_that_do_not_suit_a_circuit_are_told(measure, device, lacking):
    qnode = circuit_of(measure, device) if device != "shots" else qp.set_shots(circuit_of(measure), 10)
    layer = QuantumLayer(qnode, {"weights": (2,)}, {"weights": uniform(2, seed=1)})
    layer(uniform(1, 2))
    rows = gradients.check(layer, samples=2)
    assert set(rows.query("unavailable != ''")["method"]) == lacking and rows["passed"].all()
    for row in rows.query("unavailable == ''").itertuples():
        assert row.error < 1e-5 and row.weights == gradients.weight_names(layer)
        assert row.gradient == pytest.approx(row.autograd, abs=1e-5) and max(map(abs, row.autograd)) > 0.05
    assert layer.qnode.shots.total_shots == (10 if device == "shots" else None)
    gradients.require(rows)
    with pytest.raises(gradients.GradientError, match="`layer` must be compared"):
        gradients.require(rows.assign(unavailable="of a test"))


# --- the proof of 00_setup ------------------------------------------------------------------------------

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def proof(monkeypatch):
    """Executes the cells that prove devices and simulators; gives their rows."""

    def rows_of(*simulators: str, place: str = "cpu") -> list[dict]:
        monkeypatch.setattr("qnnkit.device.usable_devices", lambda: [torch.device(place)])
        names = [SimpleNamespace(name=each, state="runs") for each in simulators]
        monkeypatch.setattr("qnnkit.device.report", lambda home: SimpleNamespace(simulators=names))
        monkeypatch.setattr("qnnkit.device.table", str)
        shown: dict = {}
        for cell in nbformat.read(NOTEBOOKS / "00_setup.ipynb", as_version=4).cells:
            if cell.cell_type == "code" and ("report(" in cell.source or "computed(" in cell.source):
                exec(cell.source, shown)
        return shown["proof"].to_dict("records")

    return rows_of


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_CUDA])])
def test_the_proof_of_what_is_right(proof, place):
    rows = proof("default.qubit", "lightning.qubit", place=place)
    backends = ["batched", "default.qubit", "lightning.qubit"]
    assert [(row["torch device"], row["backend"]) for row in rows] == [(place, each) for each in backends]
    for row in rows:
        assert row["agrees"] and row["raised"] == ""
        assert 0 < max(row["value error"], row["gradient error"]) < 1e-5  # float32 is never exact
        assert 0 < row["step error"] < 1e-4


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [({"factor": float("nan")}, "gradient error"), ({"value_error": 1e-4}, "value error")],
)
def test_the_proof_names_a_wrong_backend(proof, monkeypatch, fault, wrong):
    make, broken = circuits.make_device, {"lightning.qubit": lambda _, wires: FaultyDevice(wires, **fault)}
    monkeypatch.setattr(circuits, "make_device", lambda name, *wires: broken.get(name, make)(name, *wires))
    right, row = proof("lightning.qubit")
    assert right["agrees"] and not row["agrees"] and not row[wrong] <= 1e-5


# --- one batch ------------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.circuit, self.reader = layer_of(), linear(2, 3)
        self.normal = nn.BatchNorm1d(3, affine=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, inputs):
        return self.normal(self.reader(self.circuit(inputs))) * self.frozen[0]


@pytest.mark.parametrize("training", [True, False])
def test_the_gradient_of_a_batch_is_that_of_backward(training):
    model, task = Net().train(training), Classification(label_smoothing=0.1)
    batch = uniform(5, 2), torch.tensor([0, 1, 2, 1, 0])
    model.reader.bias.grad = torch.full((3,), 7.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = gradients.of_batch(model, task, batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.reader.bias.grad == 7).all() and model.reader.weight.grad is None
    model.zero_grad()
    task(model, batch).loss.backward()
    assert set(found) == {"unused", "circuit.weights", "reader.weight", "reader.bias"}
    assert not found.pop("unused").any()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad.double(), rtol=1e-5, atol=1e-7)
        assert gradient.norm() > 1e-4 or name == "reader.bias", "which normalisation takes away in training"
    assert gradients.of_batch(model.requires_grad_(False), task, batch) == {}

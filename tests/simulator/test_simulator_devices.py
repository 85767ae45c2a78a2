"""Devices other than the CPU, tested on `meta`, and torch's precision settings."""

import itertools
from typing import Any
from unittest import mock

import pennylane as qp
import pytest
import torch
from torch import Tensor, nn

from qnnkit import QuantumLayer, Quanv2d, circuits
from qnnkit.simulator import OverWeights, fused, steps
from qnnkit.simulator.circuit import Circuit
from tests.simulator.test_random_circuits import GATES
from tests.toys import measured, same, shipped, uniform

META = torch.device("meta")
FLOAT32 = 1e-5


def tensors_of(thing: Any, seen: set[int]) -> list[Tensor]:
    """Every tensor that an object of the simulator holds."""
    if isinstance(thing, Tensor):
        return [thing]
    if id(thing) in seen:
        return []
    seen.add(id(thing))
    if isinstance(thing, list | tuple):
        return [tensor for each in thing for tensor in tensors_of(each, seen)]
    if type(thing).__module__.startswith("qnnkit.simulator") and not isinstance(thing, Circuit):
        return [tensor for each in vars(thing).values() for tensor in tensors_of(each, seen)]
    return []


def runs_on_meta(qnode: qp.QNode, shape: tuple[int, ...], n_features: int) -> None:
    """Asserts that both passes, and the plain one, use only tensors of that device."""
    layer = QuantumLayer(qnode, {"weights": shape}, nn.init.ones_, backend="batched").to(META)
    inputs = torch.rand(6, n_features, device=META, requires_grad=True)
    for layer.gradient_checkpointing in (False, True):
        values = layer(inputs)
        assert values.device == META and len(values) == 6
        for gradient in torch.autograd.grad(values.sum(), [inputs, layer.weights], allow_unused=True):
            assert gradient is None or gradient.device == META
    with torch.no_grad():
        assert layer(inputs).device == META
        with mock.patch("qnnkit.simulator.fused.autograd_must", lambda: True):
            assert layer(inputs).device == META
    held = tensors_of(layer.programs().last, set())
    assert held and {tensor.device for tensor in held} == {META}
    assert {tensor.dtype for tensor in held} <= {torch.float32, torch.int64, torch.bool}


@pytest.mark.parametrize(
    ("ansatz", "embedding", "n_qubits"),
    [*itertools.product(circuits.ANSAETZE[1:], circuits.EMBEDDINGS, [4])]
    + [("strongly_entangling", embedding, 7) for embedding in circuits.EMBEDDINGS],
)
def test_every_circuit_runs_on_the_device_of_its_inputs(ansatz, embedding, n_qubits):
    qnode, shapes = circuits.build(ansatz, embedding=embedding, n_qubits=n_qubits)
    runs_on_meta(qnode, shapes["weights"], circuits.embedding_of(ansatz, embedding).n_features(n_qubits))


KINDS = (
    "T", "CNOT", "QubitUnitary 3", "Permute", "RX", "Rot", "PSWAP", "CRot", "DoubleExcitation", "MultiRZ 5",
)  # fmt: skip


@pytest.mark.parametrize("name", [*KINDS, "GlobalPhase of all", "exponential"])
def test_every_kind_of_gate_runs_on_the_device_of_its_inputs(name):
    """Once with angles from the inputs, once from the weights, after a constant state and one from inputs."""
    n_wires, n_angles, make = GATES[name]

    def circuit(inputs, weights):
        state = torch.ones(2, dtype=inputs.dtype) / 2**0.5
        if inputs.shape[-1] % 2:
            qp.StatePrep(state, wires=[n_wires])
        else:
            qp.AngleEmbedding(inputs[..., :1], wires=[0])
        for angles in ([inputs[..., i] for i in range(n_angles)], [weights[i] for i in range(n_angles)]):
            make(angles, list(range(n_wires)), 0)
        qp.RX(inputs[..., 1] * weights[1], wires=0)
        return [qp.expval(qp.Z(0)), qp.var(qp.X(n_wires)), qp.probs(wires=[0])]

    qnode = qp.QNode(circuit, circuits.make_device("default.qubit", n_wires + 1))
    for n_features in (6, 7):
        runs_on_meta(qnode, (6,), n_features)


def test_a_quanvolution_runs_on_the_device_of_its_images():
    model = nn.Sequential(Quanv2d(2, "random", filters=2, embedding="amplitude"), nn.Flatten()).to(META)
    assert model(torch.rand(3, 2, 6, 6, device=META)).device == META


# --- precision ----------------------------------------------------------------------------------------

SETTINGS = [("generic", "all"), *itertools.product(("cuda", "mkldnn"), ("all", "matmul", "conv", "rnn"))]
PRODUCTS = "mkldnn", "matmul"


def precision(*of: str) -> str:
    return torch._C._get_fp32_precision_getter(*of)


def set_precision(asked: str, *of: str) -> None:
    torch._C._set_fp32_precision_setter(*of, asked)


@pytest.fixture(autouse=True)
def restored():
    before = [precision(*of) for of in SETTINGS]
    yield
    for of, value in zip(SETTINGS, before, strict=True):
        set_precision(value, *of)


def layer_and_inputs(n_rows: int) -> tuple[QuantumLayer, Tensor]:
    return shipped(n_qubits=5), uniform(n_rows, 5, top=3).requires_grad_()


@pytest.mark.parametrize("n_rows", [3, 20_000], ids=["by NumPy", "by torch"])
@pytest.mark.parametrize("setting", ["bf16", "tf32"])
def test_torchs_precision_changes_no_digit(setting, n_rows, monkeypatch):
    seen = []
    for part, name in itertools.product((steps.Weigh, steps.Block), ("forward", "backward")):
        right = getattr(part, name)

        def spy(*args, right=right):
            seen.append(precision(*PRODUCTS))
            return right(*args)

        monkeypatch.setattr(part, name, spy)
    layer, inputs = layer_and_inputs(n_rows)
    results = []
    for asked in ("none", setting):
        set_precision(asked, *PRODUCTS)
        set_precision("none" if asked == "none" else "tf32", "cuda", "matmul")
        results.append(measured(layer, inputs.detach()))
        assert precision(*PRODUCTS) == asked
    assert seen and (n_rows == 3 or set(seen) <= {"none", "ieee"})  # NumPy has no such settings
    same(*results, 0)


def test_inherited_settings_stay_inherited():
    set_precision("none", *PRODUCTS)
    layer, inputs = layer_and_inputs(3)
    for asked in ("bf16", "ieee"):
        torch.backends.mkldnn.fp32_precision = asked
        layer(inputs).sum().backward()
        assert precision(*PRODUCTS) == asked


@pytest.mark.parametrize(("setting", "dtype"), [("none", torch.float32), ("bf16", torch.float64)])
def test_gradients_by_torch_itself_are_not_rounded(setting, dtype, monkeypatch):
    """A float64 program is used, because autograd's products run after the layer has returned."""
    (layer, inputs), seen, plain = layer_and_inputs(4), set(), fused.Fused.plain
    monkeypatch.setattr(fused.Fused, "plain", lambda *args: seen.add(args[1].dtype) or plain(*args))
    set_precision(setting, *PRODUCTS)
    [first] = torch.autograd.grad(layer(inputs).square().sum(), inputs, create_graph=True)
    [second] = torch.autograd.grad(first.sum(), layer.weights)
    assert seen == {dtype} and second.dtype == torch.float32 and second.abs().max() > 0.1
    seen.clear()
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: layer(row.unsqueeze(0))[0]))(inputs.detach())
    assert seen == {dtype} and jacobian.dtype == torch.float32


def test_a_program_over_weights_is_exact_at_any_precision():
    program = OverWeights(*circuits.build("strongly_entangling", n_qubits=2), 2)
    set_precision("bf16", *PRODUCTS)
    assert program(torch.zeros(2), {"weights": uniform(3, 2, 2, 3)}).dtype == torch.float64


# --- on a GPU -----------------------------------------------------------------------------------------


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("ansatz", circuits.ANSAETZE)
def test_a_cuda_graph_captures_both_passes(ansatz):
    """They never wait for the host, so a CUDA graph can replay them."""
    layer = QuantumLayer(*circuits.build(ansatz)).cuda()
    sample, inputs = (uniform(64, 4, seed=seed).cuda().requires_grad_() for seed in (0, 1))
    graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    true, result = (
        torch.autograd.grad(run(inputs).square().sum(), [inputs, layer.weights]) for run in (layer, graphed)
    )
    same(result, true, FLOAT32)


@pytest.mark.gpu
@on_a_gpu
def test_tf32_changes_no_digit():
    layer, inputs = layer_and_inputs(64)
    layer, inputs = layer.cuda(), inputs.detach().cuda()
    exact = measured(layer, inputs)
    set_precision("tf32", "cuda", "matmul")
    same(measured(layer, inputs), exact, 0)

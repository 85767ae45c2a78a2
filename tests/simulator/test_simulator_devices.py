"""Devices other than the CPU, proven on `meta`, and torch's switches of precision."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pennylane as qp
import pytest
import torch
from torch import Tensor, nn

from qnnkit import QuantumLayer, Quanv2d, circuits
from qnnkit.simulator import OverWeights, array_api, steps
from qnnkit.simulator.circuit import Circuit
from tests.simulator.test_random_circuits import GATES
from tests.toys import Fusion

META = torch.device("meta")
FLOAT32 = 1e-5


def tensors_of(given: Any, seen: set[int]) -> list[Tensor]:
    """Every tensor that an object of the simulator holds."""
    if isinstance(given, Tensor):
        return [given]
    if id(given) in seen:
        return []
    seen.add(id(given))
    if isinstance(given, list | tuple):
        return [tensor for each in given for tensor in tensors_of(each, seen)]
    if type(given).__module__.startswith("qnnkit.simulator") and not isinstance(given, Circuit):
        return [tensor for each in vars(given).values() for tensor in tensors_of(each, seen)]
    return []


def runs_on_meta(program: Any, n_features: int, weights_shape: tuple[int, ...]) -> None:
    """Both passes, and the plain one, take tensors of that device only."""
    held = tensors_of(program.fused, set())
    assert held and {tensor.device for tensor in held} == {META}
    assert {tensor.dtype for tensor in held} <= {torch.float32, torch.int64, torch.bool}
    inputs = torch.rand(6, n_features, device=META, requires_grad=True)
    weights = torch.rand(weights_shape, device=META, requires_grad=True)
    for values in (program(inputs, [weights]), program(inputs, [weights], keep=False)):
        assert values.device == META and len(values) == 6
        values = torch.view_as_real(values) if values.is_complex() else values
        for gradient in torch.autograd.grad(values.sum(), [inputs, weights], allow_unused=True):
            assert gradient is None or gradient.device == META
    with torch.no_grad():
        assert program(inputs, [weights]).device == META
        with mock.patch("qnnkit.simulator.fused.autograd_must", lambda: True):
            assert program(inputs, [weights]).device == META


@pytest.mark.parametrize(
    ("ansatz", "embedding", "n_qubits"),
    [*itertools.product(circuits.ANSAETZE[1:], circuits.EMBEDDINGS, [4])]
    + [("strongly_entangling", embedding, 7) for embedding in circuits.EMBEDDINGS],
)
def test_every_circuit_runs_where_its_inputs_are(ansatz, embedding, n_qubits):
    qnode, shapes = circuits.build(ansatz, embedding=embedding, n_qubits=n_qubits)
    n_features = circuits.embedding_of(ansatz, embedding).n_features(n_qubits)
    runs_on_meta(Fusion(qnode, (5, n_features), shapes, device=META), n_features, shapes["weights"])


KINDS = (
    "T", "CNOT", "QubitUnitary 3", "Permute", "RX", "Rot", "PSWAP", "CRot", "DoubleExcitation", "MultiRZ 5",
)  # fmt: skip


@pytest.mark.parametrize("name", [*KINDS, "GlobalPhase of all", "exponential"])
def test_every_kind_of_gate_runs_where_its_inputs_are(name):
    """Once with angles of the inputs, once of the weights, behind a constant state and one of the inputs."""
    n_wires, n_angles, make = GATES[name]
    wires = range(n_wires + 1)

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

    qnode = qp.QNode(circuit, circuits.make_device("default.qubit", wires))
    for n_features in (6, 7):
        runs_on_meta(Fusion(qnode, (5, n_features), {"weights": (6,)}, device=META), n_features, (6,))


def test_a_quanvolution_runs_where_its_images_are():
    model = nn.Sequential(Quanv2d(2, "random", filters=2, embedding="amplitude"), nn.Flatten()).to(META)
    assert model(torch.rand(3, 2, 6, 6, device=META)).device == META


# --- precision ----------------------------------------------------------------------------------------

SETTINGS = [("mkldnn", "matmul"), ("cuda", "matmul")]


@pytest.fixture
def restored():
    before = [torch._C._get_fp32_precision_getter(*of) for of in SETTINGS]
    yield
    for of, value in zip(SETTINGS, before, strict=True):
        torch._C._set_fp32_precision_setter(*of, value)


def layer_and_inputs(n_rows: int) -> tuple[QuantumLayer, Tensor]:
    generator = torch.Generator().manual_seed(0)
    qnode, shapes = circuits.build("data_reuploading", n_qubits=5)
    start = 6 * torch.rand(shapes["weights"], generator=generator)
    inputs = 3 * torch.rand(n_rows, 5, generator=generator)
    return QuantumLayer(qnode, shapes, {"weights": start}), inputs.requires_grad_()


def both_passes(layer: QuantumLayer, inputs: Tensor) -> list[Tensor]:
    """Values, and gradients of their squares by inputs and weights."""
    values = layer(inputs)
    return [values, *torch.autograd.grad(values.square().sum(), [inputs, *layer.parameters()])]


@pytest.mark.parametrize("n_rows", [3, 20_000], ids=["by NumPy", "by torch"])
@pytest.mark.parametrize("setting", ["bf16", "tf32"])
def test_torchs_precision_changes_no_digit(setting, n_rows, restored, monkeypatch):
    seen = []
    for part in (steps.Weigh, steps.Block):
        for name in ("forward", "backward"):
            right = getattr(part, name)

            def spy(*given, right=right):
                seen.append(torch._C._get_fp32_precision_getter("mkldnn", "matmul"))
                return right(*given)

            monkeypatch.setattr(part, name, spy)
    layer, inputs = layer_and_inputs(n_rows)
    found = []
    for asked in ("none", setting):
        for of in SETTINGS:
            torch._C._set_fp32_precision_setter(*of, "tf32" if (of[0], asked) == ("cuda", "bf16") else asked)
        found.append(both_passes(layer, inputs))
        assert torch._C._get_fp32_precision_getter(*SETTINGS[0]) == asked
    assert seen and (n_rows == 3 or set(seen) <= {"none", "ieee"})  # NumPy knows no such settings
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_what_is_inherited_stays_inherited(restored):
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")
    torch.backends.mkldnn.fp32_precision = "bf16"
    try:
        layer, inputs = layer_and_inputs(3)
        layer(inputs).sum().backward()
        assert torch._C._get_fp32_precision_getter("mkldnn", "matmul") == "bf16"
        torch.backends.mkldnn.fp32_precision = "ieee"
        assert torch._C._get_fp32_precision_getter("mkldnn", "matmul") == "ieee"
    finally:
        torch.backends.mkldnn.fp32_precision = "none"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # by the compiler itself
@pytest.mark.parametrize("through", ["vmap", pytest.param("compiler", marks=pytest.mark.slow)])
def test_where_torch_goes_back_itself_it_rounds_nothing(through, restored):
    """Under vmap a program of float64 serves: autograd's products run when the layer has long returned."""
    layer, inputs = layer_and_inputs(4)

    def run() -> list[Tensor]:
        if through == "vmap":
            jacobian = torch.func.vmap(torch.func.jacrev(lambda row: layer(row.unsqueeze(0))[0]))
            return [jacobian(inputs.detach())]
        torch.compiler.reset()
        return both_passes(torch.compile(layer, backend="aot_eager"), inputs)

    exact = run()
    assert layer._programs.last.dtype == torch.float32
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16")
    found = run()
    assert layer._programs.last.dtype == (torch.float64 if through == "vmap" else torch.float32)
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32 and (one - other).abs().max() < FLOAT32


@pytest.mark.parametrize(("setting", "dtype"), [("none", torch.float32), ("bf16", torch.float64)])
def test_second_derivatives_are_not_rounded(setting, dtype, restored):
    layer, inputs = layer_and_inputs(4)
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", setting)
    [first] = torch.autograd.grad(layer(inputs).square().sum(), inputs, create_graph=True)
    dtypes: list[torch.dtype] = []
    with Products(dtypes):
        [second] = torch.autograd.grad(first.sum(), layer.weights)
    assert set(dtypes) == {dtype} and second.dtype == torch.float32 and second.abs().max() > 0.1


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the dtypes of matrix products that torch itself differentiates."""

    def __init__(self, dtypes: list[torch.dtype]):
        super().__init__()
        self.dtypes = dtypes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("mm", "bmm", "addmm", "mv", "addmv"):
            self.dtypes.append(args[-1].dtype)
        return func(*args, **(kwargs or {}))


# --- small batches ------------------------------------------------------------------------------------


def test_small_batches_run_on_numpy_and_agree(monkeypatch):
    layer, inputs = layer_and_inputs(7)
    found = []
    for small in (2**19, 0):
        monkeypatch.setattr("qnnkit.simulator.fused.SMALL_BYTES", small)
        found.append(both_passes(layer, inputs))
    for near, far in zip(*found, strict=True):
        assert (near - far).abs().max() < FLOAT32
    program = layer._programs.last
    assert program.near is not None and array_api.in_numpy(program.steps[-1]).table.base is not None


def test_a_program_over_weights_is_exact_at_any_precision(restored):
    program = OverWeights(*circuits.build("strongly_entangling", n_qubits=2), 2)
    weights = {"weights": torch.linspace(0, 3, 36).reshape(3, 2, 2, 3)}
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16")
    assert program(torch.zeros(2), weights).dtype == torch.float64


# --- on a GPU -----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("ansatz", circuits.ANSAETZE)
def test_both_passes_are_captured(ansatz):
    """They never wait for the host, so a CUDA graph replays them."""
    qnode, shapes = circuits.build(ansatz)
    layer = QuantumLayer(qnode, shapes).cuda()
    sample = torch.rand(64, 4, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    inputs = torch.rand(64, 4, device="cuda", requires_grad=True)
    true = torch.autograd.grad(layer(inputs).square().sum(), [inputs, layer.weights])
    found = torch.autograd.grad(graphed(inputs).square().sum(), [inputs, layer.weights])
    assert all((one - other).abs().max() < FLOAT32 for one, other in zip(found, true, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tf32_changes_no_digit():
    layer, inputs = layer_and_inputs(64)
    layer, inputs = layer.cuda(), inputs.detach().cuda().requires_grad_()
    before = torch.get_float32_matmul_precision()
    found = []
    try:
        for asked in ("highest", "high"):
            torch.set_float32_matmul_precision(asked)
            found.append(both_passes(layer, inputs))
    finally:
        torch.set_float32_matmul_precision(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))

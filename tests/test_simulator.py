"""The batched simulator against `default.qubit` in float64: random circuits over every gate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pennylane as qp
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qnnkit import QuantumLayer
from qnnkit.simulator import Fused, trace

FLOAT32, FLOAT64 = 1e-5, 1e-10

# name -> (number of wires, number of angles)
GATES: dict[str, tuple[int, int]] = {
    "RX": (1, 1), "RY": (1, 1), "RZ": (1, 1), "Rot": (1, 3), "PhaseShift": (1, 1), "U1": (1, 1), "U2": (1, 2),
    "U3": (1, 3), "Hadamard": (1, 0), "PauliX": (1, 0), "PauliY": (1, 0), "PauliZ": (1, 0), "S": (1, 0),
    "T": (1, 0), "SX": (1, 0), "CNOT": (2, 0), "CZ": (2, 0), "CY": (2, 0), "CH": (2, 0), "SWAP": (2, 0),
    "ISWAP": (2, 0), "SISWAP": (2, 0), "ECR": (2, 0), "CRX": (2, 1), "CRY": (2, 1), "CRZ": (2, 1),
    "CRot": (2, 3), "ControlledPhaseShift": (2, 1), "IsingXX": (2, 1), "IsingYY": (2, 1), "IsingZZ": (2, 1),
    "IsingXY": (2, 1), "SingleExcitation": (2, 1), "PSWAP": (2, 1), "CPhaseShift00": (2, 1),
    "CSWAP": (3, 0), "CCZ": (3, 0), "Toffoli": (3, 0), "MultiRZ": (3, 1), "DoubleExcitation": (4, 1),
}  # fmt: skip
N_WEIGHTS, N_FEATURES = 4, 3


@st.composite
def programs(draw: Callable) -> tuple[int, list, list]:
    """(number of wires, gates, measurements): gates are (name, wires, angle sources)."""
    n_wires = draw(st.integers(1, 8))
    names = [name for name, (wires, _) in GATES.items() if wires <= n_wires]
    source = st.one_of(
        st.tuples(st.just("weight"), st.integers(0, N_WEIGHTS - 1)),
        st.tuples(st.just("input"), st.integers(0, N_FEATURES - 1)),
        st.tuples(st.just("product"), st.integers(0, N_FEATURES - 1)),
        st.tuples(st.just("number"), st.integers(-3, 3)),
    )
    gates = []
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=12)):
        wires, angles = GATES[name]
        on = draw(st.permutations(range(n_wires)))[:wires]
        gates.append((name, tuple(on), tuple(draw(source) for _ in range(angles))))
    kinds = ["Z", "X", "ZZ", "sum", "var", "probs"]
    return n_wires, gates, draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))


def qnode_of(n_wires: int, gates: list, measurements: list) -> qp.QNode:
    last = n_wires - 1

    @qp.qnode(qp.device("default.qubit", wires=n_wires, seed=None))
    def circuit(inputs, weights):
        for name, wires, sources in gates:
            values = []
            for kind, i in sources:
                match kind:
                    case "weight":
                        values.append(weights[i])
                    case "input":
                        values.append(inputs[..., i])
                    case "product":
                        values.append(torch.sin(inputs[..., i]) * weights[i] + 0.3)
                    case _:
                        values.append(
                            0.4 * i if len(sources) == 1 else torch.tensor(0.4 * i, dtype=inputs.dtype)
                        )
            getattr(qp, name)(*values, wires=wires)
        found = []
        for kind in measurements:
            match kind:
                case "Z":
                    found.append(qp.expval(qp.PauliZ(0)))
                case "X":
                    found.append(qp.expval(qp.PauliX(last)))
                case "ZZ":
                    found.append(
                        qp.expval(qp.PauliZ(0) @ qp.PauliY(last)) if last else qp.expval(qp.PauliY(0))
                    )
                case "sum":
                    found.append(qp.expval(0.3 * qp.PauliX(0) + 2.0 * qp.PauliZ(last) - 0.5 * qp.Identity(0)))
                case "var":
                    found.append(qp.var(qp.PauliX(0) + qp.PauliZ(last)))
                case _:
                    found.append(qp.probs(wires=[last]))
        return found

    return circuit


def exact(qnode: qp.QNode, inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """TorchLayer's own arrangement, by default.qubit: of shape (batch, n_columns)."""
    columns = []
    batch = len(inputs)
    if batch > 1:  # one by one: PennyLane's own IsingXY and PSWAP take no batches that need gradients
        return torch.cat([exact(qnode, row[None], weights) for row in inputs])
    for value in qnode(inputs[0], weights):
        value = torch.as_tensor(value, dtype=inputs.dtype)
        columns.append(value.reshape(1, -1))
    return torch.cat(columns, dim=1)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(programs(), st.sampled_from([3, 5]))
def test_random_circuits(made: tuple[int, list, list], batch: int) -> None:
    generator = torch.Generator().manual_seed(len(made[1]))
    inputs = 3 * torch.rand(batch, N_FEATURES, generator=generator, dtype=torch.float64) - 1
    weights = 6 * torch.rand(N_WEIGHTS, generator=generator, dtype=torch.float64)
    qnode = qnode_of(*made)
    fused = Fused(trace(qnode, inputs, {"weights": weights}), inputs, [weights])
    pairs = []
    for run in (lambda x, w: fused(x, [w]), lambda x, w: exact(qnode, x, w)):
        x, w = inputs.clone().requires_grad_(), weights.clone().requires_grad_()
        values = run(x, w)
        mixture = torch.linspace(-1, 1, values.numel(), dtype=torch.float64).reshape(values.shape)
        total = (values * mixture).sum() + 0 * (x.sum() + w.sum())
        pairs.append((values, *torch.autograd.grad(total, [x, w])))
    for ours, theirs in zip(*pairs, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() < FLOAT64
    single = fused(inputs.float(), [weights.float()])
    assert single.dtype == torch.float32
    assert (single.double() - pairs[1][0]).abs().max() < FLOAT32


def layer_of(function: Callable, shape: tuple[int, ...] = (2,), device: str = "default.qubit", **options):
    """A layer around `function(inputs, weights)` on two wires."""
    qnode = qp.QNode(function, qp.device(device, wires=2, seed=None))
    weights = torch.linspace(0.3, 1.7, int(np.prod(shape))).reshape(shape)
    return QuantumLayer(qnode, {"weights": shape}, {"weights": weights}, **options)


def rotations(inputs, weights):
    for wire in range(2):
        qp.RX(inputs[..., wire], wires=wire)
        qp.RY(weights[wire], wires=wire)
    qp.CNOT(wires=(0, 1))
    return [qp.expval(qp.Z(0)), qp.expval(qp.X(1))]


def looks_at_values(inputs, weights):
    if weights[0] > 1:
        qp.RX(weights[1], wires=0)
    return rotations(inputs, weights)


def noisy(inputs, weights):
    qp.RX(inputs[..., 0], wires=0)
    qp.RY(weights[0], wires=1)
    qp.DepolarizingChannel(0.1, wires=0)
    return [qp.expval(qp.Z(0)), qp.expval(qp.X(1))]


def measures_in_the_middle(inputs, weights):
    qp.RX(inputs[..., 0], wires=0)
    qp.RY(weights[0], wires=1)
    qp.cond(qp.measure(0), qp.RX)(weights[1], wires=1)
    return [qp.expval(qp.Z(1))]


@pytest.mark.parametrize(
    ("function", "device", "why"),
    [
        (looks_at_values, "default.qubit", "without values"),
        (noisy, "default.mixed", "only that device"),
        (measures_in_the_middle, "default.qubit", "because"),
    ],
)
def test_what_cannot_be_fused_runs_on_its_own_device(function: Callable, device: str, why: str) -> None:
    layer = layer_of(function, device=device)
    plain = qp.qnn.TorchLayer(layer.qnode, {"weights": (2,)}, {"weights": layer.weights.detach().clone()})
    inputs = torch.tensor([[0.3, 1.1], [2.0, 0.4], [1.0, 0.2]])
    assert torch.allclose(layer(inputs), plain(inputs), atol=FLOAT32)
    assert layer.backend == device
    assert why in layer.explain() and device in layer.explain()
    with pytest.raises(NotImplementedError, match="use auto"):
        layer_of(function, device=device, backend="batched")(inputs)


def test_shots_stay_shots() -> None:
    qnode = qp.set_shots(qp.QNode(rotations, qp.device("default.qubit", wires=2, seed=1)), shots=7)
    layer = QuantumLayer(qnode, {"weights": (2,)}, {"weights": torch.tensor([0.3, 1.7])})
    values = layer(torch.tensor([[0.3, 1.1]]))
    assert layer.backend == "default.qubit" and "shots" in layer.explain()
    counted = (values + 1) / 2 * 7
    assert torch.allclose(counted, counted.round(), atol=FLOAT32), "seven shots give multiples of 1/7"


def test_functional_transforms_and_second_derivatives() -> None:
    layer = layer_of(rotations).double()
    inputs = torch.tensor([[0.3, 1.1], [2.0, 0.4]], dtype=torch.float64)
    weights = layer.weights.detach()

    def run(row, weights):
        return torch.func.functional_call(layer, {"weights": weights}, (row,))

    one_by_one = torch.stack([torch.func.jacrev(run, argnums=1)(row, weights) for row in inputs])
    at_once = torch.func.vmap(torch.func.jacrev(run, argnums=1), in_dims=(0, None))(inputs, weights)
    assert torch.allclose(one_by_one, at_once, atol=FLOAT64)
    several = torch.func.vmap(run, in_dims=(None, 0))(inputs, torch.stack([weights, weights + 1]))
    assert torch.allclose(several[1], run(inputs, weights + 1), atol=FLOAT64)
    leaf = weights.clone().requires_grad_(), inputs.clone().requires_grad_()
    with torch.random.fork_rng(devices=[]):  # gradgradcheck draws
        assert torch.autograd.gradcheck(lambda w, x: run(x, w), leaf)
        assert torch.autograd.gradgradcheck(lambda w, x: run(x, w), leaf)


def test_a_traced_circuit_takes_any_batch() -> None:
    """Traced once, on three samples; leading dimensions, single samples and batches of one included."""
    layer = layer_of(rotations)
    inputs = torch.linspace(-2, 2, 24).reshape(3, 4, 2)
    rows = torch.stack([layer(row) for row in inputs.reshape(-1, 2)]).reshape(3, 4, 2)
    assert torch.allclose(layer(inputs), rows, atol=FLOAT32)
    assert torch.allclose(layer(inputs[:1, 0]), rows[:1, 0], atol=FLOAT32)
    assert set(layer._programs) == {(2, 2, torch.float32), (1, 2, torch.float32)}


def test_large_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values and gradients of chunks are those of the whole."""
    from qnnkit.simulator import execute

    inputs = torch.linspace(-3, 3, 40, dtype=torch.float64).reshape(20, 2)
    found = []
    for limit in (execute.KEPT_BYTES, 3000):
        monkeypatch.setattr(execute, "KEPT_BYTES", limit)
        monkeypatch.setattr(execute, "CACHE_BYTES", limit // 16)
        layer = layer_of(rotations).double()
        values = layer(inputs)
        values.square().sum().backward()
        found.append((values.detach(), layer.weights.grad))
    for whole, cut in zip(*found, strict=True):
        assert torch.allclose(whole, cut, atol=FLOAT64)


def test_a_tensor_from_outside_is_never_frozen_in() -> None:
    """It may change between calls, or be trained: such a circuit is no fixed program."""
    outside = torch.tensor(0.4, requires_grad=True)

    def circuit(inputs, weights):
        qp.RX(outside, wires=0)
        return rotations(inputs, weights)

    layer, inputs = layer_of(circuit), torch.tensor([[0.3, 1.1], [2.0, 0.4]])
    first = layer(inputs)
    assert layer.backend == "default.qubit" and "from outside" in layer.explain()
    assert torch.autograd.grad(first.sum(), outside)[0].abs() > 0.01
    with torch.no_grad():
        outside += 1
    assert (layer(inputs) - first).abs().max() > 0.01

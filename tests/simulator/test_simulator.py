"""The batched simulator: derivatives of every order, large batches and circuits, what is not fused.

Random circuits over every gate stand in `test_random_circuits.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from qnnkit import QuantumLayer
from qnnkit.simulator import fused, gates
from tests.toys import Fusion

FLOAT32, FLOAT64 = 1e-5, 1e-10


def test_what_cannot_be_fused_runs_on_its_own_device() -> None:
    """More such circuits: test_contract.py."""

    def noisy(inputs, weights):
        qp.RX(inputs[..., 0], wires=0)
        qp.RY(weights[0], wires=1)
        qp.DepolarizingChannel(0.1, wires=0)
        return [qp.expval(qp.Z(0)), qp.expval(qp.X(1))]

    qnode = qp.QNode(noisy, qp.device("default.mixed", wires=2, seed=None))
    inputs, given = torch.tensor([[0.3], [2.0], [1.0]]), ({"weights": (1,)}, torch.nn.init.ones_)
    layer, plain = QuantumLayer(qnode, *given), qp.qnn.TorchLayer(qnode, *given)
    assert torch.allclose(layer(inputs), plain(inputs), atol=FLOAT32)
    assert layer.backend == "default.mixed" and "only that device" in layer.explain()
    with pytest.raises(NotImplementedError, match="use auto"):
        QuantumLayer(qnode, *given, backend="batched")(inputs)


# --- derivatives ------------------------------------------------------------------------------------------


def uploads_twice(inputs, weights):
    """Two wires; angles of inputs, weights and both; every kind of measurement."""
    qp.AngleEmbedding(inputs, wires=range(2))
    qp.Rot(weights[0], weights[1], weights[0] * weights[1], wires=0)
    qp.IsingXY(inputs[..., 0] * weights[2], wires=(0, 1))
    qp.CRY(torch.sin(inputs[..., 1]), wires=(1, 0))
    qp.AngleEmbedding(inputs, wires=range(2), rotation="Y")
    return [
        qp.expval(0.3 * qp.X(0) - qp.Z(0) @ qp.Y(1)),
        qp.var(qp.Z(0) + qp.X(1)),
        qp.probs(wires=[1]),
    ]


def wide(inputs, weights):
    """Seven wires: several blocks, swaps that bring far wires together, phases of the inputs in between."""
    qp.AngleEmbedding(inputs, wires=(0, 6))
    qp.BasicEntanglerLayers(weights[:1] * torch.ones(1, 7, dtype=weights.dtype), wires=range(7))
    qp.CRX(weights[1], wires=(6, 0))
    qp.Toffoli(wires=(5, 0, 3))
    qp.IsingZZ(inputs[..., 1] * weights[2], wires=(1, 5))
    qp.ISWAP(wires=(2, 6))
    qp.DoubleExcitation(weights[2], wires=(0, 2, 4, 6))
    qp.RY(inputs[..., 0], wires=3)
    return [qp.expval(qp.X(0) @ qp.Z(6)), qp.expval(qp.Z(3)), qp.expval(qp.Y(5))]


def amplitudes_first(inputs, weights):
    norm = inputs.square().sum(-1, keepdim=True).sqrt()
    qp.AmplitudeEmbedding(inputs / norm, wires=0, validate_norm=False)
    qp.RX(weights[0], wires=0)
    qp.CRot(weights[0], weights[1], weights[2], wires=(0, 1))
    return [qp.expval(qp.Z(1)), qp.expval(qp.X(0))]


def one_number(inputs, weights):
    qp.RY(inputs[..., 0] + weights[0], wires=0)
    qp.PSWAP(inputs[..., 1], wires=(0, 1))
    return qp.expval(qp.X(0) @ qp.Y(1) + 0.5 * qp.Z(1))


def twice(inputs, weights):
    """Every step by hand: what runs in chunks, and over NumPy."""
    for _ in range(2):
        qp.AngleEmbedding(inputs, wires=range(2))
        qp.CRot(*weights, wires=(0, 1))
    return [qp.expval(qp.Z(0)), qp.probs(wires=1)]


DERIVED = [(uploads_twice, 2), (wide, 7), (amplitudes_first, 2), (one_number, 2), (twice, 2)]
"""(function, wires): each takes two features and three weights."""


def program_of(function: Callable, n_wires: int, batch: int | None = 2) -> tuple[Fusion, Tensor, Tensor]:
    """The program, and inputs and weights that ask for gradients, in float64."""
    shape = (2,) if batch is None else (batch, 2)
    qnode = qp.QNode(function, qp.device("default.qubit", wires=n_wires, seed=None))
    inputs = torch.linspace(0.4, 2.1, int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    weights = torch.tensor([0.7, 1.9, -0.6], dtype=torch.float64)
    program = Fusion(qnode, shape, {"weights": (3,)}, torch.float64)
    return program, inputs.requires_grad_(), weights.requires_grad_()


@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize(("function", "n_wires"), DERIVED)
def test_first_and_second_derivatives_are_finite_differences(function, n_wires, batch) -> None:
    program, *leaves = program_of(function, n_wires, batch)
    with torch.random.fork_rng(devices=[]):  # they draw
        assert torch.autograd.gradcheck(lambda x, w: program(x, [w]), leaves)
        assert batch is None or torch.autograd.gradgradcheck(lambda x, w: program(x, [w]), leaves)


@pytest.mark.parametrize(("function", "n_wires"), DERIVED)
def test_ways_back_agree(function: Callable, n_wires: int) -> None:
    """Twice through one graph, by what asks alone, and many gradients at once."""
    program, inputs, weights = program_of(function, n_wires)
    total = program(inputs, [weights]).square().sum()
    true = torch.autograd.grad(total, [inputs, weights], retain_graph=True)
    to_inputs = program(inputs, [weights.detach()]).square().sum()
    to_weights = program(inputs.detach(), [weights]).square().sum()
    assert not program(inputs.detach(), [weights.detach()]).requires_grad
    alone = *torch.autograd.grad(to_inputs, inputs), *torch.autograd.grad(to_weights, weights)
    again = torch.autograd.grad(total, [inputs, weights])  # what the first way used up is made again
    run = lambda inputs, weights: program(inputs, [weights])  # noqa: E731
    at_once, one_by_one = (jacobian(run, (inputs, weights), vectorize=each) for each in (True, False))
    for found, wanted in zip((*again, *alone, *at_once), (*true, *true, *one_by_one), strict=True):
        assert wanted.abs().max() > 0.01
        assert torch.allclose(found, wanted, rtol=0, atol=FLOAT64)


# --- large batches, large circuits ------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "n_wires"), DERIVED)
def test_large_batches_are_cut(function: Callable, n_wires: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values and gradients of parts are those of the whole, with states kept or made again."""
    program, inputs, weights = program_of(function, n_wires, 40)
    found: list[Any] = []
    all_kept = fused.KEPT_BYTES
    for kept, cache in ((all_kept, fused.CACHE_BYTES), (all_kept, 1), (1, 1), (1, 2**20)):
        monkeypatch.setattr(fused, "KEPT_BYTES", kept)
        monkeypatch.setattr(fused, "SMALL_BYTES", 0)
        monkeypatch.setattr(fused, "CACHE_BYTES", cache)
        assert len(program.fused.given(inputs.detach(), weights.detach())[1]) == (1 if cache > 1 else 3)
        values = program(inputs, [weights])
        found.append((values.detach(), *torch.autograd.grad(values.square().sum(), [inputs, weights])))
        with torch.no_grad():
            assert torch.allclose(program(inputs, [weights]), values, rtol=0, atol=FLOAT64)
    for other in found[1:]:
        for whole, cut in zip(found[0], other, strict=True):
            assert torch.allclose(whole, cut, rtol=0, atol=FLOAT64)


def test_a_large_batch_runs_in_chunks_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part in chunks, the last, of 37 samples, whole: all as over NumPy."""
    program, inputs, weights = program_of(twice, 2, 1024 + 37)
    found = [program(inputs, [weights])]
    monkeypatch.setattr(fused, "SMALL_BYTES", 0)
    monkeypatch.setattr(fused, "CACHE_BYTES", 512 * program.fused.state_bytes)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 2)
        first, last = program.fused.given(inputs.detach(), weights.detach())[1]
        assert first.shape == (16, 2, 64) and last.shape == (2, 37)
        found.append(program(inputs, [weights]))
    gradients = [torch.autograd.grad(v.square().sum(), [inputs, weights]) for v in found]
    for near, cut in zip((found[0], *gradients[0]), (found[1], *gradients[1]), strict=True):
        assert torch.allclose(near, cut, rtol=1e-12, atol=FLOAT64)


def test_numpy_takes_a_batch_in_chunks_that_one_thread_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    program, inputs, weights = program_of(twice, 2, 1000)
    found = [program(inputs, [weights])]
    monkeypatch.setattr(fused, "ONE_THREAD", 4**3 * 64)
    way, [cut], _ = program.fused.given(inputs.detach(), weights.detach())
    assert cut.shape == (20, 2, 50) and way is program.fused.near
    assert (
        program.fused.given(inputs[:997].detach(), weights.detach())[0] is program.fused.mixed
    )  # a prime number of samples
    found.append(program(inputs, [weights]))
    gradients = [torch.autograd.grad(v.square().sum(), [inputs, weights]) for v in found]
    for whole, cut in zip((found[0], *gradients[0]), (found[1], *gradients[1]), strict=True):
        assert torch.allclose(whole, cut, rtol=1e-12, atol=FLOAT64)


FRESH = """
import json, resource, sys, time
import pennylane as qp, torch
from qnnkit import QuantumLayer, circuits

def run(layer, batch, n_features, steps):
    inputs, faults = torch.rand(batch, n_features, requires_grad=True), []
    begin = time.perf_counter(), time.process_time()
    for _ in range(steps):
        layer(inputs).square().sum().backward()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert inputs.grad.isfinite().all() and layer.weights.grad.abs().max() > 0
    awake = (time.process_time() - begin[1]) / (time.perf_counter() - begin[0])
    return awake, (faults[-1] - faults[-min(steps, 41)]) / 40

def peak():
    if sys.platform == "linux":  # whose ru_maxrss also counts the process that started this one
        status = dict(line.split(":") for line in open("/proc/self/status"))
        return int(status["VmHWM"].split()[0]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30

def wide(inputs, weights):
    qp.AngleEmbedding(inputs, wires=range(16))
    qp.StronglyEntanglingLayers(weights, wires=range(16))
    return [qp.expval(qp.Z(wire)) for wire in range(16)]

torch.set_num_threads(1)
imported = peak()
layer = QuantumLayer(*circuits.build("data_reuploading", n_qubits=4, n_layers=2), backend="batched")
run(layer, 2048, 4, 3)
found = {"awake": run(layer, 2048, 4, 60)[0], "faults": run(layer, 8192, 4, 61)[1]}
qnode = qp.QNode(wide, qp.device("default.qubit", wires=16))
run(QuantumLayer(qnode, {"weights": (3, 16, 3)}, backend="batched"), 64, 16, 1)
found["wide"] = peak() - imported
run(layer, 1_000_000, 4, 1)
print(json.dumps({**found, "many": peak() - imported}))
"""


@pytest.fixture(scope="module")
def fresh() -> dict[str, float]:
    """What a process of its own measures of itself."""
    pytest.importorskip("resource")  # Windows has none
    command = [sys.executable, "-W", "ignore", "-c", FRESH]
    more = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(command, env=more, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_numpys_own_threads_stay_asleep(fresh) -> None:
    """Awake beside torch's they made each step of a net four times as long; so much of a core they took."""
    assert fresh["awake"] < 1.1


@pytest.mark.skipif(sys.platform != "linux", reason="what glibc does")
def test_freed_memory_is_not_given_back_after_every_step(fresh) -> None:
    """Else a step of W1 has 170 to 620 page faults, and takes a sixth longer."""
    assert fresh["faults"] < 60


@pytest.mark.parametrize(("which", "gib"), [("wide", 0.65), ("many", 1.65)])
def test_memory_stays_small(which: str, gib: float, fresh) -> None:
    """In GiB, beside what PennyLane and torch take alone: 0.35 with torch for CPUs, more with CUDA's."""
    assert fresh[which] < gib


@pytest.mark.parametrize("n_wires", [17, pytest.param(20, marks=pytest.mark.slow)])
def test_many_wires(n_wires: int) -> None:
    """Beside lightning.qubit, differentiated by its adjoint method."""

    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs, wires=range(n_wires))
        qp.BasicEntanglerLayers(weights, wires=range(n_wires))
        qp.CRX(weights[0, 0], wires=(n_wires - 1, 0))
        return [qp.expval(qp.Z(0) @ qp.Y(n_wires - 1)), qp.expval(qp.Z(n_wires // 2))]

    def mixed(inputs, weights):  # through NumPy: the way to torch cuts lightning's values to float32
        first, second = lightning(inputs, weights)
        return first - 2 * second

    lightning = qp.QNode(
        circuit, qp.device("lightning.qubit", wires=n_wires, seed=None), diff_method="adjoint"
    )
    weights = torch.linspace(0.1, 0.5, n_wires, dtype=torch.float64).reshape(1, -1).requires_grad_()
    inputs = torch.linspace(-0.3, 0.4, n_wires, dtype=torch.float64).requires_grad_()
    total = Fusion(lightning, (n_wires,), {"weights": (1, n_wires)}, torch.float64)(inputs, [weights])
    total = total[0] - 2 * total[1]
    ours = total, *torch.autograd.grad(total, [inputs, weights])
    given = [qp.numpy.array(leaf.tolist(), requires_grad=True) for leaf in (inputs, weights)]
    for mine, true in zip(ours, (mixed(*given), *qp.grad(mixed)(*given)), strict=True):
        assert np.abs(true).max() > 0.01
        assert np.abs(mine.detach().numpy() - true).max() < FLOAT64


def test_how_gates_turn(monkeypatch):
    """By eighths at the least; one that a new number leaves as it is turns in an unknown way."""
    turn = gates.turn(qp.ops.Evolution(0.125 * qp.Z(0), 0.3))
    np.testing.assert_array_equal(sorted(turn.rates), [-0.125, 0.125])
    monkeypatch.setattr(gates, "with_numbers", lambda operation, numbers: operation)
    with pytest.raises(gates.NotFusable, match="unknown way"):
        gates.turn(qp.ops.Evolution(qp.Z(0), 0.3))

"""The batched simulator: derivatives of every order, large batches and circuits, what is not fused.

Random circuits over every gate stand in `test_random_circuits.py`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import Tensor

from qnnkit.simulator import fused, gates
from tests.toys import Fusion, mixed_gradients, same

FLOAT64 = 1e-10


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


def twice(inputs, weights):
    """Every step by hand: what runs in chunks, and over NumPy."""
    for _ in range(2):
        qp.AngleEmbedding(inputs, wires=range(2))
        qp.CRot(*weights, wires=(0, 1))
    return [qp.expval(qp.Z(0)), qp.probs(wires=1)]


DERIVED = [(uploads_twice, 2), (wide, 7), (amplitudes_first, 2), (twice, 2)]
"""(function, wires): each takes two features and three weights."""


def program_of(function: Callable, n_wires: int, batch: int = 2) -> tuple[Fusion, Tensor, Tensor]:
    """The program, and inputs and weights that ask for gradients, in float64."""
    qnode = qp.QNode(function, qp.device("default.qubit", wires=n_wires, seed=None))
    inputs = torch.linspace(0.4, 2.1, 2 * batch, dtype=torch.float64).reshape(batch, 2)
    weights = torch.tensor([0.7, 1.9, -0.6], dtype=torch.float64)
    program = Fusion(qnode, inputs.shape, {"weights": (3,)}, torch.float64)
    return program, inputs.requires_grad_(), weights.requires_grad_()


@pytest.mark.parametrize(("function", "n_wires"), DERIVED)
def test_first_and_second_derivatives_are_finite_differences(function, n_wires) -> None:
    program, *leaves = program_of(function, n_wires)
    with torch.random.fork_rng(devices=[]):  # they draw
        assert torch.autograd.gradcheck(lambda x, w: program(x, [w]), leaves)
        assert torch.autograd.gradgradcheck(lambda x, w: program(x, [w]), leaves)


def both_passes(program: Fusion, inputs: Tensor, weights: Tensor) -> list[Tensor]:
    """Values, and gradients of their squares by what asks for any."""
    values, leaves = program(inputs, [weights]), [x for x in (inputs, weights) if x.requires_grad]
    return [values.detach(), *torch.autograd.grad(values.square().sum(), leaves)]


# --- large batches, large circuits ------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "n_wires"), DERIVED)
def test_large_batches_are_cut(function: Callable, n_wires: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values and gradients of parts are those of the whole, with states kept or made again."""
    program, inputs, weights = program_of(function, n_wires, 40)
    monkeypatch.setattr(fused, "SMALL_BYTES", 0)
    whole, all_kept = both_passes(program, inputs, weights), fused.KEPT_BYTES
    for kept, cache in ((all_kept, 1), (1, 1), (1, 2**20)):
        monkeypatch.setattr(fused, "KEPT_BYTES", kept)
        monkeypatch.setattr(fused, "CACHE_BYTES", cache)
        assert len(program.fused.given(inputs.detach(), weights.detach())[1]) == (1 if cache > 1 else 3)
        same(both_passes(program, inputs, weights), whole, FLOAT64)
        with torch.no_grad():
            same([program(inputs, [weights])], whole[:1], FLOAT64)


def test_a_large_batch_runs_in_chunks_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part in chunks, the last, of 37 samples, whole: all as over NumPy."""
    program, inputs, weights = program_of(twice, 2, 1024 + 37)
    near = both_passes(program, inputs, weights)
    monkeypatch.setattr(fused, "SMALL_BYTES", 0)
    monkeypatch.setattr(fused, "CACHE_BYTES", 512 * program.fused.state_bytes)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 2)
        parts = program.fused.given(inputs.detach(), weights.detach())[1]
        assert [part.shape for part in parts] == [(16, 2, 64), (2, 37)]
        same(both_passes(program, inputs, weights), near, 1e3 * FLOAT64)


def test_numpy_takes_a_batch_in_chunks_that_one_thread_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    program, inputs, weights = program_of(twice, 2, 1000)
    whole = both_passes(program, inputs, weights)
    monkeypatch.setattr(fused, "ONE_THREAD", 4**3 * 64)
    way, [cut], _ = program.fused.given(inputs.detach(), weights.detach())
    assert cut.shape == (20, 2, 50) and way is program.fused.near
    prime = program.fused.given(inputs[:997].detach(), weights.detach())
    assert prime[0] is program.fused.mixed, "a prime number of samples has no chunks"
    same(both_passes(program, inputs, weights), whole, 1e3 * FLOAT64)


FRESH = """
import json, resource, time
import torch
from qnnkit import QuantumLayer, circuits
from qnnkit.measure.held import peak

def layer_of(*given, n_qubits, n_layers):
    return QuantumLayer(*circuits.build(*given, n_qubits=n_qubits, n_layers=n_layers), backend="batched")

def run(layer, batch, n_features, steps):
    inputs, faults = torch.rand(batch, n_features, requires_grad=True), []
    begin = time.perf_counter(), time.process_time()
    for _ in range(steps):
        layer(inputs).square().sum().backward()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert inputs.grad.isfinite().all() and layer.weights.grad.abs().max() > 0
    awake = (time.process_time() - begin[1]) / (time.perf_counter() - begin[0])
    return awake, (faults[-1] - faults[-min(steps, 41)]) / 40

torch.set_num_threads(1)
imported = peak()
layer = layer_of("data_reuploading", n_qubits=4, n_layers=2)
run(layer, 2048, 4, 3)
found = {"awake": run(layer, 2048, 4, 60)[0], "faults": run(layer, 8192, 4, 61)[1]}
run(layer_of("strongly_entangling", n_qubits=16, n_layers=3), 64, 16, 1)
found["wide"] = (peak() - imported) / 2**30
run(layer, 1_000_000, 4, 1)
print(json.dumps({**found, "many": (peak() - imported) / 2**30}))
"""


MOST = {"awake": 1.1, "faults": 60, "wide": 0.65, "many": 1.65}
"""Cores that are busy, page faults of a step, and GiB beside what PennyLane and torch take alone."""


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux and glibc do")
def test_a_fresh_process_stays_small_and_its_other_threads_asleep() -> None:
    """NumPy's own threads, awake beside torch's, made each step of a net four times as long.

    Where freed memory is given back after every step, one of W1 has 170 to 620 page faults, and takes a sixth
    longer.
    """
    command, more = [sys.executable, "-W", "ignore", "-c", FRESH], {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {what: n for what, n in json.loads(done.stdout).items() if n >= MOST[what]}


def test_many_wires(n_wires: int = 17) -> None:
    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs, wires=range(n_wires))
        qp.BasicEntanglerLayers(weights, wires=range(n_wires))
        qp.CRX(weights[0, 0], wires=(n_wires - 1, 0))
        return [qp.expval(qp.Z(0) @ qp.Y(n_wires - 1)), qp.expval(qp.Z(n_wires // 2))]

    qnode = qp.QNode(circuit, qp.device("default.qubit", wires=n_wires, seed=None))
    weights = torch.linspace(0.1, 0.5, n_wires, dtype=torch.float64).reshape(1, -1).requires_grad_()
    inputs = torch.linspace(-0.3, 0.4, n_wires, dtype=torch.float64).requires_grad_()
    program = Fusion(qnode, (n_wires,), {"weights": (1, n_wires)}, torch.float64)
    both = program(inputs, [weights]), torch.stack(qnode(inputs, weights))
    ours, theirs = ([values, *mixed_gradients(values, [inputs, weights])] for values in both)
    same(ours, theirs, FLOAT64)
    assert min(each.abs().max() for each in ours) > 0.01


def test_how_gates_turn(monkeypatch):
    """By eighths at the least; one that a new number leaves as it is turns in an unknown way."""
    turn = gates.turn(qp.ops.Evolution(0.125 * qp.Z(0), 0.3))
    np.testing.assert_array_equal(sorted(turn.rates), [-0.125, 0.125])
    monkeypatch.setattr(gates, "with_numbers", lambda operation, numbers: operation)
    with pytest.raises(gates.NotFusable, match="unknown way"):
        gates.turn(qp.ops.Evolution(qp.Z(0), 0.3))

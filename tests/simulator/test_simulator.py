"""The batched simulator: derivatives of every order, large batches and circuits, and unfused gates.

`test_random_circuits.py` has random circuits over every gate.
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

from qnnkit import QuantumLayer, circuits
from qnnkit.simulator import fused, gates
from tests.toys import measured, same

FLOAT64 = 1e-10


# --- derivatives ------------------------------------------------------------------------------------------


def uploads_twice(inputs, weights):
    """Two wires; angles from inputs, weights and both; every kind of measurement."""
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
    """Seven wires: several blocks, swaps that join distant wires, phases from the inputs in between."""
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
    """Gradients of every step by hand: this runs in chunks, and over NumPy."""
    for _ in range(2):
        qp.AngleEmbedding(inputs, wires=range(2))
        qp.CRot(*weights, wires=(0, 1))
    return [qp.expval(qp.Z(0)), qp.probs(wires=1)]


DERIVED = [(uploads_twice, 2), (wide, 7), (amplitudes_first, 2), (twice, 2)]
"""(function, wires): each takes two features and three weights."""


def layer_of(function: Callable, n_wires: int, batch: int = 2) -> tuple[QuantumLayer, Tensor]:
    """The layer, and inputs, in float64."""
    qnode, weights = qp.QNode(function, circuits.make_device("default.qubit", n_wires)), [0.7, 1.9, -0.6]
    layer = QuantumLayer(qnode, {"weights": 3}, {"weights": torch.tensor(weights)}, backend="batched")
    inputs = torch.linspace(0.4, 2.1, 2 * batch, dtype=torch.float64).reshape(batch, 2)
    return layer.double(), inputs


@pytest.mark.parametrize(("function", "n_wires"), DERIVED)
def test_first_and_second_derivatives_equal_finite_differences(function, n_wires) -> None:
    layer, inputs = layer_of(function, n_wires)

    def run(inputs: Tensor, weights: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weights": weights}, (inputs,))

    with torch.random.fork_rng(devices=[]):  # they draw random wires
        assert torch.autograd.gradcheck(run, [inputs.requires_grad_(), layer.weights])
        assert torch.autograd.gradgradcheck(run, [inputs, layer.weights])


def cut(layer: QuantumLayer, inputs: Tensor) -> tuple:
    """How the program computes a batch, after its first run: the method, and the parts."""
    return layer.programs().last.given(inputs, layer.weights.detach())[:2]


# --- large batches, large circuits ------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "n_wires"), DERIVED)
def test_large_batches_are_split(function: Callable, n_wires: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of parts equal those of the whole, with states stored or recomputed."""
    layer, inputs = layer_of(function, n_wires, 40)
    monkeypatch.setattr(fused, "SMALL_BYTES", 0)
    expected, all_kept = measured(layer, inputs), fused.KEPT_BYTES
    for n_bytes, cache in ((all_kept, 1), (1, 1), (1, 2**20)):
        monkeypatch.setattr(fused, "KEPT_BYTES", n_bytes)
        monkeypatch.setattr(fused, "CACHE_BYTES", cache)
        assert len(cut(layer, inputs)[1]) == (1 if cache > 1 else 3)
        same(measured(layer, inputs), expected, FLOAT64)
        with torch.no_grad():
            same([layer(inputs)], expected[:1], FLOAT64)


def test_a_large_batch_runs_in_chunks_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part in chunks, the last one of 37 samples as a whole; all equal the NumPy results."""
    layer, inputs = layer_of(twice, 2, 1024 + 37)
    near = measured(layer, inputs)
    monkeypatch.setattr(fused, "SMALL_BYTES", 0)
    monkeypatch.setattr(fused, "CACHE_BYTES", 512 * layer.programs().last.state_bytes)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 2)
        assert [part.shape for part in cut(layer, inputs)[1]] == [(16, 2, 64), (2, 37)]
        same(measured(layer, inputs), near, 1e3 * FLOAT64)


def test_numpy_computes_a_batch_in_chunks_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, inputs = layer_of(twice, 2, 1000)
    expected, program = measured(layer, inputs), layer.programs().last
    monkeypatch.setattr(fused, "ONE_THREAD", 4**3 * 64)
    way, [part] = cut(layer, inputs)
    assert part.shape == (20, 2, 50) and way is program.near
    assert cut(layer, inputs[:997])[0] is program.mixed, "a prime number of samples has chunks"
    same(measured(layer, inputs), expected, 1e3 * FLOAT64)


FRESH = """
import json, resource, time
import torch
from qnnkit.measure.held import peak
from tests.toys import shipped

def run(layer, batch, n_features, steps):
    inputs, faults = torch.rand(batch, n_features, requires_grad=True), []
    begin = time.perf_counter(), time.process_time()
    for _ in range(steps):
        layer(inputs).square().sum().backward()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert inputs.grad.isfinite().all() and layer.weights.grad.abs().max() > 0
    awake = (time.process_time() - begin[1]) / (time.perf_counter() - begin[0])
    return awake, (faults[-1] - faults[-min(steps, 21)]) / 20

torch.set_num_threads(1)
imported = peak()
layer = shipped(n_qubits=4)
run(layer, 2048, 4, 3)
costs = {"awake": run(layer, 2048, 4, 40)[0], "faults": run(layer, 8192, 4, 41)[1]}
run(shipped("strongly_entangling", n_qubits=16, n_layers=1), 64, 16, 1)
print(json.dumps({**costs, "wide": (peak() - imported) / 2**30}))
"""


MOST = {"awake": 1.1, "faults": 60, "wide": 0.65}
"""Busy cores, page faults per step, and GiB in addition to those of PennyLane and torch."""


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux and glibc do")
def test_a_fresh_process_stays_small_and_its_idle_threads_sleep() -> None:
    """NumPy's threads, awake next to torch's, once made each step of a net four times as long.

    If freed memory is returned after every step, a step of W1 has 170 to 620 page faults and takes a sixth
    longer.
    """
    command, more = [sys.executable, "-W", "ignore", "-c", FRESH], {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {what: n for what, n in json.loads(done.stdout).items() if n >= MOST[what]}


def test_rotation_rates_of_gates(monkeypatch):
    """Rates are multiples of 1/8; a gate that ignores a new angle rotates in an unknown way."""
    turn = gates.turn(qp.ops.Evolution(0.125 * qp.Z(0), 0.3))
    np.testing.assert_array_equal(sorted(turn.rates), [-0.125, 0.125])
    monkeypatch.setattr(gates, "with_numbers", lambda operation, numbers: operation)
    with pytest.raises(gates.NotFusable, match="unknown way"):
        gates.turn(qp.ops.Evolution(qp.Z(0), 0.3))

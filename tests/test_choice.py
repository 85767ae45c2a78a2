"""Which backend `auto` takes: the one that was measured faster, and only if it gives the same values."""

import pytest
import torch

from qnnkit import QuantumLayer, circuits, measure
from qnnkit.layers import choice, worth_compiling

FLOAT32 = 1e-5


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setattr(measure.remembered, "_FOUND", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QNNKIT_HOME", raising=False)


def layer(embedding="angle", **options):
    qnode, shapes = circuits.build("hardware_efficient", n_qubits=3, embedding=embedding)
    return QuantumLayer(qnode, shapes, {"weights": torch.linspace(0.2, 2, 12).reshape(2, 3, 2)}, **options)


INPUTS = torch.linspace(-1, 2, 15).reshape(5, 3)


def test_a_race_is_run_once_for_a_kind_of_batch(monkeypatch):
    raced = []
    race = choice._race
    monkeypatch.setattr(choice, "_race", lambda *given: raced.append(race(*given)) or raced[-1])
    one = layer()
    for inputs in (INPUTS, INPUTS, INPUTS[:4], INPUTS.repeat(3, 1)):
        one(inputs)
    layer()(INPUTS)
    with torch.no_grad():
        one(INPUTS)
    assert len(raced) == 4, (
        "5 and 15 samples; 4 are of another class; without gradients it is another question"
    )
    assert all({"batched", "default.qubit", "lightning.qubit"} <= found.keys() for found in raced)


@pytest.mark.parametrize("device", ["default.qubit", "lightning.qubit"])
def test_a_device_that_was_measured_faster_runs_the_layer(monkeypatch, device):
    monkeypatch.setattr(choice, "_race", lambda *given: {"batched": 3.0, device: 1.0})
    one, forced = layer(), layer(backend="batched")
    values, expected = one(INPUTS), forced(INPUTS)
    assert one.backend == device and "measured 3.0x faster here" in one.explain()
    assert forced.backend == "batched"
    assert torch.allclose(values, expected, atol=FLOAT32)
    gradients = [
        torch.autograd.grad(v.square().sum(), of.weights) for v, of in ((values, one), (expected, forced))
    ]
    assert torch.allclose(*(gradient for [gradient] in gradients), atol=FLOAT32)
    assert torch.allclose(one(INPUTS.reshape(5, 1, 3)), expected.reshape(5, 1, 3), atol=FLOAT32)


def test_a_device_that_gives_other_values_does_not(monkeypatch):
    """PennyLane 0.45 mixes the samples up in an IQP embedding on lightning."""
    monkeypatch.setattr(choice, "_race", lambda *given: {"batched": 3.0, "lightning.qubit": 1.0})
    one = layer("iqp")
    assert torch.allclose(one(INPUTS), layer("iqp", backend="batched")(INPUTS), atol=FLOAT32)
    assert one.backend == "batched"


def test_what_a_device_cannot_run_it_does_not_win(monkeypatch):
    def moved(qnode, device):
        raise RuntimeError("no such device")

    monkeypatch.setattr(choice, "on_device", moved)
    one = layer()
    one(INPUTS)
    assert one.backend == "batched" and [*next(iter(one._times.values()))] == ["batched"]


def test_a_circuit_is_compiled_where_the_run_is_long_enough(monkeypatch):
    """Half a second a step: a fifth of 200 steps is 20 s, of 100 steps 10 s."""
    monkeypatch.setattr(choice, "_race", lambda *given: {"batched": 0.5})
    net = torch.nn.Sequential(layer(), torch.nn.Dropout(), layer(backend="batched")).train()
    assert worth_compiling(net, INPUTS, 200) == ["0"]
    assert worth_compiling(net, INPUTS, 100) == []
    assert net.training and net[1].training
    net[0].compile()
    assert "torch.compile" in net[0].explain()

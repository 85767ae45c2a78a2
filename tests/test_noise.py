"""Trained nets with shots and noise against closed forms; impossible requests raise one sentence."""

import copy
import math
import re
import sys

import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, circuits, models, noise, report, runs
from qnnkit.checkpoint import own_generators
from tests import toys
from tests.toys import each_epoch, refused

EXACT = 1e-6
"""The nets compute in float32, the devices in float64."""
ANGLES = torch.linspace(0.1, 3.0, 8)[:, None]
NOISE = {"shots": (), "depolarizing": (), "readout": ()}


SEEN = [torch.empty(0)]


class Seen(nn.Module):
    """Records the outputs of a layer, also in copies, and makes logits of them."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        values = self.layer(inputs=inputs)
        SEEN[0] = values.detach().double()
        return torch.stack([values[..., 0], -values[..., 0]], dim=-1)


def net_of(circuit, n_wires=1, *, start=0.0, change=lambda qnode: qnode) -> Seen:
    """A net of one circuit with one weight, on this function."""
    qnode = qp.QNode(circuit, circuits.make_device("default.qubit", range(n_wires)))
    layer = QuantumLayer(change(qnode), {"weights": (1,)}, nn.init.zeros_)
    layer.load_state_dict({"weights": torch.full((1,), start)}, assign=True)  # another parameter
    return Seen(layer)


def rotations(measured=lambda: [qp.expval(qp.Z(0))], **options) -> Seen:
    """One wire: RY of the input, and a measurement."""

    def circuit(inputs, weights):
        qp.RY(torch.add(inputs[..., 0], weights[0]), wires=0)
        return measured()

    return net_of(circuit, **options)


def values_of(model: nn.Module, inputs=ANGLES, labels=None, **conditions) -> torch.Tensor:
    """The outputs of the circuit under one condition, of shape (batch, n_outputs)."""
    labels = torch.zeros(len(inputs), dtype=torch.int64) if labels is None else labels
    noise.robustness(model, inputs, labels, **NOISE | conditions)
    return SEEN[0]


# --- closed forms -------------------------------------------------------------------------------------------


def test_shots_have_the_spread_of_a_binomial():
    shots, repeats = 50, 2_000
    values = values_of(rotations(start=0.3), torch.full((repeats, 1), 0.7), shots=(shots,))
    variance = (1 - math.cos(1.0) ** 2) / shots
    spread_of_mean, spread_of_variance = math.sqrt(variance / repeats), variance * math.sqrt(2 / repeats)
    assert abs(values.mean() - math.cos(1.0)) < 4 * spread_of_mean
    assert abs(values.var() - variance) < 4 * spread_of_variance
    assert torch.allclose(values * shots / 2, (values * shots / 2).round(), atol=1e-4), "no counts of shots"


@pytest.mark.parametrize("p", [0.01, 0.3])
def test_depolarizing_acts_once_per_gate_and_wire_and_readout_in_every_basis(p):
    """A template is decomposed."""

    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs, wires=(0, 1), rotation="Y")
        qp.CNOT(wires=(0, 1))
        observables = qp.Z(0), qp.Z(1), qp.X(1), qp.Z(0) @ qp.Z(1), qp.Hermitian([[0, 1], [1, 0]], 1)
        return [*map(qp.expval, observables), qp.probs()]

    model, inputs, a, b = net_of(circuit, 3), torch.tensor([[0.3, 0.7]]), math.cos(0.3), math.cos(0.7)
    exact = torch.tensor([a, a * b, math.sin(0.7), b, math.sin(0.7)], dtype=torch.float64)
    for condition, factor, powers in (
        ("depolarizing", 1 - 4 * p / 3, [2, 3, 2, 3, 2]),
        ("readout", 1 - 2 * p, [1, 1, 1, 2, 1]),
    ):
        noisy, shrunk = values_of(model, inputs, **{condition: (p,)}), factor ** torch.tensor(powers)
        torch.testing.assert_close(noisy[0, :5], shrunk * exact, atol=EXACT, rtol=0)
        unused = noisy[0, 6::2].sum()  # the probability that a wire without gates is read as 1
        assert unused == pytest.approx(p * (condition == "readout"), abs=EXACT)


# --- nets ---------------------------------------------------------------------------------------------------


def test_no_noise_gives_the_exact_net_and_a_seed_repeats_itself(monkeypatch):
    model = models.QuanvNet(1, (6, 6), 3, n_layers=1, hidden=4, trainable=False, filters=2)
    images = torch.from_numpy(toys.noise(12, 1, 6, 6))
    labels = model(images).argmax(-1)
    before = copy.deepcopy(model.state_dict())

    def rows(**conditions):
        return noise.robustness(model, images, labels, **NOISE | conditions)

    exact, shots, none, flips, loud = rows(shots=(10_000,), depolarizing=(0.0,), readout=(0.0, 0.5))
    assert [exact[name] for name in ("condition", "strength", "change", "images")] == ["exact", None, 0.0, 12]
    assert exact["accuracy"] == none["accuracy"] == flips["accuracy"] == 1
    assert none["change"] < EXACT and flips["change"] < EXACT and 0 < shots["change"] < 0.02
    assert loud["change"] > 0.1, "random readout carries no information"
    assert all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in (exact, shots, loud))
    one, other, again = (rows(shots=(50,), seed=seed)[1]["change"] for seed in (1, 2, 1))
    assert one == again != other
    monkeypatch.setattr(noise, "MIXED_BYTES", 20 * noise.COPIES * 16 * 4**4)  # parts of a batch give the same
    assert rows(readout=(0.5,))[1]["change"] == pytest.approx(loud["change"], abs=EXACT)
    assert model.training and not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# --- errors -------------------------------------------------------------------------------------------------


def wide(n_qubits: int) -> nn.Module:
    return Seen(toys.shipped("hardware_efficient", n_qubits=n_qubits, n_layers=1))


MIXED = qp.device("default.mixed", wires=1, seed=0)
ELEVEN = torch.ones(2, 11)


def put(model: Seen, backend: str = "auto", **options) -> Seen:
    model.layer.wanted_backend = backend
    noise.put(model, **options)
    return model


def mapped(model: Seen) -> Seen:
    model.forward = torch.vmap(model.forward)
    return model


BAD = ("shots", 0), ("shots", 100.7), ("depolarizing", -0.1), ("readout", 1.1)
REFUSED = [
    ("model", lambda: values_of(nn.Identity())),
    ("model", lambda: values_of(rotations(change=lambda qnode: qnode.update(device=MIXED)))),
    ("model", lambda: values_of(rotations(change=lambda qnode: qp.set_shots(qnode, shots=10)))),
    ("model", lambda: values_of(rotations(measured=qp.state))),
    ("model", lambda: values_of(mapped(rotations()))),
    ("model", lambda: values_of(wide(11), ELEVEN, depolarizing=(0.01,))),
    *[(name, lambda name=name, bad=bad: values_of(rotations(), **{name: (bad,)})) for name, bad in BAD],
    ("labels", lambda: values_of(rotations(), labels=torch.zeros(3).long())),
    ("labels", lambda: values_of(rotations(), labels=torch.zeros(8))),
    ("the number of images", lambda: values_of(rotations(), ANGLES[:0])),
    ("model", lambda: put(put(rotations(), shots=10), noise=("readout=0.1",))),
    ("backend", lambda: put(rotations(), "default.qubit", shots=10)),
    ("shots", lambda: put(rotations(), shots=100.7)),
    ("model", lambda: put(wide(11), noise=("depolarizing=0.1",))),
    ("noise", lambda: put(rotations(), shots=10, noise=("depolarizing=0.1",))),
    ("noise", lambda: put(rotations(), noise=("depolarising=0.1",))),
]


@pytest.mark.parametrize(("argument", "call"), REFUSED)
def test_impossible_requests_raise_an_error(argument, call):
    """Also for a circuit that already has shots, or runs on another device."""
    with refused(argument):
        call()


def test_shots_work_for_wide_circuits():
    exact, drawn = (values_of(wide(11), ELEVEN, shots=shots) for shots in ((), (10,)))
    assert not torch.equal(drawn, exact)


# --- a device -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # from Qiskit's plugins
def test_a_fake_device_gives_every_measurement_in_order_and_repeats_itself():
    """Offline, with the published noise of a real device."""
    pytest.importorskip("qiskit_ibm_runtime", reason="wants the extra: pip install 'qnnkit[hardware]'")

    def circuit(inputs, weights):
        qp.RY(inputs[..., 0], wires=1)
        qp.CNOT(wires=[1, 0])
        qp.RX(weights[0], wires=1)
        return [qp.expval(qp.Z(0)), qp.expval(qp.Hermitian([[0, 1], [1, 0]], 1)), qp.probs(wires=[0, 1])]

    model, inputs = net_of(circuit, 2, start=0.3), torch.tensor([[0.0], [1.5], [math.pi]])
    exact = model.layer(inputs).detach().double()
    first, again = (values_of(model, inputs, device="FakeManilaV2", device_shots=(4000,)) for _ in range(2))
    assert torch.equal(first, again), "one seed, the same shots"
    torch.testing.assert_close(first, exact, atol=0.2, rtol=0)
    assert first[0, 0] < 1 and first[2, 0] > -1, "a state is mostly, not always, read as prepared"
    with refused("device"):
        values_of(rotations(), device="FakeManila3")
    with refused("model"):
        values_of(wide(6), torch.ones(2, 6), device="FakeManilaV2")


def test_a_device_without_its_extra_raises_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "qiskit_ibm_runtime", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'qnnkit\[hardware\]'"):
        values_of(rotations(), device="FakeManilaV2")


# --- training with shots and noise --------------------------------------------------------------------------


def test_training_noise_shrinks_values_and_gradients_alike():
    """RY, then a depolarising channel and a bit flip: (1 - 4p/3)(1 - 2e) cos x, and its derivative."""
    model, inputs = rotations(), ANGLES.clone().requires_grad_()
    noise.put(model, noise=("depolarizing=0.03", "readout=0.1"))
    values = model.layer(inputs)
    shrunk = (1 - 4 * 0.03 / 3) * (1 - 2 * 0.1)
    torch.testing.assert_close(values.double(), shrunk * ANGLES.double().cos(), atol=EXACT, rtol=0)
    slope = torch.autograd.grad(values.sum(), model.layer.weights)[0]
    assert float(slope) == pytest.approx(-shrunk * float(ANGLES.sin().sum()), abs=1e-5)
    assert "default.mixed, all samples at once" in model.layer.explain()


def of_ones_own(model, shots, noise):
    """As if a recipe had set shots itself, on a device with a seed."""
    for layer in model.quanv.filters:
        device = qp.device("default.qubit", wires=4, seed=3)
        layer.qnode = qp.set_shots(layer.qnode.update(device=device), shots)


@pytest.mark.parametrize("put", [noise.put, of_ones_own])
@own_generators()  # counting the circuits runs them
def test_a_stopped_training_with_shots_ends_like_an_uninterrupted_one(put, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "put", put)
    small = {"epochs": 2, "n_seeds": 1, "controls": [], "stride": 4, "image_size": 6, "shots": 20}
    small |= {"data_dir": str(pictures), "n_layers": 1, "hidden": 2, "batch_size": 4, "threads": 1}
    small |= {} if put is of_ones_own else {"circuit": "random", "embedding": "amplitude"}
    straight, stopped = (runs.open_run(tmp_path / name, "folder_quanv", **small) for name in "ab")
    with pytest.raises(ZeroDivisionError):
        runs.train_all(stopped, on_row=each_epoch(lambda row: 1 / (2 - row["epoch"])))
    [one], [other] = runs.train_all(straight), runs.train_all(runs.open_run(stopped.folder))
    assert one["test_loss"] == other["test_loss"]
    report.finish(straight)
    page = re.sub(r"\s+", " ", straight.report.read_text())
    assert "measured 20 times in training and in the test: 80 measurements per sample" in page

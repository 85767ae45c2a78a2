"""Trained nets with shots and noise, against closed forms; what cannot be asked gets one sentence."""

from __future__ import annotations

import copy
import math
import re
import sys
import warnings

import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, circuits, models, noise, report, runs
from qnnkit.checkpoint import own_generators
from qnnkit.layers import circuits_per_image, feature_maps_of
from tests.toys import refused

EXACT = 1e-6
"""The nets compute in float32, the devices in float64."""
ANGLES = torch.linspace(0.1, 3.0, 8)[:, None]
START = {"weights": torch.zeros(1)}
NOISE = {"shots": (), "depolarizing": (), "readout": ()}


class Told(nn.Module):
    """Keeps what a layer gives, and makes logits of it."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.seen: list[torch.Tensor] = []

    def __deepcopy__(self, memo) -> Told:
        other = Told(copy.deepcopy(self.layer, memo))
        other.seen = self.seen  # so that a test sees what a copy computes
        return other.train(self.training)

    def forward(self, inputs):
        values = self.layer(inputs)
        self.seen.append(values.detach().double())
        return torch.stack([values[..., 0], -values[..., 0]], dim=-1)


def rotations(n_gates: int = 1, observable=qp.Z) -> Told:
    """One wire: RY of the input, n_gates times a part of it."""

    @qp.qnode(circuits.make_device("default.qubit", (0,)))
    def circuit(inputs, weights):
        for _ in range(n_gates):
            qp.RY((inputs[..., 0] + weights[0]) / n_gates, wires=0)
        return [qp.expval(observable(0))]

    return Told(QuantumLayer(circuit, {"weights": (1,)}, START))


def values_of(model: Told, inputs=ANGLES, **conditions) -> torch.Tensor:
    """What the circuit gives under one condition, of shape (batch, n_outputs)."""
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    noise.robustness(model, inputs, labels, **NOISE | conditions)
    return model.seen[-1]


# --- closed forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("n_gates", [1, 3])
def test_depolarizing_shrinks_once_per_gate(p, n_gates):
    expected = (1 - 4 * p / 3) ** n_gates * ANGLES.double().cos()
    found = values_of(rotations(n_gates), depolarizing=(p,))
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize("observable", [qp.Z, qp.X])
@pytest.mark.parametrize("e", [0.0, 0.05, 0.5])
def test_a_readout_flip_shrinks_every_basis(e, observable):
    true = ANGLES.double().cos() if observable is qp.Z else ANGLES.double().sin()
    found = values_of(rotations(observable=observable), readout=(e,))
    torch.testing.assert_close(found, (1 - 2 * e) * true, atol=EXACT, rtol=0)


def test_shots_spread_as_a_binomial_does():
    shots, repeats = 50, 2_000
    inputs = torch.full((repeats, 1), 1.0)
    found = values_of(rotations(), inputs, shots=(shots,))
    variance = (1 - math.cos(1.0) ** 2) / shots
    spread_of_mean, spread_of_variance = math.sqrt(variance / repeats), variance * math.sqrt(2 / repeats)
    assert abs(found.mean() - math.cos(1.0)) < 4 * spread_of_mean
    assert abs(found.var() - variance) < 4 * spread_of_variance
    assert torch.allclose(found * shots / 2, (found * shots / 2).round(), atol=1e-4), "no counts of shots"


def test_templates_are_taken_apart_and_both_wires_of_a_gate_are_noisy():
    p = 0.1

    @qp.qnode(circuits.make_device("default.qubit", (0, 1)))
    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs, wires=(0, 1), rotation="Y")
        qp.CNOT(wires=(0, 1))
        return [qp.expval(qp.Z(0)), qp.expval(qp.Z(1)), qp.expval(qp.X(1)), qp.expval(qp.Z(0) @ qp.Z(1))]

    model = Told(QuantumLayer(circuit, {"weights": (1,)}, START))
    inputs = torch.tensor([[0.3, 0.7]])
    shrink, a, b = 1 - 4 * p / 3, math.cos(0.3), math.cos(0.7)
    depolarized = [a * shrink**2, a * b * shrink**3, math.sin(0.7) * shrink**2, b * shrink**3]
    found = values_of(model, inputs, depolarizing=(p,))
    torch.testing.assert_close(found[0].tolist(), depolarized, atol=EXACT, rtol=0)
    flip = 1 - 2 * p
    misread = [a * flip, a * b * flip, math.sin(0.7) * flip, b * flip**2]
    found = values_of(model, inputs, readout=(p,))
    torch.testing.assert_close(found[0].tolist(), misread, atol=EXACT, rtol=0)


# --- nets ---------------------------------------------------------------------------------------------------


def quanv(**settings):
    net = models.QuanvNet(1, (6, 6), 3, n_layers=1, hidden=4, **settings)
    images = torch.randint(0, 256, (12, 1, 6, 6), generator=torch.Generator().manual_seed(0)).byte()
    with torch.no_grad():
        return net, images, net(images).argmax(-1)


class Twice(nn.Module):
    """A layer used in two places, behind a classical one that takes uint8."""

    def __init__(self):
        super().__init__()
        qnode, shapes = circuits.build("data_reuploading", n_qubits=2, n_layers=1)
        self.layer = QuantumLayer(qnode, shapes, {"weights": torch.linspace(0, 2, 6).reshape(1, 2, 3)})
        self.again = self.layer

    def forward(self, images):
        angles = images.flatten(1)[:, :2].float() / 80
        return self.again(torch.pi * self.layer(angles))


@pytest.mark.parametrize("make", [lambda: quanv(trainable=False, filters=2), "twice"])
def test_the_limits_are_the_exact_net(make):
    if make == "twice":
        model, images = Twice(), quanv()[1]
        labels = model(images).argmax(-1)
    else:
        model, images, labels = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    exact, shots, none, flips, loud = noise.robustness(
        model, images, labels, shots=(50_000,), depolarizing=(0.0,), readout=(0.0, 0.5)
    )
    assert (exact.condition, exact.strength, exact.change, exact.images) == ("exact", None, 0.0, 12)
    assert exact.accuracy == none.accuracy == flips.accuracy == 1
    assert none.change < EXACT and flips.change < EXACT and 0 < shots.change < 0.02
    assert shots.accuracy > 0.8, "values within 0.02 move few of the 12 images"
    assert loud.change > 0.1, "a wire that is read at random says nothing"
    for row in (exact, shots, loud):
        assert 0 <= row.low <= row.accuracy <= row.high <= 1
    assert model.training and not model._forward_hooks
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_seed_repeats_itself_and_parts_of_a_batch_agree(monkeypatch):
    model, images, labels = quanv()

    def rows(seed, **conditions):
        found = noise.robustness(model, images, labels, seed=seed, **NOISE | conditions)
        return [row.change for row in found[1:]]

    assert rows(1, shots=(50, 500)) == rows(1, shots=(50, 500)) != rows(2, shots=(50, 500))
    whole = rows(0, depolarizing=(0.01,), readout=(0.02,))
    monkeypatch.setattr(noise, "MIXED_BYTES", 20 * noise.COPIES * 16 * 4**4)
    assert rows(0, depolarizing=(0.01,), readout=(0.02,)) == pytest.approx(whole, abs=EXACT)


# --- what cannot be asked -----------------------------------------------------------------------------------


def wide(n_qubits: int) -> nn.Module:
    qnode, shapes = circuits.build("hardware_efficient", n_qubits=n_qubits, n_layers=1)
    return Told(QuantumLayer(qnode, shapes, {"weights": torch.ones(shapes["weights"])}))


def around(change) -> nn.Module:
    """The rotation, with a QNode that is changed."""
    model = rotations()
    model.layer.qnode = change(model.layer.qnode.update(diff_method="parameter-shift"))
    return model


def on_a_noisy_device() -> nn.Module:
    return around(lambda qnode: qnode.update(device=qp.device("default.mixed", wires=1, seed=0)))


def state() -> nn.Module:
    @qp.qnode(circuits.make_device("default.qubit", (0,)))
    def circuit(inputs, weights):
        qp.RY(inputs[..., 0] + weights[0], wires=0)
        return qp.state()

    return nn.Sequential(QuantumLayer(circuit, {"weights": (1,)}, START))


def with_shots() -> nn.Module:
    return around(lambda qnode: qp.set_shots(qnode, shots=10))


@pytest.mark.parametrize(
    ("make", "n_features"),
    [*((make, 1) for make in (nn.Identity, on_a_noisy_device, with_shots, state)), (lambda: wide(11), 11)],
)
def test_what_cannot_be_asked_of_a_model(make, n_features):
    inputs, labels = torch.ones(2, n_features), torch.zeros(2, dtype=torch.int64)
    with refused("model"):
        noise.robustness(make(), inputs, labels, shots=(10,), depolarizing=(0.01,), readout=())
    if n_features == 11:  # too wide for a density matrix, and not for shots
        [_, row] = noise.robustness(make(), inputs, labels, **NOISE | {"shots": (10,)})
        assert row.change > 0


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("shots", {"shots": (0,)}),
        ("depolarizing", {"depolarizing": (-0.1,)}),
        ("readout", {"readout": (1.1,)}),
        ("labels", {"labels": torch.zeros(3)}),
        ("the number of images", {"images": ANGLES[:0]}),
    ],
)
def test_wrong_numbers_are_refused(argument, wrong):
    with refused(argument):
        noise.robustness(rotations(), **{"images": ANGLES, "labels": torch.zeros(8)} | wrong)


# --- counting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable", [True, False])
def test_circuits_are_counted_whatever_runs_them(trainable):
    model, images, labels = quanv(trainable=trainable, filters=3)
    model.train()
    with torch.no_grad():
        model(images)  # from here on frozen filters may run as one
    for _ in range(2):
        assert circuits_per_image(model, images[:1]) == 3 * 9
    assert model.training and not any(module._forward_hooks for module in model.modules())
    assert circuits_per_image(Twice(), images[:1]) == 2
    assert circuits_per_image(nn.Flatten(), images[:1]) == 0
    with refused("image"):
        circuits_per_image(model, images)
    maps = feature_maps_of(model, images)
    assert torch.equal(maps, model.features(images)) and feature_maps_of(nn.Flatten(), images) is None
    assert circuits_per_image(model, maps[:1]) == 0
    with refused("model"):
        noise.robustness(model, maps, labels)


# --- a device -----------------------------------------------------------------------------------------------


def test_a_fake_device_shrinks_what_is_measured_and_reads_wrongly():
    """Offline, with the noise that was published of a real device: a state is mostly read as prepared."""
    pytest.importorskip("qiskit_ibm_runtime", reason="wants the extra: pip install 'qnnkit[hardware]'")
    inputs = torch.tensor([[0.0], [math.pi], [math.pi / 2]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Qiskit's own plugins
        found = values_of(rotations(), inputs, device="FakeManilaV2", device_shots=(4000,))
        again = values_of(rotations(), inputs, device="FakeManilaV2", device_shots=(4000,))
    assert torch.equal(found, again), "one seed, the same shots"
    up, down, between = found[:, 0].tolist()
    assert 0.7 < up < 1 and -1 < down < -0.7 and abs(between) < 0.15
    with refused("device"):
        values_of(rotations(), inputs, device="FakeManila3")
    with refused("model"):
        images, labels = torch.ones(2, 6), torch.zeros(2)
        noise.robustness(wide(6), images, labels, **NOISE | {"device": "FakeManilaV2"})


def test_a_device_of_several_wires_gives_every_measurement_in_its_place():
    pytest.importorskip("qiskit_ibm_runtime", reason="wants the extra: pip install 'qnnkit[hardware]'")

    @qp.qnode(circuits.make_device("default.qubit", (0, 1)))
    def circuit(inputs, weights):
        qp.RY(inputs[..., 0], wires=1)
        qp.CNOT(wires=[1, 0])
        qp.RX(weights[0], wires=1)
        return [qp.expval(qp.Z(0)), qp.expval(qp.X(1)), qp.probs(wires=[0, 1])]

    model = Told(QuantumLayer(circuit, {"weights": (1,)}, {"weights": torch.full((1,), 0.3)}))
    inputs = torch.tensor([[0.2], [1.5], [2.9]])
    exact = model.layer(inputs).detach().double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = values_of(model, inputs, device="FakeManilaV2", device_shots=(4000,))
    torch.testing.assert_close(found, exact, atol=0.2, rtol=0)


def test_without_the_extra_a_device_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "qiskit_ibm_runtime", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'qnnkit\[hardware\]'"):
        values_of(rotations(), device="FakeManilaV2")


# --- training with shots and noise --------------------------------------------------------------------------


def test_training_noise_shrinks_values_and_slopes_alike():
    """RY, then a depolarising channel and a bit flip: (1 - 4p/3)(1 - 2e) cos x, and its slope."""
    model, inputs = rotations(), ANGLES.clone().requires_grad_()
    noise.put(model, noise=("depolarizing=0.03", "readout=0.1"))
    values = model.layer(inputs)
    shrunk = (1 - 4 * 0.03 / 3) * (1 - 2 * 0.1)
    torch.testing.assert_close(values.double(), shrunk * ANGLES.double().cos(), atol=EXACT, rtol=0)
    slope = torch.autograd.grad(values.sum(), model.layer.weights)[0]
    assert float(slope) == pytest.approx(-shrunk * float(ANGLES.sin().sum()), abs=1e-5)
    assert "default.mixed, all samples at once" in model.layer.explain()


def test_training_shots_are_counts_whose_mean_and_slope_are_exact():
    model, n = rotations(), 4000
    noise.put(model, shots=10)
    inputs = torch.full((n, 1), 1.0)
    with own_generators():
        torch.manual_seed(0)
        values = model.layer(inputs)
        slope = torch.autograd.grad(values.mean(), model.layer.weights)[0]
        torch.manual_seed(0)
        again = model.layer(inputs)
    assert torch.equal(values, again), "drawn by torch's own generator, which checkpoints keep"
    counts, mean = 5 * (1 + values.detach()), float(values.detach().mean())
    torch.testing.assert_close(counts, counts.round(), atol=1e-4, rtol=0)
    assert mean == pytest.approx(math.cos(1.0), abs=5 * math.sin(1.0) / math.sqrt(10 * n))
    assert float(slope) == pytest.approx(-math.sin(1.0), abs=5 / math.sqrt(20 * n))


def test_what_has_shots_already_or_runs_elsewhere_is_refused():
    model = rotations()
    noise.put(model, shots=10)
    with refused("model"):
        noise.put(model, noise=("readout=0.1",))

    def layer(n_qubits, backend="auto"):
        qnode, shapes = circuits.build("data_reuploading", n_qubits=n_qubits)
        return QuantumLayer(qnode, shapes, {"weights": torch.zeros(shapes["weights"])}, backend=backend)

    with refused("backend"):
        noise.put(layer(2, "default.qubit"), shots=10)
    with refused("model"):
        noise.put(layer(11), noise=("depolarizing=0.1",))
    with refused("noise"):
        noise.put(rotations(), 10, ("depolarizing=0.1",))


@own_generators()  # counting circuits measures them
def test_a_training_under_shots_that_was_stopped_ends_as_one_that_was_not(tmp_path):
    small = {"epochs": 2, "n_seeds": 1, "controls": [], "stride": 2, "train_fraction": 0.05, "threads": 1}
    straight, stopped = (
        runs.open_run(tmp_path / name, "digits_quanv", **small, shots=20) for name in ("straight", "stopped")
    )

    def stop(row):
        if (row["event"], row["epoch"]) == ("epoch", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.train_all(stopped, on_row=stop)
    [one], [other] = runs.train_all(straight), runs.train_all(runs.open_run(stopped.folder))
    assert one["test_loss"] == other["test_loss"]
    exact = runs.open_run(tmp_path / "exact", "digits_quanv", **small)
    assert runs.train_all(exact)[0]["test_loss"] != one["test_loss"]
    report.finish(straight)
    page = re.sub(r"\s+", " ", straight.report.read_text())
    assert "Circuits were measured 20 times, in training and in the test." in page


@own_generators()
def test_a_training_with_noise_says_so_and_no_features_are_kept_of_circuits_that_vary(tmp_path):
    small = {"epochs": 1, "n_seeds": 1, "controls": [], "stride": 4, "train_fraction": 0.05, "threads": 1}
    run = runs.open_run(tmp_path / "run", "digits_quanv", **small, noise=["readout=0.1"])
    runs.train_all(run)
    report.finish(run)
    assert "Circuits ran with noise (readout=0.1), in training and in the test." in run.report.read_text()
    digits = {"dataset": "digits", "image_size": 8, "augmentation": "none"}
    for how, varies in (({}, False), ({"shots": 10}, True), ({"noise": ["readout=0.1"]}, True)):
        frozen = runs.open_run(tmp_path / str(how), "letters_frozen", **digits, **how)
        model = runs.build(frozen, frozen.nets[0], 0)
        assert (runs.seen_by(frozen, model) is frozen.splits) == varies, how

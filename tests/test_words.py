"""Nets that were built to fail are told why, in the right words; healthy ones are told nothing."""

from __future__ import annotations

import copy
import math

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, gradients, runs, train
from qnnkit.gradients import Watch, faults
from qnnkit.gradients.one_batch import of_inputs
from qnnkit.gradients.reach import slopes
from qnnkit.settings import Settings
from tests.nets import family
from tests.toys import each_epoch
from tests.watched import TASK, Turned, data, groups, layer, net, trained

KINDS = (
    "Learning rate too high",
    "No gradient",
    "Vanishing",
    "Exploding",
    "Steps too long",
    "Noise",
    "Half precision",
)


def kinds(sentences: list[str]) -> set[str]:
    return {next(kind for kind in KINDS if sentence.startswith(kind)) for sentence in sentences}


def diagnosed(model: nn.Module) -> list[str]:
    return [str(fault) for fault in gradients.diagnose(model, TASK, next(iter(data()["train"])))]


def told(row: dict, *earlier: dict) -> list[str]:
    return [str(fault) for fault in faults.of_epoch(row, earlier)]


def zero_angles(inputs, weights):
    qp.AngleEmbedding(inputs, wires=[0, 1])
    for wire in (0, 1):
        qp.RY(0 * weights[wire], wires=wire)
    return [qp.expval(qp.PauliZ(wire)) for wire in (0, 1)]


def unmeasured(inputs, weights):
    qp.AngleEmbedding(inputs, wires=[0, 1])
    for wire in (0, 1):
        qp.RY(weights[wire], wires=wire)
    return [qp.expval(qp.PauliZ(0)), qp.expval(qp.PauliX(0))]


def global_observable(inputs, weights):
    """A product of cosines of 1.45 rad or so: each wire makes it eight times smaller."""
    qp.AngleEmbedding(0.05 * inputs, wires=range(8))
    for wire in range(8):
        qp.RX(weights[wire], wires=wire)
    return [qp.expval(qp.prod(*(qp.PauliZ(wire) for wire in range(8))))]


def plain(inputs, weights):
    return scaled(inputs, weights, (1, 1))


def scaled(inputs, weights, factors):
    for wire in (0, 1):
        qp.RX(factors[wire] * inputs[..., wire], wires=wire)
        qp.RY(weights[wire], wires=wire)
    return [qp.expval(qp.PauliZ(wire)) for wire in (0, 1)]


def test_healthy_nets_are_told_nothing():
    for optimizer in ("sgd", "adam"):
        for row in trained(net(), optimizer=optimizer, rate=0.05, epochs=4):
            assert row["warnings"] == []
    assert diagnosed(net()) == []


def test_angles_multiplied_by_zero():
    model = Turned(layer(zero_angles, (2,)))
    [sentence] = diagnosed(model)
    assert sentence.startswith(
        "Dead weights in `circuit`: 2 weights cannot learn, because no angle depends on it"
    )
    for row in trained(model):
        [warning] = row["warnings"]
        assert warning.startswith("No gradient in `circuit`: it was exactly 0 in every observed step")


def test_a_wire_that_is_never_measured():
    model = Turned(layer(unmeasured, (2,)))
    feature, sentence = diagnosed(model)
    assert feature.startswith("Unused inputs in `circuit`: ") and "depends on 1, at any weights" in feature
    assert "in `circuit`: 1 weight cannot learn" in sentence and "weights[1]" in sentence
    assert "leads to a wire that is measured" in sentence
    assert all(row["warnings"] == [] for row in trained(model))  # the other weight learns


def test_a_way_to_the_loss_that_is_cut():
    [sentence] = diagnosed(net(factor=0.0))
    assert sentence.startswith(
        "No gradient in `circuit`: every weight has a gradient of exactly 0 on this batch"
    )
    assert [kinds(row["warnings"]) for row in trained(net(factor=0.0))] == [{"No gradient"}] * 2


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_learning_rate_of_ten(optimizer):
    rows = trained(net(), optimizer=optimizer, quantum_rate=10.0)
    assert [kinds(row["warnings"]) for row in rows] == [{"Steps too long"}] * 2
    assert "`circuit`" in rows[0]["warnings"][0] and "quantum_learning_rate" in rows[0]["warnings"][0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_learning_rate_of_ten_around_the_circuit(optimizer):
    first, *others = trained(net(), optimizer=optimizer, rate=10.0, quantum_rate=0.01)
    assert first["steps"] == [*range(1, 13)]
    [sentence] = first["warnings"]
    assert sentence.startswith("Learning rate too high in `") and "Lower learning_rate" in sentence
    assert all(row["warnings"] == [] for row in others)


def test_weights_that_begin_at_zero_are_no_fault():
    model = net()
    nn.init.zeros_(model.last.weight)
    nn.init.zeros_(model.last.bias)
    made = groups(model, 0.05)
    made.append(train.Group("head", list(model.last.parameters()), 0.05))
    made[1] = train.Group("classical", list(model.first.parameters()), 0.05)
    watch = Watch(model, made)
    config = Settings(epochs=1, optimizer="adam", schedule="constant")
    train.fit(model, TASK, data(), config, groups=made, watch=watch)
    last = watch.rows[0]["layers"][-1]["ratio"]
    assert last[0] is None and max(last[1:]) > 0.5 and watch.rows[0]["warnings"] == []


def test_steps_are_blamed_before_noise_is():
    """A long step and no direction; a single step of more than half a turn; noise alone."""
    row = trained(net(), epochs=1, quantum_rate=10.0)[0]
    [circuit] = [each for each in row["layers"] if "step" in each]
    assert (
        0.3 < np.median(circuit["step"]) < 0.6
        and "limit: 0.3 radians, as its gradient cannot" in row["warnings"][0]
    )
    circuit["step"] = [0.29] * 12
    assert kinds(told(row)) == {"Noise"}
    circuit["step"][5] = 3.2
    assert "limit: 3.1 radians, half a turn" in told(row)[0]
    circuit["step"], circuit["snr_low"], circuit["snr_high"] = [0.31] * 12, 1.0, 2.0
    assert told(row) == []


def saturated(rate: float, **settings) -> list[dict]:
    """A circuit behind which units die, when the classical weights are thrown far off."""
    model = net()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.last = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    return trained(model, rate=rate, quantum_rate=0.01, **settings)


def test_a_gradient_that_is_lost_on_the_way_is_not_blamed_on_the_circuit():
    row = saturated(0.01, epochs=1)[0]
    assert row["warnings"] == []
    [circuit] = [each for each in row["layers"] if "step" in each]
    earlier, thrown = copy.deepcopy(row) | {"epoch": 0}, copy.deepcopy(row) | {"epoch": 0}
    peak = max(circuit["norm"]) / math.sqrt(8)
    last = next(each for each in thrown["layers"] if each["layer"].startswith("last"))
    next(each for each in thrown["groups"] if each["group"] == "classical")["ratio"][0] = 55.0
    last["ratio"][0], norms = 55.0, circuit["norm"]
    circuit["norm"] = [0.0] * 12
    [alone], [after], [late] = told(row), told(row, earlier), told(row, earlier | {"epoch": 1})
    assert "multiplied by zero" in alone and "cut the way from it to the loss" not in alone and late == alone
    assert kinds([after]) == {"No gradient"} and "multiplied by zero" not in after
    assert f"{peak:.2g} for a weight in another step" in after
    assert "cut the way from it to the loss" in after
    circuit["norm"] = [*norms[:3], *[1e-9] * 9]  # within the epoch
    [sentence] = told(row)
    assert kinds([sentence]) == {"Vanishing"} and "in another step" in sentence
    assert "initialisation=" not in sentence
    circuit["norm"] = [1e-9] * 12
    assert "initialisation=" in told(row)[0]
    far = f"an update of `{last['layer']}` was 55 times as long as its weights"
    assert far in told(row, thrown)[0]
    circuit["norm"] = [*norms[:11], 1e4]
    assert kinds(told(row, thrown)) == {"Exploding"}
    assert far in told(row, thrown)[0] and "Pauli" not in told(row, thrown)[0]
    assert "A circuit of plain angles and Pauli observables cannot do that" in told(row)[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_the_circuit(dtype):
    model = net()
    model.circuit.to(dtype)
    [sentence] = diagnosed(model)
    kind = str(dtype).removeprefix("torch.")
    assert kinds([sentence]) == {"Half precision"} and f"weights are {kind}" in sentence
    assert f"to {2 * torch.finfo(dtype).eps:.2g} radians"[:8] in sentence  # between 2 and 4
    assert [kinds(row["warnings"]) for row in trained(model)] == [{"Half precision"}] * 2


def test_half_precision_around_the_circuit():
    class Rounds(nn.Module):
        def forward(self, values):
            return values.half()

    model = net()
    model.first = nn.Sequential(model.first, Rounds())
    model.last = nn.Sequential(nn.Identity(), model.last)
    model.last[0].forward = lambda values: values.float()
    [sentence] = diagnosed(model)
    assert sentence.startswith("Half precision in `circuit`: its inputs are float16")


def test_half_precision_that_autocast_feeds_into_the_circuit():
    """A linear layer gives bfloat16 there, and the row says so; the circuit itself stays in float32."""
    for row in trained(net(), precision="bfloat16"):
        [sentence] = row["warnings"]
        assert sentence.startswith(
            "Half precision in `circuit`: its inputs are bfloat16, which resolves angles"
        )
        assert "torch.autocast(..., enabled=False)" in sentence and "does so by itself" not in sentence


@pytest.mark.parametrize("model", ["resnet_circuit", "residual_quanv", "quanv"])
def test_the_kits_own_nets_give_float32_to_their_circuits_under_autocast(model):
    sizes = {"channels": 1, "image_size": (16, 16), "n_classes": 3}
    made = family(model, {"hidden": 8, "stem_stride": 4}, sizes=sizes)
    images = torch.randint(256, (4, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        logits = made(images)
    [circuit] = [each for each in made.modules() if isinstance(each, QuantumLayer)]
    assert circuit.input_dtype == torch.float32 and logits.dtype == torch.bfloat16
    assert made(images).dtype == torch.float32


def zero_inputs(inputs, weights):
    return scaled(inputs, weights, (0, 0))


def one_input(inputs, weights):
    return scaled(inputs, weights, (0, 1))


class Zeroed(Turned):
    """Gives the circuit zero times what the first layer says."""

    def forward(self, points):
        return self.last(self.circuit(0 * self.first(points)))


@pytest.mark.parametrize("shots", [None, 50])
def test_inputs_that_are_multiplied_by_zero(shots):
    method = {"diff_method": "parameter-shift", "shots": shots} if shots else {}

    def found(circuit, kind=Turned):
        model = kind(layer(circuit, (2,), **method))
        model.first = model.first if kind is Zeroed else nn.Identity()
        return diagnosed(model)

    same = "Constant output in `circuit`: it gives the same for every sample: its inputs"
    assert found(zero_inputs)[0].startswith(f"{same} do not reach an angle.")
    assert found(one_input)[0].startswith(
        "Unused inputs in `circuit`: of its features (counted from 0) nothing that is measured depends on 0,"
    )
    if not shots:
        assert found(plain, Zeroed)[0].startswith(f"{same} are all equal.")
        assert found(plain) == []


def amplitudes(inputs, weights):
    qp.AmplitudeEmbedding(inputs, wires=[0, 1])
    for wire in (0, 1):
        qp.RY(weights[wire], wires=wire)
    return [qp.expval(qp.PauliZ(wire)) for wire in (0, 1)]


def test_inputs_of_which_no_single_one_can_be_changed_are_passed_by():
    generator = torch.Generator().manual_seed(0)
    points = nn.functional.normalize(torch.randn(8, 4, generator=generator), dim=1)
    assert of_inputs("circuit", layer(amplitudes, (2,)), points) == []


def test_a_circuit_whose_gradient_of_its_inputs_pennylane_cannot_give():
    """One clear sentence, and the rest goes on; what it says helps."""
    shots = {"diff_method": "parameter-shift", "shots": 50}
    refused, feature, dead = diagnosed(Turned(layer(unmeasured, (2,), **shots)))
    assert refused.startswith("No gradient of the loss in `model`: PennyLane cannot differentiate")
    assert "`circuit` (parameter-shift)" in refused and "broadcast_expand" in refused
    assert feature.startswith("Unused inputs") and "weights[1]" in dead
    qnode = qp.QNode(plain, qp.device("default.qubit", wires=2, seed=0), **shots)
    expanded = QuantumLayer(
        qp.transforms.broadcast_expand(qnode), {"weights": (2,)}, {"weights": torch.ones(2)}
    )
    assert diagnosed(Turned(expanded)) == []


@pytest.mark.parametrize("factor", [1e-3, 1e-5])
def test_a_small_gradient_is_blamed_on_what_makes_it_small(factor):
    [sentence] = diagnosed(net(factor=factor))
    assert (
        sentence.startswith("Small gradient in `circuit`")
        and "What reads its outputs weighs them little" in sentence
    )
    assert "fewer qubits or layers do not help" in sentence
    flat = Turned(layer(global_observable, (8,), torch.full((8,), 1.45), n_qubits=8), 8, 1)
    [sentence] = diagnosed(flat)
    assert (
        "per radian (limit: at least 0.0001). Use fewer qubits or layers" in sentence
        and "reads" not in sentence
    )
    rows = trained(net(factor=factor), epochs=1)
    assert kinds(rows[0]["warnings"]) == {"Vanishing"}
    assert "Or what reads its values weighs them little" in rows[0]["warnings"][0]


def test_derivatives_of_the_outputs_against_each_output_by_itself():
    circuit, rows = net().circuit, torch.rand(5, 2, generator=torch.Generator().manual_seed(2))
    weights = list(circuit.parameters())
    parts = [torch.autograd.grad(value, weights, retain_graph=True)[0] for value in circuit(rows).flatten()]
    exact = float(torch.stack(parts).square().mean().sqrt())
    assert float(slopes(circuit, rows, mixtures=64).square().mean().sqrt()) == pytest.approx(exact, rel=0.1)


def test_a_vanishing_and_an_exploding_gradient():
    flat = Turned(layer(global_observable, (8,), torch.full((8,), 1.45), n_qubits=8), 8, 1)
    [sentence] = trained(flat, epochs=1)[0]["warnings"]
    assert kinds([sentence]) == {"Vanishing"} and 'initialisation="small"' in sentence
    [sentence] = trained(net(factor=1e4), epochs=1, rate=1e-12)[0]["warnings"]
    assert kinds([sentence]) == {"Exploding"} and "quantum_clip_norm" in sentence


def test_a_gradient_that_bursts_once():
    row = trained(net(), epochs=1, rate=1e-6)[0]
    [circuit, *_] = row["layers"]
    circuit["norm"][3] *= 1000
    assert kinds(told(row)) == {"Exploding"}


class Beside(Turned):
    """The circuit reads next to nothing of the points, which the last layer sees as well."""

    def forward(self, points):
        return self.last(points - 0.75 + self.circuit(0.01 * points))


def noisy(shots: int | None) -> list[dict]:
    method = "parameter-shift" if shots else "backprop"
    model = Beside(layer(plain, (2,), torch.full((2,), 1.5), diff_method=method, shots=shots))
    model.first = nn.Identity()
    nn.init.zeros_(model.last.bias)
    return trained(model, epochs=1, rate=1e-3, loaders=data(512, 32))


@pytest.mark.parametrize("shots", [1, None])
def test_a_gradient_that_drowns_in_noise(shots):
    """Of the shots and of the batch, or of the batch alone; the other weights see where to go."""
    row = noisy(shots)[0]
    [sentence] = row["warnings"]
    assert kinds([sentence]) == {"Noise"} and "larger batch" in sentence and "more shots" in sentence
    circuit, others = row["layers"][0], row["groups"][1]
    circuit["snr_low"] = 0.1  # told from zero: no word
    assert told(row) == []
    circuit["snr_low"], others["snr_low"] = 0.0, circuit["snr_high"]  # no better than the circuit
    assert told(row) == []
    circuit["snr_high"] = 0.24  # even 16 steps together
    assert kinds(told(row)) == {"Noise"}
    circuit["snr_high"] = 0.26
    others["snr_low"] = None
    assert told(row) == []


@pytest.mark.parametrize(("optimizer", "quantum_rate"), [("sgd", 10), ("adam", 5e-2), ("adam", 10)])
def test_the_main_job_at_a_learning_rate_of_ten(tmp_path, optimizer, quantum_rate):
    settings = {"epochs": 2, "n_seeds": 1, "controls": [], "train_fraction": 0.5, "optimizer": optimizer}
    run = runs.open_run(
        tmp_path / "run", "digits_quanv", learning_rate=10, quantum_learning_rate=quantum_rate, **settings
    )
    list(runs.train_all(run))
    first, second = (row["warnings"] for row in run.rows("gradients"))
    assert first[0].startswith("Learning rate too high in `reader.")
    if optimizer == "adam":  # with the other, the units die before the circuit takes a long step
        assert (quantum_rate == 10) == any(each.startswith("Steps too long in `quanv") for each in first)
    for sentence in [*first[1:], *second]:
        assert kinds([sentence]) <= {"No gradient", "Vanishing", "Exploding", "Steps too long"}
        assert sentence.startswith("Steps too long") or "times as long as its weights" in sentence


@pytest.mark.slow
def test_the_main_job_at_its_full_length(tmp_path):
    run = runs.open_run(tmp_path / "run", "digits_quanv", n_seeds=2)
    list(runs.train_all(run))
    found = gradients.read(run.folder)
    assert found.warnings == [] and len(found.trainings) == 10


def test_a_run_that_goes_on_remembers_what_was_told_before(tmp_path):
    settings = {"epochs": 2, "n_seeds": 1, "controls": [], "optimizer": "sgd", "train_fraction": 0.5}

    def stop(row):
        if row["epoch"] == 2:  # before its checkpoint, so that it is computed once more
            raise KeyboardInterrupt

    found = []
    for name in ("straight", "killed"):
        run = runs.open_run(tmp_path / name, "digits_quanv", learning_rate=10, **settings)
        if name == "killed":
            with pytest.raises(KeyboardInterrupt):
                list(runs.train_all(run, on_row=each_epoch(stop)))
            run = runs.open_run(run.folder)
        list(runs.train_all(run))
        found.append(gradients.history(run.rows("gradients")).trainings["hybrid", 0].rows)
    assert found[0] == found[1] and "times as long as its weights" in found[0][1]["warnings"][0]

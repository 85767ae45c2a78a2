"""Nets that were built to fail are told why; healthy ones are told nothing."""

from __future__ import annotations

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, gradients, runs
from qnnkit.gradients import faults
from qnnkit.gradients.one_batch import of_inputs
from qnnkit.gradients.reach import slopes
from tests.nets import family
from tests.watched import TASK, Turned, data, layer, net, trained


def diagnosed(model: nn.Module) -> list[str]:
    return [str(fault) for fault in gradients.diagnose(model, TASK, next(iter(data()["train"])))]


def kinds(sentences: list[str]) -> list[str]:
    return [sentence.partition(" in `")[0] for sentence in sentences]


# --- one batch --------------------------------------------------------------------------------------------


def turned(inputs, weights, factors=(1, 1), of_weights=1, measured=(0, 1)):
    for wire in (0, 1):
        qp.RX(factors[wire] * inputs[:, wire], wires=wire)
        qp.RY(of_weights * weights[wire], wires=wire)
    return [qp.expval(qp.Z(wire)) if wire < 2 else qp.expval(qp.X(0)) for wire in measured]


def built(shots=None, weights=None, kind=Turned, first=True, **options) -> Turned:
    """A net around `turned`."""
    method = {"diff_method": "parameter-shift", "shots": shots} if shots else {}
    model = kind(layer(lambda inputs, weights: turned(inputs, weights, **options), (2,), weights, **method))
    model.first = model.first if first else nn.Identity()
    return model


def global_observable(inputs, weights):
    """A product of cosines of 1.45 rad or so: each wire makes it eight times smaller."""
    qp.AngleEmbedding(0.05 * inputs, wires=range(8))
    for wire in range(8):
        qp.RX(weights[wire], wires=wire)
    return [qp.expval(qp.prod(*(qp.Z(wire) for wire in range(8))))]


def flat() -> Turned:
    return Turned(layer(global_observable, (8,), torch.full((8,), 1.45), n_qubits=8), 8, 1)


def phases_only(inputs, weights):
    """RZ of |0>: every feature turns an angle, and nothing comes of it."""
    qp.AngleEmbedding(inputs, wires=(0, 1), rotation="Z")
    qp.RY(weights[0], wires=0)
    qp.RY(weights[1], wires=1)
    return [qp.expval(qp.Z(wire)) for wire in (0, 1)]


def halved() -> Turned:
    model = net()
    model.circuit.half()
    return model


class Zeroed(Turned):
    """Gives the circuit zero times what the first layer says."""

    def forward(self, points):
        return self.last(self.circuit(0 * self.first(points)))


class Unused(Turned):
    def forward(self, points):
        return self.last(self.first(points))


def frozen() -> Turned:
    model = net()
    model.circuit.requires_grad_(False)
    return model


MISSED = {"measured": (0, 2)}
SAME = "Constant output in `circuit`: it gives the same for every sample"
MISSING = "Unused inputs in `circuit`: … depends on its features 1 (counted from 0)"
CASES = {  # net, and what is said: parts of each sentence
    "healthy": (net, []),
    "angles times zero": (lambda: built(of_weights=0), [
        "Dead weights in `circuit`: 2 weights cannot learn, because no angle depends on it: weights[0] ("]),
    "a wire that is not measured": (lambda: built(**MISSED), [
        MISSING, "Dead weights … 1 weight … leads to a wire that is measured: weights[1] (RY on"]),
    "a way that is cut": (lambda: net(factor=0.0), ["No gradient in `circuit`: it was exactly 0 in every"]),
    "a reader that weighs little": (lambda: net(factor=1e-4), [
        "Vanishing gradient in `circuit`: … per radian (limit: at least 0.0001, … scale them up"]),
    "a flat circuit": (flat, ["Vanishing gradient … while its outputs change by … Use fewer qubits"]),
    "an exploding one": (lambda: net(factor=1e4), ["Exploding gradient in `circuit`"]),
    "float16": (halved, [
        "Half precision in `circuit`: its weights are float16, which resolves angles near pi to 0.002"]),
    "inputs times zero": (lambda: built(factors=(0, 0), first=False), [
        f"{SAME}: its inputs turn no angle that reaches a measured wire."]),
    "one input times zero, shots": (lambda: built(shots=50, factors=(0, 1), first=False), [
        "Unused inputs in `circuit` … its features 0 "]),
    "equal inputs": (lambda: built(kind=Zeroed), [f"{SAME}: its inputs are all equal."]),
    "inputs that turn phases": (lambda: Turned(layer(phases_only, (2,))), [
        f"{SAME}, at the weights as they are."]),
    "inputs with shots": (lambda: built(shots=50, **MISSED), [
        "No gradient of the loss in `model` … `circuit` (parameter-shift) … broadcast_expand",
        MISSING, "Dead weights … weights[1]"]),
    "never called": (lambda: Unused(net().circuit), [
        "Unused circuit in `circuit`: nothing calls it, so the net does not depend on it"]),
    "frozen": (frozen, ["No circuit trains in `model`"]),
    "no circuit": (lambda: net().last, ["No circuit in `model`"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_batch_tells_what_is_wrong_and_nothing_else(name):
    make, expected = CASES[name]
    model = make()
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 7)
    sentences = diagnosed(model)
    assert len(sentences) == len(expected), sentences
    for sentence, parts in zip(sentences, expected, strict=True):
        assert all(part in sentence for part in parts.split(" … ")), sentence
    assert all((weight.grad == 7).all() for weight in model.parameters())


def test_some_weights_without_a_gradient_are_named():
    class First(Turned):
        def forward(self, points):
            return self.last(self.circuit(self.first(points)) * torch.tensor([1.0, 0.0]))

    [fault] = gradients.diagnose(built(kind=First), TASK, next(iter(data()["train"])))
    assert (fault.kind, fault.weights) == ("No gradient", (1,)) and "on this batch: weights[1]" in fault.value


def test_amplitudes_depend_on_every_input():
    def amplitudes(inputs, weights):
        qp.AmplitudeEmbedding(inputs, wires=[0, 1])
        qp.RY(weights[0], wires=0)
        return [qp.expval(qp.Z(0))]

    points = nn.functional.normalize(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    circuit = layer(amplitudes, (1,))
    circuit(points)
    assert [*of_inputs("circuit", circuit, points)] == []


def test_derivatives_of_the_outputs_against_each_output_by_itself():
    circuit, rows = net().circuit, torch.rand(5, 2, generator=torch.Generator().manual_seed(2))
    weights = list(circuit.parameters())
    parts = [torch.autograd.grad(value, weights, retain_graph=True)[0] for value in circuit(rows).flatten()]
    exact = float(torch.stack(parts).square().mean().sqrt())
    assert float(slopes(circuit, rows, mixtures=64).square().mean().sqrt()) == pytest.approx(exact, rel=0.1)


# --- an epoch ---------------------------------------------------------------------------------------------


def row(
    norm=0.5, step=0.01, snr=(0.5, 1.0), others=0.5, other_snr=0.1, ratio=(0.1,), size=4, **layer
) -> dict:
    """An epoch of 16 updates of a circuit, and maybe of classical weights, each with so many weights."""
    norms = [*np.broadcast_to(norm, 4).tolist()]
    circuit = {"layer": "q", "group": "quantum", "n_weights": size, "norm": norms, "step": [step] * 4}
    circuit |= {"snr_low": snr[0], "snr_high": snr[1], **layer}
    reader = {"layer": "head", "group": "classical", "n_weights": size, "norm": [others] * 4}
    parts = [
        {"group": "quantum", "ratio": [0.1], "snr_low": snr[0]},
        {"group": "classical", "ratio": [*ratio], "snr_low": other_snr},
    ]
    n = 1 if others is None else 2
    return {"updates": 16, "layers": [circuit, reader][:n], "groups": parts[:n]}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, []),
        ({"norm": 0}, ["No gradient"]),
        ({"norm": 1.9e-4}, ["Vanishing gradient"]),  # 1e-4 is the limit, of a weight: half of it
        ({"norm": 2.1e-4}, []),
        ({"norm": 1.9e-4, "others": 1.8e-2}, []),  # more than a hundredth of the classical one
        ({"norm": 1.9e-4, "others": None}, ["Vanishing gradient"]),
        ({"norm": 19.0}, []),
        ({"norm": 21.0}, ["Exploding gradient"]),
        ({"step": 1.5}, []),
        ({"step": 1.6}, ["Steps too long"]),
        ({"snr": (0.0, 0.24), "step": 0.31}, ["Steps too long"]),  # it is blamed before noise is
        ({"snr": (0.0, 0.24), "step": 0.29}, ["Noise drowns the gradient"]),  # 16 steps together, too
        ({"snr": (0.0, 0.26), "other_snr": 0.1}, []),
        ({"snr": (0.0, 0.26), "other_snr": 0.3}, ["Noise drowns the gradient"]),
        ({"snr": (0.1, 0.26), "other_snr": 0.3}, []),  # not zero
        ({"snr": (None, None)}, []),
        ({"ratio": (0.1, 1.1)}, ["Learning rate too high"]),
        ({"ratio": (None, 5.0)}, []),  # weights that begin at zero
        ({"dtype": "float16"}, ["Half precision"]),
        ({"input_dtype": "bfloat16", "norm": 0}, ["Half precision", "No gradient"]),
    ],
)
def test_what_an_epoch_shows(numbers, expected):
    found = faults.of_epoch(row(**numbers))
    assert [fault.kind for fault in found] == expected
    assert all("{" not in str(fault) for fault in found)


def test_remedies_fit_what_is_wrong():
    [zero], [thrown] = faults.of_epoch(row(norm=0)), faults.of_epoch(row(ratio=[55.0]))
    assert "If it was larger before, saturated units cut the way" in zero.remedy
    assert str(thrown) == (
        "Learning rate too high in `classical`: an update is 55 times as long as the weights it moves "
        "(limit: 1, all weights of its group together). The weights are lost, and the units that they feed "
        "saturate. Lower learning_rate, or set warmup_epochs."
    )


# --- trainings --------------------------------------------------------------------------------------------


class Beside(Turned):
    """The circuit reads next to nothing of the points, which the last layer sees as well."""

    def forward(self, points):
        return self.last(points - 0.75 + self.circuit(0.01 * points))


def drowned(shots: int | None) -> Turned:
    model = built(shots, torch.full((2,), 1.5), kind=Beside, first=False)
    nn.init.zeros_(model.last.bias)
    return model


NOISY = {"rate": 1e-3, "loaders": data(512, 32)}


@pytest.mark.parametrize(
    ("make", "settings", "first", "second"),
    [
        (net, {"optimizer": "sgd", "rate": 0.05}, [], []),
        (lambda: built(of_weights=0), {}, ["No gradient"], ["No gradient"]),
        (lambda: built(**MISSED), {}, [], []),  # the other weight learns
        (lambda: net(factor=1e-3), {}, ["Vanishing gradient"], ["Vanishing gradient"]),
        (lambda: net(factor=1e4), {"rate": 1e-12}, ["Exploding gradient"], ["Exploding gradient"]),
        (net, {"optimizer": "adam", "quantum_rate": 10.0}, ["Steps too long"], ["Steps too long"]),
        (net, {"optimizer": "adam", "rate": 10.0, "quantum_rate": 0.01}, ["Learning rate too high"], []),
        (net, {"precision": "bfloat16"}, ["Half precision"], ["Half precision"]),
        (lambda: drowned(1), NOISY, ["Noise drowns the gradient"], ["Noise drowns the gradient"]),
    ],
)
def test_a_training_warns(make, settings, first, second):
    rows = trained(make(), **settings)
    assert [kinds(each["warnings"]) for each in rows] == [first, second]


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


def test_the_main_job_at_a_learning_rate_of_ten(tmp_path):
    settings = {"epochs": 2, "n_seeds": 1, "controls": [], "train_fraction": 0.5, "optimizer": "sgd"}
    run = runs.open_run(tmp_path / "run", "digits_quanv", learning_rate=10, **settings)
    list(runs.train_all(run))
    first, second = (each["warnings"] for each in run.rows("gradients"))
    assert first[0].startswith("Learning rate too high in `classical`")
    assert set(kinds([*first[1:], *second])) <= {"No gradient", "Vanishing gradient", "Exploding gradient"}

"""Training with a finite number of shots by parameter-shift, where PennyLane has no gradient."""

import pennylane as qp
import pytest
import torch

from qnnkit import QuantumLayer, circuits
from tests.toys import linear, uniform

ROUNDS, COPIES, SHOTS, FAR = 300, 5, 100, 4.5
"""Number of averaged values, values per step, shots of each, and the number of standard errors that no mean
may be away (1 in 150,000)."""
WEIGHTS, INPUTS = torch.tensor([0.4, 1.1]), torch.tensor([[0.3, 1.2], [0.9, 0.2], [2.0, 1.4]])
MIXTURE = torch.linspace(-1, 2, 12).reshape(3, 4)


def gates(inputs, weights):
    """Gates with one and with two frequencies, and one with a scaled angle."""
    qp.AngleEmbedding(inputs, wires=range(2))
    qp.CRX(weights[0], wires=(0, 1))
    qp.RY(2 * weights[1], wires=0)
    qp.CNOT((0, 1))


def several(inputs, weights):
    """X and Z of wire 0 do not commute, so each has its own shots."""
    gates(inputs, weights)
    return qp.expval(qp.X(0)), qp.probs(wires=1), qp.expval(0.5 * qp.Z(1) + 0.2 * qp.Z(0))


def layer_of(function, shots, seed: int | None = 0, **options) -> QuantumLayer:
    qnode = qp.QNode(function, circuits.make_device("default.qubit", 3), **options)
    qnode = qp.set_shots(qnode, shots) if shots else qnode
    layer = QuantumLayer(qnode, {"weights": (2,)}, {"weights": WEIGHTS.clone()})
    layer.generator = None if seed is None else torch.Generator().manual_seed(seed)
    return layer


def step(layer, mixture=MIXTURE, copies=1):
    inputs = INPUTS.repeat(copies, 1).requires_grad_()
    values = layer(inputs)
    return [values.detach(), *torch.autograd.grad((values * mixture).sum(), [inputs, layer.weights])]


def test_values_and_gradients_are_unbiased_with_the_variance_of_shots():
    exact, layer = step(layer_of(several, None)), layer_of(several, SHOTS)
    rounds = [step(layer, MIXTURE.repeat(COPIES, 1), COPIES) for _ in range(ROUNDS // COPIES)]
    assert "100 shots" in layer.explain() and layer.backend == "batched"
    for true, *drawn in zip(exact, *rounds, strict=True):
        each = torch.stack(drawn).view(-1, *true.shape)
        true, error = true * ROUNDS / len(each), each.std(0) / len(each) ** 0.5  # copies share the weights
        assert (error > 0).all() and ((each.mean(0) - true).abs() / error).max() < FAR
    values = torch.stack([each[0] for each in rounds])[..., 0].view(ROUNDS, 3)  # <X>, whose shots are +-1
    wanted = (1 - exact[0][:, 0] ** 2) / SHOTS
    assert torch.allclose(values.var(0), wanted, rtol=0.35)  # 4 standard errors of a variance of 300


def test_the_gradient_of_an_angle_has_the_variance_of_two_shifted_circuits():
    def one(inputs, weights):
        qp.RX(inputs[..., 0] + weights[0], wires=0)
        return qp.expval(qp.Z(0))

    layer = layer_of(one, SHOTS)
    slopes = step(layer, torch.ones(3 * ROUNDS), ROUNDS)[1][:, 0].reshape(ROUNDS, 3)
    shifted = [(INPUTS[:, 0] + WEIGHTS[0] + sign * torch.pi / 2).cos() for sign in (1, -1)]
    wanted = sum(1 - value**2 for value in shifted) / (4 * SHOTS)
    assert torch.allclose(slopes.var(0), wanted, rtol=0.35)


def test_the_error_vanishes_as_shots_grow():
    def with_variance(inputs, weights):
        gates(inputs, weights)
        return qp.expval(qp.X(0)), qp.probs(), qp.var(qp.Z(1))  # the third wire has no gate

    mixture = torch.linspace(-1, 2, 30).view(3, 10)
    exact, many = (step(layer_of(with_variance, shots), mixture) for shots in (None, 10**7))
    for true, mean in zip(exact, many, strict=True):
        assert torch.allclose(mean, true, rtol=0, atol=0.01) and not torch.equal(mean, true)


def test_a_generator_determines_every_shot():
    first, again, other = (step(layer_of(several, SHOTS, seed)) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again)) and not any(map(torch.equal, first, other))


def test_a_circuit_after_a_classical_layer_has_gradients():
    """TorchLayer raises an error here (see benchmarks.torchlayer). Without a generator, torch's is used."""
    layer, first, inputs = layer_of(several, SHOTS, seed=None), linear(3, 2), uniform(16, 3)
    with torch.random.fork_rng(devices=[]):
        layer(first(inputs)).sum().backward()
    assert all(weight.grad.abs().max() > 0 for weight in (*first.parameters(), layer.weights))


def embedded(inputs, weights):
    qp.AmplitudeEmbedding(inputs, wires=0, normalize=True)
    return qp.expval(qp.Z(0))


SUMMED = lambda inputs, weights: (gates(inputs, weights), qp.var(qp.Z(0) + qp.X(0)))[1]  # noqa: E731


@pytest.mark.parametrize(("circuit", "reason"), [(embedded, "first state"), (SUMMED, "single terms")])
def test_circuits_that_cannot_be_sampled_run_on_their_own_device(circuit, reason):
    layer = layer_of(circuit, SHOTS)
    with torch.no_grad():
        assert len(layer(INPUTS)) == 3
    assert reason in layer.explain() and layer.backend == "default.qubit"

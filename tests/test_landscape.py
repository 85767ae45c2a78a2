"""Slices of the loss: against closed forms, and against one point after the other."""

from __future__ import annotations

import math

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import Tensor

from qnnkit import QuantumLayer, circuits, gradients, recipes
from qnnkit.gradients import landscape
from qnnkit.tasks import Classification, Step
from tests.toys import refused

EXACT = 1e-5


class MeanValue:
    """The mean of all outputs as a loss."""

    monitor = "loss"

    def __call__(self, model, batch) -> Step:
        loss = model(batch[0]).mean()
        return Step(loss, {"loss": loss.detach()}, len(batch[0]))

    def judge(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        return {}


def rotation(start: float, backend: str = "batched") -> QuantumLayer:
    """<Z> = cos(x + w)."""

    @qp.qnode(circuits.make_device("default.qubit", 1))
    def circuit(inputs, weights):
        qp.RX(inputs[..., 0], wires=0)
        qp.RX(weights[0], wires=0)
        return [qp.expval(qp.Z(0))]

    return QuantumLayer(circuit, {"weights": (1,)}, {"weights": torch.tensor([start])}, backend=backend)


def net(name: str = "digits_quanv", **changes):
    """A net of a recipe and a batch for it."""
    recipe = recipes.find(name)
    settings = recipe.settings(dataset="digits", image_size=8, **changes)
    model = recipe.build(settings, recipe.load(settings), 0)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return model, (images, torch.arange(5))


@pytest.mark.parametrize("backend", ["batched", "default.qubit"])
def test_a_line_of_one_weight_is_its_cosine(backend):
    inputs = torch.tensor([[0.3]])
    found = gradients.lines(rotation(0.4, backend), MeanValue(), (inputs,), n_random=1, n_points=9)
    assert found is not None and found.n_weights == 1 and found.n_samples == 1
    down = np.cos(0.7 - found.offsets)  # the gradient is -sin(0.7): its direction is that of smaller weights
    np.testing.assert_allclose(found.losses[0], down, atol=EXACT)
    assert any(
        np.allclose(found.losses[1], np.cos(0.7 + sign * found.offsets), atol=EXACT) for sign in (1, -1)
    )
    assert found.names == ("along the gradient", "random 1")
    assert found.centre == pytest.approx(math.cos(0.7), abs=EXACT)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("digits_quanv", {}),
        ("digits_quanv", {"circuit": "strongly_entangling", "filters": 2}),
        ("letters", {"width": 8, "hidden": 8}),
        ("resnet_circuit_trained", {"stem_stride": 1}),
    ],
)
def test_a_line_is_what_each_point_gives_alone(name, changes):
    model, batch = net(name, **changes)
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = gradients.lines(model, Classification(), batch, n_points=5, radius=1.0)
    assert found is not None and found.losses.shape == (3, 5)
    assert model.training and all(
        torch.equal(value, before[key]) for key, value in model.state_dict().items()
    )
    weights = [weight for weight in map(dict(model.named_parameters()).get, landscape._weights(model)[0])]
    directions = landscape._orthonormal(found.n_weights, 2, 0)
    assert abs(float(directions[0] @ directions[1])) < 1e-12
    assert float(directions[0].norm()) == pytest.approx(1)
    scale = math.sqrt(found.n_weights)
    for i, j in ((0, 0), (1, 3), (0, 4), (1, 2)):
        moved = scale * found.offsets[j] * directions[i]
        parts = moved.float().split([weight.numel() for weight in weights])
        with torch.no_grad():
            for weight, part in zip(weights, parts, strict=True):
                weight += part.view(weight.shape)
            alone = float(Classification()(model.eval(), batch).loss)
            for weight, part in zip(weights, parts, strict=True):
                weight -= part.view(weight.shape)
        assert found.losses[1 + i, j] == pytest.approx(alone, abs=EXACT)
    assert found.losses.std() > 1e-4


def test_what_the_sentence_says():
    model, batch = net()
    found = gradients.lines(model, Classification(), batch, n_points=7, radius=1.0)
    assert f"of {found.centre:.4g} is not the lowest (" in found.sentence
    assert "within 1 rad (root mean square) of the weights as they are" in found.sentence
    with torch.no_grad():
        for weight in model.reader.parameters():
            weight.zero_()
    assert gradients.lines(model, Classification(), batch, n_points=7).sentence.endswith(
        "the net hardly uses its circuit."
    )


def test_frozen_weights_are_not_moved():
    """Of cos(x + w0 + w1) only w1 trains: the slice is a cosine of its offset alone."""

    @qp.qnode(circuits.make_device("default.qubit", 1))
    def circuit(inputs, frozen, free):
        qp.RX(inputs[..., 0] + frozen[0] + free[0], wires=0)
        return [qp.expval(qp.Z(0))]

    start = {"frozen": torch.tensor([0.3]), "free": torch.tensor([0.1])}
    layer = QuantumLayer(circuit, {"frozen": (1,), "free": (1,)}, start)
    layer.frozen.requires_grad_(False)
    given = layer, MeanValue(), (torch.tensor([[0.3]]),)
    found = gradients.lines(*given, n_points=9, n_random=0)
    assert found is not None and found.n_weights == 1
    np.testing.assert_allclose(found.losses[0], np.cos(0.7 - found.offsets), atol=EXACT)
    layer.requires_grad_(False)
    assert gradients.lines(*given) is None, "nothing trains"


def test_parts_of_a_batch_of_points_join(monkeypatch):
    model, batch = net()
    whole = gradients.lines(model, Classification(), batch, n_points=7)
    monkeypatch.setattr(landscape, "_at_once", lambda circuits: 4)
    parts = gradients.lines(model, Classification(), batch, n_points=7)
    np.testing.assert_allclose(whole.losses, parts.losses, atol=EXACT)


def test_without_circuits_or_a_gradient_and_bad_numbers():
    model, batch = net("cnn", width=4, hidden=4)
    given = rotation(0.0), MeanValue(), (torch.zeros(1, 1),)
    assert gradients.lines(model, Classification(), batch) is None
    assert gradients.lines(*given, n_points=5).names == ("random 1", "random 2")
    for bad in ({"n_points": 4}, {"n_random": 0}, {"n_random": -1}, {"radius": 0.0}, {"radius": math.nan}):
        with refused(*bad):
            gradients.lines(*given, **bad)

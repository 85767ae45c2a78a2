"""Where time goes: what is made slow shows in its own part. Nothing is asserted of absolute times."""

from __future__ import annotations

import time
from unittest import mock

import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, Quanv2d, circuits, data, measure, recipes, tasks, train
from qnnkit.measure import parts
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests.toys import linear

PAUSE = 0.05
"""Seconds, well above what the rest of a toy step takes."""


class Slow(torch.autograd.Function):
    """The identity, which takes its time on either way."""

    @staticmethod
    def forward(ctx, values, forward, backward):
        time.sleep(forward)
        ctx.backward = backward
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward)
        return gradient, None, None


def slow(kind):
    """A layer that takes its time on either way."""

    class Layer(kind):
        forward_pause = backward_pause = 0.0

        def forward(self, inputs):
            return Slow.apply(super().forward(inputs), self.forward_pause, self.backward_pause)

    return Layer


class Net(nn.Module):
    """A circuit on the inputs, or on what a classical layer makes of them, and a classical reader."""

    def __init__(self, first: bool = True, uses: int = 1):
        super().__init__()
        qnode, shapes = circuits.build("data_reuploading", n_qubits=2, n_layers=1)
        self.before = nn.Identity() if first else nn.Hardsigmoid()
        self.circuit = slow(QuantumLayer)(qnode, shapes, {"weights": torch.ones(shapes["weights"])})
        self.reader, self.uses = slow(nn.Identity)(), uses

    def forward(self, inputs):
        values = self.before(inputs)
        for _ in range(self.uses):
            values = self.circuit(values)
        return self.reader(values)


INPUTS, LABELS = torch.linspace(0, 3, 8).reshape(4, 2), torch.tensor([0, 1, 0, 1])


def parts_of(model, loader=None, **settings):
    loader = [(INPUTS, LABELS)] if loader is None else loader
    found = measure.step_parts(model, Classification(), loader, steps=2, warmup=1, seconds=0, **settings)
    return {row["name"]: row["seconds"] for row in found}


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize(("module", "first"), [("circuit", True), ("circuit", False), ("reader", False)])
def test_what_is_slow_shows_in_its_own_part(module, way, first):
    model, name = Net(first), f"{'quantum' if module == 'circuit' else 'classical'} {way}"
    setattr(getattr(model, module), f"{way}_pause", PAUSE)
    found = parts_of(model)
    assert max(found, key=lambda part: found[part]) == name
    assert found[name] >= PAUSE and found[name] > 0.7 * sum(found.values())


def test_a_slow_loader_transfer_and_optimizer_show(monkeypatch):
    right, batch = torch.optim.Adam.step, (INPUTS, LABELS)
    loader, moved = mock.MagicMock(), mock.Mock()  # only that it can be moved is asked of a batch's part
    loader.__iter__.side_effect = lambda: iter([time.sleep(PAUSE) or batch])
    moved.to.side_effect = lambda *given, **named: time.sleep(PAUSE) or INPUTS

    def slowest(*loader):
        found = parts_of(Net(), *loader)
        return max(found, key=lambda part: found[part])

    assert slowest(loader) == "loading" and slowest([(moved, LABELS)]) == "transfer"
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: time.sleep(PAUSE) or right(self))
    assert slowest() == "optimizer"


def test_parts_add_up_and_the_model_is_left_as_it_was():
    model = Net(uses=2).eval()
    model.circuit.forward_pause = model.circuit.backward_pause = PAUSE
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    start = time.perf_counter()
    found = parts_of(model)
    elapsed, whole = time.perf_counter() - start, sum(found.values())
    assert list(found) == list(parts.PARTS) and 4 * PAUSE <= whole <= elapsed
    assert found["quantum forward"] >= 2 * PAUSE <= found["quantum backward"], "it is used twice"
    assert abs(found.pop("rest")) < 0.5 * whole and min(found.values()) >= 0
    assert not model.training and not model.circuit._forward_hooks
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_frozen_filters_and_nets_without_a_circuit():
    config = Settings(precision="bfloat16", optimizer="sgd")
    images = torch.linspace(0, 3, 64).reshape(4, 1, 4, 4)
    quanv = Quanv2d(1, "data_reuploading", filters=2, trainable=False, n_layers=1)
    frozen = nn.Sequential(quanv, nn.Flatten(), linear(32, 2))
    found = parts_of(frozen, [(images, LABELS)], config=config)
    assert found["quantum forward"] > 0 == found["quantum backward"] and found["classical backward"] > 0
    found = parts_of(linear(2, 2), config=config)
    assert found["quantum forward"] == found["quantum backward"] == 0 < found["classical forward"]


# --- strategies ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def splits():
    return data.load("digits", train_fraction=0.02)


def recipe(**settings):
    return recipes.settings("digits_quanv", stride=4, batch_size=8, **settings)


def test_a_changed_step_changes_one_thing_and_drops_nothing(splits, monkeypatch):
    """Augmentation, and the pieces whose gradients are added up, are part of the step that is timed."""
    changed, pieces = [], []
    right, backward = tasks.Classification.__call__, train.Stepper.backward
    called = lambda task, *given: changed.append(task.augment is not None) or right(task, *given)  # noqa: E731
    counted = lambda stepper, *given: pieces.append(stepper.config) or backward(stepper, *given)  # noqa: E731
    monkeypatch.setattr(tasks.Classification, "__call__", called)
    monkeypatch.setattr(train.Stepper, "backward", counted)
    config, before = recipe(augmentation="affine", micro_batch=4), torch.get_rng_state()
    for settings in ({}, {"trainable": False}, {"precision": "bfloat16"}):
        step = measure.changed_step(config, splits, settings, threads=1)
        assert (step.samples, step.threads, str(step.device)) == (8, 1, "cpu")
        step.run()
    assert changed == [True] * 6, "no strategy leaves it out"
    precisions = ["float32"] * 4 + ["bfloat16"] * 2
    assert [(one.precision, one.micro_batch) for one in pieces] == [(each, 4) for each in precisions]
    assert torch.equal(torch.get_rng_state(), before)


def test_strategies_race_and_say_what_stands_in_the_way(splits):
    ways = {
        "as it is": {},
        "one by one": {"backend": "lightning.qubit"},
        "gate by gate": {"backend": "default.qubit"},
        "large batch": {"batch_size": 64},
        "no such": {"n_lay": 1},
        "on a GPU": {"device": "cuda:7"},
    }
    steps = {name: measure.changed_step(recipe(), splits, each) for name, each in ways.items()}
    assert steps["large batch"].samples == len(splits.train) < 64
    assert steps["on a GPU"].device == torch.device("cuda:7") and 2 <= steps["one by one"].samples <= 8
    laps = measure.race(steps, seconds=1.0)
    assert "n_lay" in laps["no such"].why and laps["no such"].seconds is None is laps["on a GPU"].seconds
    slow, gates, own = (laps[name].seconds for name in ("one by one", "gate by gate", "as it is"))
    assert slow > own and gates > own, "fused circuits are faster"

"""Where time goes: each part takes what it was made to take, on a clock that only these parts move."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, Quanv2d, circuits, data, measure, recipes, train
from qnnkit.measure import clock, parts
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests.toys import linear

TAKES = {
    "loading": 1, "transfer": 2, "classical forward": 4, "quantum forward": 8, "classical backward": 16,
    "quantum backward": 32, "optimizer": 64, "rest": 0,
}  # fmt: skip
CLOCK = SimpleNamespace(now=0)


def spend(part: str, given):
    CLOCK.now += TAKES[part]
    return given


class Slow(torch.autograd.Function):
    """The identity, which takes its time on either way."""

    @staticmethod
    def forward(ctx, values, kind):
        ctx.kind = kind
        return spend(f"{kind} forward", values.clone())

    @staticmethod
    def backward(ctx, gradient):
        return spend(f"{ctx.kind} backward", gradient), None


class SlowCircuit(QuantumLayer):
    def forward(self, inputs):
        return Slow.apply(super().forward(inputs), "quantum")


class Reader(nn.Module):
    def forward(self, values):
        return Slow.apply(values, "classical")


def net(before: nn.Module, uses: int) -> nn.Module:
    """A circuit on the inputs, or on what a classical layer makes of them, and a classical reader."""
    qnode, shapes = circuits.build("data_reuploading", n_qubits=2, n_layers=1)
    circuit = SlowCircuit(qnode, shapes, {"weights": torch.ones(shapes["weights"])})
    return nn.Sequential(before, *[circuit] * uses, Reader())


INPUTS, LABELS = torch.linspace(0, 3, 8).reshape(4, 2), torch.tensor([0, 1, 0, 1])


def parts_of(model, loader, **settings):
    found = measure.step_parts(model, Classification(), loader, steps=2, warmup=1, seconds=0, **settings)
    return {row["name"]: row["seconds"] for row in found}


@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize("before", [nn.Identity(), nn.Hardsigmoid()])
def test_what_takes_time_shows_in_its_own_part_and_the_model_is_left_as_it_was(monkeypatch, before, uses):
    right, model = torch.optim.Adam.step, net(before, uses).eval()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    loader, moved = mock.MagicMock(), mock.Mock()  # only that it can be moved is asked of a batch's part
    loader.__iter__.side_effect = lambda: iter([spend("loading", (moved, LABELS))])
    moved.to.side_effect = lambda *given, **named: spend("transfer", INPUTS)
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: spend("optimizer", right(self)))
    monkeypatch.setattr(clock, "now", lambda device: CLOCK.now)
    found = parts_of(model, loader)
    assert list(found) == list(parts.PARTS)
    assert found == {name: took * (uses if "quantum" in name else 1) for name, took in TAKES.items()}
    assert not model.training and not model[1]._forward_hooks
    assert all(torch.equal(weight, start[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_frozen_filters_in_half_precision_have_no_way_back():
    images = torch.linspace(0, 3, 64).reshape(4, 1, 4, 4)
    quanv = Quanv2d(1, "data_reuploading", filters=2, trainable=False, n_layers=1)
    frozen, config = nn.Sequential(quanv, nn.Flatten(), linear(32, 2)), Settings(precision="bfloat16")
    found = parts_of(frozen, [(images, LABELS)], config=config)
    assert found["quantum forward"] > 0 == found["quantum backward"] and found["classical backward"] > 0


def test_a_changed_step_changes_one_thing_and_drops_nothing(monkeypatch):
    """Augmentation, and the pieces whose gradients are added up, are part of the step that is timed."""
    seen, right = [], train.Stepper.backward

    def backward(stepper, *given):
        seen.append((stepper.config.precision, stepper.config.micro_batch, stepper.task.augment is not None))
        right(stepper, *given)

    monkeypatch.setattr(train.Stepper, "backward", backward)
    settings = {"batch_size": 8, "augmentation": "affine", "micro_batch": 4}
    config, splits = recipes.settings("digits_quanv", **settings), data.load("digits", train_fraction=0.02)
    n, other = len(splits.train), {"trainable": False, "backend": "default.qubit"}
    for change, samples in (({}, 8), (other, 8), ({"precision": "bfloat16", "batch_size": 64}, n)):
        step = measure.changed_step(config, splits, change, threads=1)
        assert (step.samples, step.threads, str(step.device)) == (samples, 1, "cpu")
        step.run()
    assert seen == [("float32", 4, True)] * 4 + [("bfloat16", 4, True)] * (-(-n // 4))
    slow = measure.changed_step(config, splits, {"backend": "lightning.qubit", "batch_size": 64})
    assert slow.samples == 256 // 49 < n, "circuits one by one"

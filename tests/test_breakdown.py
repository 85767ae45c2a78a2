"""Where time goes: what is made slow shows in its own part. Nothing is asserted of absolute times."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, Quanv2d, breakdown, circuits, data, recipes, runs
from qnnkit.breakdown import table
from qnnkit.settings import Settings
from qnnkit.tasks import Classification

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


class SlowCircuit(QuantumLayer):
    forward_pause = backward_pause = 0.0

    def forward(self, inputs):
        return Slow.apply(super().forward(inputs), self.forward_pause, self.backward_pause)


class SlowLinear(nn.Linear):
    forward_pause = backward_pause = 0.0

    def forward(self, inputs):
        return Slow.apply(super().forward(inputs), self.forward_pause, self.backward_pause)


class Net(nn.Module):
    """A circuit on the inputs, or on what a classical layer makes of them, and a classical reader."""

    def __init__(self, first: bool = True, uses: int = 1):
        super().__init__()
        qnode, shapes = circuits.build("data_reuploading", n_qubits=2, n_layers=1)
        self.before = nn.Identity() if first else nn.Hardsigmoid()
        self.circuit = SlowCircuit(qnode, shapes, {"weights": torch.ones(shapes["weights"])})
        self.reader = weighted(SlowLinear, 2, 2)
        self.uses = uses

    def forward(self, inputs):
        values = self.before(inputs)
        for _ in range(self.uses):
            values = self.circuit(values)
        return self.reader(values)


def weighted(kind, *sizes):
    """A linear layer that draws nothing from torch's generator."""
    with torch.random.fork_rng(devices=[]):
        return kind(*sizes)


class SlowLoader(list):
    pause = 0.0

    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(self.pause)
            yield batch


class SlowTensor:
    """What a batch may be made of: only that it can be moved is asked of it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device, **options):
        time.sleep(PAUSE)
        return self.tensor


INPUTS, LABELS = torch.linspace(0, 3, 8).reshape(4, 2), torch.tensor([0, 1, 0, 1])


def parts_of(model, loader=None, **settings):
    loader = [(INPUTS, LABELS)] if loader is None else loader
    found = breakdown.step(model, Classification(), loader, steps=2, warmup=1, seconds=0, **settings)
    return {part.name: part.seconds for part in found}


@pytest.mark.parametrize("first", [True, False], ids=["on inputs", "inside"])
@pytest.mark.parametrize(
    ("module", "way", "name"),
    [
        ("circuit", "forward", "quantum forward"),
        ("circuit", "backward", "quantum backward"),
        ("reader", "forward", "classical forward"),
        ("reader", "backward", "classical backward"),
    ],
)
def test_what_is_slow_shows_in_its_own_part(module, way, name, first):
    model = Net(first)
    setattr(getattr(model, module), f"{way}_pause", PAUSE)
    parts = parts_of(model)
    assert max(parts, key=lambda part: parts[part]) == name
    assert parts[name] >= PAUSE and parts[name] > 0.7 * sum(parts.values())


def test_a_layer_that_is_used_twice_counts_twice():
    model = Net(uses=2)
    model.circuit.backward_pause = model.circuit.forward_pause = PAUSE
    parts = parts_of(model)
    assert parts["quantum forward"] >= 2 * PAUSE and parts["quantum backward"] >= 2 * PAUSE


def test_a_slow_loader_and_a_slow_transfer_show():
    loader = SlowLoader([(INPUTS, LABELS)])
    loader.pause = PAUSE
    parts = parts_of(Net(), loader)
    assert max(parts, key=lambda part: parts[part]) == "loading"
    parts = parts_of(Net(), [(SlowTensor(INPUTS), LABELS)])
    assert max(parts, key=lambda part: parts[part]) == "transfer"


def test_a_slow_optimizer_shows(monkeypatch):
    right = torch.optim.Adam.step

    def step(self, *given):
        time.sleep(PAUSE)
        return right(self, *given)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    parts = parts_of(Net())
    assert max(parts, key=lambda part: parts[part]) == "optimizer"


def test_parts_add_up_and_the_model_is_left_as_it_was():
    model = Net()
    model.circuit.forward_pause = model.reader.backward_pause = PAUSE
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    start = time.perf_counter()
    parts = breakdown.step(model.eval(), Classification(), [(INPUTS, LABELS)], steps=3, warmup=0, seconds=0)
    elapsed = time.perf_counter() - start
    assert [part.name for part in parts] == list(breakdown.PARTS)
    whole = sum(part.seconds for part in parts)
    assert 2 * PAUSE <= whole <= elapsed
    assert abs(parts[-1].seconds) < 0.5 * whole, "the rest is small beside what was made slow"
    assert all(part.seconds >= 0 for part in parts[:-1])
    assert not model.training and not model.circuit._forward_hooks
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_frozen_filters_and_nets_without_a_circuit(precision):
    config = Settings(precision=precision, optimizer="sgd")
    images = torch.linspace(0, 3, 64).reshape(4, 1, 4, 4)
    quanv = Quanv2d(1, "data_reuploading", filters=2, trainable=False, n_layers=1)
    frozen = nn.Sequential(quanv, nn.Flatten(), weighted(nn.Linear, 32, 2))
    parts = parts_of(frozen, [(images, LABELS)], config=config)
    assert parts["quantum forward"] > 0 == parts["quantum backward"] and parts["classical backward"] > 0
    parts = parts_of(weighted(nn.Linear, 2, 2), config=config)
    assert parts["quantum forward"] == parts["quantum backward"] == 0 < parts["classical forward"]
    parts = parts_of(weighted(nn.Linear, 2, 2).requires_grad_(False), config=config)
    assert parts["classical forward"] > 0


# --- strategies ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def splits():
    return data.load("digits")


def recipe(**settings):
    return recipes.settings("digits_quanv", stride=4, batch_size=8, **settings)


@pytest.fixture(scope="module")
def measured(splits):
    """All rows, of a training split that is too small for some; each circuit's first step takes a second."""
    train, n = splits.train, 100
    few = replace(splits.train, images=train.images[:n], labels=train.labels[:n], sources=train.sources[:n])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "BATCHES", (64, 128))
        patch.setattr(table, "LAYERS", (1,))
        return breakdown.strategies(recipe(), replace(splits, train=few), seconds=2.0)


def test_every_strategy_is_measured_or_says_why_not(measured):
    assert [(row.group, row.name) for row in measured] == [
        ("simulator", "lightning.qubit"),
        ("simulator", "default.qubit"),
        ("simulator", "batched"),
        ("batch", "batch 64"),
        ("batch", "batch 128"),
        ("layers", "n_layers 1"),
        ("circuit", "frozen"),
        ("circuit", "frozen, cached"),
        ("precision", "float32"),
        ("precision", "bfloat16"),
    ]
    for row in measured:
        assert row.change.endswith(".")
        if row.name == "batch 128":
            assert row.why == "The training split has 100 samples only."
            assert row.seconds_per_sample is None and row.seconds_per_epoch is None
        else:
            assert row.why == "" and row.seconds_per_sample > 0
            assert row.seconds_per_epoch == pytest.approx(row.seconds_per_sample * 100)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("name", "settings", "rows"),
    [
        (
            "digits_clip",
            {"n_qubits": 2, "n_layers": 1, "patch_size": 8},
            ["lightning.qubit", "default.qubit", "batched", "batch 2", "batch 4", "batch 8", "n_layers 1",
             "frozen", "frozen, cached", "float32", "bfloat16"],
        ),
        (
            "text_adapter",
            {"sequence_length": 16, "vocabulary": 260, "adapter_weights": 3000},
            ["batch 2", "batch 4", "batch 8", "float32", "bfloat16"],
        ),
    ],
)  # fmt: skip
def test_captions_and_tokens_have_strategies_too(name, settings, rows, tmp_path, monkeypatch):
    for number in range(12):
        words = f"{number}. " + "the cat sat on the mat and a dog ran. " * 8
        (tmp_path / f"{number}.txt").write_text(words)
    place = {"data_dir": str(tmp_path)} if name.startswith("text") else {}
    config = recipes.settings(name, batch_size=4, **settings, **place)
    monkeypatch.setattr(table, "LAYERS", (1,))
    splits = runs.Run(tmp_path, config).load_data()
    found = breakdown.strategies(config, splits, seconds=1.0)
    assert [row.name for row in found] == rows
    for row in found:
        if row.name == "frozen, cached":
            assert row.why == "This model takes no features in place of its data."
        elif row.seconds_per_sample is None:
            assert "its share of the time was" in row.why, row
        else:
            assert row.seconds_per_epoch == pytest.approx(row.seconds_per_sample * len(splits.train))
    assert sum(row.seconds_per_sample is not None for row in found) >= 3


def bench(splits, seconds=1.0):
    tool = table._Bench(recipe(), splits, torch.device("cpu"), seconds)
    tool.share = seconds
    return tool


def test_what_cannot_be_measured_says_why(splits, monkeypatch):
    def none(*given, **settings):
        raise ValueError("Argument `backend` must be a device that works here, but is 'lightning.qubit'.")

    monkeypatch.setattr(table, "one_by_one", none)
    tool = bench(splits)
    monkeypatch.setattr(type(tool), "build", lambda self, **settings: nn.Identity())
    assert tool.one_by_one(nn.Identity()).row.why.endswith("but is 'lightning.qubit'.")
    assert tool.cached().row.why == "This model takes no features in place of its data."
    row = table.Strategy("batch", "batch 64", "64 images a step.", None, None)
    slow = table._Turn(row, lambda: 2.0, 64)
    assert not tool.warm_up(slow)
    assert tool.measured(slow).why == "A step took 2 s, and its share of the time was 1 s."

    def full():
        raise torch.OutOfMemoryError("There is no memory left.\nSome statistics.")

    full_turn = table._Turn(row, full, 64)
    assert not tool.warm_up(full_turn) and tool.measured(full_turn).why == "There is no memory left."


def test_circuits_one_by_one_are_scaled_up(monkeypatch):
    counted = []

    def seconds(run, device, *, rounds):
        run()
        counted.append(rounds)
        return 0.1 * ran.pop()

    ran, right = [], QuantumLayer.forward

    def forward(layer, inputs):
        if layer.backend == "lightning.qubit":
            ran.append(len(inputs))
        return right(layer, inputs)

    monkeypatch.setattr(table.measure, "seconds", seconds)
    monkeypatch.setattr(QuantumLayer, "forward", forward)
    net = Quanv2d(1, "data_reuploading", filters=2, n_layers=1)
    found = breakdown.one_by_one(net, torch.ones(1, 1, 6, 6))
    assert (found.circuits_per_image, found.circuits_timed, found.trains) == (18, 5, True)
    assert found.seconds_per_image == pytest.approx(0.1 * 18) and counted == [1, 3]
    assert not breakdown.one_by_one(net.requires_grad_(False), torch.ones(1, 1, 6, 6)).trains


def test_the_optimizer_is_the_recipes_own(monkeypatch):
    seen = []
    right = torch.optim.AdamW.step

    def step(self, *given):
        seen.extend((group["lr"], group["weight_decay"], len(group["params"])) for group in self.param_groups)
        return right(self, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    settings = {"learning_rate": 0.01, "quantum_learning_rate": 0.05, "weight_decay": 0.3}
    parts_of(Net(), config=Settings(optimizer="adamw", **settings))
    assert set(seen) == {(0.05, 0.0, 1), (0.01, 0.3, 2)}, "the circuit's weights and the classical ones"
    frozen = Net()
    frozen.circuit.requires_grad_(False)
    seen.clear()
    parts_of(frozen, config=Settings(optimizer="adamw", **settings))
    assert set(seen) == {(0.01, 0.3, 2)}

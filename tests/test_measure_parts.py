"""Where time goes: what is made slow shows in its own part. Nothing is asserted of absolute times."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, Quanv2d, circuits, data, measure, recipes, runs, tasks, train
from qnnkit.checkpoint import own_generators
from qnnkit.measure import Lap, Spread, parts
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests.toys import texts

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
        self.reader = weighted(slow(nn.Linear), 2, 2)
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


def test_a_layer_that_is_used_twice_counts_twice():
    model = Net(uses=2)
    model.circuit.backward_pause = model.circuit.forward_pause = PAUSE
    found = parts_of(model)
    assert found["quantum forward"] >= 2 * PAUSE and found["quantum backward"] >= 2 * PAUSE


def test_a_slow_loader_transfer_and_optimizer_show(monkeypatch):
    loader, right = SlowLoader([(INPUTS, LABELS)]), torch.optim.Adam.step
    loader.pause = PAUSE

    def slowest(found):
        return max(found, key=lambda part: found[part])

    assert slowest(parts_of(Net(), loader)) == "loading"
    assert slowest(parts_of(Net(), [(SlowTensor(INPUTS), LABELS)])) == "transfer"
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: time.sleep(PAUSE) or right(self))
    assert slowest(parts_of(Net())) == "optimizer"


def test_parts_add_up_and_the_model_is_left_as_it_was():
    model = Net()
    model.circuit.forward_pause = model.reader.backward_pause = PAUSE
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    start = time.perf_counter()
    loader = [(INPUTS, LABELS)]
    rows = measure.step_parts(model.eval(), Classification(), loader, steps=3, warmup=0, seconds=0)
    elapsed = time.perf_counter() - start
    assert [row["name"] for row in rows] == list(parts.PARTS)
    whole = sum(row["seconds"] for row in rows)
    assert 2 * PAUSE <= whole <= elapsed
    assert abs(rows[-1]["seconds"]) < 0.5 * whole, "the rest is small beside what was made slow"
    assert all(row["seconds"] >= 0 for row in rows[:-1])
    assert not model.training and not model.circuit._forward_hooks
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_frozen_filters_and_nets_without_a_circuit(precision):
    config = Settings(precision=precision, optimizer="sgd")
    images = torch.linspace(0, 3, 64).reshape(4, 1, 4, 4)
    quanv = Quanv2d(1, "data_reuploading", filters=2, trainable=False, n_layers=1)
    frozen = nn.Sequential(quanv, nn.Flatten(), weighted(nn.Linear, 32, 2))
    found = parts_of(frozen, [(images, LABELS)], config=config)
    assert found["quantum forward"] > 0 == found["quantum backward"] and found["classical backward"] > 0
    found = parts_of(weighted(nn.Linear, 2, 2), config=config)
    assert found["quantum forward"] == found["quantum backward"] == 0 < found["classical forward"]
    found = parts_of(weighted(nn.Linear, 2, 2).requires_grad_(False), config=config)
    assert found["classical forward"] > 0


# --- strategies ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def splits():
    return data.load("digits")


def recipe(**settings):
    return recipes.settings("digits_quanv", stride=4, batch_size=8, **settings)


@pytest.fixture(scope="module")
def measured(splits):
    """All rows, of a training split that is too small for some; each circuit's first step takes a second."""
    train, n = splits.train, 30
    few = replace(splits, train=replace(
        train, images=train.images[:n], labels=train.labels[:n], sources=train.sources[:n]
    ))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "LAYERS", (1,))
        return measure.strategies(recipe(epochs=3), few, seconds=2.0)


def test_every_strategy_is_measured_or_says_why_not(measured):
    assert [row["name"] for row in measured] == [
        "as it is", "lightning.qubit", "default.qubit", "batched", "batch 4", "batch 8", "batch 16",
        "batch 32", "n_layers 1", "frozen", "frozen, cached", "float32", "bfloat16",
    ]  # fmt: skip
    for row in measured:
        assert row["change"].endswith(".")
        if row["name"] == "batch 32":
            assert row["why"] == "The training split has 30 samples only."
            assert row["seconds_per_sample"] is None is row["seconds_per_epoch"] is row["seconds_in_all"]
        else:
            assert row["why"] == "" and row["seconds_per_sample"] > 0
            assert row["seconds_per_epoch"] == pytest.approx(row["seconds_per_sample"] * 30)
            assert row["seconds_in_all"] == pytest.approx(row["seconds_per_epoch"] * 3)


def test_strategies_change_one_thing_and_drop_nothing(splits, monkeypatch):
    """Augmentation, and the pieces whose gradients are added up, are part of the step that is timed."""
    changed, pieces = [], []
    right, backward = tasks.Classification.__call__, train.Stepper.backward

    def called(task, model, batch):
        changed.append(task.augment is not None)
        return right(task, model, batch)

    def counted(stepper, loss):
        pieces.append((stepper.config.precision, stepper.config.micro_batch))
        return backward(stepper, loss)

    monkeypatch.setattr(tasks.Classification, "__call__", called)
    monkeypatch.setattr(train.Stepper, "backward", counted)
    bench = parts._Bench(recipe(augmentation="affine", micro_batch=4), splits, torch.device("cpu"), 1)
    found = {name: (change, step) for _, name, change, step in bench.steps(True)}
    told = "Nothing is changed: cpu, float32, batch 8 in pieces of 4, 1 thread, augmentation affine."
    assert found["as it is"][0] == told
    with own_generators():
        for name in ("as it is", "frozen", "bfloat16"):
            found[name][1].run()
    assert changed == [True] * 6, "no row leaves it out"
    assert pieces == [(each, 4) for each in ("float32", "float32", "bfloat16") for _ in range(2)]
    with pytest.raises(ValueError, match="Augmentation makes other images in every epoch"):
        found["frozen, cached"][1].run()


def test_the_cpu_stands_beside_the_accelerator(splits, monkeypatch):
    monkeypatch.setattr(parts, "devices", lambda *given: ["cpu", "cuda:0"])
    bench = parts._Bench(recipe(), splits, torch.device("cuda:0"), None)
    of_devices = [(name, str(step.device)) for group, name, _, step in bench.steps(True) if group == "device"]
    assert of_devices == [("cpu", "cpu"), ("cuda:0", "cuda:0")]


@pytest.mark.parametrize(
    ("name", "settings", "rows"),
    [
        ("digits_clip", {"n_qubits": 2, "n_layers": 1, "patch_size": 8},
         "as it is, lightning.qubit, default.qubit, batched, batch 2, batch 4, batch 8, batch 16, "
         "n_layers 1, frozen, frozen, cached, float32, bfloat16"),
        ("text_adapter", {"sequence_length": 16, "vocabulary": 260, "adapter_weights": 3000},
         "as it is, batch 2, batch 4, batch 8, batch 16, float32, bfloat16"),
    ],
)  # fmt: skip
def test_captions_and_tokens_have_strategies_too(name, settings, rows, tmp_path, monkeypatch):
    place = {"data_dir": str(texts(tmp_path))} if name.startswith("text") else {}
    config = recipes.settings(name, batch_size=4, **settings, **place)
    monkeypatch.setattr(parts, "LAYERS", (1,))
    splits = runs.Run(tmp_path, config).load_data()
    bench = parts._Bench(config, splits, torch.device("cpu"), 1)
    found = {row: step for _, row, _, step in bench.steps("n_qubits" in settings)}
    assert ", ".join(found) == rows
    if "frozen, cached" in found:
        with own_generators(), pytest.raises(ValueError, match="takes no features in place of its data"):
            found["frozen, cached"].run()


def test_a_backend_that_does_not_work_says_why(splits, monkeypatch):
    told = "Argument `backend` must be a device that works here, but is 'lightning.qubit'."

    def none(*given, **settings):
        raise ValueError(told)

    monkeypatch.setattr(parts, "one_by_one", none)
    found = parts._Bench(recipe(), splits, torch.device("cpu"), 1).one_by_one(nn.Identity(), None, 1.0)
    assert found == Lap(None, why=told)


def test_circuits_one_by_one_are_scaled_up(monkeypatch):
    """By a clock on which a circuit of lightning.qubit takes a tenth of a second."""
    counted, ran, right = [], [], QuantumLayer.forward

    def spread(run, device, *, rounds=3):
        run()
        counted.append(rounds)
        return Spread.of([0.1 * ran.pop()])

    def forward(layer, inputs):
        ran.append(len(inputs))
        return right(layer, inputs)

    monkeypatch.setattr(parts.clock, "spread", spread)
    monkeypatch.setattr(QuantumLayer, "forward", forward)
    net = Quanv2d(1, "data_reuploading", filters=2, n_layers=1)
    found = parts.one_by_one(net, torch.ones(1, 1, 6, 6))
    assert found == pytest.approx(0.1 * 18) and counted == [1, 3]
    parts.one_by_one(net.requires_grad_(False), torch.ones(1, 1, 6, 6))  # a backward pass would raise


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


# --- operations ---------------------------------------------------------------------------------------------


def test_the_costliest_operations_and_their_trace(splits, tmp_path):
    trace = tmp_path / "trace.json.gz"
    text = measure.operations(measure.of_recipe(recipe(), splits), threads=1, trace=trace)
    assert "Self CPU %" in text and "aten::" in text and "RunBackward" in text
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any(event["name"].startswith("aten::") for event in events)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json.gz"]

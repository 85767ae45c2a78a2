"""What people try to make training faster, as a table: every number of it measured here."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from qnnkit import measure, recipes, train
from qnnkit.checkpoint import own_generators
from qnnkit.data import ImageSplits, Splits
from qnnkit.layers import Given, QuantumLayer, circuits_by_layer, circuits_per_image
from qnnkit.recipes import made, parameter_groups
from qnnkit.settings import Settings

BATCHES, LAYERS = (64, 128, 256), (1, 2, 3)
MOST_ROUNDS = 200
TIMED = 2
"""Images whose circuits are run one by one, at most."""


@dataclass(frozen=True)
class Strategy:
    """What training would cost, changed in one way."""

    group: str
    """"simulator", "batch", "layers", "circuit" or "precision"."""
    name: str
    change: str
    """What is changed, in a sentence."""
    seconds_per_sample: float | None
    """Of a training step, the median of the faster half; None where it was not measured."""
    seconds_per_epoch: float | None
    why: str = ""
    """Why it was not measured, in a sentence."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def strategies(
    config: Settings, splits: Splits, *, device: torch.device | str = "cpu", seconds: float = 60.0
) -> list[Strategy]:
    """What people try to make training faster, each measured on this machine, one change at a time.

    Steps of all strategies take turns in changing order, so that a machine that others use too, or what the
    step before has left in its caches, favours none.

    Args:
        config: The recipe that is changed; its batch size, layers and precision are what else stays.
        splits: The data; an epoch is all of its training split.
        device: Where to compute.
        seconds: For the whole table, about. A strategy of which one step takes more than its share is not
            measured further, and its row says so; tracing circuits comes on top, a second or so each.

    Returns:
        One row per strategy; for a model without a circuit only what concerns it.
    """
    bench = _Bench(config, splits, torch.device(device), seconds)
    with own_generators(), measure.threads(config.threads):
        return bench.rows()


@dataclass
class _Turn:
    """A row, and the step by which it is measured; None where it already is, or cannot be."""

    row: Strategy
    step: Callable[[], float] | None = None
    samples: int = 0
    taken: list[float] = field(default_factory=list)


@dataclass
class _Bench:
    config: Settings
    splits: Splits
    device: torch.device
    seconds: float

    def rows(self) -> list[Strategy]:
        start = time.perf_counter()
        model = self.build()
        hybrid = circuits_per_image(model, self.splits.example()) > 0
        self.share = self.seconds / (14 if hybrid else 5)
        turns = list(self.turns(model, hybrid))
        ready = [turn for turn in turns if turn.step and self.warm_up(turn)]
        order = random.Random(0)
        for _ in range(MOST_ROUNDS):
            for turn in order.sample(ready, len(ready)):
                assert turn.step is not None
                turn.taken.append(turn.step())
            if time.perf_counter() - start > self.seconds:
                break
        return [self.measured(turn) for turn in turns]

    def turns(self, model: nn.Module, hybrid: bool) -> Iterator[_Turn]:
        if hybrid:
            yield self.one_by_one(model)
            told = "All circuits of a batch at once, gate by gate."
            yield self.train("simulator", "default.qubit", told, "default.qubit")
            yield self.train("simulator", "batched", "All circuits of a batch as a fused program.", "batched")
        own = self.config.batch_size
        sizes = BATCHES if isinstance(self.splits, ImageSplits) else (max(1, own // 2), own, 2 * own)
        for size in dict.fromkeys(sizes):
            yield self.train("batch", f"batch {size}", f"{size} samples a step.", batch_size=size)
        if hybrid:
            known = type(self.config).model_fields
            for n in LAYERS if "n_layers" in known else ():
                told = f"The ansatz has {n} layer{'s' * (n > 1)}."
                yield self.train("layers", f"n_layers {n}", told, n_layers=n)
            if "trainable" in known:
                yield self.train("circuit", "frozen", "The circuit stays as it is drawn.", trainable=False)
            yield self.cached()
        for precision in ("float32", "bfloat16"):
            told = f"Classical layers compute in {precision}{'; circuits stay in float32' * hybrid}."
            yield self.train("precision", precision, told, precision=precision)

    def build(self, backend: str | None = None, **settings: Any) -> nn.Module:
        changed = self.config.override(**settings, backend=backend or self.config.backend)
        return made(changed, self.splits, "", self.config.seed)

    def train(
        self,
        group: str,
        name: str,
        change: str,
        backend: str | None = None,
        *,
        batch_size: int | None = None,
        precision: str | None = None,
        **settings: Any,
    ) -> _Turn:
        """Full training steps."""
        size, train = batch_size or self.config.batch_size, self.splits.train
        row = Strategy(group, name, change, None, None)
        if batch_size and size > len(train):
            return _Turn(replace(row, why=f"The training split has {len(train)} samples only."))
        try:
            model = self.build(backend, **settings)
        except (ValueError, NotImplementedError) as error:  # such as a device that is not there
            return _Turn(replace(row, why=_first_line(error)))
        return self.steps(row, model, self.batch(size), precision)

    def batch(self, size: int) -> Any:
        return next(iter(self.splits.batches("train", size, shuffle=False)))

    def steps(self, row: Strategy, model: nn.Module, batch: Any, precision: str | None = None) -> _Turn:
        config = self.config
        config = config.model_copy(update={"precision": precision or config.precision})
        if hasattr(config, "augmentation"):
            config = config.model_copy(update={"augmentation": "none"})
        task = recipes.of(config).task(config)
        groups = parameter_groups(model, config)
        stepper = train.Stepper(model, task, config, groups, self.device)

        def step() -> float:
            start = time.perf_counter()
            stepper(batch)
            measure.synchronize(self.device)
            return time.perf_counter() - start

        return _Turn(row, step, len(batch["input_ids"] if isinstance(batch, dict) else batch[0]))

    def warm_up(self, turn: _Turn) -> bool:
        """Traces circuits; whether the steps may be repeated."""
        assert turn.step is not None
        try:
            first = turn.step()
            again = first if first > self.seconds else turn.step()  # the first one traces circuits
            if again <= self.share:
                return True
            why = f"A step took {again:.2g} s, and its share of the time was {self.share:.2g} s."
        except (ValueError, NotImplementedError, RuntimeError) as error:  # such as too little memory
            why = _first_line(error)
        turn.row, turn.step = replace(turn.row, why=why), None
        return False

    def measured(self, turn: _Turn) -> Strategy:
        if not turn.taken:
            return turn.row
        faster = sorted(turn.taken)[
            : (len(turn.taken) + 1) // 2
        ]  # in the others, other processes had their turn
        return self.row_of(turn.row, statistics.median(faster) / turn.samples)

    def row_of(self, row: Strategy, seconds: float) -> Strategy:
        return replace(row, seconds_per_sample=seconds, seconds_per_epoch=seconds * len(self.splits.train))

    def one_by_one(self, model: nn.Module) -> _Turn:
        change = "Each circuit by itself; the circuits alone, scaled up from a few."
        row = Strategy("simulator", "lightning.qubit", change, None, None)
        try:
            found = one_by_one(model, self.splits.example(), seconds=self.share / 8)
        except (ValueError, RuntimeError) as error:
            return _Turn(replace(row, why=_first_line(error)))
        return _Turn(self.row_of(row, found.seconds_per_image))

    def cached(self) -> _Turn:
        """What is frozen, be it a circuit or a ResNet, was computed before."""
        change = "What is frozen is computed once, before training."
        row = Strategy("circuit", "frozen, cached", change, None, None)
        frozen = {"trainable": False, "frozen_backbone": True}
        known = type(self.config).model_fields
        model: Any = self.build(**{name: frozen[name] for name in frozen if name in known}).to(self.device)
        if getattr(model, "steady_part", None) is None:
            return _Turn(replace(row, why="This model takes no features in place of its data."))
        images, labels = self.batch(self.config.batch_size)
        with torch.no_grad():
            features = model.eval().features(images.to(self.device)).cpu()
        return self.steps(row, model, (features, labels))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


@dataclass(frozen=True)
class OneByOne:
    """What a model's circuits take when they run one after the other."""

    seconds_per_image: float
    circuits_per_image: int
    circuits_timed: int
    trains: bool
    """Whether a backward pass is part of it."""


def one_by_one(
    model: nn.Module, image: Given, *, backend: str = "lightning.qubit", seconds: float = 0.5
) -> OneByOne:
    """Times a few of a model's circuits on a simulator that runs them one by one, and scales up.

    Args:
        model: Holds `QuantumLayer`s that run for the image; those of one shape are taken to cost the same.
        image: A batch of one, as the model takes it: one tensor, or several by name.
        backend: PennyLane device.
        seconds: About how long one round of circuits of one shape may take; four are run.

    Raises:
        ValueError: The device does not work here.
    """
    kinds: dict[Any, list[tuple[QuantumLayer, int]]] = {}
    for layer, n in circuits_by_layer(model, image).items():
        shapes = [tuple(weight.shape) for weight in layer.parameters()]
        kinds.setdefault((layer.n_features, layer.n_outputs, *shapes), []).append((layer, n))
    total, timed, trains = 0.0, 0, False
    for (n_features, *_), alike in kinds.items():
        slow = alike[0][0].with_qnode(alike[0][0].qnode, backend).cpu()
        own_trains = any(weight.requires_grad for weight in slow.parameters())
        trains |= own_trains
        per_image = sum(n for _, n in alike)
        run = _runs(slow, n_features, own_trains)
        one_round = measure.seconds(run(4), torch.device("cpu"), rounds=1)
        n = max(1, min(TIMED * per_image, int(4 * seconds / one_round)))
        total += measure.seconds(run(n), torch.device("cpu"), rounds=3) / n * per_image
        timed += n
    return OneByOne(total, sum(n for alike in kinds.values() for _, n in alike), timed, trains)


def _runs(layer: QuantumLayer, n_features: int, trains: bool) -> Callable[[int], Callable[[], None]]:
    def of(n_circuits: int) -> Callable[[], None]:
        def run() -> None:
            values = layer(torch.ones(n_circuits, n_features))
            if trains:
                values.sum().backward()

        return run

    return of

"""Measured time of a training step, by part and with other settings."""

from __future__ import annotations

import contextlib
import copy
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import recipes, train
from qnnkit.checkpoint import own_generators
from qnnkit.data import Splits
from qnnkit.layers import QuantumLayer, circuits_per_image
from qnnkit.measure import clock
from qnnkit.measure.clock import Step
from qnnkit.measure.workload import of_recipe
from qnnkit.settings import Settings
from qnnkit.tasks import Task

PARTS = (
    "loading", "transfer", "classical forward", "quantum forward", "classical backward", "quantum backward",
    "optimizer", "rest",
)  # fmt: skip
"""Parts of a training step, in order."""
CIRCUITS = 256
"""About how many circuits a step runs if they run one by one; its batch is reduced to fit."""


def step_parts(
    model: nn.Module,
    task: Task,
    loader: Iterable[Any],
    config: Settings | None = None,
    device: torch.device | str = "cpu",
    *,
    steps: int = 10,
    seconds: float = 3.0,
    warmup: int = 3,
    threads: int | None = None,
) -> list[dict[str, Any]]:
    """Measures the time of each part of one training step.

    A quantum part is everything that a `QuantumLayer` does between its inputs and its outputs. The clock
    waits for the device between two parts, so a GPU is a little slower than in training, where work
    overlaps. Clipping, schedules and a float16 scaler are omitted.

    Args:
        model: Model to time. A copy of it is trained, so it does not change.
        task: Computes the loss.
        loader: Batches for the task, repeated if there are too few.
        config: Optimizer, learning rate, micro_batch and precision; default: those of `Settings()`.
        device: Device to compute on.
        steps: Minimum number of timed steps.
        seconds: Minimum time for which steps are timed. Only the fastest quarter of the steps counts, because
            other processes may have slowed down the others.
        warmup: Steps before them that are not timed.
        threads: Number of CPU threads; None leaves torch's own number.

    Returns:
        A row for each part: `name`, `kind` ("quantum", "classical" or "other") and median `seconds`. The
        parts are loading, transfer, forward and backward of each kind, optimizer and rest.
    """
    config, device = config or Settings(), torch.device(device)
    model, batches = copy.deepcopy(model), itertools.chain.from_iterable(itertools.repeat(loader))
    stepper = train.Stepper(model, task, config, recipes.parameter_groups(model, config), device)
    watch = _Stopwatch(device)
    with own_generators(), clock.threads(threads), hooked(model, watch.change):
        taken, spent = [], 0.0
        while len(taken) < warmup + steps or spent < seconds:
            taken.append(_timed_step(stepper, batches, watch))
            spent += taken[-1].total() if len(taken) > warmup else 0.0
    taken = sorted(taken[warmup:], key=Counter.total)
    taken = taken[: (len(taken) + 3) // 4]
    medians = {name: statistics.median(row[name] for row in taken) for name in PARTS}
    kinds = {name: name.split()[0] for name in PARTS if " " in name}
    return [{"name": name, "kind": kinds.get(name, "other"), "seconds": medians[name]} for name in PARTS]


class _Stopwatch:
    """Adds up the seconds of each part of a step. `change` ends a part and starts the next."""

    def __init__(self, device: torch.device):
        self.device, self.part, self.spent = device, "rest", Counter[str]()
        self.since = clock.now(device)

    def change(self, part: str) -> None:
        now = clock.now(self.device)
        self.spent[self.part] += now - self.since  # pyright: ignore[reportArgumentType]
        self.part, self.since = part, now


def _timed_step(stepper: train.Stepper, batches: Iterator[Any], watch: _Stopwatch) -> Counter[str]:
    from accelerate.utils import send_to_device

    watch.change("loading")
    watch.spent = Counter()
    batch = next(batches)
    watch.change("transfer")
    batch = send_to_device(batch, stepper.device)
    watch.change("rest")
    calls = stepper.passes(batch)
    for compute in calls:
        watch.change("classical forward")
        step = compute()
        watch.change("classical backward")
        stepper.backward(step, 1 / len(calls))
    watch.change("optimizer")
    stepper.update()
    watch.change("rest")
    return watch.spent


@contextlib.contextmanager
def hooked(model: nn.Module, change: Callable[[str], None]) -> Iterator[None]:
    """Reports where a model's `QuantumLayer`s begin and end, by hooks of modules and of the graph.

    A module's backward hooks come too early if its inputs need no gradient, as in a circuit that reads the
    images: torch calls them before the work.

    Args:
        model: Model with the layers.
        change: Called with the next part of PARTS, such as "quantum forward".
    """

    def finish(part: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], outputs: Tensor) -> None:
        change("classical forward")
        for node in nodes_between((*inputs, *named.values()), outputs):
            node.register_prehook(lambda *_: change("quantum backward"))
            node.register_hook(lambda *_: change("classical backward"))

    with contextlib.ExitStack() as hooks:
        for part in (module for module in model.modules() if isinstance(module, QuantumLayer)):
            hooks.callback(part.register_forward_pre_hook(lambda *_: change("quantum forward")).remove)
            hooks.callback(part.register_forward_hook(finish, with_kwargs=True).remove)
        yield


def nodes_between(inputs: tuple[Any, ...], outputs: Tensor) -> list[Any]:
    """Nodes of the autograd graph that lead from the inputs, or from weights, to the outputs."""
    borders = {part.grad_fn for part in inputs if isinstance(part, Tensor) and part.grad_fn}
    waiting, nodes = [outputs.grad_fn], {}
    while waiting:
        node = waiting.pop()
        if node is None or node in borders or node in nodes or hasattr(node, "variable"):
            continue  # a leaf's node, which adds to its gradient, is the only one with a variable
        nodes[node] = None
        waiting += [below for below, _ in node.next_functions]
    return list(nodes)


# --- by strategy --------------------------------------------------------------------------------------------


def changed_step(
    config: Settings,
    splits: Splits,
    settings: Mapping[str, Any],
    device: torch.device | str = "cpu",
    threads: int | None = None,
) -> Step:
    """A full training step of a recipe's net with changed settings, as a step for `race`.

    The first call builds the net, and raises an error if the recipe has no such setting. The batch is smaller
    for simulators that run one circuit after another.

    Args:
        config: Settings of the recipe.
        splits: Its data.
        settings: Settings to change; {} gives the step that training takes.
        device: Device to compute on, if the settings name no `device`.
        threads: Number of CPU threads; None leaves torch's own number.
    """
    place = torch.device(settings.get("device", device))
    size = min(settings.get("batch_size", config.batch_size), len(splits.train))
    if "lightning" in settings.get("backend", config.backend):
        with own_generators():
            model = recipes.made(config, splits, "", config.seed)
            size = min(size, max(2, CIRCUITS // max(1, circuits_per_image(model, splits.example()))))

    @cache
    def build() -> Callable[[], Any]:
        workload = of_recipe(config.override(**settings), splits)
        return partial(workload.stepper(place), workload.batch(size))

    def run() -> None:
        with own_generators():
            build()()

    return Step(run, place, threads, size)

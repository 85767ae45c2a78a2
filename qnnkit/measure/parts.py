"""Where a training step's time goes, and what it would take by other strategies: both measured here."""

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
"""Of a step, in the order in which they come."""
CIRCUITS = 256
"""Circuits of a step that runs them one by one, about: it has fewer samples."""


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
    """Where the time of one training step goes, in the order in which it is spent.

    A quantum part is all that a `QuantumLayer` does from its inputs to its outputs. The device is waited for
    at each border, so a GPU is a little slower than in training, where work overlaps. Clipping, schedules and
    a float16 scaler are left out.

    Args:
        model: Left as it was; a copy is trained.
        task: Gives the loss.
        loader: Batches for the task; started again where it ends.
        config: Optimizer, learning rate, micro_batch and precision; the defaults without one.
        device: Where to compute.
        steps: Steps that are timed, at least.
        seconds: For how long steps are timed, at least. The fastest quarter counts: in the others, on a
            machine that is busy, other processes had their turn.
        warmup: Steps before them that are not.
        threads: CPU threads that train; None leaves torch's choice.

    Returns:
        Rows of `name`, `kind` ("quantum", "classical" or "other") and `seconds`, the median.
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
    """Adds up the seconds of each part of a step: always of the one that it was changed to last."""

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
    """Tells where a model's `QuantumLayer`s begin and end, forward by hooks, backward by the graph's.

    A module's own backward hooks would not do: where no gradient by the inputs is wanted, as of a circuit
    that reads the images, torch calls them before the work.

    Args:
        model: The model.
        change: Called with the part of PARTS that follows, such as "quantum forward".
    """

    def left(part: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> None:
        change("classical forward")
        for node in nodes_between(inputs, outputs):
            node.register_prehook(lambda *_: change("quantum backward"))
            node.register_hook(lambda *_: change("classical backward"))

    with contextlib.ExitStack() as hooks:
        for part in (each for each in model.modules() if isinstance(each, QuantumLayer)):
            hooks.callback(part.register_forward_pre_hook(lambda *_: change("quantum forward")).remove)
            hooks.callback(part.register_forward_hook(left).remove)
        yield


def nodes_between(inputs: tuple[Any, ...], outputs: Tensor) -> list[Any]:
    """The graph's nodes that lead from the inputs, or from weights, to the outputs."""
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
    """A step for `race`: a full training step of a recipe's net with changed settings.

    The net is built when the step is first taken, which fails where the recipe has no such setting.
    Simulators that run one circuit after another take fewer samples.

    Args:
        config: The recipe.
        splits: Its data.
        settings: What is changed; {} is the step that training takes.
        device: Where to compute, where the settings name no `device`.
        threads: CPU threads; None leaves torch's own number.
    """
    place = torch.device(settings.get("device", device))
    size = min(settings.get("batch_size", config.batch_size), len(splits.train))
    if "lightning" in settings.get("backend", config.backend):
        with own_generators():
            model = recipes.made(config, splits, "", config.seed)
            size = min(size, max(2, CIRCUITS // max(1, circuits_per_image(model, splits.example()))))

    @cache
    def made() -> Callable[[], Any]:
        workload = of_recipe(config.override(**settings), splits)
        return partial(workload.stepper(place), workload.batch(size))

    def run() -> None:
        with own_generators():
            made()()

    return Step(run, place, threads, size)

"""Where a training step's time goes, and what it would take by other strategies: both measured here."""

from __future__ import annotations

import contextlib
import copy
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import recipes, train
from qnnkit.checkpoint import own_generators
from qnnkit.data import Splits
from qnnkit.layers import QuantumLayer, Quanv2d, circuits_per_image
from qnnkit.measure import clock
from qnnkit.measure.clock import Step
from qnnkit.measure.workload import of_recipe
from qnnkit.settings import Settings
from qnnkit.tasks import Task

PARTS = {
    "loading": "other",
    "transfer": "other",
    "classical forward": "classical",
    "quantum forward": "quantum",
    "classical backward": "classical",
    "quantum backward": "quantum",
    "optimizer": "other",
    "rest": "other",
}
"""Part of a step -> whose it is."""
CIRCUITS = 256
"""Circuits of a step that runs them one by one, about: it has fewer samples."""
Around = tuple[Callable[[], None], Callable[[], None]]
"""What is called before and after something."""


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

    A quantum part is all that a `Quanv2d`, or a `QuantumLayer` outside one, does from its inputs to its
    outputs. The device is waited for at each border, so a GPU is a little slower than in training, where work
    overlaps. Clipping, schedules and a float16 scaler are left out.

    Args:
        model: Left as it was; a copy is trained.
        task: Gives the loss.
        loader: Batches for the task; begun anew where it ends.
        config: Optimizer, step size, micro_batch and precision; the defaults without one.
        device: Where to compute.
        steps: Steps that are timed, at least.
        seconds: For how long steps are timed, at least. The fastest quarter counts: in the others, on a
            machine that is busy, other processes had their turn.
        warmup: Steps before them that are not.
        threads: CPU threads that train; None leaves torch's choice.

    Returns:
        Rows of `name`, `kind` ("quantum", "classical" or "other") and `seconds`, the median; `rest` is what
        the parts leave of the whole.
    """
    config, device = config or Settings(), torch.device(device)
    model, batches = copy.deepcopy(model), itertools.chain.from_iterable(itertools.repeat(loader))
    stepper = train.Stepper(model, task, config, recipes.parameter_groups(model, config), device)
    watch = _Watch(device)
    with own_generators(), clock.threads(threads), hooked(model, watch.begin, watch.leave):
        taken, spent = [], 0.0
        while len(taken) < warmup + steps or spent < seconds:
            taken.append(_timed_step(stepper, batches, watch))
            spent += taken[-1]["whole"] if len(taken) > warmup else 0.0
    taken = sorted(taken[warmup:], key=lambda row: row["whole"])
    taken = taken[: (len(taken) + 3) // 4]
    found = {name: statistics.median(row[name] for row in taken) for name in PARTS if name != "rest"}
    found["rest"] = statistics.median(row["whole"] for row in taken) - sum(found.values())
    return [{"name": name, "kind": kind, "seconds": found[name]} for name, kind in PARTS.items()]


def _timed_step(stepper: train.Stepper, batches: Iterator[Any], watch: _Watch) -> dict[str, float]:
    from accelerate.utils import send_to_device

    taken = dict.fromkeys(PARTS, 0.0)
    begin = last = watch.now()

    def done(name: str) -> None:
        nonlocal last
        start, last = last, watch.now()
        taken[name] += last - start

    batch = next(batches)
    done("loading")
    batch = send_to_device(batch, stepper.device)
    done("transfer")
    for compute in stepper.passes(batch):
        done("rest")
        loss = compute()
        done("classical forward")
        stepper.backward(loss)
        done("classical backward")
    stepper.update()
    done("optimizer")
    for way, seconds in watch.spent.items():
        taken[f"quantum {way}"] = seconds
        taken[f"classical {way}"] -= seconds
    watch.spent = dict.fromkeys(watch.spent, 0.0)
    return taken | {"whole": last - begin}


class _Watch:
    """Adds up the seconds inside a model's quantum parts, forward and backward."""

    def __init__(self, device: torch.device):
        self.now = partial(clock.now, device)
        self.spent, self.since = {"forward": 0.0, "backward": 0.0}, 0.0

    def begin(self) -> None:
        self.since = self.now()

    def end(self, way: str) -> None:
        self.spent[way] += self.now() - self.since

    def leave(self) -> Around:
        self.end("forward")
        return self.begin, partial(self.end, "backward")


@contextlib.contextmanager
def hooked(model: nn.Module, enter: Callable[[], None], leave: Callable[[], Around]) -> Iterator[None]:
    """Calls functions where a model's quantum parts begin and end, forward by hooks, backward by the graph's.

    A module's own backward hooks would not do: where no gradient by the inputs is wanted, as of a circuit
    that reads the images, torch calls them before the work.

    Args:
        model: The model.
        enter: Called before each part's forward pass.
        leave: Called after it; gives what is called before and after each node of its way back.
    """

    def left(part: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> None:
        begin, end = leave()
        for node in nodes_between(inputs, outputs):
            node.register_prehook(lambda *_: begin())
            node.register_hook(lambda *_: end())

    def entered(*_: Any) -> None:
        enter()

    with contextlib.ExitStack() as hooks:
        for part in quantum_parts(model):
            hooks.callback(part.register_forward_pre_hook(entered).remove)
            hooks.callback(part.register_forward_hook(left).remove)
        yield


def quantum_parts(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that are circuits and what feeds them."""
    if isinstance(model, QuantumLayer):
        return [model]
    if isinstance(model, Quanv2d) and any(isinstance(part, QuantumLayer) for part in model.modules()):
        return [model]
    found = [part for child in model.children() for part in quantum_parts(child)]
    return list(dict.fromkeys(found))  # a layer used in two places is one


def nodes_between(inputs: tuple[Any, ...], outputs: Tensor) -> list[Any]:
    """The graph's nodes that lead from the inputs, or from weights, to the outputs."""
    borders = {part.grad_fn for part in inputs if isinstance(part, Tensor) and part.grad_fn}
    waiting, found = [outputs.grad_fn], {}
    while waiting:
        node = waiting.pop()
        if node is None or node in borders or node in found or hasattr(node, "variable"):
            continue  # a leaf's node, which adds to its gradient, is the only one with a variable
        found[node] = None
        waiting += [below for below, _ in node.next_functions]
    return list(found)


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
    place, made = torch.device(settings.get("device", device)), list[Callable[[], Any]]()
    size = min(settings.get("batch_size", config.batch_size), len(splits.train))
    if "lightning" in settings.get("backend", config.backend):
        with own_generators():
            model = recipes.made(config, splits, "", config.seed)
            size = min(size, max(2, CIRCUITS // max(1, circuits_per_image(model, splits.example()))))

    def run() -> None:
        if not made:
            workload = of_recipe(config.override(**settings), splits)
            made.append(partial(workload.stepper(place), workload.batch(size)))
        with own_generators():
            made[0]()

    return Step(run, place, threads, size)

"""Where a training step's time goes, and what it would take by other strategies: all of it measured here."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import recipes, train, words, workspace
from qnnkit.checkpoint import own_generators
from qnnkit.data import Splits
from qnnkit.layers import Given, QuantumLayer, Quanv2d, circuits_by_layer, circuits_per_image
from qnnkit.measure import clock
from qnnkit.measure.clock import Lap, Step
from qnnkit.measure.placement import devices
from qnnkit.measure.workload import EARLY, Workload, of_recipe
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
LAYERS = (1, 2, 3)
MOST_ROUNDS = 200
TIMED = 2
"""Images whose circuits are run one by one, at most."""
WARMUP, STEPS, COSTLIEST = 3, 10, 10
"""Of a profile: updates before it, updates in it, and operations in its table."""
NO_FEATURES = (
    "This model takes no features in place of its data.",
    "Augmentation makes other images in every epoch, so nothing can be computed before.",
)
"""Why nothing is computed before training: without augmentation, and with it."""
Around = tuple[Callable[[], None], Callable[[], None]]
"""What is called before and after something."""


# --- by part ------------------------------------------------------------------------------------------------


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
    watch = _Clock(device)
    with own_generators(), clock.threads(threads), hooked(model, watch.enter, watch.leave):
        taken, spent = [], 0.0
        while len(taken) < warmup + steps or spent < seconds:
            taken.append(_timed_step(stepper, batches, watch))
            spent += taken[-1]["whole"] if len(taken) > warmup else 0.0
    taken = sorted(taken[warmup:], key=lambda row: row["whole"])
    taken = taken[: (len(taken) + 3) // 4]
    found = {name: statistics.median(row[name] for row in taken) for name in PARTS if name != "rest"}
    found["rest"] = statistics.median(row["whole"] for row in taken) - sum(found.values())
    return [{"name": name, "kind": kind, "seconds": found[name]} for name, kind in PARTS.items()]


def _timed_step(stepper: train.Stepper, batches: Iterator[Any], watch: _Clock) -> dict[str, float]:
    from accelerate.utils import send_to_device

    taken = dict.fromkeys(PARTS, 0.0)
    begin = last = watch.now()

    def done(name: str) -> None:
        nonlocal last
        start, last = last, watch.now()
        taken[name] += last - start

    batch = next(batches)
    done("loading")
    batch = send_to_device(batch, watch.device)
    done("transfer")
    for compute in stepper.passes(batch):
        done("rest")
        loss = compute()
        done("classical forward")
        stepper.backward(loss)
        done("classical backward")
    stepper.update()
    done("optimizer")
    for way, seconds in watch.spent().items():
        taken[f"quantum {way}"] = seconds
        taken[f"classical {way}"] -= seconds
    return taken | {"whole": last - begin}


class _Clock:
    """Adds up the time inside a model's quantum parts, forward and backward."""

    def __init__(self, device: torch.device):
        self.device = device
        self.spans: dict[str, list[list[float]]] = {"forward": [], "backward": []}
        """Begin and end of each use of a part, on either way."""

    def now(self) -> float:
        return clock.now(self.device)

    def enter(self) -> None:
        self.spans["forward"].append([self.now()])

    def leave(self) -> Around:
        self.spans["forward"][-1].append(self.now())
        span: list[float] = []
        self.spans["backward"].append(span)

        def begin() -> None:
            span[:] = span or [self.now()] * 2

        def end() -> None:
            span[1] = self.now()

        return begin, end

    def spent(self) -> dict[str, float]:
        """Seconds inside the quantum parts since the last call, on either way."""
        found = {way: sum(span[1] - span[0] for span in its if span) for way, its in self.spans.items()}
        for its in self.spans.values():
            its.clear()
        return found


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


def strategies(
    config: Settings,
    splits: Splits,
    *,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    seconds: float = 60.0,
) -> list[dict[str, Any]]:
    """What people try to make training faster, each measured on this machine, one change at a time.

    The first row is the step that training takes; each other one has all of it, augmentation and micro_batch
    too, but for its one change.

    Args:
        config: The recipe that is changed.
        splits: The data; an epoch is all of its training split.
        device: Where to compute.
        threads: CPU threads; None leaves torch's own number.
        seconds: For the whole table, about; tracing circuits comes on top, a second or so each.

    Returns:
        Rows of `group`, `name`, `change`, `seconds_per_sample`, `seconds_per_epoch`, `seconds_in_all` (for
        the epochs that are asked for; None where it was not measured) and `why` it was not.
    """
    bench = _Bench(config, splits, torch.device(device), threads)
    with own_generators():
        example = splits.example()
        model = recipes.made(config, splits, "", config.seed)
        hybrid = circuits_per_image(model, example) > 0
        found = {name: (group, name, change, step) for group, name, change, step in bench.steps(hybrid)}
        steps = {name: step for name, (*_, step) in found.items() if step}
        laps = clock.race(steps, seconds=seconds / 2, rounds=MOST_ROUNDS)
        if "lightning.qubit" in found:
            laps["lightning.qubit"] = bench.one_by_one(model, example, seconds / 100)
    few = Lap(None, why=f"The training split has {len(splits.train)} samples only.")
    rows = []
    for name, (group, _, change, _) in found.items():
        lap = laps.get(name, few)
        epoch = None if lap.seconds is None else lap.seconds * len(splits.train)
        rows.append({"group": group, "name": name, "change": change, "seconds_per_sample": lap.seconds})
        rows[-1] |= {"seconds_per_epoch": epoch, "seconds_in_all": epoch and epoch * config.epochs}
        rows[-1]["why"] = lap.why
    return rows


@dataclass
class _Bench:
    config: Settings
    splits: Splits
    place: torch.device
    threads: int | None

    def steps(self, hybrid: bool) -> Iterator[tuple[str, str, str, Step | None]]:
        """Group, name, what is changed, and the step; None where it is timed otherwise, or not at all."""
        config, known = self.config, type(self.config).model_fields
        yield "run", "as it is", self.description(), self.step()
        if hybrid:
            alone = "Each circuit by itself; the circuits alone, scaled up from a few."
            whole = "All circuits of a batch at once,"
            yield "simulator", "lightning.qubit", alone, None
            yield "simulator", "default.qubit", f"{whole} gate by gate.", self.step(backend="default.qubit")
            yield "simulator", "batched", f"{whole} as a fused program.", self.step(backend="batched")
        places = devices("auto", config.precision)
        for name in places if len(places) > 1 else ():
            yield "device", name, f"All of the net on {name}.", self.step(torch.device(name))
        own = config.batch_size
        for size in dict.fromkeys((max(1, own // 2), own, 2 * own, 4 * own)):
            step = self.step(batch_size=size) if size <= len(self.splits.train) else None
            yield "batch", f"batch {size}", f"{size} samples a step.", step
        for n in LAYERS if hybrid and "n_layers" in known else ():
            yield "layers", f"n_layers {n}", f"Layers of the ansatz: {n}.", self.step(n_layers=n)
        if hybrid and "trainable" in known:
            change = "The circuit stays as it is drawn, and runs in every step."
            yield "circuit", "frozen", change, self.step(cached=False, trainable=False)
        if hybrid:
            frozen: dict[str, Any] = {"trainable": False, "frozen_backbone": True}
            frozen = {name: value for name, value in frozen.items() if name in known}
            change = "What is frozen is computed once, before training."
            yield "circuit", "frozen, cached", change, self.step(cached=None, **frozen)
        for precision in ("float32", "bfloat16"):
            change = f"Classical layers compute in {precision}{'; circuits stay in float32' * hybrid}."
            yield "precision", precision, change, self.step(precision=precision)

    def description(self) -> str:
        """The step that training takes, in a sentence."""
        config, augmentation = self.config, getattr(self.config, "augmentation", "none")
        pieces = f" in pieces of {config.micro_batch}" if config.micro_batch else ""
        what = [str(self.place), config.precision, f"batch {config.batch_size}{pieces}"]
        what += [f"{self.threads} thread{'s' * (self.threads > 1)}"] if self.threads else []
        what += [f"augmentation {augmentation}"] if augmentation != "none" else []
        return f"Nothing is changed: {', '.join(what)}."

    def step(self, place: torch.device | None = None, *, cached: bool | None = True, **settings: Any) -> Step:
        """A full training step of the net with these settings, which is built when it is first taken.

        Args:
            place: Where to compute; the run's own by default.
            cached: As for `of_recipe`; None where it is refused if nothing can be computed before.
            **settings: What is changed.
        """
        place, made, n_samples = place or self.place, [], len(self.splits.train)
        size = min(settings.get("batch_size", self.config.batch_size), n_samples)

        def run() -> None:
            if not made:
                config = self.config.override(**settings)
                workload = of_recipe(config, self.splits, cached=cached is not False)
                if cached is None and EARLY not in workload.notes:
                    augmented = getattr(config, "augmentation", "none") != "none"
                    raise ValueError(NO_FEATURES[augmented])
                made.append(partial(workload.stepper(place), workload.batch(size)))
            made[0]()

        return Step(run, place, self.threads, size)

    def one_by_one(self, model: nn.Module, example: Any, seconds: float) -> Lap:
        try:
            with clock.threads(self.threads):
                return Lap(one_by_one(model, example, seconds=seconds))
        except (ValueError, RuntimeError) as error:
            return Lap(None, why=f"{words.first_line(error)}.")


def one_by_one(
    model: nn.Module, image: Given, *, backend: str = "lightning.qubit", seconds: float = 0.5
) -> float:
    """Seconds per image of a model's circuits one by one, scaled up from a few; backward if they train.

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
    total = 0.0
    for (n_features, *_), alike in kinds.items():
        slow = alike[0][0].with_qnode(alike[0][0].qnode, backend).cpu()
        trains = any(weight.requires_grad for weight in slow.parameters())
        per_image = sum(n for _, n in alike)
        run, cpu = partial(_run, slow, n_features, trains), torch.device("cpu")
        one_round = clock.spread(partial(run, 4), cpu, rounds=1).median
        n = max(1, min(TIMED * per_image, int(4 * seconds / one_round)))
        total += clock.spread(partial(run, n), cpu).median / n * per_image
    return total


def _run(layer: QuantumLayer, n_features: int, trains: bool, n_circuits: int) -> None:
    values = layer(torch.ones(n_circuits, n_features))
    if trains:
        values.sum().backward()


# --- by operation -------------------------------------------------------------------------------------------


def operations(
    workload: Workload,
    device: torch.device | str = "cpu",
    *,
    threads: int | None = None,
    trace: Path | None = None,
) -> str:
    """The costliest operations of some training steps, as torch.profiler's own table.

    Args:
        workload: Whose steps.
        device: Where to compute.
        threads: CPU threads; None leaves torch's own number.
        trace: Where a trace is written, for `chrome://tracing` or https://ui.perfetto.dev; zipped where its
            name ends in `.gz`.

    Raises:
        OSError: The trace cannot be written.
    """
    from torch import profiler

    stepper, batch = workload.stepper(device), workload.batch()
    cuda = stepper.device.type == "cuda"
    kinds = [profiler.ProfilerActivity.CPU] + [profiler.ProfilerActivity.CUDA] * cuda
    with own_generators(), clock.threads(threads):
        for _ in range(WARMUP):
            stepper(batch)
        with profiler.profile(activities=kinds) as recorded:
            for _ in range(STEPS):
                stepper(batch)
            clock.synchronize(stepper.device)
    if trace is not None:
        workspace.make_folder(trace.parent)
        draft = trace.with_name(f".{os.getpid()}.{trace.name}")  # whole or not at all
        recorded.export_chrome_trace(str(draft))
        draft.replace(trace)
    by = "self_device_time_total" if cuda else "self_cpu_time_total"
    return recorded.key_averages().table(sort_by=by, row_limit=COSTLIEST, max_name_column_width=40)

"""Where a training step's time goes: measured, part by part."""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import measure, train
from qnnkit.checkpoint import own_generators
from qnnkit.measure.memory import nodes_between, quantum_parts
from qnnkit.recipes import parameter_groups
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


@dataclass(frozen=True)
class Part:
    """One part of a training step."""

    name: str
    kind: str
    """"quantum", "classical" or "other"."""
    seconds: float
    """Median over the fastest quarter of the steps; `rest` is what they leave of the whole."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def step(
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
) -> list[Part]:
    """Where the time of one training step goes, in the order in which it is spent.

    A quantum part is all that a `Quanv2d`, or a `QuantumLayer` outside one, does from its inputs to its
    outputs. The device is waited for at each border, so a GPU is a little slower than in training, where work
    overlaps. Clipping, schedules and a float16 scaler are left out.

    Args:
        model: Left as it was; a copy is trained.
        task: Gives the loss.
        loader: Batches for the task; begun anew where it ends.
        config: Optimizer, step size and precision; the defaults without one.
        device: Where to compute.
        steps: Steps that are timed, at least.
        seconds: For how long steps are timed, at least. The fastest quarter counts: in the others, on a
            machine that is busy, other processes had their turn.
        warmup: Steps before them that are not.
        threads: CPU threads that train; None leaves torch's choice.
    """
    config, device = config or Settings(), torch.device(device)
    model, batches = copy.deepcopy(model), _endless(loader)
    stepper = train.Stepper(model, task, config, parameter_groups(model, config), device)
    with own_generators(), measure.threads(threads), _Clock(model, device) as clock:
        taken, spent = [], 0.0
        while len(taken) < warmup + steps or spent < seconds:
            taken.append(_timed_step(stepper, batches, clock))
            spent += taken[-1]["whole"] if len(taken) > warmup else 0.0
    taken = sorted(taken[warmup:], key=lambda row: row["whole"])
    taken = taken[: (len(taken) + 3) // 4]
    found = {name: statistics.median(row[name] for row in taken) for name in PARTS if name != "rest"}
    found["rest"] = statistics.median(row["whole"] for row in taken) - sum(found.values())
    return [Part(name, kind, found[name]) for name, kind in PARTS.items()]


def _timed_step(stepper: train.Stepper, batches: Iterator[Any], clock: _Clock) -> dict[str, float]:
    from accelerate.utils import send_to_device

    clock.quantum_forward = clock.quantum_backward = 0.0
    start = clock.now()
    batch = next(batches)
    loaded = clock.now()
    batch = send_to_device(batch, clock.device)
    moved = clock.now()
    forward = backward = 0.0
    for compute in stepper.passes(batch):
        begin = clock.now()
        loss = compute()
        computed = clock.now()
        stepper.backward(loss)
        forward, backward = forward + computed - begin, backward + clock.now() - computed
    update = clock.now()
    stepper.update()
    end = clock.now()
    clock.close_spans()
    return {
        "loading": loaded - start,
        "transfer": moved - loaded,
        "classical forward": forward - clock.quantum_forward,
        "quantum forward": clock.quantum_forward,
        "classical backward": backward - clock.quantum_backward,
        "quantum backward": clock.quantum_backward,
        "optimizer": end - update,
        "whole": end - start,
    }


class _Clock:
    """Adds up the time inside a model's quantum parts, forward by hooks and backward by those of the graph.

    A module's own backward hooks would not do: where no gradient by the inputs is wanted, as of a circuit
    that reads the images, torch calls them before the work.
    """

    def __init__(self, model: nn.Module, device: torch.device):
        self.model, self.device = model, device
        self.quantum_forward = self.quantum_backward = 0.0
        self.spans: list[list[float]] = []  # of each use of a part: begin and end of its way back
        self.entered: list[float] = []
        self.handles: list[Any] = []

    def now(self) -> float:
        measure.synchronize(self.device)
        return time.perf_counter()

    def __enter__(self) -> _Clock:
        for part in quantum_parts(self.model):
            self.handles.append(part.register_forward_pre_hook(self._enter))
            self.handles.append(part.register_forward_hook(self._leave))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def close_spans(self) -> None:
        """Adds what the backward pass has marked."""
        self.quantum_backward = sum(span[1] - span[0] for span in self.spans if span)
        self.spans = []

    def _enter(self, part: nn.Module, inputs: Any) -> None:
        self.entered.append(self.now())

    def _leave(self, part: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> None:
        self.quantum_forward += self.now() - self.entered.pop()
        span: list[float] = []
        self.spans.append(span)

        def begin(*_: Any) -> None:
            if not span:
                span.extend([self.now()] * 2)

        def end(*_: Any) -> None:
            span[1] = self.now()

        for node in nodes_between(inputs, outputs):
            node.register_prehook(begin)
            node.register_hook(end)


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))

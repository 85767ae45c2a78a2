"""Language models of many equal layers: traced with a few of them, from which the rest follows.

In a training step what lives grows by the same amount with each layer that has been passed, forward and
backward. So at every place that is named from the first layers or from the last ones memory is linear in the
number of layers, and what lives between them is never more than at both ends. The peak is the largest of
these places at the full number; work is linear as a whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit.plan.ledger import Ledger
from qnnkit.plan.prediction import Work

FEW = 3
"""Layers that are run, and then one more: a first, a last, and one between them that is like all others."""
ENDS = 2
"""Layers that have a place of their own, at each end."""


@dataclass(frozen=True)
class Seen:
    """What a step was seen to hold and do."""

    peaks: Mapping[Hashable, Mapping[str, int]]
    """Place in the step -> part -> bytes at its peak there."""
    work: Work
    held: Mapping[str, int]
    """Part -> bytes after the step."""


def followed(model: nn.Module, step: Callable[[nn.ModuleList | None], Seen]) -> Seen:
    """A step of the whole model; of one with many equal layers, all but a few of which are taken out for it.

    Args:
        model: Not to be used any more.
        step: Traces it as it then is, by the layers that are left in a stack, if there is one.
    """
    layers = stack(model)
    if layers is None:
        return step(None)
    n = len(layers)
    del layers[FEW + 1 :]
    more = step(layers)
    del layers[FEW:]
    few = step(layers)
    more_layers = n - FEW

    def at(less: float, more: float) -> int:
        return round(less + more_layers * (more - less))

    def each(less: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
        return {part: at(less.get(part, 0), more.get(part, 0)) for part in {**less, **more}}

    work = Work(*(at(getattr(few.work, name), getattr(more.work, name)) for name in vars(few.work)))
    peaks = {place: each(few.peaks[place], more.peaks[place]) for place in few.peaks}
    return Seen(peaks, work, each(few.held, more.held))


def stack(model: nn.Module) -> nn.ModuleList | None:
    """The layers of a causal language model, where they are equal and many."""
    if not callable(getattr(model, "generate", None)):
        return None
    found = list(_outermost(model))
    if len(found) != 1 or len(found[0]) <= 2 * FEW + 1:
        return None  # as quick as it is
    first, *others = (_likeness(layer) for layer in found[0])
    return found[0] if all(other == first for other in others) else None


def _outermost(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outermost(child)


def _likeness(layer: nn.Module) -> list[Any]:
    """Equal for layers that hold and do the same."""
    plain = (int, float, str, bool, torch.dtype)
    kinds = [
        (name, type(part), {k: v for k, v in vars(part).items() if isinstance(v, plain) and k != "layer_idx"})
        for name, part in layer.named_modules()
    ]
    weights = [
        (name, tuple(weight.shape), weight.dtype, weight.requires_grad)
        for name, weight in layer.named_parameters()
    ]
    return [kinds, weights]


@contextlib.contextmanager
def placing(ledger: Ledger, layers: nn.ModuleList) -> Iterator[None]:
    """Tells a ledger which of the layers a step is in, forward and backward."""
    n = len(layers)

    def names(index: int) -> list[Hashable]:
        return [*([index] if index < ENDS else []), *([index - n] if index >= n - ENDS else [])]

    with contextlib.ExitStack() as hooks:
        for index, layer in enumerate(layers):

            def enter(*_: Any, index: int = index) -> None:
                if ledger.part[0] == "forward":  # a layer that is computed again is on its way back
                    ledger.within(names(index))

            def leave(layer: nn.Module, inputs: Any, outputs: Any, *, index: int = index) -> None:
                if ledger.part[0] != "forward":
                    return
                output = outputs if isinstance(outputs, Tensor) else outputs[0]
                if output.requires_grad:
                    output.register_hook(lambda gradient: ledger.within(names(index)))
                if index == n - 1:
                    ledger.within(["after"])

            hooks.callback(layer.register_forward_pre_hook(enter).remove)
            hooks.callback(layer.register_forward_hook(leave).remove)
        yield

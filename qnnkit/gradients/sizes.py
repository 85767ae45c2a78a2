"""How large the gradient of each parameter is, on one batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import layers
from qnnkit.checkpoint import own_generators
from qnnkit.tasks import Task


@dataclass(frozen=True)
class Size:
    """How large the gradient of one parameter is."""

    parameter: str
    kind: str
    """"quantum" or "classical"."""
    n_weights: int
    norm: float
    """Euclidean norm over the weights."""
    mean: float
    """Mean absolute value of a single weight's gradient."""


def sizes(model: nn.Module, task: Task, batch: Any) -> list[Size]:
    """The gradient of the task's loss on one batch, parameter by parameter; the model is left as it was.

    Args:
        model: In training mode or not, as it is given.
        task: Gives the loss.
        batch: As the task takes it, on the model's device.
    """
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not named:
        return []
    quantum = {id(weight) for weight in layers.quantum_parameters(model)}
    with _left_as_it_was(model):
        gradients = torch.autograd.grad(task(model, batch).loss, list(named.values()), allow_unused=True)
    rows = []
    for (name, weight), gradient in zip(named.items(), gradients, strict=True):
        gradient = torch.zeros_like(weight) if gradient is None else gradient.cpu().double()
        kind = "quantum" if id(weight) in quantum else "classical"
        rows.append(Size(name, kind, weight.numel(), float(gradient.norm()), float(gradient.abs().mean())))
    return rows


def of_weights(layer: nn.Module, model: nn.Module, task: Task, batch: Any) -> Tensor:
    """The same gradient, weight by weight, for one layer of the model, which is left as it was too.

    Args:
        layer: A part of the model.
        model: In training mode or not, as it is given.
        task: Gives the loss.
        batch: As the task takes it, on the model's device.

    Returns:
        Of shape (n_weights,), float64, on the CPU, in the order of `layer.parameters()`; zero for a weight
        that is not trained.
    """
    every = list(layer.parameters())
    trained = [weight for weight in every if weight.requires_grad]
    found = {}
    if trained:
        with _left_as_it_was(model):
            loss = task(model, batch).loss
            parts = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        found = {id(weight): part for weight, part in zip(trained, parts, strict=True)}
    flat = [found.get(id(weight), torch.zeros_like(weight)).flatten() for weight in every]
    return torch.cat(flat).cpu().double()


@contextlib.contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """What a pass in training mode changes is put back: running means of a normalisation, generators."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with own_generators():
            yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)

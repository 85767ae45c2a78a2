"""The loss around the weights that a net has, along lines through them, many points at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from qnnkit import checks, layers
from qnnkit.layers import QuantumLayer
from qnnkit.tasks import Task

STATE_BYTES = 2**24
"""Of all circuits' states for the points that are computed at once: about what a CPU's cache holds."""
MOST_AT_ONCE = 512
FLAT = 0.01
"""A loss that changes by less than this share, however the angles are turned, hardly hangs on them."""


@dataclass(frozen=True)
class Landscape:
    """The loss on lines through the circuits' trainable weights, with the net as it is in the middle."""

    offsets: np.ndarray
    """Distance from the middle, in radians: root mean square over the weights; of shape (n_points,)."""
    names: tuple[str, ...]
    """Of the directions."""
    losses: np.ndarray
    """Of shape (n_directions, n_points)."""
    centre: float
    """The loss in the middle."""
    n_weights: int
    n_samples: int
    layers: tuple[str, ...]
    """Whose weights were moved."""

    @property
    def sentence(self) -> str:
        """What the slice says of the circuit's share in the loss."""
        low, high = float(self.losses.min()), float(self.losses.max())
        where = f"within {self.offsets.max():.2g} rad (root mean square) of the weights as they are"
        if high - low < FLAT * max(abs(self.centre), 1e-12):
            told = f"The loss of {self.centre:.4g} changes by less than {100 * FLAT:g} % {where}"
            return f"{told}: the net hardly uses its circuit."
        at = "is the lowest" if self.centre <= low + 1e-6 * abs(low) else f"is not the lowest ({low:.4g})"
        return f"The loss of {self.centre:.4g} {at} of the slice, and rises to {high:.4g} {where}."


def lines(
    model: nn.Module,
    task: Task,
    batch: Any,
    *,
    radius: float = math.pi,
    n_points: int = 61,
    n_random: int = 2,
    seed: int = 0,
) -> Landscape | None:
    """The loss along its own gradient and along random directions of the circuits' trainable weights.

    Frozen weights are not moved: training cannot go there.

    Args:
        model: In any mode; it is left as it was, and looked at in evaluation mode.
        task: Gives the loss.
        batch: As the task takes it, on the model's device.
        radius: How far to go both ways, in radians (root mean square over the weights).
        n_points: On each line, odd, so that the middle is one.
        n_random: Random directions, orthogonal to each other.
        seed: Fixes these.

    Returns:
        None for a model without trainable weights in circuits. A gradient of zero has no direction, and no
        line.

    Reference: Goodfellow et al. (2015), arXiv:1412.6544, and Li et al. (2018), arXiv:1712.09913, sec. 2.
    """
    if n_random < 0:
        raise ValueError(checks.message("n_random", "be 0 or more", n_random, "0 leaves the gradient alone."))
    names, start = _weights(model)
    if not names:
        return None
    with layers.evaluating(model), torch.enable_grad():
        moved = {name: start[name].clone().requires_grad_() for name in names}
        loss = task(_WithWeights(model, moved), batch).loss
        found = torch.autograd.grad(loss, list(moved.values()), allow_unused=True, materialize_grads=True)
    gradient = torch.cat([part.flatten() for part in found]).double().cpu()
    random = _orthonormal(gradient.numel(), n_random, seed)
    directions = {f"random {i + 1}": direction for i, direction in enumerate(random)}
    if float(gradient.norm()) > 0:
        directions = {"along the gradient": gradient / gradient.norm(), **directions}
    if not directions:
        rule, step = "be at least 1 where the gradient is zero", "There is no other direction to go."
        raise ValueError(checks.message("n_random", rule, n_random, step))
    offsets = _offsets(radius, n_points)
    points = torch.stack([offsets[:, None] * direction for direction in directions.values()])
    return _landscape(model, task, batch, offsets, tuple(directions), points)


def _weights(model: nn.Module) -> tuple[list[str], dict[str, Tensor]]:
    """Names of the circuits' weights that train, and all weights of the model by name."""
    quantum = {id(weight) for weight in layers.quantum_parameters(model) if weight.requires_grad}
    every = dict(model.named_parameters())
    return [name for name, weight in every.items() if id(weight) in quantum], {
        name: weight.detach() for name, weight in every.items()
    }


def _orthonormal(n: int, n_directions: int, seed: int) -> list[Tensor]:
    """Random unit vectors of length n, orthogonal to each other as far as there is room."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(n, n_directions, generator=generator, dtype=torch.float64)
    if n_directions <= n:
        drawn = torch.linalg.qr(drawn).Q
    return list((drawn / drawn.norm(dim=0)).T)


def _offsets(radius: float, n_points: int) -> Tensor:
    if n_points < 3 or n_points % 2 == 0:
        step = "Choose 31 or 61, say: the middle is the net as it is."
        raise ValueError(checks.message("n_points", "be odd and at least 3", n_points, step))
    if not (0 < radius < math.inf):
        step = "pi reaches every angle there is."
        raise ValueError(checks.message("radius", "be above 0 and finite, in radians", radius, step))
    return torch.linspace(-radius, radius, n_points, dtype=torch.float64)


class _WithWeights(nn.Module):
    """A model with some of its weights exchanged, for a task to call."""

    def __init__(self, model: nn.Module, weights: dict[str, Tensor]):
        super().__init__()
        self.__dict__["model"], self.__dict__["weights"] = model, weights  # no part: it stays as it is
        self.training = model.training

    def forward(self, *inputs: Any) -> Any:
        return functional_call(self.__dict__["model"], self.__dict__["weights"], inputs)


def _landscape(
    model: nn.Module, task: Task, batch: Any, offsets: Tensor, told: tuple[str, ...], points: Tensor
) -> Landscape:
    """The loss at each of the points, of shape (n, n_points, n_weights), in multiples of unit directions.

    What comes before the circuits is the same for all points, and computed once for those that run together.
    """
    names, start = _weights(model)
    sizes = [start[name].numel() for name in names]

    def loss(moved: Tensor) -> Tensor:
        parts = zip(names, moved.split(sizes), strict=True)
        weights = {name: start[name] + part.view(start[name].shape) for name, part in parts}
        return task(_WithWeights(model, weights), batch).loss

    with layers.evaluating(model):
        circuits = layers.circuit_inputs(model, batch[0])  # also traces what has not run yet
        # Scaled so that an offset is a root mean square over the weights.
        at = (points * math.sqrt(sum(sizes))).flatten(0, 1).to(start[names[0]])
        if all(layer.backend == "batched" for layer in circuits):
            found = vmap(loss, chunk_size=_at_once(circuits))(at)
        else:  # PennyLane's devices follow no functional transform
            found = torch.stack([loss(point) for point in at])
    losses = found.double().cpu().numpy().reshape(points.shape[:2])
    centre = float(losses[0, len(offsets) // 2])
    owners = tuple(dict.fromkeys(name.rpartition(".")[0] or "layer" for name in names))
    return Landscape(offsets.numpy(), told, losses, centre, sum(sizes), len(batch[0]), owners)


def _at_once(circuits: dict[QuantumLayer, Tensor]) -> int:
    """How many points to compute together."""
    state_bytes = sum(
        len(rows) * 2 ** len(layer.qnode.device.wires or (0,)) * 8 for layer, rows in circuits.items()
    )
    return max(4, min(MOST_AT_ONCE, STATE_BYTES // max(1, state_bytes)))

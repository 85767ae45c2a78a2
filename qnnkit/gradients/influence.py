"""How far a circuit's outputs change with its weights and with its inputs, whatever reads them."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math

import pennylane as qp
import torch
from torch import Tensor

from qnnkit.layers import QuantumLayer

SAME = 1e-9
"""Largest difference, in float64, of outputs that are called equal."""
MOST_ROWS = 256
"""Rows of inputs that are looked at, evenly spaced."""
MIXTURES = 4
"""Random signs of the outputs, over which the square of a derivative is averaged."""
MOST_NAMES = 8


def of_weights(layer: QuantumLayer, rows: Tensor) -> float:
    """Derivative of an output by a weight that trains, root mean square over rows, outputs and weights.

    Random signs make one pass backwards do for all outputs: products of two different ones average out.

    Args:
        layer: Its shots are left away.
        rows: Of shape (n_rows, n_features).
    """
    exact, rows = exact_copy(layer), few(rows)
    trained = [weight for weight in exact.parameters() if weight.requires_grad]
    with torch.enable_grad():
        outputs = as_real(exact(rows))
        generator = torch.Generator().manual_seed(0)
        squares = 0.0
        for _ in range(MIXTURES):
            signs = torch.randint(0, 2, outputs.shape, generator=generator).to(outputs) * 2 - 1
            parts = torch.autograd.grad(
                outputs, trained, signs, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            squares += sum(float(part.square().sum()) for part in parts) / MIXTURES
    return math.sqrt(squares / outputs.numel() / sum(weight.numel() for weight in trained))


def of_inputs(name: str, layer: QuantumLayer, rows: Tensor) -> list[str]:
    """Whether a circuit sees what it is given, in sentences; [] where it does, or one row cannot tell.

    Args:
        name: Of the layer.
        layer: Its shots are left away.
        rows: What it was given, of shape (n_rows, n_features).
    """
    rows = few(rows)
    if len(rows) < 2:
        return []
    if bool((rows == rows[0]).all()):
        return [f"`{name}` gives the same for every sample: its inputs are all equal."]
    now, anywhere = exact_copy(layer), exact_copy(layer, elsewhere=True)
    told = [j for j in range(rows.shape[1]) if bool((rows[:, j] != rows[0, j]).any())]
    silent = [j for j in told if not _felt(now, rows, j) and not _felt(anywhere, rows, j)]
    if silent and len(silent) == len(told):
        return [f"`{name}` gives the same for every sample: its inputs do not reach an angle."]
    if silent:
        which = ", ".join(map(str, silent[:MOST_NAMES])) + (", ..." if silent[MOST_NAMES:] else "")
        many = len(silent) > 1
        return [
            f"Feature{'s' * many} {which} of `{name}`'s inputs (counted from 0) change{'s' * (not many)} "
            "nothing that is measured, at any weights."
        ]
    with torch.no_grad():
        outputs = now(rows)
    if bool(((outputs - outputs[0]).abs() < SAME).all()):
        return [f"`{name}` gives the same for every sample, at the weights as they are."]
    return []


def _felt(layer: QuantumLayer, rows: Tensor, feature: int) -> bool:
    """Whether an output changes when the rows exchange one of their features."""
    moved = rows.clone()
    moved[:, feature] = rows[:, feature].roll(1)
    with torch.no_grad():
        try:
            return bool(((layer(moved) - layer(rows)).abs() > SAME).any())
        except ValueError:  # such as amplitudes, whose norm must stay 1
            return True


def exact_copy(layer: QuantumLayer, *, elsewhere: bool = False) -> QuantumLayer:
    """A copy in float64 on the CPU, without shots; elsewhere: with random angles as weights."""
    qnode = layer.qnode
    if qnode.shots.total_shots is not None:
        qnode = qp.set_shots(qnode.update(diff_method="best"), None)
    copy = layer.with_qnode(qnode).cpu().double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in copy.parameters() if elsewhere else ():
            weight.copy_(2 * torch.pi * torch.rand(weight.shape, generator=generator))
    return copy


def few(rows: Tensor, most: int = MOST_ROWS) -> Tensor:
    """At most so many rows, evenly spaced, in float64 on the CPU."""
    return rows[:: -(-len(rows) // most)].cpu().double()


def as_real(outputs: Tensor) -> Tensor:
    """Outputs of which a state's amplitudes are two numbers each."""
    return torch.view_as_real(outputs) if outputs.is_complex() else outputs

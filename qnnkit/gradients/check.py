"""Are the gradients right: asked before hours are spent on training."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks, circuits, words
from qnnkit.gradients.reach import circuits_of, weight_names
from qnnkit.layers import EXACT_DEVICES, QuantumLayer

METHODS: dict[str, dict[str, Any]] = {
    "backprop": {},
    "parameter-shift": {},
    "adjoint": {},
    # Central differences: the error falls with the square of the step, and 1e-4 leaves it near 1e-9.
    "finite-diff": {"h": 1e-4, "strategy": "center", "approx_order": 2},
    "fused": {},  # the kit's own program, where the others are PennyLane's
}
"""Method -> settings of PennyLane's `diff_method`. All run in float64, PennyLane's on `default.qubit`."""
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-7}
"""Largest error allowed by the precision of the layer. `default.qubit` reaches 1e-15 in float64, finite
differences 1e-9; through `lightning.qubit` a float64 gradient was seen to come back good to 2e-8 only."""


class GradientError(ArithmeticError):
    """A layer's gradient disagrees with an independent method."""


@dataclass(frozen=True)
class Comparison:
    """One layer's gradient by autograd, as training uses it, against one independent method."""

    layer: str
    method: str
    n_weights: int
    error: float
    """Largest difference over the weights, relative to the largest gradient if that is above 1."""
    worst: str
    """The weight with that difference, such as "weights[0, 2, 1]"."""
    tolerance: float
    seconds: float
    """Time of the independent method, for the given samples."""
    autograd_seconds: float
    weights: tuple[str, ...]
    """Names of all weights."""
    gradient: tuple[float, ...]
    """Of each weight, by the independent method."""
    autograd: tuple[float, ...]
    """Of each weight, as training uses it."""
    unavailable: str = ""
    """Why the method cannot differentiate this circuit; nothing was compared then."""

    @property
    def passed(self) -> bool:
        return bool(self.unavailable) or self.error <= self.tolerance  # false for NaN too

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for a table or a file; numbers that are not finite are None."""
        plain = {
            name: [_plain(each) for each in value] if isinstance(value, tuple) else _plain(value)
            for name, value in asdict(self).items()
        }
        return plain | {"passed": self.passed}


def check(model: nn.Module, *, samples: int = 4, seed: int = 0) -> list[Comparison]:
    """Compares every circuit's gradient by autograd with the fused program's and PennyLane's four methods.

    The gradient is that of a fixed random combination of all outputs, at random inputs in [0, pi], with
    respect to every weight of the layer. A circuit with a finite number of shots is looked at without: its
    gradient is an estimate of the exact one's.

    Args:
        model: Holds `QuantumLayer`s that have run once (so that the number of features is known).
        samples: Number of random inputs.
        seed: Fixes inputs and combination.

    Returns:
        One row per layer and method; none for a model without circuits, or for a circuit without weights.

    Raises:
        ValueError: A layer has not run yet.
    """
    return [
        row
        for name, layer in circuits_of(model).items()
        if layer.qnode_weights
        for row in _check_layer(name, layer, samples, seed)
    ]


def require(comparisons: Sequence[Comparison]) -> None:
    """Raises GradientError, in one sentence, at the first comparison that failed.

    So it does for a layer that no method could be compared with.
    """
    for row in comparisons:
        if not row.passed:
            raise GradientError(
                f"The gradient of `{row.layer}` by autograd must agree with {row.method} to "
                f"{row.tolerance:g}, but differs by {row.error:.3g} at {row.worst}. Do not train this net: "
                "change its circuit or its backend."
            )
    for layer, of_layer in itertools.groupby(comparisons, key=lambda row: row.layer):
        rows = [row for row in of_layer if row.method != "fused"]  # which may be what is on trial
        if all(row.unavailable for row in rows):
            raise GradientError(
                f"The gradient of `{layer}` must be compared with another method's, but none of PennyLane's "
                f"differentiates its circuit (backprop: {rows[0].unavailable}). Change what it measures."
            )


def _check_layer(name: str, layer: QuantumLayer, samples: int, seed: int) -> list[Comparison]:
    if layer.n_features is None:
        step = "Call the model on one batch, then check again."
        raise ValueError(checks.message(name, "have run once", "a layer that has not", step))
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.pi * torch.rand(samples, layer.n_features, generator=generator, dtype=torch.float64)
    weight = next(layer.parameters())
    qnode = layer.qnode if not layer.qnode.shots else qp.set_shots(layer.qnode, None)
    # A fresh copy: its weights need gradients even where the layer is frozen, and nothing is left behind.
    trainable = layer.with_qnode(qnode).requires_grad_(True)
    outputs = trainable(inputs.to(weight))  # traced in the first call, which is not timed
    mixture = torch.rand(outputs.shape, generator=generator, dtype=torch.float64) - 0.5
    ours, autograd_seconds = _gradient(trainable, [(inputs.to(weight), mixture)])
    names, rows = weight_names(layer), []
    for method in METHODS:
        unavailable, theirs, seconds = "", torch.full_like(ours, torch.nan), 0.0
        try:
            witness = _witness(method, layer, qnode, inputs[0])
            batches = [(inputs, mixture)]
            if method != "fused":  # parameter shifts and finite differences take no batches
                batches = list(zip(inputs, mixture, strict=True))
            theirs, seconds = _gradient(witness, batches)
        except Exception as error:  # whatever PennyLane raises where a method does not suit a circuit
            unavailable = words.error_line(error)
        errors = (ours - theirs).abs() / theirs.abs().max().clamp(min=1)
        rows.append(
            Comparison(
                layer=name,
                method=method,
                n_weights=ours.numel(),
                error=float(errors.max()),
                worst=names[int(errors.argmax())],
                tolerance=TOLERANCE[torch.promote_types(weight.dtype, torch.float32)],
                seconds=seconds,
                autograd_seconds=autograd_seconds,
                weights=tuple(names),
                gradient=tuple(theirs.tolist()),
                autograd=tuple(ours.tolist()),
                unavailable=unavailable,
            )
        )
    return rows


def _witness(method: str, layer: QuantumLayer, qnode: qp.QNode, row: Tensor) -> QuantumLayer:
    """A copy of the layer in float64 that computes its gradient in its own way, and has run once."""
    backend = "batched"
    if method != "fused":
        # On default.qubit wherever it knows the circuit: noise it does not, nor what only another device has.
        device, backend = circuits.make_device("default.qubit", qnode.device.wires), "default.qubit"
        if qnode.device.name not in EXACT_DEVICES and not _runs(layer, qnode.update(device=device), row):
            device, backend = qnode.device, "auto"
        qnode = qnode.update(device=device, diff_method=method, gradient_kwargs=METHODS[method])
    witness = layer.with_qnode(qnode, backend=backend)
    witness.requires_grad_(True).cpu().double()  # in this order: MPS has no float64
    if method == "fused":
        witness(row)  # traces the circuit, once
    return witness


def _runs(layer: QuantumLayer, qnode: qp.QNode, row: Tensor) -> bool:
    try:
        with torch.no_grad():
            layer.with_qnode(qnode, backend="default.qubit").cpu().double()(row)
    except Exception:
        return False
    return True


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _gradient(layer: QuantumLayer, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, float]:
    """Flat gradient of sum(outputs * mixture) by the layer's weights, in float64 on the CPU; and the seconds.

    Args:
        layer: Whose weights all need gradients.
        batches: Inputs and mixtures, whose sums are added.
    """
    start, weights, total = time.perf_counter(), list(layer.parameters()), torch.zeros(())
    for inputs, mixture in batches:
        outputs = layer(inputs)
        parts = torch.autograd.grad(outputs, weights, mixture.to(outputs))
        total = total + torch.cat([part.detach().flatten().cpu().double() for part in parts])
    return total, time.perf_counter() - start

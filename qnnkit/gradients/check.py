"""Are the gradients correct? A check before hours of training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks, circuits, words
from qnnkit.gradients.reach import circuits_of, n_features, weight_names
from qnnkit.layers import QuantumLayer
from qnnkit.simulator import EXACT_DEVICES

if TYPE_CHECKING:
    import pandas as pd

METHODS: dict[str, dict[str, Any]] = {
    "backprop": {},
    "parameter-shift": {},
    "adjoint": {},
    # Central differences: the error falls with the square of the step, and 1e-4 leaves it near 1e-9.
    "finite-diff": {"h": 1e-4, "strategy": "center", "approx_order": 2},
    "fused": {},  # qnnkit's program; the others are PennyLane's
}
"""Methods, with options of PennyLane's `diff_method`. All run in float64, PennyLane's on `default.qubit`."""
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-7}
"""Largest error that is allowed, by precision of the layer; for half precision, its machine epsilon.
In float64, `default.qubit` reaches 1e-15 and finite differences 1e-9, but a gradient of `lightning.qubit` was
seen to be accurate to 2e-8 only."""


COLUMNS = (
    *("layer", "method", "n_weights", "error", "worst", "tolerance", "passed", "seconds", "autograd_seconds"),
    *("unavailable", "weights", "gradient", "autograd"),
)


class GradientError(ArithmeticError):
    """A layer's gradient disagrees with an independent method; an ArithmeticError."""


def check(model: nn.Module, *, samples: int = 4, seed: int = 0) -> pd.DataFrame:
    """Compares every circuit's autograd gradient with the fused program and PennyLane's four methods.

    The gradient is that of a fixed random combination of all outputs, at random inputs in [0, pi], with
    respect to every weight of the layer. Finite shots are ignored: the gradient with shots is an estimate of
    the exact one.

    Args:
        model: Model with `QuantumLayer`s that have run once, so that the number of features is known.
        samples: Number of random inputs.
        seed: Seed of the inputs and of the combination.

    Returns:
        One row per layer and method (a circuit without weights has none), with the columns
        layer, method, n_weights;
        error: the largest difference over the weights, relative to the largest gradient if that is above 1;
        worst: the weight with that difference, such as "weights[0, 2, 1]";
        tolerance, passed: the largest error allowed (1e-5 for float32, 1e-7 for float64), and whether the
        method agrees or is unavailable;
        seconds, autograd_seconds: of the independent method and of autograd, for the same samples;
        unavailable: why the method cannot differentiate this circuit ("" if it can);
        weights, gradient, autograd: names of the weights, and both gradients.

    Raises:
        ValueError: A layer has not run yet, or `samples` is below 1.
    """
    import pandas as pd

    checks.positive("samples", samples)
    circuits = {name: layer for name, layer in circuits_of(model).items() if layer.qnode_weights}
    rows = [row for name, layer in circuits.items() for row in _check_layer(name, layer, samples, seed)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def require(comparisons: pd.DataFrame) -> None:
    """Raises GradientError for the first failed comparison in a table from `check`.

    It also raises one for a layer that could not be compared with any of PennyLane's methods.
    """
    for row in comparisons.to_dict("records"):
        if not row["passed"]:
            raise GradientError(
                f"The gradient of `{row['layer']}` by autograd must agree with {row['method']} to "
                f"{row['tolerance']:g}, but differs by {row['error']:.3g} at {row['worst']}. Do not train "
                "this net; change its circuit or its backend."
            )
    witnesses = comparisons[comparisons["method"] != "fused"]  # autograd may use the same program
    for layer, reasons in witnesses.groupby("layer", sort=False)["unavailable"]:
        if all(reasons):
            raise GradientError(
                f"The gradient of `{layer}` must be compared with another method, but no method of PennyLane "
                f"can differentiate its circuit (backprop: {reasons.iloc[0]}). Change what it measures."
            )


def _check_layer(name: str, layer: QuantumLayer, samples: int, seed: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.pi * torch.rand(samples, n_features(layer, name), generator=generator, dtype=torch.float64)
    weight, names = next(layer.parameters()), weight_names(layer)
    inputs = inputs.to(weight).cpu().double()  # as the layer's precision has them
    qnode = layer.qnode if not layer.qnode.shots else qp.set_shots(layer.qnode, None)
    # A copy, in which frozen weights can have gradients too, and which leaves the layer unchanged.
    trainable = layer.with_qnode(qnode).requires_grad_(True)
    outputs = trainable.by_row(inputs.to(weight))  # the first call traces the circuit and is not timed
    mixture = torch.rand(outputs.shape, generator=generator, dtype=torch.float64) - 0.5
    each = list(zip(inputs, mixture, strict=True))  # parameter shifts and finite differences take no batches
    whole = [(inputs, mixture)] if layer.takes_batches else each
    ours, autograd_seconds = _gradient(trainable, whole)
    tolerance = TOLERANCE.get(weight.dtype, torch.finfo(weight.dtype).eps)
    for method in METHODS:
        unavailable, theirs, seconds = "", torch.full_like(ours, torch.nan), 0.0
        try:
            witness = _witness(method, layer, qnode, inputs[0])
            theirs, seconds = _gradient(witness, whole if method == "fused" else each)
        except Exception as error:  # any error that PennyLane raises if a method does not suit a circuit
            unavailable = words.error_line(error)
        errors = (ours - theirs).abs() / theirs.abs().max().clamp(min=1)
        error, worst = float(errors.max()), names[int(errors.argmax())]
        passed = bool(unavailable) or error <= tolerance  # false for NaN too
        compared = (name, method, len(names), error, worst, tolerance, passed, seconds, autograd_seconds)
        gradient = (unavailable, names, theirs.tolist(), ours.tolist())
        yield dict(zip(COLUMNS, (*compared, *gradient), strict=True))


def _witness(method: str, layer: QuantumLayer, qnode: qp.QNode, row: Tensor) -> QuantumLayer:
    """A copy of the layer in float64 that computes its gradient by `method` and has run once."""
    backend = "batched"
    if method != "fused":
        # On default.qubit if it can run the circuit: it has no noise, and no operations of other devices.
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


def _gradient(layer: QuantumLayer, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, float]:
    """Flat gradient of sum(outputs * mixture) by the layer's weights, in float64 on the CPU, and the seconds.

    Args:
        layer: Layer whose weights all require gradients.
        batches: Pairs of inputs and mixture; their sums are added.
    """
    start, weights, total = time.perf_counter(), list(layer.parameters()), torch.zeros(())
    for inputs, mixture in batches:
        outputs = layer(inputs.to(weights[0]))
        parts = torch.autograd.grad(outputs, weights, mixture.to(outputs))
        total = total + torch.cat([part.detach().flatten().cpu().double() for part in parts])
    return total, time.perf_counter() - start

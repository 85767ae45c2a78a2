"""Faults that keep a net's circuits from training, as far as one batch shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import layers, words
from qnnkit.gradients.faults import FAULTS, READER, SMALLER, VANISHED, Fault, fault, half, sized
from qnnkit.gradients.reach import circuits_of, exact_copy, few, gates, slopes, weight_names
from qnnkit.gradients.watch import on_batch
from qnnkit.layers import QuantumLayer
from qnnkit.tasks import Task

ZERO = 1e-9
"""Largest derivative, and largest difference of outputs, that counts as zero in float64."""


def diagnose(model: nn.Module, task: Task, batch: Any) -> list[Fault]:
    """Finds faults that keep a net's circuits from training, as far as one batch shows them.

    These are half precision in a circuit; inputs that are all equal, or change nothing; weights that cannot
    learn, with the reason; weights with a zero or tiny gradient of the loss, and whether the circuit or the
    layers after it cause it; a model in which no circuit trains; a gradient that PennyLane cannot compute.

    Args:
        model: Any module; it does not change.
        task: Computes the loss.
        batch: Batch in the form that the task takes, on the model's device, the inputs first.

    Returns:
        The faults; an empty list if nothing is wrong. `str` of a fault is a sentence.
    """
    circuits = circuits_of(model)
    if not circuits:
        return [fault("no circuit", "model", "it has no QuantumLayer")]
    trained = [name for name, layer in circuits.items() if _trains(layer).any()]
    seen: dict[nn.Module, list[Tensor]] = {}
    faults, row = [], None

    def look(layer: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        seen.setdefault(layer, []).append(layers.rows_of(*given, *named.values()).detach())

    with contextlib.ExitStack() as hooks, layers.evaluating(model):
        for layer in circuits.values():
            hooks.enter_context(layer.register_forward_pre_hook(look, with_kwargs=True))
        try:
            row = on_batch(model, task, batch).rows[0]
        except NotImplementedError as reason:  # PennyLane: a method that cannot differentiate this
            which = ", ".join(f"`{name}` ({circuits[name].qnode.diff_method})" for name in trained)
            value = f"PennyLane cannot differentiate {which}: {words.first_line(reason)}"
            faults.append(fault("refused", "model", value))
    if not trained:
        faults.append(fault("all frozen", "model", "all its circuits are frozen or have no weights"))
    for name, layer in circuits.items():
        faults += half(name, next((weight.dtype for weight in layer.parameters()), None), "weights")
        if layer not in seen:
            if row is not None:
                faults.append(fault("not called", name, "nothing calls it, so the net does not depend on it"))
            continue
        rows = torch.cat(seen[layer])
        silent = [*_dead(name, layer, rows)]
        faults += [*half(name, rows.dtype, "inputs"), *of_inputs(name, layer, rows), *silent]
        if row is not None and name in trained:
            explained = {i for dead in silent for i in dead.weights}
            faults += _of_loss(name, layer, row, explained, rows)
    return faults


def dead(model: nn.Module, sample: Tensor) -> list[Fault]:
    """Finds weights of circuits that cannot learn: no measured value depends on them for this sample.

    Args:
        model: Any module; it does not change.
        sample: Inputs of the model, of shape (batch, ...).

    Returns:
        One fault per layer and reason, with its weights by name, gate and wire. A layer that is frozen, or
        whose weights can all learn, has none. Shots are ignored, as they hide a gradient that is zero.
    """
    rows = layers.circuit_inputs(model, sample)
    named = circuits_of(model).items()
    return [fault for name, layer in named if layer in rows for fault in _dead(name, layer, rows[layer])]


def _dead(name: str, layer: QuantumLayer, rows: Tensor) -> Iterator[Fault]:
    trains = _trains(layer)
    if not trains.any() or not (silent := (slopes(layer, rows) < ZERO) & trains).any():
        return
    always, every, names = slopes(layer, rows, elsewhere=True) < ZERO, gates(layer), weight_names(layer)
    reasons: dict[tuple[str, str], dict[int, str]] = {}
    for i in silent.nonzero().flatten().tolist():
        turned = [gate for gate in every if i in gate.weights]
        if not turned:
            why = "dead", "no angle depends on it"
        elif not any(gate.reaches for gate in turned):
            why = "dead", "no gate after it leads to a measured wire"
        elif always[i]:
            why = "dead", "no measured value depends on it for this sample, at any weights"
        else:
            why = "unlucky", "its gradient is zero on the whole sample, at the present weights"
        reasons.setdefault(why, {})[i] = f"{names[i]} ({'; '.join(map(str, turned)) or 'no gate'})"
    for (kind, why), which in reasons.items():
        value = f"{_count(which)} cannot learn, because {why}: {', '.join(which.values())}"
        yield fault(kind, name, value, which)


def of_inputs(name: str, layer: QuantumLayer, rows: Tensor) -> Iterator[Fault]:
    """Yields a fault if a circuit does not depend on its inputs, as far as more than one row shows it.

    Args:
        name: Name of the layer.
        layer: Layer whose shots are ignored.
        rows: Its inputs, of shape (n_rows, n_features).
    """
    varied = (rows != rows[0]).any(0).nonzero().flatten().tolist()
    reaching = {feature for gate in gates(layer) if gate.reaches for feature in gate.features}
    silent = [feature for feature in varied if feature not in reaching]
    why = ""
    if not varied:
        why = ": its inputs are all equal" if len(rows) > 1 else ""
    elif len(silent) == len(varied):
        why = ": no angle that reaches a measured wire depends on its inputs"
    elif silent:
        value = f"no angle that reaches a measured wire depends on its features {str(silent)[1:-1]}"
        yield fault("unfelt", name, f"{value} (counted from 0)")
    else:
        with torch.no_grad():
            outputs = exact_copy(layer).by_row(few(rows))
        if bool(((outputs - outputs[0]).abs() < ZERO).all()):
            why = ", at the present weights"
    if why:
        yield fault("constant", name, f"its output is the same for every sample{why}")


def _of_loss(
    name: str, layer: QuantumLayer, row: Mapping[str, Any], dead: set[int], rows: Tensor
) -> Iterator[Fault]:
    """Yields faults of weights with a zero or tiny gradient of the loss that `_dead` does not explain.

    Args:
        name: Name of the layer.
        layer: A circuit that trains.
        row: Row of the batch from `Watch`.
        dead: Weights that `_dead` explains.
        rows: Inputs of the circuit.
    """
    classical = [part for part in row["layers"] if "step" not in part]
    for part in (part for part in row["layers"] if part["layer"] == name):
        [gradient], names = part["gradient"], weight_names(layer)
        places = part.get("places", range(len(gradient)))
        silent = [i for i, value in zip(places, gradient, strict=True) if value == 0 and i not in dead]
        if silent and any(gradient):
            which = ", ".join(names[i] for i in silent)
            value = f"{_count(silent)} with a gradient of exactly 0 on this batch: {which}"
            yield fault("zero", name, value, silent)
        for size in sized(part, classical):
            if size.kind == FAULTS["vanished"][0]:
                inside = float(slopes(layer, rows, mixtures=4)[_trains(layer)].square().mean().sqrt())
                value = f"{size.value}, while its outputs change by {inside:.2g} per radian"
                yield replace(size, value=value, remedy=SMALLER if inside < VANISHED else READER)
            elif any(gradient) or silent:  # if all are zero, the circuit may be the reason for all
                yield size


def _trains(layer: QuantumLayer) -> Tensor:
    """Which of a layer's weights train, of shape (n_weights,)."""
    flags = [torch.full((weight.numel(),), weight.requires_grad) for weight in layer._weights().values()]
    return torch.cat([torch.zeros(0, dtype=torch.bool), *flags])


def _count(weights: Any) -> str:
    return f"{len(weights)} weight{'s' * (len(weights) > 1)}"

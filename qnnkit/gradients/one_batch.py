"""What will keep a net's circuits from training, as far as one batch shows it."""

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
"""Largest derivative, and largest difference of outputs, that counts as none, in float64."""


def diagnose(model: nn.Module, task: Task, batch: Any) -> list[Fault]:
    """What will keep a net's circuits from training, as far as one batch shows it.

    Half precision in a circuit; inputs that are all equal, or change nothing; weights that cannot learn, with
    the reason; weights that have no gradient of the loss, or next to none, and whether the circuit or what
    reads it makes it small; a model without a circuit that trains; a gradient that PennyLane cannot compute.

    Args:
        model: Any module; it is left as it was.
        task: Gives the loss.
        batch: As the task takes it, on the model's device, the inputs first.

    Returns:
        The faults, none where nothing is wrong; `str` of one is a sentence.
    """
    circuits = circuits_of(model)
    if not circuits:
        return [fault("no circuit", "model", "it has no QuantumLayer")]
    trained = [name for name, each in circuits.items() if _trains(each).any()]
    seen: dict[nn.Module, list[Tensor]] = {}
    faults, row = [], None
    with contextlib.ExitStack() as hooks, layers.evaluating(model):
        for layer in circuits.values():
            look = lambda layer, given: seen.setdefault(layer, []).append(layers.rows_of(given[0].detach()))  # noqa: E731
            hooks.enter_context(layer.register_forward_pre_hook(look))
        try:
            row = on_batch(model, task, batch).rows[0]
        except NotImplementedError as reason:  # PennyLane, of what a method of differentiation cannot do
            which = ", ".join(f"`{name}` ({circuits[name].qnode.diff_method})" for name in trained)
            value = f"PennyLane cannot differentiate {which}: {words.first_line(reason)}"
            faults.append(fault("refused", "model", value))
    if not trained:
        faults.append(fault("all frozen", "model", "all circuits are frozen, or have no weights"))
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
            known = {i for each in silent for i in each.weights}
            faults += _of_loss(name, layer, row, known, rows)
    return faults


def dead(model: nn.Module, sample: Tensor) -> list[Fault]:
    """Weights of circuits that cannot learn: no measured value depends on them, for no row of the sample.

    Args:
        model: Any module; it is left as it was.
        sample: As the model takes it, of shape (batch, ...).

    Returns:
        One fault per layer and reason, with its weights by name, gate and wire; none for frozen layers, or
        where all can learn. Shots are ignored: a gradient that is zero on average looks alive with them.
    """
    rows = layers.circuit_inputs(model, sample)
    named = circuits_of(model).items()
    return [each for name, layer in named if layer in rows for each in _dead(name, layer, rows[layer])]


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
            why = "dead", "no gate after it leads to a wire that is measured"
        elif always[i]:
            why = "dead", "nothing that is measured changes with it on this sample, at any weights"
        else:
            why = "unlucky", "its gradient is zero on the whole sample, at the weights as they are"
        reasons.setdefault(why, {})[i] = f"{names[i]} ({'; '.join(map(str, turned)) or 'no gate'})"
    for (kind, why), which in reasons.items():
        value = f"{_count(which)} cannot learn, because {why}: {', '.join(which.values())}"
        yield fault(kind, name, value, which)


def of_inputs(name: str, layer: QuantumLayer, rows: Tensor) -> Iterator[Fault]:
    """Whether a circuit depends on its inputs; nothing where it does, or one row cannot tell.

    Args:
        name: Of the layer.
        layer: Its shots are ignored.
        rows: Its inputs, of shape (n_rows, n_features).
    """
    varied = (rows != rows[0]).any(0).nonzero().flatten().tolist()
    reaching = {feature for gate in gates(layer) if gate.reaches for feature in gate.features}
    silent = [feature for feature in varied if feature not in reaching]
    why = ""
    if not varied:
        why = ": its inputs are all equal" if len(rows) > 1 else ""
    elif len(silent) == len(varied):
        why = ": its inputs turn no angle that reaches a measured wire"
    elif silent:
        value = f"no angle that reaches a measured wire depends on its features {str(silent)[1:-1]}"
        yield fault("unfelt", name, f"{value} (counted from 0)")
    else:
        with torch.no_grad():
            outputs = exact_copy(layer)(few(rows))
        if bool(((outputs - outputs[0]).abs() < ZERO).all()):
            why = ", at the weights as they are"
    if why:
        yield fault("constant", name, f"it gives the same for every sample{why}")


def _of_loss(
    name: str, layer: QuantumLayer, row: Mapping[str, Any], dead: set[int], rows: Tensor
) -> Iterator[Fault]:
    """Weights with no gradient of the loss, or next to none, for no reason in the circuit itself.

    Args:
        name: Of the layer.
        layer: A circuit that trains.
        row: Of the batch, as `Watch` makes it.
        dead: Weights whose reason is known.
        rows: What the circuit meets.
    """
    classical = [each for each in row["layers"] if "step" not in each]
    for mine in (each for each in row["layers"] if each["layer"] == name):
        [gradient], names = mine["gradient"], weight_names(layer)
        places = mine.get("places", range(len(gradient)))
        silent = [i for i, each in zip(places, gradient, strict=True) if each == 0 and i not in dead]
        if silent and any(gradient):
            which = ", ".join(names[i] for i in silent)
            value = f"{_count(silent)} with a gradient of exactly 0 on this batch: {which}"
            yield fault("zero", name, value, silent)
        for each in sized(mine, classical):
            if each.kind == FAULTS["vanished"][0]:
                inside = float(slopes(layer, rows, mixtures=4)[_trains(layer)].square().mean().sqrt())
                value = f"{each.value}, while its outputs change by {inside:.2g} per radian"
                yield replace(each, value=value, remedy=SMALLER if inside < VANISHED else READER)
            elif any(gradient) or silent:  # where all are zero, the circuit may be the reason for all
                yield each


def _trains(layer: QuantumLayer) -> Tensor:
    """Which of a layer's weights train, of shape (n_weights,)."""
    each = [torch.full((weight.numel(),), weight.requires_grad) for weight in layer._weights().values()]
    return torch.cat([torch.zeros(0, dtype=torch.bool), *each])


def _count(weights: Any) -> str:
    return f"{len(weights)} weight{'s' * (len(weights) > 1)}"

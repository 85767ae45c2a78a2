"""What will keep a net's circuits from training, as far as one batch shows it."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import layers, words
from qnnkit.gradients.faults import VANISHED, VANISHED_RELATIVE, Fault, fault, half
from qnnkit.gradients.reach import circuits_of, exact_copy, few, gates, slopes, weight_names
from qnnkit.gradients.record import of_batch
from qnnkit.layers import QuantumLayer
from qnnkit.tasks import Task

MOST_NAMES = 8
ZERO = 1e-9
"""Largest derivative, and largest difference of outputs, that counts as none, in float64."""
MOST_ROWS = 256
"""Rows of inputs that are changed one feature at a time, evenly spaced."""
MIXTURES = 4
"""Random mixtures of the outputs, over which the square of a derivative is averaged."""


def diagnose(model: nn.Module, task: Task, batch: Any) -> list[Fault]:
    """What will keep a net's circuits from training, as far as one batch shows it.

    Half precision in a circuit; inputs that are all equal, or change nothing; weights that cannot learn, with
    the reason; weights that have no gradient of the loss, or next to none, and whether the circuit or what
    reads it makes it small; a model without a circuit that trains; a gradient that PennyLane cannot compute.

    Args:
        model: Any module; it is left as it was.
        task: Gives the loss.
        batch: As the task takes it, on the model's device, the inputs first.
    """
    circuits = circuits_of(model)
    if not circuits:
        return [fault("no circuit", "model", "it has no QuantumLayer")]
    trained = [name for name, each in circuits.items() if _trains(each).any()]
    seen: dict[nn.Module, list[Tensor]] = {}
    faults, gradients = [], None
    with contextlib.ExitStack() as hooks, layers.evaluating(model):
        for layer in circuits.values():
            look = lambda layer, inputs: seen.setdefault(layer, []).append(inputs[0].detach())  # noqa: E731
            hooks.enter_context(layer.register_forward_pre_hook(look))
        try:
            named = of_batch(model, task, batch)
            gradients = {id(w): named[name] for name, w in model.named_parameters() if name in named}
        except NotImplementedError as reason:  # PennyLane, of what a method of differentiation cannot do
            which = ", ".join(f"`{name}` ({circuits[name].qnode.diff_method})" for name in trained)
            value = f"PennyLane cannot differentiate {which}: {words.first_line(reason)}"
            faults.append(fault("refused", "model", value))
    if not trained:
        faults.append(fault("all frozen", "model", "all circuits are frozen, or have no weights"))
    for name, layer in circuits.items():
        faults += half(name, next((weight.dtype for weight in layer.parameters()), None), "weights")
        if layer not in seen:
            if gradients is not None:
                faults.append(fault("not called", name, "nothing calls it, so the net does not depend on it"))
            continue
        rows = torch.cat([each.reshape(-1, each.shape[-1]) for each in seen[layer]])
        without = _dead(name, layer, rows)
        faults += [*half(name, rows.dtype, "inputs"), *of_inputs(name, layer, rows), *without]
        if gradients is not None and name in trained:
            inside = {id(weight) for circuit in circuits.values() for weight in circuit.parameters()}
            others = [_rms(gradient) for key, gradient in gradients.items() if key not in inside]
            known = {i for each in without for i in each.weights}
            frozen = {id(w): torch.full((w.numel(),), torch.nan) for w in layer.parameters()}
            mine = [(frozen | gradients)[id(w)].flatten() for w in layer.parameters()]
            classical = max(filter(None, others), default=math.inf)
            faults += _of_loss(name, layer, torch.cat(mine), classical, known, rows)
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


def _dead(name: str, layer: QuantumLayer, rows: Tensor) -> list[Fault]:
    trains = _trains(layer)
    if not trains.any() or not (silent := (slopes(layer, rows) < ZERO) & trains).any():
        return []
    always, every, names = slopes(layer, rows, elsewhere=True) < ZERO, gates(layer), weight_names(layer)
    reasons: dict[str, list[int]] = {}
    told = {}
    for i in silent.nonzero().flatten().tolist():
        turned = [gate for gate in every if i in gate.weights]
        told[i] = f"{names[i]} ({'; '.join(map(str, turned)) or 'no gate'})"
        if not turned:
            why = "no angle depends on it"
        elif not any(gate.reaches for gate in turned):
            why = "no gate after it leads to a wire that is measured"
        elif always[i]:
            why = "nothing that is measured changes with it on this sample, at any weights"
        else:
            why = "its gradient is zero on the whole sample, at the weights as they are"
        reasons.setdefault(why, []).append(i)
    return [
        fault(
            "unlucky" if why.endswith("as they are") else "dead",
            name,
            f"{_count(len(which))} cannot learn, because {why}: {', '.join(told[i] for i in which)}",
            weights=which,
        )
        for why, which in reasons.items()
    ]


def of_inputs(name: str, layer: QuantumLayer, rows: Tensor) -> list[Fault]:
    """Whether a circuit depends on its inputs; [] where it does, or one row cannot tell.

    Args:
        name: Of the layer.
        layer: Its shots are ignored.
        rows: Its inputs, of shape (n_rows, n_features).
    """
    rows = few(rows, MOST_ROWS)
    varied = [j for j in range(rows.shape[1]) if bool((rows[:, j] != rows[0, j]).any())]
    same = "it gives the same for every sample"
    if len(rows) < 2 or not varied:
        return [fault("constant", name, f"{same}: its inputs are all equal")] if len(rows) > 1 else []
    now, anywhere = exact_copy(layer), exact_copy(layer, elsewhere=True)
    silent = [j for j in varied if not _felt(now, rows, j) and not _felt(anywhere, rows, j)]
    if len(silent) == len(varied):
        return [fault("constant", name, f"{same}: its inputs do not reach an angle")]
    if silent:
        value = f"of its features (counted from 0) nothing that is measured depends on {_listed(silent)}"
        return [fault("unfelt", name, f"{value}, at any weights")]
    with torch.no_grad():
        outputs = now(rows)
    if bool(((outputs - outputs[0]).abs() < ZERO).all()):
        return [fault("constant", name, f"{same}, at the weights as they are")]
    return []


def _felt(layer: QuantumLayer, rows: Tensor, feature: int) -> bool:
    """Whether an output changes when the rows exchange one of their features."""
    moved = rows.clone()
    moved[:, feature] = rows[:, feature].roll(1)
    with torch.no_grad():
        try:
            return bool(((layer(moved) - layer(rows)).abs() > ZERO).any())
        except ValueError:  # such as amplitudes, whose norm must stay 1
            return True


def _of_loss(
    name: str, layer: QuantumLayer, gradient: Tensor, classical: float, known: set[int], rows: Tensor
) -> list[Fault]:
    """Weights with no gradient of the loss, or next to none, though no reason lies in the circuit.

    Args:
        name: Of the layer.
        layer: A circuit that trains.
        gradient: Of shape (n_weights,); NaN for frozen weights.
        classical: Largest gradient of the other parameters, root mean square of a weight.
        known: Weights of which the reason is told already.
        rows: What the circuit meets.
    """
    silent = [i for i in (gradient == 0).nonzero().flatten().tolist() if i not in known]
    value = "gradient of exactly 0 on this batch, though its outputs change with"
    if silent and len(silent) + len(known) == len(gradient):
        return [fault("all cut", name, f"every weight has a {value} them", weights=silent)]
    if silent:
        which = _listed([weight_names(layer)[i] for i in silent])
        return [fault("some cut", name, f"{_count(len(silent))} with a {value} {which}", weights=silent)]
    size = _rms(gradient[gradient.isfinite()])
    if not 0 < size < min(VANISHED, VANISHED_RELATIVE * classical):  # of zero the reason is known
        return []
    inside = _rms(slopes(layer, rows, mixtures=MIXTURES)[_trains(layer)])
    value = f"{size:.2g} for a weight on this batch, while its outputs change by {inside:.2g} per radian"
    return [fault("flat" if inside < VANISHED else "scaled down", name, value)]


def _trains(layer: nn.Module) -> Tensor:
    """Which of a layer's weights train, of shape (n_weights,)."""
    each = [torch.full((weight.numel(),), weight.requires_grad) for weight in layer.parameters()]
    return torch.cat([torch.zeros(0, dtype=torch.bool), *each])


def _rms(values: Tensor) -> float:
    """Root mean square; 0 of none."""
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def _listed(names: list[Any]) -> str:
    return ", ".join(map(str, names[:MOST_NAMES])) + (", ..." if names[MOST_NAMES:] else "")


def _count(n: int) -> str:
    return f"{n} weight{'s' * (n > 1)}"

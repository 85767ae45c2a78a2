"""What will keep a net's circuits from training, before it trains: in sentences, from one batch."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import layers, words
from qnnkit.gradients import advice
from qnnkit.gradients.one_batch import of_batch
from qnnkit.gradients.reach import as_real, dead, describe, exact_copy, few, weight_names
from qnnkit.layers import QuantumLayer
from qnnkit.tasks import Task

MOST_NAMES = 8
SAME = 1e-9
"""Largest difference, in float64, of outputs that are called equal."""
MOST_ROWS = 256
"""Rows of inputs that are looked at, evenly spaced."""
MIXTURES = 4
"""Random signs of the outputs, over which the square of a derivative is averaged."""


def diagnose(model: nn.Module, task: Task, batch: Any) -> list[str]:
    """What will keep a net's circuits from training, in sentences, as far as one batch shows it.

    Half precision in a circuit; inputs that are all equal, or change nothing; weights that cannot learn, with
    the reason; weights that have no gradient of the loss, or next to none, and whether the circuit or what
    reads it makes it small. Also said is that a model has no circuit that trains, and what could not be
    computed. An empty list says that nothing was found.

    Args:
        model: Any module; it is left as it was.
        task: Gives the loss.
        batch: As the task takes it, on the model's device, the inputs first.
    """
    circuits = {
        name or "layer": each for name, each in model.named_modules() if isinstance(each, QuantumLayer)
    }
    if not circuits:
        return ["This net has no circuit: its classical part is shown alone."]
    trained = {name: layer for name, layer in circuits.items() if _trains(layer)}
    entered: dict[nn.Module, torch.dtype] = {}
    sentences, gradients = [], None
    with contextlib.ExitStack() as hooks:
        for layer in circuits.values():
            look = lambda layer, inputs: entered.update({layer: inputs[0].dtype})  # noqa: E731
            hooks.enter_context(layer.register_forward_pre_hook(look))
        try:
            with layers.evaluating(model):
                named = of_batch(model, task, batch)
            gradients = {id(w): named[name] for name, w in model.named_parameters() if name in named}
        except NotImplementedError as reason:  # PennyLane, of what a method of differentiation cannot do
            which = ", ".join(f"`{name}` ({layer.qnode.diff_method})" for name, layer in trained.items())
            said = words.first_line(reason)
            sentences.append(
                f"The gradient of the loss could not be asked, nor will this net train: PennyLane says of "
                f"{which} that it cannot be had this way ({said}). Where a layer that trains makes the "
                "inputs of a circuit with shots, wrap the QNode in qp.transforms.broadcast_expand, or leave "
                "the shots away."
            )
    for name, layer in circuits.items():
        kinds = {"weights": next((weight.dtype for weight in layer.parameters()), None)}
        kinds["inputs"] = entered.get(layer)
        sentences += [
            advice.half(name, str(dtype).removeprefix("torch."), what)
            for what, dtype in kinds.items()
            if dtype in advice.HALVES
        ]
        if layer not in entered:
            sentences.append(f"Nothing calls `{name}`: the net's output does not depend on it.")
    if not trained:
        sentences.append("No circuit of this net trains: all are frozen, or have no weights.")
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    if not isinstance(inputs, Tensor):
        return sentences
    rows = layers.circuit_inputs(model, inputs)
    for name, layer in circuits.items():
        sentences += of_inputs(name, layer, rows[layer]) if layer in rows else []
    silent = dead(model, inputs)
    sentences += describe(silent)
    if gradients is None:
        return sentences
    inside = {id(weight) for layer in circuits.values() for weight in layer.parameters()}
    others = [_typical([gradient]) for key, gradient in gradients.items() if key not in inside]
    beside = max(filter(None, others), default=math.inf)
    for name, layer in trained.items():
        known = {one.index for one in silent if one.layer == name}
        if layer in entered:
            sentences += _without_gradient(name, layer, gradients, known) or _small(
                name, layer, gradients, beside, rows[layer]
            )
    return sentences


def of_inputs(name: str, layer: QuantumLayer, rows: Tensor) -> list[str]:
    """Whether a circuit sees what it is given, in sentences; [] where it does, or one row cannot tell.

    Args:
        name: Of the layer.
        layer: Its shots are left away.
        rows: What it was given, of shape (n_rows, n_features).
    """
    rows = few(rows, MOST_ROWS)
    if len(rows) < 2:
        return []
    same = f"`{name}` gives the same for every sample"
    if bool((rows == rows[0]).all()):
        return [f"{same}: its inputs are all equal."]
    now, anywhere = exact_copy(layer), exact_copy(layer, elsewhere=True)
    varied = [j for j in range(rows.shape[1]) if bool((rows[:, j] != rows[0, j]).any())]
    silent = [j for j in varied if not _felt(now, rows, j) and not _felt(anywhere, rows, j)]
    if silent and len(silent) == len(varied):
        return [f"{same}: its inputs do not reach an angle."]
    if silent:
        many = len(silent) > 1
        return [
            f"Feature{'s' * many} {_listed(silent)} of `{name}`'s inputs (counted from 0) "
            f"change{'s' * (not many)} nothing that is measured, at any weights."
        ]
    with torch.no_grad():
        outputs = now(rows)
    if bool(((outputs - outputs[0]).abs() < SAME).all()):
        return [f"{same}, at the weights as they are."]
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


def of_weights(layer: QuantumLayer, rows: Tensor) -> float:
    """Derivative of an output by a weight that trains, root mean square over rows, outputs and weights.

    Random signs make one pass backwards do for all outputs: products of two different ones average out.

    Args:
        layer: Its shots are left away.
        rows: Of shape (n_rows, n_features).
    """
    exact, generator = exact_copy(layer), torch.Generator().manual_seed(0)
    trained = [weight for weight in exact.parameters() if weight.requires_grad]
    with torch.enable_grad():
        outputs = as_real(exact(few(rows, MOST_ROWS)))
        squares = 0.0
        for _ in range(MIXTURES):
            signs = torch.randint(0, 2, outputs.shape, generator=generator).to(outputs) * 2 - 1
            parts = torch.autograd.grad(
                outputs, trained, signs, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            squares += sum(float(part.square().sum()) for part in parts) / MIXTURES
    return math.sqrt(squares / outputs.numel() / sum(weight.numel() for weight in trained))


def _trains(layer: nn.Module) -> bool:
    return any(weight.requires_grad for weight in layer.parameters())


def _typical(gradients: list[Tensor]) -> float:
    """Gradient of a weight, root mean square; 0 where there is no weight."""
    n = sum(gradient.numel() for gradient in gradients)
    return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients) / max(1, n))


def _listed(names: list[Any]) -> str:
    return ", ".join(map(str, names[:MOST_NAMES])) + (", ..." if names[MOST_NAMES:] else "")


def _small(
    name: str, layer: QuantumLayer, gradients: dict[int, Tensor], beside: float, rows: Tensor
) -> list[str]:
    """Whether the gradient has all but vanished, and where."""
    size = _typical([gradients[id(weight)] for weight in layer.parameters() if weight.requires_grad])
    if not 0 < size < min(advice.VANISHED, advice.VANISHED_BESIDE * beside):  # of zero the reason was said
        return []
    inside = of_weights(layer, rows)
    start = f"Small gradient in `{name}`: {size:.2g} for a weight on this batch"
    if inside < advice.VANISHED:
        return [f"{start}, as its outputs change by {inside:.2g} per radian only. {advice.SMALLER}"]
    return [
        f"{start}, though its outputs change by {inside:.2g} per radian: what reads them weighs them little. "
        "Scale them up, or look at what follows the circuit; fewer qubits or layers do not help."
    ]


def _without_gradient(
    name: str, layer: QuantumLayer, gradients: dict[int, Tensor], known: set[int]
) -> list[str]:
    """Weights with a gradient of exactly zero, though no reason for it lies in the circuit."""
    zero = [
        gradients[id(w)].flatten() == 0 if w.requires_grad else torch.zeros(w.numel(), dtype=torch.bool)
        for w in layer.parameters()
    ]
    silent = [i for i in torch.cat(zero).nonzero().flatten().tolist() if i not in known]
    if not silent:
        return []
    though = "though its outputs change with them"
    if len(silent) + len(known) == sum(map(len, zero)):
        return [
            f"No weight of `{name}` has a gradient on this batch, {though}: the way from there to the loss "
            "is cut, by a factor of zero, a detach, or saturated units."
        ]
    names = weight_names(layer)
    return [
        f"{len(silent)} weight{'s' * (len(silent) > 1)} of `{name}` have a gradient of exactly zero on this "
        f"batch, {though}: {_listed([names[i] for i in silent])}."
    ]

"""What will keep a net's circuits from training, before it trains: in sentences, from one batch."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import layers
from qnnkit.gradients import influence, words
from qnnkit.gradients.batch import of_batch
from qnnkit.gradients.reach import dead, told, weight_names
from qnnkit.layers import QuantumLayer
from qnnkit.tasks import Task

MOST_NAMES = 8


def diagnose(model: nn.Module, task: Task, batch: Any) -> list[str]:
    """What will keep a net's circuits from training, in sentences, as far as one batch shows it.

    Half precision in a circuit; inputs that are all equal, or change nothing; weights that cannot learn, with
    the reason; weights that have no gradient of the loss, or next to none, and whether the circuit or what
    reads it makes it small. Also told is a model without a circuit that trains, and what could not be asked.
    An empty list says that nothing was found.

    Args:
        model: Any module; it is left as it was.
        task: Gives the loss.
        batch: As the task takes it, on the model's device, the inputs first.
    """
    circuits = [
        (name or "layer", each) for name, each in model.named_modules() if isinstance(each, QuantumLayer)
    ]
    if not circuits:
        return ["This net has no circuit: its classical part is shown alone."]
    trained = [(name, layer) for name, layer in circuits if any(w.requires_grad for w in layer.parameters())]
    entered: dict[nn.Module, torch.dtype] = {}
    sentences, gradients = [], None
    with contextlib.ExitStack() as hooks:
        for _, layer in circuits:
            look = lambda layer, inputs: entered.update({layer: inputs[0].dtype})  # noqa: E731
            hooks.enter_context(layer.register_forward_pre_hook(look))
        try:
            with layers.evaluating(model):
                named = of_batch(model, task, batch)
            gradients = {id(w): named[name] for name, w in model.named_parameters() if name in named}
        except NotImplementedError as reason:  # PennyLane, of what a method of differentiation cannot do
            sentences.append(_not_asked(reason, trained))
    for name, layer in circuits:
        sentences += _in_half(name, layer, entered.get(layer))
        if layer not in entered:
            sentences.append(f"Nothing calls `{name}`: the net's output does not depend on it.")
    if not trained:
        sentences.append("No circuit of this net trains: all are frozen, or have no weights.")
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    if not isinstance(inputs, Tensor):
        return sentences
    rows = layers.circuit_inputs(model, inputs)
    for name, layer in circuits:
        if layer in rows:
            sentences += influence.of_inputs(name, layer, rows[layer])
    silent = dead(model, inputs)
    sentences += told(silent)
    if gradients is None:
        return sentences
    inside = {id(weight) for _, layer in circuits for weight in layer.parameters()}
    others = [_typical([gradient]) for key, gradient in gradients.items() if key not in inside]
    beside = max(filter(None, others), default=None)
    for name, layer in trained:
        known = {one.index for one in silent if one.layer == name}
        if layer in entered:
            sentences += _without_gradient(name, layer, gradients, known) or _small(
                name, layer, gradients, beside, rows[layer]
            )
    return sentences


def _not_asked(reason: NotImplementedError, circuits: list[tuple[str, QuantumLayer]]) -> str:
    which = ", ".join(f"`{name}` ({layer.qnode.diff_method})" for name, layer in circuits)
    said = str(reason).strip().split("\n")[0].rstrip(".")
    return (
        f"The gradient of the loss could not be asked, nor will this net train: PennyLane says of {which} "
        f"that it cannot be had this way ({said}). Where a layer that trains makes the inputs of a circuit "
        "with shots, wrap the QNode in qp.transforms.broadcast_expand, or leave the shots away."
    )


def _typical(gradients: list[Tensor]) -> float:
    """Gradient of a weight, root mean square; 0 where there is no weight."""
    n = sum(gradient.numel() for gradient in gradients)
    return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients) / max(1, n))


def _small(
    name: str,
    layer: QuantumLayer,
    gradients: dict[int, Tensor],
    beside: float | None,
    rows: Tensor,
) -> list[str]:
    """Whether the gradient has all but vanished, and where."""
    size = _typical([gradients[id(weight)] for weight in layer.parameters() if weight.requires_grad])
    if not size or size >= words.VANISHED:  # exactly zero is told with its reason
        return []
    if beside is not None and size >= words.VANISHED_BESIDE * beside:
        return []
    inside = influence.of_weights(layer, rows)
    start = f"Small gradient in `{name}`: {size:.2g} for a weight on this batch"
    if inside < words.VANISHED:
        return [
            f"{start}, as its outputs change by {inside:.2g} per radian only. {words.VANISHING_HELP_INSIDE}"
        ]
    return [
        f"{start}, though its outputs change by {inside:.2g} per radian: what reads them weighs them little. "
        "Scale them up, or look at what follows the circuit; fewer qubits or layers do not help."
    ]


def _in_half(name: str, layer: QuantumLayer, inputs: torch.dtype | None) -> list[str]:
    kinds = {"weights": next((weight.dtype for weight in layer.parameters()), None), "inputs": inputs}
    return [
        words.half(name, str(dtype).removeprefix("torch."), what)
        for what, dtype in kinds.items()
        if dtype in words.HALVES
    ]


def _without_gradient(
    name: str, layer: QuantumLayer, gradients: dict[int, Tensor], known: set[int]
) -> list[str]:
    """Weights with a gradient of exactly zero, though no reason for it lies in the circuit."""
    silent: list[int] = []
    place = 0
    for weight in layer.parameters():
        if weight.requires_grad:
            zero = (gradients[id(weight)].flatten() == 0).nonzero().flatten().tolist()
            silent += [place + i for i in zero if place + i not in known]
        place += weight.numel()
    if not silent:
        return []
    if len(silent) + len(known) == place:
        return [
            f"No weight of `{name}` has a gradient on this batch, though its outputs change with them: the "
            "way from there to the loss is cut, by a factor of zero, a detach, or saturated units."
        ]
    names = weight_names(layer)
    which = ", ".join(names[i] for i in silent[:MOST_NAMES]) + (", ..." if silent[MOST_NAMES:] else "")
    return [
        f"{len(silent)} weight{'s' * (len(silent) > 1)} of `{name}` have a gradient of exactly zero on this "
        f"batch, though its outputs change with them: {which}."
    ]

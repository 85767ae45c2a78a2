"""What will keep a net's circuits from training, before it trains: in sentences, from one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import layers
from qnnkit.checkpoint import own_generators
from qnnkit.gradients import influence, words
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

    def enter(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        entered[layer] = inputs[0].dtype

    modes = {module: module.training for module in model.modules()}
    hooks = [layer.register_forward_pre_hook(enter) for _, layer in circuits]
    of_circuits = [weight for _, layer in trained for weight in layer.parameters() if weight.requires_grad]
    inside = set(map(id, of_circuits))
    weights = of_circuits + [w for w in model.parameters() if w.requires_grad and id(w) not in inside]
    found: Sequence[Tensor | None] | None = [None] * len(weights)
    sentences = []
    try:
        with own_generators(), torch.enable_grad():
            loss = task(model.eval(), batch).loss
            if loss.requires_grad and weights:
                found = torch.autograd.grad(loss, weights, allow_unused=True)
    except NotImplementedError as reason:  # PennyLane, of what a method of differentiation cannot do
        found = None
        sentences.append(_not_asked(reason, trained))
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    gradients = dict(zip(map(id, weights), found, strict=True)) if found else {}
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
    others = [_typical([gradients[id(weight)]]) for weight in weights[len(of_circuits) :]] if found else []
    beside = max((size for size in others if size is not None), default=None)
    for name, layer in trained:
        known = {one.index for one in silent if one.layer == name}
        if layer in entered and found:
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


def _typical(gradients: list[Tensor | None]) -> float | None:
    """Gradient of a weight, root mean square; None where there is no weight."""
    n = sum(gradient.numel() for gradient in gradients if gradient is not None)
    squares = sum(float(gradient.double().square().sum()) for gradient in gradients if gradient is not None)
    return math.sqrt(squares / n) if n else None


def _small(
    name: str,
    layer: QuantumLayer,
    gradients: dict[int, Tensor | None],
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
    name: str, layer: QuantumLayer, gradients: dict[int, Tensor | None], known: set[int]
) -> list[str]:
    """Weights with a gradient of exactly zero, though no reason for it lies in the circuit."""
    silent: list[int] = []
    place = 0
    for weight in layer.parameters():
        if weight.requires_grad:
            gradient = gradients[id(weight)]
            zero = torch.ones(weight.numel()) if gradient is None else gradient.detach().flatten().cpu() == 0
            silent += [place + i for i in zero.nonzero().flatten().tolist() if place + i not in known]
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

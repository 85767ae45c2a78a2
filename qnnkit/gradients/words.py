"""What gradients say of a net that does not train, in sentences: the layer, the rule, what usually helps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit.checkpoint import own_generators
from qnnkit.gradients.reach import dead, told, weight_names
from qnnkit.layers import QuantumLayer
from qnnkit.tasks import Task

HALVES = (torch.float16, torch.bfloat16)
HALF_STEP = {"float16": "0.002", "bfloat16": "0.016"}
"""Distance of neighbouring numbers between 2 and 4, where pi is: 2 to the minus 9, and minus 6."""
VANISHED = 1e-4
"""Gradient of a weight (root mean square) below which it is called vanished, if it is also small beside the
classical ones: on hardware some 1e8 shots tell it from zero (the error of a parameter shift falls as 1 /
sqrt(shots)), and in a float32 simulation three digits are left above rounding. Deep random circuits come
there at some 2 log2(1e4) = 27 wires (McClean et al. 2018, arXiv:1803.11173), global observables sooner."""
VANISHED_BESIDE = 1e-2
"""Likewise, as a part of the classical weights' gradient; at a minimum both are small."""
EXPLODED = 10.0
"""An expectation value changes by at most 1 per radian (parameter-shift rule, Mitarai et al. 2018,
arXiv:1803.00745), and cross-entropy by at most 1 per logit: more than this is made between the two."""
BURST = 100.0
"""Largest norm of an epoch by its median; 6.3 was the most seen while nets learned."""
LONG_STEP = math.pi / 2
"""Radians by which an update turns the weights (root mean square): past a quarter turn, the slope that was
followed says nothing of where it leads. A gate's value is a sine of its angle."""
MOST_NAMES = 8


def warnings(row: Mapping[str, Any]) -> list[str]:
    """What an epoch's row, as `Watch` makes it, says against the circuits in it."""
    found: list[str] = []
    for layer in row["layers"]:
        if "step" in layer and layer["norm"]:  # a circuit that was looked at
            found += _of_layer(layer, row)
    return found


def _of_layer(layer: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    name, found = layer["layer"], []
    if layer.get("dtype") in HALF_STEP:
        found.append(_half(name, layer["dtype"], "weights"))
    if not any(layer["norm"]):
        return [
            *found,
            f"No gradient in `{name}`: it was exactly zero in every observed step. Look whether its angles "
            "are multiplied by zero, its outputs reach the loss, and gates lead from its weights to a wire "
            "that is measured; `gradients.diagnose` names each weight and why.",
        ]
    size = _median(layer["norm"]) / math.sqrt(layer["n_weights"])
    beside = _classical_size(row)
    if size < VANISHED and (beside is None or size < VANISHED_BESIDE * beside):
        than = "; at a minimum it is small too, and no classical weights are here to tell"
        if beside is not None:
            than = f" and a hundredth of the classical weights', {beside:.2g}"
        found.append(
            f"Vanishing gradient in `{name}`: {size:.2g} for a weight in a typical step (the rule: below "
            f"{VANISHED:g}{than}). Fewer qubits or layers, an observable of one or two wires, or "
            'initialisation="small" or "identity_block" usually help; a larger learning rate does not.'
        )
    peak = _peak(layer["norm"])
    if size > EXPLODED or peak > BURST:
        rule = (
            f"{size:.2g} for a weight in a typical step (the rule: above {EXPLODED:g})"
            if size > EXPLODED
            else f"its largest norm is {peak:.0f} times the median of the epoch (the rule: above {BURST:g})"
        )
        found.append(
            f"Exploding gradient in `{name}`: {rule}. A circuit alone cannot do that: look at what reads its "
            "values. quantum_clip_norm, a lower learning rate or a normalised loss usually help."
        )
    step = _median(layer["step"])
    if step > LONG_STEP:
        found.append(
            f"Steps too long in `{name}`: a typical update turns its angles by {step:.2g} radians (the rule: "
            f"above {LONG_STEP:.2g}, a quarter turn), so it may lead anywhere. A lower quantum_learning_rate "
            "helps; with Adam it is about the turn of a step, whatever the gradient, and clipping is no help."
        )
    return found + _noise(layer, row)


def _noise(layer: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Whether the circuit's gradient is noise where other weights' is not.

    At a minimum every gradient is noise, so a ratio near zero alone is no fault: it has to be the circuit's
    own. The one case that needs nothing beside it: even the mean over all steps of an epoch is mostly noise.
    """
    high, updates = layer["snr_high"], row["updates"]
    if high is None:
        return []
    classical = _classical_snr(row)
    alone = high * math.sqrt(updates) < 1
    if not alone and not (layer["snr_low"] == 0 and classical is not None and high < classical):
        return []
    rule = (
        f"below 1 / sqrt({updates} steps), where the mean of a whole epoch is noise too"
        if alone
        else f"not told from 0, and below the {classical:.2g} that the classical weights reach at least"
    )
    return [
        f"Noise drowns the gradient in `{layer['layer']}`: its signal-to-noise ratio is at most {high:.2g} "
        f"(the rule: {rule}). More shots, a larger batch or accumulation, fewer qubits, or a smaller "
        "quantum_learning_rate over more epochs usually help; or its weights stand at a minimum already."
    ]


def _half(name: str, dtype: str, what: str) -> str:
    return (
        f"Half precision in `{name}`: its {what} are {dtype}, which knows angles near pi only to "
        f"{HALF_STEP[dtype]} radians, so shorter steps are lost. Keep the circuit and what it is given in "
        'float32; precision="bfloat16" of a training does so by itself.'
    )


def _classical_size(row: Mapping[str, Any]) -> float | None:
    """Typical gradient of a classical weight, root mean square; None where there is none."""
    others = [layer for layer in row["layers"] if "step" not in layer]
    squares = sum(_median(layer["norm"]) ** 2 for layer in others)
    return math.sqrt(squares / sum(layer["n_weights"] for layer in others)) if others else None


def _classical_snr(row: Mapping[str, Any]) -> float | None:
    """Lower end of the classical group's signal-to-noise ratio, where a group is all classical."""
    mixed = {layer["group"] for layer in row["layers"] if "step" in layer}
    lows = [group["snr_low"] for group in row["groups"] if group["group"] not in mixed]
    return max((low for low in lows if low is not None), default=None)


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else 0.0


def _peak(norms: Sequence[float | None]) -> float:
    """The largest by the median."""
    middle = _median(norms)
    return max(norm or 0.0 for norm in norms) / middle if middle else 0.0


# --- before training ---------------------------------------------------------------------------------------


def diagnose(model: nn.Module, task: Task, batch: Any) -> list[str]:
    """What will keep a net's circuits from training, in sentences, as far as one batch shows it.

    Half precision in a circuit; weights that cannot learn, with the reason; weights that have no gradient of
    the loss. Also told is a model without a circuit that trains. An empty list says that nothing was found.

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
    weights = [weight for _, layer in trained for weight in layer.parameters() if weight.requires_grad]
    try:
        with own_generators(), torch.enable_grad():
            loss = task(model.eval(), batch).loss
            found = [None] * len(weights)
            if loss.requires_grad and weights:
                found = list(torch.autograd.grad(loss, weights, allow_unused=True))
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    gradients = dict(zip(map(id, weights), found, strict=True))
    sentences = []
    for name, layer in circuits:
        sentences += _in_half(name, layer, entered.get(layer))
        if layer not in entered:
            sentences.append(f"Nothing calls `{name}`: the net's output does not depend on it.")
    if not trained:
        sentences.append("No circuit of this net trains: all are frozen, or have no weights.")
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    silent = dead(model, inputs) if isinstance(inputs, Tensor) else []
    sentences += told(silent)
    for name, layer in trained:
        known = {one.index for one in silent if one.layer == name}
        if layer in entered:
            sentences += _without_gradient(name, layer, gradients, known)
    return sentences


def _in_half(name: str, layer: QuantumLayer, inputs: torch.dtype | None) -> list[str]:
    kinds = {"weights": next((weight.dtype for weight in layer.parameters()), None), "inputs": inputs}
    return [
        _half(name, str(dtype).removeprefix("torch."), what)
        for what, dtype in kinds.items()
        if dtype in HALVES
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

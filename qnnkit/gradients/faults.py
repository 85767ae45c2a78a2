"""Faults that keep a net's circuits from training: a table of all, and those that an epoch's row shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

HALF_STEP = {torch.float16: "0.002", torch.bfloat16: "0.016"}
"""Distance between neighbouring numbers in 2 to 4, which contains pi: 2^-9 and 2^-6."""
VANISHED = 1e-4
"""Gradient of a weight (root mean square) below which it counts as vanished, if it is also small compared to
the classical ones. On hardware, some 1e8 shots distinguish it from zero (the error of a parameter shift falls
as 1 / sqrt(shots)); a float32 simulation has three digits left above rounding. Deep random circuits reach it
at some 2 log2(1e4) = 27 wires (McClean et al. 2018, arXiv:1803.11173), global observables sooner."""
VANISHED_RELATIVE = 1e-2
"""The same limit relative to the gradient of the classical weights; at a minimum both are small."""
EXPLODED = 10.0
"""An expectation value changes by at most 1 per radian (parameter-shift rule, Mitarai et al. 2018,
arXiv:1803.00745), and cross-entropy by at most 1 per logit. A larger gradient arises between the two."""
LONG_STEP = math.pi / 2
"""Radians by which a typical update turns the weights (root mean square). Expectation values are sines of an
angle, so beyond a quarter turn the slope says nothing about the value."""
BLIND_STEP = 0.3
"""The same limit if the gradient shows no direction. Near a minimum, such a step raises a sine by up to
1 - cos 0.3 = 4.5 % of its amplitude, so that some twenty weights together raise it by the full amplitude."""
THROWN = 1.0
"""Length of an update divided by the length of a group's weights. Above this, their values are lost. It was
at most 0.33 in the recipes (digits_quanv, first update, Adam), and 2 (SGD) to 300 (Adam) with a learning rate
of 10."""

SMALLER = (
    'Use fewer qubits or layers, an observable of one or two wires, or initialisation="small" or '
    '"identity_block"; a larger learning rate does not help.'
)
READER = (
    "The layers after it give its outputs little weight: scale them up, or check these layers; fewer qubits "
    "or circuit layers do not help."
)
LOST = (
    "If it was larger before, saturated units block the gradient, or a high learning rate has moved the "
    "classical weights far away: lower learning_rate from the start, or set clip_norm."
)

FAULTS: dict[str, tuple[str, str, str]] = {
    # name: (kind, limit, remedy), with placeholders in braces
    "rate": (
        "Learning rate too high",
        f"{THROWN:g}, all weights of its group together",
        "Their values are lost, and the units that they feed saturate. Lower {rate}, or set warmup_epochs.",
    ),
    "half": (
        "Half precision",
        "float32",
        "Smaller steps and differences are lost: keep the circuit's weights in float32. With precision "
        "bfloat16 or float16, which turns on autocast, compute the angles within "
        "torch.autocast(..., enabled=False).",
    ),
    "zero": (
        "No gradient",
        "more than 0 in one step",
        "Check whether its angles are multiplied by zero, whether its outputs reach the loss, and whether "
        f"gates lead from its weights to a measured wire (`gradients.diagnose` names them). {LOST}",
    ),
    "vanished": (
        "Vanishing gradient",
        f"at least {VANISHED:g}, or a hundredth of the classical weights'",
        f"{SMALLER} Or the layers after it give its outputs little weight; `gradients.diagnose` tells which. "
        f"{LOST}",
    ),
    "exploded": (
        "Exploding gradient",
        f"{EXPLODED:g}",
        "A circuit of plain angles and Pauli observables cannot cause this: check scaled angles or "
        "observables, and the layers after it. Set clip_norm or quantum_clip_norm, a lower learning rate or "
        "a normalised loss.",
    ),
    "long": (
        "Steps too long",
        "{most}",
        "Lower quantum_learning_rate: with Adam, a step is about as long as that, so clipping does not help.",
    ),
    "noise": (
        "Noise drowns the gradient",
        "{least}",
        "Use more shots, a larger batch, fewer qubits, or a smaller quantum_learning_rate over more epochs. "
        "Or its weights are already at a minimum.",
    ),
    "no circuit": ("No circuit", "", "Add a QuantumLayer."),
    "all frozen": ("No circuit trains", "", "Set requires_grad on a circuit's weights, or give it weights."),
    "refused": (
        "No gradient of the loss",
        "",
        "The net cannot train. If a circuit with shots gets its inputs from a layer that trains, wrap the "
        "QNode in qp.transforms.broadcast_expand, or set no shots.",
    ),
    "not called": ("Unused circuit", "", "Call it in the net's forward, or remove it."),
    "constant": ("Constant output", "", "Check what prepares its inputs, and which angles they turn."),
    "unfelt": ("Unused inputs", "", "Use them in angles that reach a measured wire, or remove them."),
    "dead": ("Dead weights", "", "Change its gate, the gates after it or what is measured."),
    "unlucky": ("Dead weights", "", "Choose another initialisation, or a larger sample."),
}
"""All faults that are recognised."""


@dataclass(frozen=True)
class Fault:
    """One fault of one layer. `str` gives its sentence.

    Attributes:
        layer: Name of the layer, or of a group of layers.
        kind: Kind of fault, such as "Vanishing gradient".
        value: What was observed, with its number.
        limit: Limit of the number; "" if there is none.
        remedy: What to change, as sentences.
        weights: Indices in `gradients.weight_names`, if the fault affects single weights.
    """

    layer: str
    kind: str
    value: str
    limit: str
    remedy: str
    weights: tuple[int, ...] = ()

    def __str__(self) -> str:
        limit = f" (limit: {self.limit})" if self.limit else ""
        return f"{self.kind} in `{self.layer}`: {self.value}{limit}. {self.remedy}"


def fault(name: str, layer: str, value: str, weights: Iterable[int] = (), **filled: str) -> Fault:
    """A fault of FAULTS, with its placeholders filled in."""
    kind, limit, remedy = FAULTS[name]
    return Fault(layer, kind, value, limit.format(**filled), remedy.format(**filled), tuple(weights))


def of_epoch(row: Mapping[str, Any]) -> list[Fault]:
    """Faults of circuits, and of the layers around them, in an epoch's row from `Watch`."""
    circuits = [layer for layer in row["layers"] if "step" in layer and layer["norm"]]
    classical = [layer for layer in row["layers"] if "step" not in layer]
    faults = [*_thrown(row)]
    for layer in circuits:
        for what, key in (("weights", "dtype"), ("inputs", "input_dtype")):
            faults += half(layer["layer"], getattr(torch, layer.get(key, ""), None), what)
        faults += sized(layer, classical)
        noise = [*_noise(layer, row)]
        # Weights without a direction jump around, with any number of shots.
        faults += _steps(layer, blind=bool(noise)) or noise
    return faults


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """The values that are numbers; a single zero if there are none."""
    return np.array([value for value in values if value is not None] or [0.0])


def _thrown(row: Mapping[str, Any]) -> Iterator[Fault]:
    """Groups of classical weights with an update that was too long.

    Groups are judged as a whole, because a single layer may begin near zero on purpose. A group whose weights
    were all zero has no ratio.
    """
    classical = {layer["group"] for layer in row["layers"] if "step" not in layer}
    for group in row["groups"]:
        name, ratios = group["group"], group["ratio"]
        if name in classical and None not in ratios and max(ratios, default=0.0) > THROWN:
            rate = "quantum_learning_rate" if name in ("quantum", "stand_in") else "learning_rate"
            value = f"an update is {max(ratios):.2g} times as long as the weights it moves"
            yield fault("rate", name, value, rate=rate)


def half(layer: str, dtype: torch.dtype | None, what: str) -> list[Fault]:
    """Half precision of a circuit's "weights" or "inputs"."""
    if dtype not in HALF_STEP:
        return []
    kind = str(dtype).removeprefix("torch.")
    value = f"its {what} are {kind}, which resolves angles near pi to {HALF_STEP[dtype]} radians"
    return [fault("half", layer, value)]


def sized(layer: Mapping[str, Any], classical: Sequence[Mapping[str, Any]]) -> Iterator[Fault]:
    """Whether a circuit's gradient is zero, too small or too large."""
    name, norms = layer["layer"], _numbers(layer["norm"])
    if not norms.any():
        yield fault("zero", name, "it was exactly 0 in every observed step")
        return
    size = float(np.median(norms)) / math.sqrt(layer["n_weights"])
    typical = f"{size:.2g} for a weight in a typical step"
    usual = math.inf
    if classical:  # typical gradient of a classical weight, root mean square
        squares = sum(float(np.median(_numbers(other["norm"]))) ** 2 for other in classical)
        usual = math.sqrt(squares / sum(other["n_weights"] for other in classical))
    if size < min(VANISHED, VANISHED_RELATIVE * usual):
        others = f"{usual:.2g} for a classical weight" if classical else "at a minimum it is small too"
        yield fault("vanished", name, f"{typical}; {others}")
    if size > EXPLODED:
        yield fault("exploded", name, typical)


def _steps(layer: Mapping[str, Any], blind: bool) -> list[Fault]:
    """Whether a circuit's steps are too long; `blind` if its gradient shows no direction."""
    limit, why = LONG_STEP, "a quarter turn"
    if blind:
        limit, why = BLIND_STEP, "as its gradient cannot be distinguished from noise"
    turn = float(np.median(_numbers(layer["step"])))
    value = f"a typical update turns its angles by {turn:.2g} radians"
    return [fault("long", layer["layer"], value, most=f"{limit:.2g} radians, {why}")] * (turn > limit)


def _noise(layer: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Fault]:
    """Whether the circuit's gradient is noise while that of other weights is not.

    At a minimum every gradient is noise, so a ratio near zero is only a fault if the circuit alone has it. It
    is a fault in any case if even the mean over all steps of an epoch is mostly noise.
    """
    high, updates = layer["snr_high"], row["updates"]
    mixed = {other["group"] for other in row["layers"] if "step" in other}
    others = _numbers([group["snr_low"] for group in row["groups"] if group["group"] not in mixed]).max()
    least = ""
    if high is not None and high * math.sqrt(updates) < 1:
        least = f"1 / sqrt({updates} steps); below it, even the mean of an epoch is noise"
    elif high is not None and layer["snr_low"] == 0 and high < others:
        least = f"at least {others:.2g}, as the classical weights have"
    if least:
        yield fault("noise", layer["layer"], f"its signal-to-noise ratio is at most {high:.2g}", least=least)

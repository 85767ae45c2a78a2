"""What keeps a net's circuits from training: one table of faults, and those that an epoch's row shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

HALF_STEP = {torch.float16: "0.002", torch.bfloat16: "0.016"}
"""Distance of neighbouring numbers between 2 and 4, where pi is: 2 to the minus 9, and minus 6."""
VANISHED = 1e-4
"""Gradient of a weight (root mean square) below which it is called vanished, if it is also small compared to
the classical ones: on hardware some 1e8 shots tell it from zero (the error of a parameter shift falls as 1 /
sqrt(shots)), and in a float32 simulation three digits are left above rounding. Deep random circuits come
there at some 2 log2(1e4) = 27 wires (McClean et al. 2018, arXiv:1803.11173), global observables sooner."""
VANISHED_RELATIVE = 1e-2
"""Likewise, as a part of the classical weights' gradient; at a minimum both are small."""
EXPLODED = 10.0
"""An expectation value changes by at most 1 per radian (parameter-shift rule, Mitarai et al. 2018,
arXiv:1803.00745), and cross-entropy by at most 1 per logit: more than this is made between the two."""
LONG_STEP = math.pi / 2
"""Radians by which a typical update turns the weights (root mean square): past a quarter turn, the slope that
was followed says nothing of where it leads. A gate's value is a sine of its angle."""
BLIND_STEP = 0.3
"""Likewise, where the gradient shows no direction. Around a minimum one such step lifts a sine by up to
1 - cos 0.3 = 4.5 % of its amplitude, so some twenty weights together lift it by all of that."""
THROWN = 1.0
"""Length of an update by the length of a group's weights: what they were is lost. It was 0.33 at most in
the recipes (digits_quanv, first update, Adam), and with a learning rate of 10 it is 2 (SGD) to 300 (Adam)."""

SMALLER = (
    'Use fewer qubits or layers, an observable of one or two wires, or initialisation="small" or '
    '"identity_block"; a larger learning rate does not help.'
)
READER = (
    "What reads its outputs weighs them little: scale them up, or check what follows the circuit; fewer "
    "qubits or layers do not help."
)
LOST = (
    "If it was larger before, saturated units cut the way to the loss, or a learning rate threw the "
    "classical weights far off: lower learning_rate from the start, or set clip_norm."
)

FAULTS: dict[str, tuple[str, str, str]] = {
    # name: (kind, limit, remedy); names in braces are filled in
    "rate": (
        "Learning rate too high",
        f"{THROWN:g}, all weights of its group together",
        "The weights are lost, and the units that they feed saturate. Lower {rate}, or set warmup_epochs.",
    ),
    "half": (
        "Half precision",
        "float32",
        "Shorter steps and smaller differences are lost: keep the circuit's weights in float32. Under "
        "autocast, which precision bfloat16 and float16 turn on, compute what becomes angles within "
        "torch.autocast(..., enabled=False).",
    ),
    "zero": (
        "No gradient",
        "more than 0 in one step",
        "Check whether its angles are multiplied by zero, whether its outputs reach the loss, and whether "
        f"gates lead from its weights to a measured wire; `gradients.diagnose` names them. {LOST}",
    ),
    "vanished": (
        "Vanishing gradient",
        f"at least {VANISHED:g}, or a hundredth of the classical weights'",
        f"{SMALLER} Or what reads its outputs weighs them little: `gradients.diagnose` tells the two apart. "
        f"{LOST}",
    ),
    "exploded": (
        "Exploding gradient",
        f"{EXPLODED:g}",
        "A circuit of plain angles and Pauli observables cannot do that: check scaled angles or observables, "
        "and what reads its values. Set clip_norm or quantum_clip_norm, a lower learning rate or a "
        "normalised loss.",
    ),
    "long": (
        "Steps too long",
        "{most}",
        "Lower quantum_learning_rate: with Adam it is about the turn of a step, so clipping does not help.",
    ),
    "noise": (
        "Noise drowns the gradient",
        "{least}",
        "Use more shots, a larger batch, fewer qubits, or a smaller quantum_learning_rate over more epochs; "
        "or its weights are at a minimum already.",
    ),
    "no circuit": ("No circuit", "", "Add a QuantumLayer."),
    "all frozen": ("No circuit trains", "", "Set requires_grad on the weights of one, or give it weights."),
    "refused": (
        "No gradient of the loss",
        "",
        "The net cannot train. Where a layer that trains makes the inputs of a circuit with shots, wrap the "
        "QNode in qp.transforms.broadcast_expand, or set no shots.",
    ),
    "not called": ("Unused circuit", "", "Call it in the net's forward, or remove it."),
    "constant": ("Constant output", "", "Check what prepares its inputs, and which angles they turn."),
    "unfelt": ("Unused inputs", "", "Let them turn angles that reach a measured wire, or leave them out."),
    "dead": ("Dead weights", "", "Change what it turns, the gates after it or what is measured."),
    "unlucky": ("Dead weights", "", "Choose another initialisation, or a larger sample."),
}
"""Every fault that is recognised."""


@dataclass(frozen=True)
class Fault:
    """One fault of one layer; `str` makes its sentence."""

    layer: str
    kind: str
    value: str
    """What was seen, with its number."""
    limit: str
    """What the number must not pass; "" for what is wrong at any number."""
    remedy: str
    weights: tuple[int, ...] = ()
    """Places in `gradients.weight_names` of those that it holds for, where it holds for single weights."""

    def __str__(self) -> str:
        limit = f" (limit: {self.limit})" if self.limit else ""
        return f"{self.kind} in `{self.layer}`: {self.value}{limit}. {self.remedy}"


def fault(name: str, layer: str, value: str, weights: Iterable[int] = (), **filled: str) -> Fault:
    """A row of the table, filled in."""
    kind, limit, remedy = FAULTS[name]
    return Fault(layer, kind, value, limit.format(**filled), remedy.format(**filled), tuple(weights))


def of_epoch(row: Mapping[str, Any]) -> list[Fault]:
    """Faults of the circuits in an epoch's row, as `Watch` makes it, and of the layers around them."""
    circuits = [layer for layer in row["layers"] if "step" in layer and layer["norm"]]
    classical = [layer for layer in row["layers"] if "step" not in layer]
    noticed = [*_thrown(row)]
    for layer in circuits:
        for what, key in (("weights", "dtype"), ("inputs", "input_dtype")):
            noticed += half(layer["layer"], getattr(torch, layer.get(key, ""), None), what)
        noticed += sized(layer, classical)
        noise = [*_noise(layer, row)]
        # Weights without a direction jump about, with any number of shots.
        noticed += _steps(layer, blind=bool(noise)) or noise
    return noticed


def _known(values: Sequence[float | None]) -> np.ndarray:
    """Those that are numbers; a zero where none is."""
    return np.array([value for value in values if value is not None] or [0.0])


def _thrown(row: Mapping[str, Any]) -> Iterator[Fault]:
    """Groups of classical weights with an update that was too long.

    Whole groups are judged, as a single layer may begin near zero on purpose; one whose weights were all zero
    has no ratio.
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
    name, norms = layer["layer"], _known(layer["norm"])
    if not norms.any():
        yield fault("zero", name, "it was exactly 0 in every observed step")
        return
    size = float(np.median(norms)) / math.sqrt(layer["n_weights"])
    typical = f"{size:.2g} for a weight in a typical step"
    of_others = math.inf
    if classical:  # typical gradient of a classical weight, root mean square
        squares = sum(float(np.median(_known(other["norm"]))) ** 2 for other in classical)
        of_others = math.sqrt(squares / sum(other["n_weights"] for other in classical))
    if size < min(VANISHED, VANISHED_RELATIVE * of_others):
        others = f"of classical ones {of_others:.2g}" if classical else "at a minimum it is small too"
        yield fault("vanished", name, f"{typical}; {others}")
    if size > EXPLODED:
        yield fault("exploded", name, typical)


def _steps(layer: Mapping[str, Any], blind: bool) -> list[Fault]:
    """Whether a circuit's angles make too long steps; `blind` where its gradient shows no direction."""
    limit, why = LONG_STEP, "a quarter turn"
    if blind:
        limit, why = BLIND_STEP, "as its gradient cannot be distinguished from noise"
    turn = float(np.median(_known(layer["step"])))
    value = f"a typical update turns its angles by {turn:.2g} radians"
    return [fault("long", layer["layer"], value, most=f"{limit:.2g} radians, {why}")] * (turn > limit)


def _noise(layer: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Fault]:
    """Whether the circuit's gradient is noise where other weights' is not.

    At a minimum every gradient is noise, so a ratio near zero alone is no fault: it has to be the circuit's
    own. One case needs nothing to compare with: even the mean over all steps of an epoch is mostly noise.
    """
    high, updates = layer["snr_high"], row["updates"]
    mixed = {each["group"] for each in row["layers"] if "step" in each}
    others = _known([group["snr_low"] for group in row["groups"] if group["group"] not in mixed]).max()
    least = ""
    if high is not None and high * math.sqrt(updates) < 1:
        least = f"1 / sqrt({updates} steps), where the mean of a whole epoch is noise too"
    elif high is not None and layer["snr_low"] == 0 and high < others:
        least = f"the {others:.2g} that the classical weights reach at least"
    if least:
        yield fault("noise", layer["layer"], f"its signal-to-noise ratio is at most {high:.2g}", least=least)

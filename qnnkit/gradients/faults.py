"""What keeps a net's circuits from training: one table of faults, and those that an epoch's row shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
BURST = 100.0
"""Largest norm of an epoch by its median; 6.3 was the most seen while nets learned."""
LONG_STEP = math.pi / 2
"""Radians by which an update turns the weights (root mean square): past a quarter turn, the slope that was
followed says nothing of where it leads. A gate's value is a sine of its angle."""
ONE_LONG_STEP = math.pi
"""Likewise, of a single update: half a turn may lead to any value that a gate has."""
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
CUT = (
    "The circuit can do better ({seen}), so saturated units cut the way from it to the loss, or a learning "
    "rate threw the classical weights far off. Lower learning_rate from the start, or set clip_norm; fewer "
    "qubits or layers do not help."
)
OVERWEIGHTED = "What reads its values overweights them ({seen}). Lower learning_rate, or set clip_norm."

FAULTS: dict[str, tuple[str, str, str]] = {
    # name: (kind, limit, remedy); names in braces are filled in
    "rate": (
        "Learning rate too high",
        f"{THROWN:g}, all weights of its group together",
        "The weights are lost, and the units that they feed saturate. Lower {rate}, or set warmup_epochs.",
    ),
    "half weights": (
        "Half precision",
        "float32",
        "Shorter steps are lost: keep the circuit's weights in float32.",
    ),
    "half inputs": (
        "Half precision",
        "float32",
        "Inputs that differ by less are the same: under autocast, which precision bfloat16 and float16 turn "
        "on, compute what becomes angles within torch.autocast(..., enabled=False).",
    ),
    "zero": (
        "No gradient",
        "more than 0 in one step",
        "Check whether its angles are multiplied by zero, its outputs reach the loss, and gates lead from "
        "its weights to a measured wire; `gradients.diagnose` names each weight and why.",
    ),
    "vanished": (
        "Vanishing gradient",
        f"at least {VANISHED:g}{{than}}",
        f"{SMALLER} Or what reads its values weighs them little: `gradients.diagnose` tells the two apart.",
    ),
    "exploded": (
        "Exploding gradient",
        "{most}",
        "A circuit of plain angles and Pauli observables cannot do that: check scaled angles or observables, "
        "and what reads its values. Set quantum_clip_norm, a lower learning rate or a normalised loss.",
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
    "no circuit": ("No circuit", "", "Only its classical part is shown; add a QuantumLayer."),
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
    "dead": (
        "Dead weights",
        "",
        "Change what it turns, the gates after it or what is measured.",
    ),
    "unlucky": ("Dead weights", "", "Choose another initialisation, or a larger sample."),
    "all cut": (
        "No gradient",
        "more than 0",
        "A factor of zero, a detach or saturated units cut the way to the loss: check its readers.",
    ),
    "some cut": ("No gradient", "more than 0", "Check which of its outputs reach the loss."),
    "flat": ("Small gradient", f"at least {VANISHED:g}", SMALLER),
    "scaled down": (
        "Small gradient",
        f"at least {VANISHED:g}",
        "What reads its outputs weighs them little: scale them up, or check what follows the circuit; fewer "
        "qubits or layers do not help.",
    ),
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


def fault(
    name: str, layer: str, value: str, *, remedy: str = "", weights: Iterable[int] = (), **filled: str
) -> Fault:
    """A row of the table, filled in; `remedy` in place of the usual one."""
    kind, limit, usual = FAULTS[name]
    return Fault(layer, kind, value, limit.format(**filled), remedy or usual.format(**filled), tuple(weights))


def half(layer: str, dtype: torch.dtype | None, what: str) -> list[Fault]:
    """Half precision of a circuit's "weights" or "inputs"."""
    if dtype not in HALF_STEP:
        return []
    kind = str(dtype).removeprefix("torch.")
    value = f"its {what} are {kind}, which resolves angles near pi to {HALF_STEP[dtype]} radians"
    return [fault(f"half {what}", layer, value)]


# --- in an epoch's row ---------------------------------------------------------------------------------


def of_epoch(row: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]] = ()) -> list[Fault]:
    """Faults of the circuits in an epoch's row, as `Watch` makes it, and of the layers around them.

    Args:
        row: Of the epoch.
        earlier: Rows of the same training; epochs before this one show what a circuit can do.
    """
    rows = [*(each for each in earlier if each["epoch"] < row["epoch"]), row]
    thrown, faults = [_thrown(each) for each in rows], []
    if thrown[-1]:
        ratio, name, group = thrown[-1]
        rate = "quantum_learning_rate" if group in ("quantum", "stand_in") else "learning_rate"
        value = f"an update is {ratio:.2g} times as long as the weights that it moves"
        faults.append(fault("rate", name, value, rate=rate))
    ratio, name, _ = max(filter(None, thrown), default=(0.0, "", ""))
    far = f"an update of `{name}` was {ratio:.2g} times as long as its weights" if ratio else ""
    for layer in _circuits(row):
        name = layer["layer"]
        peaks = [
            _known(each["norm"]).max() for one in rows for each in _circuits(one) if each["layer"] == name
        ]
        for what, key in (("weights", "dtype"), ("inputs", "input_dtype")):
            faults += half(name, getattr(torch, layer.get(key, ""), None), what)
        faults += _sized(layer, row, max(peaks) / math.sqrt(layer["n_weights"]), far)
    return faults


def _circuits(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Circuits that were observed in an epoch."""
    return [layer for layer in row["layers"] if "step" in layer and layer["norm"]]


def _known(values: Sequence[float | None]) -> np.ndarray:
    """Those that are numbers; a zero where none is."""
    return np.array([value for value in values if value is not None] or [0.0])


def _thrown(row: Mapping[str, Any]) -> tuple[float, str, str] | None:
    """(update by weights, layer, group) of the wildest update of classical weights, if it was too long.

    Whole groups are judged, as a single layer may begin near zero on purpose; one whose weights were all zero
    has no ratio.
    """
    ratios = {group["group"]: group["ratio"] for group in row["groups"]}
    wild = {name for name, each in ratios.items() if None not in each and max(each, default=0.0) > THROWN}
    classical = [layer for layer in row["layers"] if "step" not in layer and layer["group"] in wild]
    updates = [(float(_known(layer["ratio"]).max()), layer["layer"], layer["group"]) for layer in classical]
    return max(updates, default=None)


def _sized(layer: Mapping[str, Any], row: Mapping[str, Any], peak: float, far: str) -> list[Fault]:
    """Faults of one circuit by its numbers.

    Args:
        layer: Its part of the row.
        row: Of the epoch.
        peak: Its largest gradient of a weight in a step of this epoch or an earlier one.
        far: What an update did to classical weights, if it was too long.
    """
    name, norms, faults = layer["layer"], _known(layer["norm"]), []
    size = np.median(norms) / math.sqrt(layer["n_weights"])
    seen, cut = far, ""
    if not seen and peak > max(VANISHED, BURST * size):
        seen = f"its gradient was {peak:.2g} for a weight in another step"
    if seen:
        cut = CUT.format(seen=seen)
    if not norms.any():
        return [fault("zero", name, "it was exactly 0 in every observed step", remedy=cut)]
    classical, typical = _classical_size(row), f"{size:.2g} for a weight in a typical step"
    vanished = size < VANISHED and (classical is None or size < VANISHED_RELATIVE * classical)
    if vanished:
        than = f", or a hundredth of the classical weights', {classical:.2g}"
        if classical is None:
            than = "; at a minimum it is small too, and no classical weights are here to compare with"
        faults.append(fault("vanished", name, typical, remedy=cut, than=than))
    burst = norms.max() / (np.median(norms) or math.inf)
    remedy = OVERWEIGHTED.format(seen=far) if far else ""
    if size > EXPLODED:
        faults.append(fault("exploded", name, typical, remedy=remedy, most=f"{EXPLODED:g}"))
    elif burst > BURST and not (vanished and cut):
        value = f"its largest norm is {burst:.0f} times the median of the epoch"
        faults.append(fault("exploded", name, value, remedy=remedy, most=f"{BURST:g} times"))
    noise = _noise(layer, row)
    # Weights without a direction jump about, with any number of shots.
    return faults + (_steps(layer, blind=bool(noise)) or noise)


def _steps(layer: Mapping[str, Any], blind: bool) -> list[Fault]:
    """Whether a circuit's angles make too long steps; `blind` where its gradient shows no direction."""
    steps = _known(layer["step"])
    typical = f"a typical update turns its angles by {np.median(steps):.2g} radians"
    for seen, limit, value, why in (
        (np.median(steps), LONG_STEP, typical, "a quarter turn"),
        (
            steps.max(),
            ONE_LONG_STEP,
            f"an update turns its angles by {steps.max():.2g} radians",
            "half a turn",
        ),
        (np.median(steps) * blind, BLIND_STEP, typical, "as its gradient cannot be distinguished from noise"),
    ):
        if seen > limit:
            return [fault("long", layer["layer"], value, most=f"{limit:.2g} radians, {why}")]
    return []


def _noise(layer: Mapping[str, Any], row: Mapping[str, Any]) -> list[Fault]:
    """Whether the circuit's gradient is noise where other weights' is not.

    At a minimum every gradient is noise, so a ratio near zero alone is no fault: it has to be the circuit's
    own. One case needs nothing to compare with: even the mean over all steps of an epoch is mostly noise.
    """
    high, updates = layer["snr_high"], row["updates"]
    mixed = {each["group"] for each in row["layers"] if "step" in each}
    classical = _known([group["snr_low"] for group in row["groups"] if group["group"] not in mixed]).max()
    if high is None:
        return []
    if high * math.sqrt(updates) < 1:
        least = f"1 / sqrt({updates} steps), where the mean of a whole epoch is noise too"
    elif layer["snr_low"] == 0 and high < classical:
        least = f"the {classical:.2g} that the classical weights reach at least"
    else:
        return []
    return [fault("noise", layer["layer"], f"its signal-to-noise ratio is at most {high:.2g}", least=least)]


def _classical_size(row: Mapping[str, Any]) -> float | None:
    """Typical gradient of a classical weight, root mean square; None where there is none."""
    others = [layer for layer in row["layers"] if "step" not in layer]
    squares = sum(float(np.median(_known(layer["norm"]))) ** 2 for layer in others)
    return math.sqrt(squares / sum(layer["n_weights"] for layer in others)) if others else None

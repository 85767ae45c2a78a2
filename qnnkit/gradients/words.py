"""What gradients say of a net that does not train, in sentences: the layer, the rule, what usually helps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

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
VANISHING_HELP_INSIDE = (
    'Fewer qubits or layers, an observable of one or two wires, or initialisation="small" or '
    '"identity_block" usually help; a larger learning rate does not.'
)
VANISHING_HELP = (
    f"{VANISHING_HELP_INSIDE} Or what reads its values weighs them little: `gradients.diagnose` tells the "
    "two apart, and `gradients.lines` what the loss hangs on."
)
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


@dataclass(frozen=True)
class Before:
    """What the epochs before one have shown."""

    sizes: Mapping[str, float] = field(default_factory=dict)
    """Circuit -> its largest gradient of a weight in a typical step of an epoch, root mean square."""
    thrown: tuple[str, float] | None = None
    """(classical layer, length of an update by that of its weights) of the wildest update."""


def before(rows: Sequence[Mapping[str, Any]], epoch: int) -> Before:
    """What the epochs before one, counted from 1, have shown."""
    sizes: dict[str, float] = {}
    thrown = None
    for row in rows:
        if row["epoch"] < epoch:
            thrown = _wildest(thrown, _thrown(row))
            for layer in row["layers"]:
                if "step" in layer and layer["norm"]:
                    sizes[layer["layer"]] = max(sizes.get(layer["layer"], 0.0), _size(layer))
    return Before(sizes, thrown)


def warnings(row: Mapping[str, Any], earlier: Before | None = None) -> list[str]:
    """What an epoch's row, as `Watch` makes it, says against the circuits in it, and what is around them.

    Args:
        row: Of the epoch.
        earlier: What the epochs before it have shown.
    """
    earlier, now = earlier or Before(), _thrown(row)
    earlier = replace(earlier, thrown=_wildest(earlier.thrown, now))
    found = [_too_far(*now, row)] if now else []
    for layer in row["layers"]:
        if "step" in layer and layer["norm"]:  # a circuit that was looked at
            found += _of_layer(layer, row, earlier)
    return found


def _wildest(*thrown: tuple[str, float] | None) -> tuple[str, float] | None:
    return max(filter(None, thrown), key=lambda one: one[1], default=None)


def _thrown(row: Mapping[str, Any]) -> tuple[str, float] | None:
    """(layer, update by weights) of the wildest update of classical weights; None where none was too long.

    Whole groups are judged, as a single layer may begin near zero on purpose; one whose weights were all zero
    has no ratio.
    """
    classical = [layer for layer in row["layers"] if "step" not in layer]
    wild = {
        group["group"]
        for group in row["groups"]
        if any(layer["group"] == group["group"] for layer in classical)
        and None not in group["ratio"]
        and max(group["ratio"], default=0.0) > THROWN
    }
    longest = (
        (layer["layer"], max(value or 0.0 for value in layer["ratio"]))
        for layer in classical
        if layer["group"] in wild
    )
    return _wildest(*longest)


def _too_far(name: str, ratio: float, row: Mapping[str, Any]) -> str:
    group = next(layer["group"] for layer in row["layers"] if layer["layer"] == name)
    rate = "quantum_learning_rate" if group in ("quantum", "stand_in") else "learning_rate"
    return (
        f"Learning rate too high for `{name}`: an update is {ratio:.2g} times as long as the weights that it "
        f"moves (the rule: all weights of its group together, above {THROWN:g}), so what they were is lost, "
        f"and the units that they feed saturate. A lower {rate} helps, or warmup_epochs."
    )


def _cut(layer: Mapping[str, Any], size: float, earlier: Before) -> str | None:
    """Why a gradient that is next to nothing is no fault of the circuit, where it can be told."""
    known, peak = earlier.sizes.get(layer["layer"], 0.0), max(norm or 0.0 for norm in layer["norm"])
    peak /= math.sqrt(layer["n_weights"])
    if earlier.thrown:
        why = "an update of `{}` was {:.2g} times as long as its weights".format(*earlier.thrown)
    elif known > max(VANISHED, BURST * size):
        why = f"it was {known:.2g} for a weight in an earlier epoch"
    elif peak > max(VANISHED, BURST * size):
        why = f"it was {peak:.2g} for a weight in another step of this epoch"
    else:
        return None
    return (
        f"The circuit can do better: {why}. So the way from it to the loss is cut, by saturated units or by "
        "a learning rate that threw the classical weights far off; fewer qubits or layers do not help. A "
        "lower learning_rate from the start does, or clip_norm."
    )


def _of_layer(layer: Mapping[str, Any], row: Mapping[str, Any], earlier: Before) -> list[str]:
    name, found = layer["layer"], []
    if layer.get("dtype") in HALF_STEP:
        found.append(half(name, layer["dtype"], "weights"))
    if layer.get("input_dtype") in HALF_STEP:
        found.append(half(name, layer["input_dtype"], "inputs"))
    size = _size(layer)
    cut = _cut(layer, size, earlier)
    if not any(layer["norm"]):
        told = f"No gradient in `{name}`: it was exactly zero in every observed step. "
        return [
            *found,
            told + cut
            if cut
            else f"{told}Look whether its angles "
            "are multiplied by zero, its outputs reach the loss, and gates lead from its weights to a wire "
            "that is measured; `gradients.diagnose` names each weight and why.",
        ]
    beside = _classical_size(row)
    vanished = size < VANISHED and (beside is None or size < VANISHED_BESIDE * beside)
    if vanished:
        than = "; at a minimum it is small too, and no classical weights are here to tell"
        if beside is not None:
            than = f" and a hundredth of the classical weights', {beside:.2g}"
        found.append(
            f"Vanishing gradient in `{name}`: {size:.2g} for a weight in a typical step (the rule: below "
            f"{VANISHED:g}{than}). {cut or VANISHING_HELP}"
        )
    peak = _peak(layer["norm"])
    if size > EXPLODED or (peak > BURST and not (vanished and cut)):
        rule = (
            f"{size:.2g} for a weight in a typical step (the rule: above {EXPLODED:g})"
            if size > EXPLODED
            else f"its largest norm is {peak:.0f} times the median of the epoch (the rule: above {BURST:g})"
        )
        found.append(f"Exploding gradient in `{name}`: {rule}. {_exploding(earlier)}")
    noise = _noise(layer, row)
    too_long = _steps(layer, bool(noise))
    return found + (too_long or noise)  # what jumps about has no direction, with any number of shots


def _exploding(earlier: Before) -> str:
    if earlier.thrown:
        return (
            "What reads its values weighs them too much, since an update of `{}` was {:.2g} times as long as "
            "its weights: a lower learning_rate helps, or clip_norm."
        ).format(*earlier.thrown)
    return (
        "A circuit of plain angles and Pauli observables cannot do that: look at scaled angles or "
        "observables, and at what reads its values. quantum_clip_norm, a lower learning rate or a normalised "
        "loss usually help."
    )


def _steps(layer: Mapping[str, Any], blind: bool) -> list[str]:
    """Whether a circuit's angles make too long steps; `blind` where its gradient shows no direction."""
    step, longest = _median(layer["step"]), max(step or 0.0 for step in layer["step"])
    if step > LONG_STEP:
        what = f"a typical update turns its angles by {step:.2g} radians"
        rule = f"above {LONG_STEP:.2g}, a quarter turn), so it may lead anywhere"
    elif longest > ONE_LONG_STEP:
        what = f"an update turns its angles by {longest:.2g} radians"
        rule = f"above {ONE_LONG_STEP:.2g}, half a turn), so what they were is lost"
    elif blind and step > BLIND_STEP:
        what = f"a typical update turns its angles by {step:.2g} radians"
        rule = (
            f"above {BLIND_STEP:g} where the gradient is not told from noise), so it jumps over what it is "
            "to find"
        )
    else:
        return []
    return [
        f"Steps too long in `{layer['layer']}`: {what} (the rule: {rule}. A lower quantum_learning_rate "
        "helps; with Adam it is about the turn of a step, whatever the gradient, and clipping is no help."
    ]


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
        f"(the rule: {rule}). More shots, a larger batch, fewer qubits, or a smaller "
        "quantum_learning_rate over more epochs usually help; or its weights stand at a minimum already."
    ]


def half(name: str, dtype: str, what: str) -> str:
    """That a circuit's weights or inputs are in half precision."""
    lost, help_ = {
        "weights": ("shorter steps are lost", "Keep the circuit's weights in float32."),
        "inputs": (
            "inputs that differ by less are the same",
            "Under autocast, which precision bfloat16 and float16 turn on, compute what becomes angles "
            "within torch.autocast(..., enabled=False).",
        ),
    }[what]
    return (
        f"Half precision in `{name}`: its {what} are {dtype}, which knows angles near pi only to "
        f"{HALF_STEP[dtype]} radians, so {lost}. {help_}"
    )


def _size(layer: Mapping[str, Any]) -> float:
    """Gradient of a weight in a typical step, root mean square."""
    return _median(layer["norm"]) / math.sqrt(layer["n_weights"])


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

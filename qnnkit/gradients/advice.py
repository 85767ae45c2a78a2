"""What gradients say of a net that does not train, in sentences: the layer, the rule, what usually helps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    'Fewer qubits or layers, an observable of one or two wires, or initialisation="small" or '
    '"identity_block" usually help; a larger learning rate does not.'
)
SMALLER_OR_READ = (
    f"{SMALLER} Or what reads its values weighs them little: `gradients.diagnose` tells the two apart, and "
    "`gradients.lines` what the loss hangs on."
)
LOOK = (
    "Look whether its angles are multiplied by zero, its outputs reach the loss, and gates lead from its "
    "weights to a wire that is measured; `gradients.diagnose` names each weight and why."
)
CUT = (
    "So the way from it to the loss is cut, by saturated units or by a learning rate that threw the "
    "classical weights far off; fewer qubits or layers do not help. A lower learning_rate from the start "
    "does, or clip_norm."
)
SCALED = (
    "A circuit of plain angles and Pauli observables cannot do that: look at scaled angles or observables, "
    "and at what reads its values. quantum_clip_norm, a lower learning rate or a normalised loss usually "
    "help."
)
LOWER = (
    "A lower quantum_learning_rate helps; with Adam it is about the turn of a step, whatever the gradient, "
    "and clipping is no help."
)
LESS_NOISE = (
    "More shots, a larger batch, fewer qubits, or a smaller quantum_learning_rate over more epochs usually "
    "help; or its weights stand at a minimum already."
)
HALF = {
    "weights": ("shorter steps are lost", "Keep the circuit's weights in float32."),
    "inputs": (
        "inputs that differ by less are the same",
        "Under autocast, which precision bfloat16 and float16 turn on, compute what becomes angles within "
        "torch.autocast(..., enabled=False).",
    ),
}


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
    earlier = [row for row in rows if row["epoch"] < epoch]
    for layer in (layer for row in earlier for layer in _circuits(row)):
        sizes[layer["layer"]] = max(sizes.get(layer["layer"], 0.0), _size(layer))
    return Before(sizes, _wildest(map(_thrown, earlier)))


def warnings(row: Mapping[str, Any], earlier: Before | None = None) -> list[str]:
    """What an epoch's row, as `Watch` makes it, says against the circuits in it, and what is around them.

    Args:
        row: Of the epoch.
        earlier: What the epochs before it have shown.
    """
    earlier, now = earlier or Before(), _thrown(row)
    thrown, found = _wildest((earlier.thrown, now)), []
    if now:
        group = next(layer["group"] for layer in row["layers"] if layer["layer"] == now[0])
        rate = "quantum_learning_rate" if group in ("quantum", "stand_in") else "learning_rate"
        found.append(
            f"Learning rate too high for `{now[0]}`: an update is {now[1]:.2g} times as long as the weights "
            f"that it moves (the rule: all weights of its group together, above {THROWN:g}), so what they "
            f"were is lost, and the units that they feed saturate. A lower {rate} helps, or warmup_epochs."
        )
    for layer in _circuits(row):
        found += _of_circuit(layer, row, earlier.sizes.get(layer["layer"], 0.0), thrown)
    return found


def half(name: str, dtype: str, what: str) -> str:
    """That a circuit's weights or inputs are in half precision."""
    lost, remedy = HALF[what]
    return (
        f"Half precision in `{name}`: its {what} are {dtype}, which knows angles near pi only to "
        f"{HALF_STEP[dtype]} radians, so {lost}. {remedy}"
    )


def _circuits(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those that were looked at."""
    return [layer for layer in row["layers"] if "step" in layer and layer["norm"]]


def _wildest(thrown: Iterable[tuple[str, float] | None]) -> tuple[str, float] | None:
    return max(filter(None, thrown), key=lambda one: one[1], default=None)


def _thrown(row: Mapping[str, Any]) -> tuple[str, float] | None:
    """(layer, update by weights) of the wildest update of classical weights; None where none was too long.

    Whole groups are judged, as a single layer may begin near zero on purpose; one whose weights were all zero
    has no ratio.
    """
    ratios = {group["group"]: group["ratio"] for group in row["groups"]}
    wild = {name for name, each in ratios.items() if None not in each and max(each, default=0.0) > THROWN}
    classical = [layer for layer in row["layers"] if "step" not in layer and layer["group"] in wild]
    return _wildest((layer["layer"], max(value or 0.0 for value in layer["ratio"])) for layer in classical)


def _of_circuit(
    layer: Mapping[str, Any], row: Mapping[str, Any], known: float, thrown: tuple[str, float] | None
) -> list[str]:
    """Warnings on one circuit, whose gradient of a weight was `known` in an earlier epoch."""
    name, size, norms = layer["layer"], _size(layer), [norm or 0.0 for norm in layer["norm"]]
    found = [
        half(name, layer[key], what)
        for key, what in (("dtype", "weights"), ("input_dtype", "inputs"))
        if layer.get(key) in HALF_STEP
    ]
    far = thrown and f"an update of `{thrown[0]}` was {thrown[1]:.2g} times as long as its weights"
    cut, peak, enough = far, max(norms) / math.sqrt(layer["n_weights"]), max(VANISHED, BURST * size)
    if not cut and known > enough:
        cut = f"it was {known:.2g} for a weight in an earlier epoch"
    elif not cut and peak > enough:
        cut = f"it was {peak:.2g} for a weight in another step of this epoch"
    cut = cut and f"The circuit can do better: {cut}. {CUT}"
    if not any(norms):
        return [*found, f"No gradient in `{name}`: it was exactly zero in every observed step. {cut or LOOK}"]
    beside = _classical_size(row)
    vanished = size < VANISHED and (beside is None or size < VANISHED_BESIDE * beside)
    typical = f"{size:.2g} for a weight in a typical step"
    if vanished:
        than = f" and a hundredth of the classical weights', {beside:.2g}"
        if beside is None:
            than = "; at a minimum it is small too, and no classical weights are here to tell"
        seen = f"{typical} (the rule: below {VANISHED:g}{than})"
        found.append(f"Vanishing gradient in `{name}`: {seen}. {cut or SMALLER_OR_READ}")
    burst = max(norms) / (_median(norms) or math.inf)
    if size > EXPLODED or (burst > BURST and not (vanished and cut)):
        seen = f"{typical} (the rule: above {EXPLODED:g})"
        if size <= EXPLODED:
            seen = f"its largest norm is {burst:.0f} times the median of the epoch "
            seen += f"(the rule: above {BURST:g})"
        remedy = SCALED
        if far:
            remedy = f"What reads its values weighs them too much, since {far}: "
            remedy += "a lower learning_rate helps, or clip_norm."
        found.append(f"Exploding gradient in `{name}`: {seen}. {remedy}")
    noise = _noise(layer, row)
    # What jumps about has no direction, with any number of shots.
    return found + (_steps(layer, blind=bool(noise)) or noise)


def _steps(layer: Mapping[str, Any], blind: bool) -> list[str]:
    """Whether a circuit's angles make too long steps; `blind` where its gradient shows no direction."""
    step, longest = _median(layer["step"]), max(step or 0.0 for step in layer["step"])
    typical = f"a typical update turns its angles by {step:.2g} radians"
    if step > LONG_STEP:
        seen = f"{typical} (the rule: above {LONG_STEP:.2g}, a quarter turn), so it may lead anywhere"
    elif longest > ONE_LONG_STEP:
        seen = f"an update turns its angles by {longest:.2g} radians (the rule: above {ONE_LONG_STEP:.2g}, "
        seen += "half a turn), so what they were is lost"
    elif blind and step > BLIND_STEP:
        seen = f"{typical} (the rule: above {BLIND_STEP:g} where the gradient is not told from noise), so it "
        seen += "jumps over what it is to find"
    else:
        return []
    return [f"Steps too long in `{layer['layer']}`: {seen}. {LOWER}"]


def _noise(layer: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Whether the circuit's gradient is noise where other weights' is not.

    At a minimum every gradient is noise, so a ratio near zero alone is no fault: it has to be the circuit's
    own. The one case that needs nothing beside it: even the mean over all steps of an epoch is mostly noise.
    """
    high, updates = layer["snr_high"], row["updates"]
    mixed = {each["group"] for each in row["layers"] if "step" in each}
    lows = [group["snr_low"] for group in row["groups"] if group["group"] not in mixed]
    classical = max((low for low in lows if low is not None), default=0.0)
    if high is None:
        return []
    if high * math.sqrt(updates) < 1:
        rule = f"below 1 / sqrt({updates} steps), where the mean of a whole epoch is noise too"
    elif layer["snr_low"] == 0 and high < classical:
        rule = f"not told from 0, and below the {classical:.2g} that the classical weights reach at least"
    else:
        return []
    return [
        f"Noise drowns the gradient in `{layer['layer']}`: its signal-to-noise ratio is at most {high:.2g} "
        f"(the rule: {rule}). {LESS_NOISE}"
    ]


def _size(layer: Mapping[str, Any]) -> float:
    """Gradient of a weight in a typical step, root mean square."""
    return _median(layer["norm"]) / math.sqrt(layer["n_weights"])


def _classical_size(row: Mapping[str, Any]) -> float | None:
    """Typical gradient of a classical weight, root mean square; None where there is none."""
    others = [layer for layer in row["layers"] if "step" not in layer]
    squares = sum(_median(layer["norm"]) ** 2 for layer in others)
    return math.sqrt(squares / sum(layer["n_weights"] for layer in others)) if others else None


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else 0.0

"""What keeps a net's circuits from training: one table of faults, found in one batch or in an epoch's row."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import layers, words
from qnnkit.gradients.one_batch import of_batch
from qnnkit.gradients.reach import Dead, as_real, circuits_of, dead, exact_copy, few, weight_names
from qnnkit.layers import QuantumLayer
from qnnkit.tasks import Task

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

MOST_NAMES = 8
SAME = 1e-9
"""Largest difference, in float64, of outputs that are called equal."""
MOST_ROWS = 256
"""Rows of inputs that are looked at, evenly spaced."""
MIXTURES = 4
"""Random signs of the outputs, over which the square of a derivative is averaged."""

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
    "dead": ("Dead weights", "", "Let gates lead from an angle with it to a measured wire, or remove it."),
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

    def __str__(self) -> str:
        limit = f" (limit: {self.limit})" if self.limit else ""
        return f"{self.kind} in `{self.layer}`: {self.value}{limit}. {self.remedy}"


def _fault(name: str, layer: str, value: str, *, remedy: str = "", **filled: str) -> Fault:
    kind, limit, usual = FAULTS[name]
    return Fault(layer, kind, value, limit.format(**filled), remedy or usual.format(**filled))


def _half(layer: str, dtype: torch.dtype | None, what: str) -> list[Fault]:
    """Half precision of a circuit's "weights" or "inputs"."""
    if dtype not in HALF_STEP:
        return []
    kind = str(dtype).removeprefix("torch.")
    value = f"its {what} are {kind}, which resolves angles near pi to {HALF_STEP[dtype]} radians"
    return [_fault(f"half {what}", layer, value)]


# --- in an epoch's row ---------------------------------------------------------------------------------


def of_epoch(row: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]] = ()) -> list[Fault]:
    """Faults of the circuits in an epoch's row, as `Watch` makes it, and of the layers around them.

    Args:
        row: Of the epoch.
        earlier: Rows of the same training; epochs before this one show what a circuit can do.
    """
    before = [each for each in earlier if each["epoch"] < row["epoch"]]
    now, faults = _thrown(row), []
    if now:
        name, ratio = now
        group = next(layer["group"] for layer in row["layers"] if layer["layer"] == name)
        rate = "quantum_learning_rate" if group in ("quantum", "stand_in") else "learning_rate"
        value = f"an update is {ratio:.2g} times as long as the weights that it moves"
        faults.append(_fault("rate", name, value, rate=rate))
    wildest = max(filter(None, map(_thrown, [*before, row])), key=lambda each: each[1], default=None)
    far = f"an update of `{wildest[0]}` was {wildest[1]:.2g} times as long as its weights" if wildest else ""
    for layer in _circuits(row):
        sizes = [_size(each) for other in before for each in _circuits(other) if _same(each, layer)]
        for what, key in (("weights", "dtype"), ("inputs", "input_dtype")):
            faults += _half(layer["layer"], getattr(torch, layer.get(key, ""), None), what)
        faults += _sized(layer, row, max(sizes, default=0.0), far)
    return faults


def _circuits(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Circuits that were observed in an epoch."""
    return [layer for layer in row["layers"] if "step" in layer and layer["norm"]]


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one["layer"] == other["layer"]


def _thrown(row: Mapping[str, Any]) -> tuple[str, float] | None:
    """(layer, update by weights) of the wildest update of classical weights; None where none was too long.

    Whole groups are judged, as a single layer may begin near zero on purpose; one whose weights were all zero
    has no ratio.
    """
    ratios = {group["group"]: group["ratio"] for group in row["groups"]}
    wild = {name for name, each in ratios.items() if None not in each and max(each, default=0.0) > THROWN}
    classical = [layer for layer in row["layers"] if "step" not in layer and layer["group"] in wild]
    updates = [(layer["layer"], max(value or 0.0 for value in layer["ratio"])) for layer in classical]
    return max(updates, key=lambda each: each[1], default=None)


def _sized(layer: Mapping[str, Any], row: Mapping[str, Any], known: float, far: str) -> list[Fault]:
    """Faults of one circuit by its numbers.

    Args:
        layer: Its part of the row.
        row: Of the epoch.
        known: Its largest gradient of a weight in an earlier epoch.
        far: What an update did to classical weights, if it was too long.
    """
    name, size, norms, faults = layer["layer"], _size(layer), [norm or 0.0 for norm in layer["norm"]], []
    peak, enough, seen = max(norms) / math.sqrt(layer["n_weights"]), max(VANISHED, BURST * size), far
    if not seen and known > enough:
        seen = f"its gradient was {known:.2g} for a weight in an earlier epoch"
    elif not seen and peak > enough:
        seen = f"its gradient was {peak:.2g} for a weight in another step of this epoch"
    cut = CUT.format(seen=seen) if seen else ""
    if not any(norms):
        return [_fault("zero", name, "it was exactly 0 in every observed step", remedy=cut)]
    classical, typical = _classical_size(row), f"{size:.2g} for a weight in a typical step"
    vanished = size < VANISHED and (classical is None or size < VANISHED_RELATIVE * classical)
    if vanished:
        than = f", or a hundredth of the classical weights', {classical:.2g}"
        if classical is None:
            than = "; at a minimum it is small too, and no classical weights are here to compare with"
        faults.append(_fault("vanished", name, typical, remedy=cut, than=than))
    burst, remedy = max(norms) / (_median(norms) or math.inf), OVERWEIGHTED.format(seen=far) if far else ""
    if size > EXPLODED:
        faults.append(_fault("exploded", name, typical, remedy=remedy, most=f"{EXPLODED:g}"))
    elif burst > BURST and not (vanished and cut):
        value = f"its largest norm is {burst:.0f} times the median of the epoch"
        faults.append(_fault("exploded", name, value, remedy=remedy, most=f"{BURST:g} times"))
    noise = _noise(layer, row)
    # What has no direction jumps about, with any number of shots.
    return faults + (_steps(layer, blind=bool(noise)) or noise)


def _steps(layer: Mapping[str, Any], blind: bool) -> list[Fault]:
    """Whether a circuit's angles make too long steps; `blind` where its gradient shows no direction."""
    step, longest = _median(layer["step"]), max(step or 0.0 for step in layer["step"])
    if step > LONG_STEP:
        most = f"{LONG_STEP:.2g} radians, a quarter turn"
    elif longest > ONE_LONG_STEP:
        value = f"an update turns its angles by {longest:.2g} radians"
        return [_fault("long", layer["layer"], value, most=f"{ONE_LONG_STEP:.2g} radians, half a turn")]
    elif blind and step > BLIND_STEP:
        most = f"{BLIND_STEP:g} radians where the gradient cannot be distinguished from noise"
    else:
        return []
    return [
        _fault("long", layer["layer"], f"a typical update turns its angles by {step:.2g} radians", most=most)
    ]


def _noise(layer: Mapping[str, Any], row: Mapping[str, Any]) -> list[Fault]:
    """Whether the circuit's gradient is noise where other weights' is not.

    At a minimum every gradient is noise, so a ratio near zero alone is no fault: it has to be the circuit's
    own. One case needs nothing to compare with: even the mean over all steps of an epoch is mostly noise.
    """
    high, updates = layer["snr_high"], row["updates"]
    mixed = {each["group"] for each in row["layers"] if "step" in each}
    lows = [group["snr_low"] for group in row["groups"] if group["group"] not in mixed]
    classical = max((low for low in lows if low is not None), default=0.0)
    if high is None:
        return []
    if high * math.sqrt(updates) < 1:
        least = f"1 / sqrt({updates} steps), where the mean of a whole epoch is noise too"
    elif layer["snr_low"] == 0 and high < classical:
        least = f"the {classical:.2g} that the classical weights reach at least"
    else:
        return []
    return [_fault("noise", layer["layer"], f"its signal-to-noise ratio is at most {high:.2g}", least=least)]


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


# --- in one batch --------------------------------------------------------------------------------------


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
        return [_fault("no circuit", "model", "it has no QuantumLayer")]
    trained = {name: each for name, each in circuits.items() if _free(each)}
    seen: dict[nn.Module, Tensor] = {}
    faults, gradients = [], None
    with contextlib.ExitStack() as hooks, layers.evaluating(model):
        for layer in circuits.values():
            look = lambda layer, inputs: seen.update({layer: inputs[0].detach()})  # noqa: E731
            hooks.enter_context(layer.register_forward_pre_hook(look))
        try:
            named = of_batch(model, task, batch)
            gradients = {id(w): named[name] for name, w in model.named_parameters() if name in named}
        except NotImplementedError as reason:  # PennyLane, of what a method of differentiation cannot do
            which = ", ".join(f"`{name}` ({layer.qnode.diff_method})" for name, layer in trained.items())
            value = f"PennyLane cannot differentiate {which}: {words.first_line(reason)}"
            faults.append(_fault("refused", "model", value))
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    silent = dead(model, inputs) if isinstance(inputs, Tensor) else []
    if not trained:
        faults.append(_fault("all frozen", "model", "all circuits are frozen, or have no weights"))
    for name, layer in circuits.items():
        faults += _half(name, next((weight.dtype for weight in layer.parameters()), None), "weights")
        if layer in seen:
            rows = seen[layer].reshape(-1, seen[layer].shape[-1])
            faults += [*_half(name, rows.dtype, "inputs"), *of_inputs(name, layer, rows)]
        elif gradients is not None:
            faults.append(_fault("not called", name, "nothing calls it, so the net does not depend on it"))
        faults += of_dead(one for one in silent if one.layer == name)
        if gradients is not None and name in trained and layer in seen:
            known = {one.index for one in silent if one.layer == name}
            inside = {id(weight) for circuit in circuits.values() for weight in circuit.parameters()}
            others = [_rms([gradient]) for key, gradient in gradients.items() if key not in inside]
            faults += _cut(name, layer, gradients, known) or _small(
                name, layer, gradients, max(filter(None, others), default=math.inf), rows
            )
    return faults


def of_dead(found: Iterable[Dead]) -> list[Fault]:
    """One fault per layer and reason, which names the weights by gate and wire."""
    faults = []
    for (layer, why), of_reason in itertools.groupby(found, key=lambda one: (one.layer, one.why)):
        members = list(of_reason)
        names = ", ".join(f"{one.weight} ({'; '.join(one.gates) or 'no gate'})" for one in members)
        faults.append(_fault("dead", layer, f"{_count(len(members))} cannot learn, because {why}: {names}"))
    return faults


def of_inputs(name: str, layer: QuantumLayer, rows: Tensor) -> list[Fault]:
    """Whether a circuit depends on its inputs; [] where it does, or one row cannot tell.

    Args:
        name: Of the layer.
        layer: Its shots are ignored.
        rows: Its inputs, of shape (n_rows, n_features).
    """
    rows = few(rows, MOST_ROWS)
    if len(rows) < 2:
        return []
    same = "it gives the same for every sample"
    if bool((rows == rows[0]).all()):
        return [_fault("constant", name, f"{same}: its inputs are all equal")]
    now, anywhere = exact_copy(layer), exact_copy(layer, elsewhere=True)
    varied = [j for j in range(rows.shape[1]) if bool((rows[:, j] != rows[0, j]).any())]
    silent = [j for j in varied if not _felt(now, rows, j) and not _felt(anywhere, rows, j)]
    if silent and len(silent) == len(varied):
        return [_fault("constant", name, f"{same}: its inputs do not reach an angle")]
    if silent:
        value = f"of its features (counted from 0) nothing that is measured depends on {_listed(silent)}"
        return [_fault("unfelt", name, f"{value}, at any weights")]
    with torch.no_grad():
        outputs = now(rows)
    if bool(((outputs - outputs[0]).abs() < SAME).all()):
        return [_fault("constant", name, f"{same}, at the weights as they are")]
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
        layer: Its shots are ignored.
        rows: Of shape (n_rows, n_features).
    """
    exact, generator = exact_copy(layer), torch.Generator().manual_seed(0)
    trained = _free(exact)
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


def _free(layer: nn.Module) -> list[Tensor]:
    return [weight for weight in layer.parameters() if weight.requires_grad]


def _rms(gradients: list[Tensor]) -> float:
    """Gradient of a weight, root mean square; 0 where there is no weight."""
    n = sum(gradient.numel() for gradient in gradients)
    return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients) / max(1, n))


def _listed(names: list[Any]) -> str:
    return ", ".join(map(str, names[:MOST_NAMES])) + (", ..." if names[MOST_NAMES:] else "")


def _count(n: int) -> str:
    return f"{n} weight{'s' * (n > 1)}"


def _small(
    name: str, layer: QuantumLayer, gradients: dict[int, Tensor], classical: float, rows: Tensor
) -> list[Fault]:
    """Whether the gradient has all but vanished, and where."""
    size = _rms([gradients[id(weight)] for weight in _free(layer)])
    if not 0 < size < min(VANISHED, VANISHED_RELATIVE * classical):  # of zero the reason is known
        return []
    inside = of_weights(layer, rows)
    value = f"{size:.2g} for a weight on this batch, while its outputs change by {inside:.2g} per radian"
    return [_fault("flat" if inside < VANISHED else "scaled down", name, value)]


def _cut(name: str, layer: QuantumLayer, gradients: dict[int, Tensor], known: set[int]) -> list[Fault]:
    """Weights with a gradient of exactly zero, though no reason for it lies in the circuit."""
    zero = [
        gradients[id(w)].flatten() == 0 if w.requires_grad else torch.zeros(w.numel(), dtype=torch.bool)
        for w in layer.parameters()
    ]
    silent = [i for i in torch.cat(zero).nonzero().flatten().tolist() if i not in known]
    value = "gradient of exactly 0 on this batch, though its outputs change with"
    if not silent:
        return []
    if len(silent) + len(known) == sum(map(len, zero)):
        return [_fault("all cut", name, f"every weight has a {value} them")]
    names = weight_names(layer)
    which = _listed([names[i] for i in silent])
    return [_fault("some cut", name, f"{_count(len(silent))} with a {value} {which}")]

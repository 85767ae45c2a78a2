"""A trained net under hardware conditions: its circuits with finite shots, with noise, and on a device."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import contextlib
import copy
import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks, stats
from qnnkit.layers import QuantumLayer, evaluating
from qnnkit.settings import Settings
from qnnkit.simulator import EXACT_DEVICES, NotFusable, diagonal, results_of

MOST_WIRES = 10
"""Most wires for `default.mixed`: a density matrix then takes 16 MiB; with two more wires, 256 MiB."""
SHOTS_BYTES, MIXED_BYTES = 2**27, 2**24
"""Bytes for circuits that run at once: with shots, for few calls; with density matrices, to fit caches."""
COPIES = 6
"""Number of copies of a state, or of its shots, that a device holds at a time."""
IMAGES = 256
"""Number of images that go through the classical part at once."""
Net = tuple[nn.Module, Tensor, Tensor]
"""A model, images and their labels."""
GATES = {"RX": "rx", "RY": "ry", "RZ": "rz", "CNOT": "cx"}
"""Gates that circuits are decomposed into for a device, with their names in Qiskit."""


def robustness(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    shots: Sequence[int] = (100, 1_000, 10_000),
    depolarizing: Sequence[float] = (0.001, 0.01, 0.05),
    readout: Sequence[float] = (0.01, 0.05),
    device: str | None = None,
    device_shots: Sequence[int] = (100, 1_000),
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Accuracy of a trained net with exact circuits, with finite shots, and under noise, one at a time.

    Shots are drawn on `default.qubit`. Noise runs on `default.mixed` without shots: a depolarising channel on
    each wire of every gate, or a bit flip just before a wire is measured. A circuit of 4 wires and 40 gates
    took 0.03 ms (100 shots) to 0.7 ms (10,000 shots), 0.6 ms with depolarising noise, 5 ms on a fake device
    (1,000 shots; docs/results/noise.csv, a 2-core x86). Memory is 128 MiB or, above 8 wires, one circuit's.

    Args:
        model: A classifier with `QuantumLayer`s anywhere in it; not changed.
        images: Images as the model takes them, of shape (n, ...), for which a circuit runs.
        labels: Labels of shape (n,).
        shots: Numbers of shots.
        depolarizing: Probabilities p: the channel applies X, Y or Z with p / 3 each.
        readout: Probabilities that a wire is read as its opposite.
        device: A fake device (a real one's noise and wiring), as "FakeManilaV2"; needs the extra `hardware`.
        device_shots: Numbers of shots on the device.
        seed: Fixes the shots.

    Returns:
        Rows for exact circuits, each number of shots and each probability: `condition` ("exact", "shots",
        "depolarizing", "readout" or "device"), `strength` (shots, or probability of an error), `accuracy` and
        its 95 % interval over the images, `low` to `high` (Clopper and Pearson 1934), `change` (mean absolute
        change of a measured value at its circuit's inputs), `images`, `seconds`.

    Raises:
        ValueError: No circuit runs; one has shots or noise, returns a state, or is too wide for
            `default.mixed` or the device; a number is out of range; an image has no class.
        ModuleNotFoundError: A device is named and the extra `hardware` is missing.
    """
    conditions = {"shots": shots, "depolarizing": depolarizing, "readout": readout}
    conditions["device"] = device_shots if device else ()
    backend = _backend(device) if device else None
    _require_numbers(images, labels, conditions)
    net = copy.deepcopy(model), images, labels  # hooks are set on the copy
    first, exact = _as_it_is(net)
    limits = [(MOST_WIRES, "default.mixed")] if depolarizing or readout else []
    limits += [(backend.num_qubits, type(backend).__name__)] if backend else []
    for layer, row in first.items():
        _require_exact(layer)
        for most, name in limits:
            _require_narrow(_tape(layer, row).wires, most, name)
    rows = [exact]
    for condition, strengths in conditions.items():
        for strength in strengths:
            arguments = strength, seed, backend
            qnodes = {layer: _changed(condition, layer, i, *arguments) for i, layer in enumerate(first)}
            rows.append(_under(net, condition, strength, qnodes))
    return rows


# --- the circuits on other devices --------------------------------------------------------------------------


def _changed(condition: str, layer: QuantumLayer, i: int, strength: Any, seed: int, backend: Any) -> Any:
    """The function that replaces the QNode of the i-th layer under a condition."""
    if condition == "device":
        return _OnDevice(layer, backend, strength, seed)
    if condition == "shots":
        device = qp.device("default.qubit", wires=layer.qnode.device.wires, seed=seed * 1000 + i)
        return qp.set_shots(layer.qnode.update(device=device, diff_method="parameter-shift"), shots=strength)
    return NOISY[condition](_mixed(layer), strength)


def _depolarized(qnode: qp.QNode, probability: float) -> Any:
    def after(operation: Any, **_: Any) -> None:
        for wire in operation.wires:
            qp.DepolarizingChannel(probability, wires=wire)

    # PennyLane adds these gates after its device has decomposed templates.
    return qp.add_noise(qnode, qp.NoiseModel({qp.BooleanFn(_is_gate): after}), level="device")


def _mixed(layer: QuantumLayer, diff_method: str | None = None) -> qp.QNode:
    device = qp.device("default.mixed", wires=layer.qnode.device.wires, seed=0)  # no shots: unused
    return layer.qnode.update(device=device, diff_method=diff_method)


def _is_gate(operation: Any) -> bool:
    return bool(operation.wires) and not isinstance(operation, qp.Barrier | qp.Snapshot | qp.Identity)


def _diagonal(tape: Any, device: Any) -> Any:
    """What `simulator.diagonal` returns, with an error for users."""
    try:
        return diagonal(tape, device)
    except NotFusable as reason:
        rule, step = "measure expectation values, variances or probabilities", "Omit this noise."
        raise NotImplementedError(checks.message("qnode", rule, f"a circuit where {reason}", step)) from None


@qp.transform
def _read_wrongly(tape: Any, probability: float, device: Any) -> Any:
    """Adds bit flips to measured wires after the change of basis; default.mixed's own come before it."""
    (groups, together), tapes = _diagonal(tape, device), []
    for exact, _ in groups:
        flips = [qp.BitFlip(probability, wires=wire) for wire in exact.measurements[0].wires]
        tapes.append(exact.copy(operations=[*exact.operations, *flips]))

    def finish(results: Any) -> Any:
        pairs = zip(map(torch.as_tensor, results), groups, strict=True)
        return together([results_of(p, wanted, exact.measurements[0].wires) for p, (exact, wanted) in pairs])

    return tapes, finish


NOISY = {"depolarizing": _depolarized, "readout": lambda qnode, p: _read_wrongly(qnode, p, qnode.device)}
"""Function that adds each kind of noise to a QNode."""


def put(model: nn.Module, shots: int | None = None, noise: Sequence[str] = ()) -> None:
    """Makes the circuits of a net run with shots or with noise, in training and afterwards.

    torch's own generator draws the shots from the exact distribution of every circuit of a batch. The
    gradient follows the parameter-shift rule, with separate shots for each shifted circuit. Noise runs on
    PennyLane's `default.mixed`, whose density matrices torch differentiates.

    Args:
        model: The net, changed in place; its circuits must be exact.
        shots: Measurements of each circuit; None for exact values.
        noise: For example ("depolarizing=0.01", "readout=0.02"), probabilities as in `robustness`; only
            without shots.

    Raises:
        ValueError: Both are given, or one breaks its rule; a circuit already has shots or noise, is too wide
            for `default.mixed`, or its layer has a `backend` that names a device.

    Example:
        >>> from qnnkit import circuits
        >>> layer = QuantumLayer(*circuits.build("data_reuploading", n_qubits=2))
        >>> put(layer, shots=100)
        >>> counts = 50 * (1 + layer(torch.zeros(1, 2)))  # of 100 measurements
        >>> bool((counts - counts.round()).abs().max() < 1e-4)
        True
    """
    if shots and noise:
        step = "Omit one of the two: noise is computed as exact expectation values."
        raise ValueError(checks.message("noise", "be () if shots are set", noise, step))
    chances = dict(each.split("=") for each in Settings.of({"shots": shots, "noise": noise}).noise)
    for layer in _layers(model):
        _require_exact(layer)
        if layer.wanted_backend not in ("auto", "batched"):
            step = "Set it to auto: the fused program draws shots, and default.mixed computes noise."
            raise ValueError(checks.message("backend", "be auto", layer.wanted_backend, step))
        if shots:
            layer.qnode = qp.set_shots(layer.qnode.update(diff_method="parameter-shift"), shots=shots)
            layer.generator = "torch"
        if noise:
            _require_narrow(layer.qnode.device.wires, MOST_WIRES, "default.mixed")
            layer.qnode = _mixed(layer, "backprop")
            for name, noisy in NOISY.items():
                if probability := float(chances.get(name, 0)):
                    layer.qnode = noisy(layer.qnode, probability)
            layer.wanted_backend = "auto"  # a density matrix has no fused program


# --- the circuits on a device, fake or real -----------------------------------------------------------------


def fake_device(model: nn.Module) -> str | None:
    """The name of a fake device with five qubits; None without the extra, or if a circuit is wider."""
    narrow = all(len(layer.qnode.device.wires or range(6)) <= 5 for layer in _layers(model))
    return "FakeManilaV2" if narrow and importlib.util.find_spec("qiskit_ibm_runtime") else None


def _backend(name: str) -> Any:
    """A fake device of qiskit-ibm-runtime."""
    try:
        from qiskit_ibm_runtime import fake_provider  # pyright: ignore
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"Device {name} needs an extra: pip install 'qnnkit[hardware]'.") from None
    fakes = [each for each in dir(fake_provider) if each.startswith("Fake") and each.endswith("V2")]
    return getattr(fake_provider, checks.choice("device", name, fakes))()


@dataclass(frozen=True)
class _OnDevice:
    """Replaces a layer's QNode: the circuit is compiled once, and a whole batch's angles run in one job."""

    layer: QuantumLayer
    backend: Any
    shots: int
    seed: int

    def __call__(self, **arguments: Any) -> Any:
        tape = qp.workflow.construct_tape(self.layer.qnode, level="user")(**arguments)
        groups, together = _diagonal(tape, self.layer.qnode.device)
        return together([self._measured(*group) for group in groups])

    def _measured(self, tape: Any, measurements: Any) -> Any:
        from qiskit import QuantumCircuit, transpile  # pyright: ignore  # an extra
        from qiskit.circuit import ParameterVector  # pyright: ignore
        from qiskit_ibm_runtime import SamplerV2  # pyright: ignore

        n, wires = tape.batch_size or 1, tape.wires.tolist()
        [tape], _ = qp.transforms.decompose(tape, gate_set={*GATES, "GlobalPhase"})
        gates = [gate for gate in tape.operations if gate.name in GATES]
        angles = [np.broadcast_to(np.asarray(angle), n) for gate in gates for angle in gate.data]
        circuit, free = QuantumCircuit(len(wires), len(wires)), iter(ParameterVector("angles", len(angles)))
        for gate in gates:
            parameters = [next(free) for _ in gate.data]
            getattr(circuit, GATES[gate.name])(*parameters, *map(wires.index, gate.wires))
        circuit.measure(range(len(wires)), range(len(wires)))
        compiled = transpile(circuit, self.backend, optimization_level=1, seed_transpiler=0)
        sampler = SamplerV2(mode=self.backend)
        sampler.options.simulator.seed_simulator = self.seed + 1  # 0 counts as none
        job = sampler.run([(compiled, np.stack(angles, axis=-1), self.shots)])
        bits = job.result()[0].data.c.to_bool_array(order="little").astype(int)  # (batch, shots, wires)
        results = [part.process_samples(bits, wire_order=qp.wires.Wires(wires)) for part in measurements]
        return tuple(results) if len(results) > 1 else results[0]


# --- the net with these circuits ----------------------------------------------------------------------------


def _as_it_is(net: Net) -> tuple[dict[QuantumLayer, Tensor], dict[str, Any]]:
    """Each layer that ran, with the first row of its inputs; and the result of the unchanged net."""
    first: dict[QuantumLayer, Tensor] = {}

    def look(layer: Any, inputs: Tensor, outputs: Tensor) -> None:
        if outputs.is_complex() or vars(torch._C)["_functorch"].is_batchedtensor(outputs):
            value, step = "a circuit of a state, or in vmap", "Measure expectations, on a batch of inputs."
            raise ValueError(checks.message("model", "measure numbers, outside torch.vmap", value, step))
        first.setdefault(layer, inputs.detach().reshape(-1, inputs.shape[-1])[:1])

    row = _run(net, "exact", None, dict.fromkeys(_layers(net[0]), look))
    if not first:
        rule, step = "run a circuit for these images", "Give a hybrid net, and images, not feature maps."
        raise ValueError(checks.message("model", rule, type(net[0]).__name__, step))
    return first, row


def _under(net: Net, condition: str, strength: float, qnodes: dict[QuantumLayer, Any]) -> dict[str, Any]:
    """The result of the net with these QNodes in its layers."""
    changes: list[Tensor] = []

    def exchange(layer: Any, inputs: Tensor, outputs: Tensor) -> Tensor:
        values = _evaluate(layer, qnodes[layer], inputs).reshape(outputs.shape)
        changes.append((values - outputs.cpu().double()).abs().flatten())
        return values.to(outputs)

    row = _run(net, condition, strength, dict.fromkeys(qnodes, exchange))
    return row | {"change": float(torch.cat(changes).mean())}


def _run(net: Net, condition: str, strength: float | None, hooks: dict[QuantumLayer, Any]) -> dict[str, Any]:
    """Accuracy and time of the net with hooks on its layers; `change` is left at 0."""
    model, images, labels = net
    start, weight = time.perf_counter(), next(model.parameters(), images)
    with contextlib.ExitStack() as stack, evaluating(model):
        for layer, hook in hooks.items():
            named = lambda layer, x, kwargs, y, hook=hook: hook(layer, *x, *kwargs.values(), y)  # noqa: E731
            stack.enter_context(layer.register_forward_hook(named, with_kwargs=True))
        logits = torch.cat([model(part.to(weight.device)).cpu() for part in images.split(IMAGES)])
    n, right = len(labels), int((logits.argmax(-1) == labels.cpu()).sum())
    low, high = stats.clopper_pearson(right, n)
    row = {"condition": condition, "strength": strength, "accuracy": right / n, "low": low, "high": high}
    return row | {"change": 0.0, "images": n, "seconds": time.perf_counter() - start}


def _evaluate(layer: QuantumLayer, qnode: Any, inputs: Tensor) -> Tensor:
    """Values of a QNode in float64, shape (rows, n_values), for inputs of shape (..., n_features)."""
    rows = inputs.detach().cpu().double().reshape(-1, inputs.shape[-1])
    weights = {name: weight.detach().cpu().double() for name, weight in layer._weights().items()}
    total, wires = getattr(qnode.shots, "total_shots", qnode.shots), len(_tape(layer, rows[:1]).wires)
    back: Any = slice(None)
    if total:
        at_once = SHOTS_BYTES // (COPIES * 8 * (2**wires + total * wires))
    else:
        at_once = MIXED_BYTES // (COPIES * 16 * 4**wires)
        rows, back = torch.unique(rows, dim=0, return_inverse=True)  # blank patches share a row
    values = []
    for part in rows.split(max(1, at_once)):
        outputs = qnode(**{layer.input_arg: part if layer.takes_batches else part[0], **weights})
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        values.append(torch.hstack([torch.as_tensor(each).reshape(len(part), -1) for each in outputs]))
    return torch.cat(values)[back]


def _layers(model: nn.Module) -> list[QuantumLayer]:
    return [module for module in model.modules() if isinstance(module, QuantumLayer)]


def _tape(layer: QuantumLayer, row: Tensor) -> Any:
    row = row if layer.takes_batches else row[0]
    return qp.workflow.construct_tape(layer.qnode, level="user")(**layer._arguments(row))


# --- checks -------------------------------------------------------------------------------------------------


def _require_numbers(images: Tensor, labels: Tensor, conditions: dict[str, Any]) -> None:
    checks.positive("the number of images", len(images), "Give at least one.")
    if labels.shape != images.shape[:1] or labels.is_floating_point():
        rule, step = f"be a class for each of {len(images)} images", "Give an integer for each image."
        raise ValueError(checks.message("labels", rule, f"{labels.dtype} {tuple(labels.shape)}", step))
    for name, strengths in conditions.items():
        for strength in strengths:
            checks.share(name, strength) if name in NOISY else checks.positive("shots", strength)


def _require_narrow(wires: Any, most: int, name: str) -> None:
    if len(wires or ()) > most:
        rule, step = f"have circuits of at most {most} wires for {name}", "Use shots alone."
        raise ValueError(checks.message("model", rule, f"a circuit of {len(wires)} wires", step))


def _require_exact(layer: QuantumLayer) -> None:
    name, shots = layer.qnode.device.name, layer.qnode.shots
    if shots or name not in EXACT_DEVICES:
        value = f"a circuit with shots={shots.total_shots}" if shots else f"one on {name}"
        step = "Build the net with an exact device: this function adds shots and noise itself."
        raise ValueError(checks.message("model", "have exact circuits", value, step))

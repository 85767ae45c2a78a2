"""Embeddings and ansaetze as plain PennyLane quantum functions, in one registry.

`CIRCUITS` has them by name: `EMBEDDINGS` write `inputs` into angles or amplitudes, `ANSAETZE` have trainable
`weights`, angles in radians, all on a tuple of `wires`. `INITIALISATIONS` draw initial weights. `build`
makes a QNode of them.

Each works on any number of wires and can be printed (`inspect.getsource`), drawn and copied:

    >>> import pennylane as qp
    >>> qnode, weight_shapes = build("data_reuploading", n_qubits=2, n_layers=1)
    >>> print(qp.draw(qnode, level="device")([0.1, 0.2], [[[0.3, 0.4, 0.5], [0.6, 0.7, 0.8]]]))
    0: ──RY(0.10)──RY(0.30)──RZ(0.40)─╭●─╭X──RY(0.50)─┤  <Z>
    1: ──RY(0.20)──RY(0.60)──RZ(0.70)─╰X─╰●──RY(0.80)─┤  <Z>
"""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pennylane as qp

from qnnkit import checks

Wires = tuple[int, ...]


# --- embeddings: (inputs, wires) ------------------------------------------------------------------


def angle(inputs: Any, wires: Wires) -> None:
    """Embeds each feature as the angle of one RY, in radians; RY(t) = exp(-i t Y / 2).

    `inputs` have shape (..., n_features), with at most one feature per wire.
    """
    qp.AngleEmbedding(inputs, wires=wires, rotation="Y")


def amplitude(inputs: Any, wires: Wires) -> None:
    """Embeds up to 2**n features as the amplitudes of the state of n wires, scaled to unit length.

    A blank sample (all zeros, such as the border of an image) has no direction and becomes |0...0>.
    """
    blank = qp.math.cast_like(qp.math.all(qp.math.equal(inputs, 0), axis=-1), inputs)
    first = inputs[..., :1] + qp.math.expand_dims(blank, -1)
    padding = [0 * first] * (2 ** len(wires) - qp.math.shape(inputs)[-1])
    inputs = qp.math.concatenate([first, inputs[..., 1:], *padding], axis=-1)
    norm = qp.math.sqrt(qp.math.sum(inputs**2, axis=-1))  # pyright: ignore[reportCallIssue]
    qp.AmplitudeEmbedding(inputs / qp.math.expand_dims(norm, -1), wires=wires, validate_norm=False)


def iqp(inputs: Any, wires: Wires) -> None:
    """Applies Hadamards, an RZ of each feature, and ZZ rotations by the products of feature pairs.

    `inputs` have shape (..., n_features), in radians, with one feature per wire.

    Reference: Havlicek et al. (2019), arXiv:1804.11326, eq. 2, in PennyLane's `IQPEmbedding`.
    """
    qp.IQPEmbedding(inputs, wires=wires)


# --- ansaetze: (weights, wires) -------------------------------------------------------------------


def strongly_entangling(weights: Any, wires: Wires, first: int = 0) -> None:
    """Applies a general rotation to every wire, then CNOTs whose range grows with the layer.

    The last angle of the last layer's rotations commutes with a measurement of Z, so its gradient is zero.
    `first` is the number of layers before these, which determines the ranges.

    Reference: Schuld et al. (2020), arXiv:1804.00633, fig. 4; weights of shape (n_layers, n_qubits, 3).
    """
    layers = range(first, first + qp.math.shape(weights)[0])
    ranges = [layer % (len(wires) - 1) + 1 for layer in layers] if len(wires) > 1 else None
    qp.StronglyEntanglingLayers(weights, wires=wires, ranges=ranges)


def hardware_efficient(weights: Any, wires: Wires, first: int = 0) -> None:
    """Applies CZ to every second pair of neighbours, alternating by layer, then RZ and RY to every wire.

    The entangler comes first, so that no layer ends in gates that do not affect a measurement of Z.
    `first` is the number of layers before these.

    Reference: after Kandala et al. (2017), arXiv:1704.05018; weights of shape (n_layers, n_qubits, 2).
    """
    for layer in range(qp.math.shape(weights)[0]):
        side = (first + layer) % 2
        for one, other in zip(wires[side::2], wires[side + 1 :: 2], strict=False):
            qp.CZ(wires=(one, other))
        for i, wire in enumerate(wires):
            qp.RZ(weights[layer][i][0], wires=wire)
            qp.RY(weights[layer][i][1], wires=wire)


def random(weights: Any, wires: Wires, first: int = 0, seed: int = 0) -> None:
    """Applies rotations about random axes to random wires, with CNOTs in between; `seed` fixes the structure.

    `seed` is 0 or more; the structure of layers after others is that of `seed + first`.

    Reference: Henderson et al. (2020), arXiv:1904.04767, sec. 2.2; weights of shape (n_layers, n_rotations).
    """
    qp.RandomLayers(weights, wires=wires, seed=seed + first)


# --- both at once: (inputs, weights, wires) -------------------------------------------------------


def data_reuploading(inputs: Any, weights: Any, wires: Wires) -> None:
    """Embeds the data in every layer: an RY of each feature, then RY and RZ, a ring of CNOTs, and RY.

    Reference: after Perez-Salinas et al. (2020), arXiv:1907.02085; weights of shape (n_layers, n_qubits, 3).
    """
    for layer in range(qp.math.shape(weights)[0]):
        angle(inputs, wires)
        rotate_and_entangle(weights[layer : layer + 1], wires)


def rotate_and_entangle(weights: Any, wires: Wires, first: int = 0) -> None:
    """The trained gates of one layer of `data_reuploading`; weights of shape (1, n_qubits, 3).

    `first` is unused: all layers are alike.
    """
    for i, wire in enumerate(wires):
        qp.RY(weights[0][i][0], wires=wire)
        qp.RZ(weights[0][i][1], wires=wire)
    if len(wires) > 1:
        for control, target in zip(wires, wires[1:] + wires[:1], strict=True):
            qp.CNOT(wires=(control, target))
    for i, wire in enumerate(wires):
        qp.RY(weights[0][i][2], wires=wire)


# --- the registry ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Circuit:
    """A quantum function and the sizes it needs.

    Args:
        function: The gates, as one of the functions above.
        kind: "embedding" (inputs, wires), "ansatz" (weights, wires), or "both" (inputs, weights, wires).
        n_features: Maps a number of wires to the number of features that they take; None for an ansatz.
        weights_shape: Maps (n_layers, n_qubits) to the shape of `weights`; None for an embedding.
        layers: The trained gates as a function (weights, wires, first); `first` is the index of the first
            layer. None for an ansatz, whose `function` consists of trained gates only.
        embeds: The embedding gates of a layer as a function (inputs, wires), if the circuit is of kind
            "both".
        ends_in_entangler: Whether a layer ends in gates between wires, which the inverse layer after it would
            cancel.
    """

    function: Callable[..., None]
    kind: Literal["embedding", "ansatz", "both"]
    n_features: Callable[[int], int] | None = None
    weights_shape: Callable[[int, int], tuple[int, ...]] | None = None
    layers: Callable[..., None] | None = None
    embeds: Callable[..., None] | None = None
    ends_in_entangler: bool = False

    def n_qubits(self, n_features: int) -> int:
        """The fewest wires that take `n_features` features.

        Raises:
            TypeError: The circuit is an ansatz, which takes no features.
        """
        if self.n_features is None:
            raise TypeError("An ansatz takes no features. Ask its embedding for the number of wires.")
        return next(n for n in range(1, n_features + 1) if self.n_features(n) >= n_features)


CIRCUITS: dict[str, Circuit] = {
    "angle": Circuit(angle, "embedding", lambda n: n),
    "amplitude": Circuit(amplitude, "embedding", lambda n: 2**n),
    "iqp": Circuit(iqp, "embedding", lambda n: n),
    "data_reuploading": Circuit(
        data_reuploading, "both", lambda n: n, lambda layers, n: (layers, n, 3), rotate_and_entangle, angle
    ),
    "strongly_entangling": Circuit(
        strongly_entangling, "ansatz", None, lambda layers, n: (layers, n, 3), ends_in_entangler=True
    ),
    "hardware_efficient": Circuit(hardware_efficient, "ansatz", None, lambda layers, n: (layers, n, 2)),
    "random": Circuit(random, "ansatz", None, lambda layers, n: (layers, n)),
}
EMBEDDINGS = tuple(name for name, circuit in CIRCUITS.items() if circuit.kind == "embedding")
ANSAETZE = tuple(name for name, circuit in CIRCUITS.items() if circuit.kind != "embedding")


def embedding_of(ansatz: str, embedding: str = "angle") -> Circuit:
    """The entry that embeds the features: the ansatz itself if it does so, else `embedding`.

    Raises:
        ValueError: A name is unknown.
    """
    entry = CIRCUITS[checks.choice("circuit", ansatz, ANSAETZE)]
    other = CIRCUITS[checks.choice("embedding", embedding, EMBEDDINGS)]
    return entry if entry.kind == "both" else other


def build(
    ansatz: str, *, n_qubits: int = 4, n_layers: int = 2, device: str = "default.qubit", **options: Any
) -> tuple[qp.QNode, dict[str, tuple[int, ...]]]:
    """A QNode `(inputs, weights) -> [<Z_0>, ..., <Z_n-1>]` and the `weight_shapes` for a layer.

    Args:
        ansatz: One of `ANSAETZE`, the entries of `CIRCUITS` that have weights.
        n_qubits: Number of wires.
        n_layers: Depth of the ansatz.
        device: Name of a PennyLane device.
        **options: `embedding`, `seed` and `mirrored`, as in `compose`.

    Raises:
        ValueError: A name is unknown, a number is below 1, or `n_layers` of a mirrored circuit is odd.
        pennylane.exceptions.DeviceError: The device is not installed.

    Example:
        >>> qnode, weight_shapes = build("strongly_entangling", n_qubits=4, n_layers=2)
        >>> weight_shapes
        {'weights': (2, 4, 3)}
    """
    gates, shapes = compose(ansatz, n_qubits=n_qubits, n_layers=n_layers, **options)

    @qp.qnode(make_device(device, range(n_qubits)))
    def circuit(inputs, weights):
        gates(inputs, weights)
        return [qp.expval(qp.PauliZ(wire)) for wire in range(n_qubits)]

    return circuit, shapes


def compose(
    ansatz: str,
    *,
    n_qubits: int,
    n_layers: int,
    embedding: str | None = "angle",
    seed: int = 0,
    mirrored: bool = False,
) -> tuple[Callable[[Any, Any], None], dict[str, tuple[int, ...]]]:
    """The gates of `build`, as a function (inputs, weights), and the `weight_shapes`.

    Args:
        ansatz: As in `build`.
        n_qubits: Number of wires.
        n_layers: Depth of the ansatz.
        embedding: Name of the entry that embeds `inputs`; unused if the ansatz embeds them itself. With None,
            the ansatz starts from |0...0>, and `inputs` is None.
        seed: Fixes the structure of the `random` ansatz, 0 or more; unused by the others.
        mirrored: For `identity_block`. Layers come in pairs: one of a pair has the inverse gates of the
            other, in reverse order, with its own weights. The entanglers are on the outside: next to each
            other they would cancel, and the circuit would never entangle. An ansatz that embeds the data does
            so once per pair, without an inverse: otherwise a pair of equal weights would not depend on it.

    Raises:
        ValueError: As in `build`.
    """
    checks.positive("n_qubits", n_qubits)
    checks.positive("n_layers", n_layers)
    entry, wires = CIRCUITS[checks.choice("circuit", ansatz, ANSAETZE)], tuple(range(n_qubits))
    embed = None if embedding is None else embedding_of(ansatz, embedding).function
    if mirrored and n_layers % 2:
        step = "Add a layer: every second layer inverts the one before."
        raise ValueError(checks.message("n_layers", "be even for identity blocks", n_layers, step))
    assert entry.weights_shape is not None  # every entry of ANSAETZE has one
    structure = {"seed": seed} if ansatz == "random" else {}
    whole, layers = (partial(each, **structure) for each in (entry.function, entry.layers or entry.function))

    def gates(inputs: Any, weights: Any) -> None:
        if embed is not None and entry.kind != "both":
            embed(inputs, wires)
        if not mirrored:
            whole(*([inputs] if entry.kind == "both" else []), weights, wires)
            return
        pair = [layers, qp.adjoint(layers)][:: -1 if entry.ends_in_entangler else 1]
        for k in range(0, n_layers, 2):
            if entry.embeds is not None:
                entry.embeds(inputs, wires)
            for i, layer in enumerate(pair, start=k):
                layer(weights[i : i + 1], wires, first=k // 2)

    return gates, {"weights": entry.weights_shape(n_layers, n_qubits)}


def make_device(name: str, wires: Any) -> qp.devices.Device:
    """A PennyLane device that, unlike PennyLane's default, draws no seed from NumPy's global generator.

    Raises:
        pennylane.exceptions.DeviceError: No installed device has this name.
    """
    fresh = {"seed": None} if name in ("default.qubit", "lightning.qubit") else {}
    return qp.device(name, wires=wires, **fresh)


# --- initial weights ------------------------------------------------------------------------------


def uniform(weights: Any, generator: Any) -> Any:
    """Draws angles uniformly from [0, 2 pi). Deep circuits then have vanishing gradients.

    As all initialisations, it fills the tensor `weights`, of shape (n_layers, ...), in place from a torch
    generator, and returns it.
    """
    return weights.uniform_(0, 2 * math.pi, generator=generator)


def small(weights: Any, generator: Any) -> Any:
    """Draws angles near zero: normal with a standard deviation of 0.1 radians, whatever the depth."""
    return weights.normal_(0, 0.1, generator=generator)


def gaussian(weights: Any, generator: Any) -> Any:
    """Draws angles closer to zero for deeper circuits: normal with variance 1 / (4 S (L + 2)) for L layers.

    S is the number of wires that the observable acts on: here 1, as in a measurement of Z.

    Reference: Zhang et al. (2022), arXiv:2203.09376, theorem 4.1.
    """
    return weights.normal_(0, (4 * (len(weights) + 2)) ** -0.5, generator=generator)


def identity_block(weights: Any, generator: Any) -> Any:
    """Draws angles uniformly; each pair of layers of a mirrored circuit starts as the identity.

    `weights` have an even number of layers.

    Reference: Grant et al. (2019), arXiv:1903.05076, sec. 3; here with two layers per block.
    """
    uniform(weights, generator)
    weights[1::2] = weights[::2]
    return weights


INITIALISATIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (uniform, small, gaussian, identity_block)
}
"""Functions by name that fill a tensor of shape (n_layers, ...) with angles from a torch generator."""
MIRRORED = ("identity_block",)
"""Names of the initialisations that need a mirrored circuit."""


# --- without entanglement -------------------------------------------------------------------------


KEEP_APART = ("SWAP", "Barrier", "Snapshot")
"""Names of operations on several wires that do not entangle them."""
COMPOSITE = ("pennylane.templates", "pennylane.ops.op_math.prod", "pennylane.ops.op_math.adjoint")
"""Modules of the operations that are decomposed first: templates, products and inverses."""


@qp.transform
def drop_entanglement(tape):
    """Removes a circuit's entangling gates: the separable control of Bowles et al.

    Templates are decomposed first. A state preparation (amplitude embedding) stays, because it is the data
    itself. Single-wire gates keep their parameters, so the number of weights does not change, but weights of
    entangling gates no longer have an effect.

    Reference: Bowles et al. (2024), arXiv:2403.07059, sec. 5.
    """

    def is_separable(operation: qp.operation.Operator) -> bool:
        prepares = isinstance(operation, qp.operation.StatePrepBase)  # amplitude embedding is a template
        return prepares or len(operation.wires) < 2 or operation.name in KEEP_APART

    def is_whole(operation: qp.operation.Operator) -> bool:
        is_gate = not type(operation).__module__.startswith(COMPOSITE)
        return is_separable(operation) or is_gate or not operation.has_decomposition

    [expanded], _ = qp.transforms.decompose(tape, stopping_condition=is_whole)
    separable = [operation for operation in expanded.operations if is_separable(operation)]
    return [expanded.copy(operations=separable)], lambda results: results[0]

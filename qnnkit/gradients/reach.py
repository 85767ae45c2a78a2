"""A circuit's weights by name: the gates that each turns, and how strongly it affects the outputs."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.layers import QuantumLayer
from qnnkit.simulator import is_elementary

MOST_ROWS = 1024
"""Most rows of a sample, evenly spaced, on which a circuit's weights are examined."""


@dataclass(frozen=True)
class Gate:
    """A gate of a circuit that is decomposed into gates of at most one angle.

    Attributes:
        name: PennyLane's name, such as "RY".
        wires: Positions of its wires, controls first.
        n_controls: How many of the wires are controls.
        weights: Weights that its angle depends on, as indices in `weight_names`.
        features: Inputs that its angle depends on, counted from 0.
        reaches: Whether it is in the light cone of a measured wire: gates after it lead from its wires to
            one.
    """

    name: str
    wires: tuple[int, ...]
    n_controls: int
    weights: tuple[int, ...]
    features: tuple[int, ...]
    reaches: bool

    def __str__(self) -> str:
        where = " and ".join(map(str, self.wires)) if len(self.wires) < 3 else ", ".join(map(str, self.wires))
        return f"{self.name} on wire{'s' * (len(self.wires) > 1)} {where}"


def circuits_of(model: nn.Module) -> dict[str, QuantumLayer]:
    """Circuits of a model by name. If the model itself is a circuit, its name is "layer"."""
    return {name or "layer": part for name, part in model.named_modules() if isinstance(part, QuantumLayer)}


def n_features(layer: QuantumLayer, name: str = "layer") -> int:
    """Number of a layer's input features, which is known once it has run.

    Raises:
        ValueError: The layer has not run yet.
    """
    if layer.n_features is None:
        step = "Call the model on one batch, then ask again."
        raise ValueError(checks.message(name, "have run once", "a layer that has not run", step))
    return layer.n_features


def weight_names(layer: QuantumLayer) -> list[str]:
    """Names of a layer's single weights, in the order of its circuit's arguments, each tensor row by row.

    Example:
        >>> from qnnkit import circuits
        >>> weight_names(QuantumLayer(*circuits.build("hardware_efficient", n_qubits=1, n_layers=1)))
        ['weights[0, 0, 0]', 'weights[0, 0, 1]']
    """
    return [
        f"{name}[{', '.join(map(str, place))}]" if place else name
        for name, weight in layer._weights().items()
        for place in itertools.product(*map(range, weight.shape))
    ]


def gates(layer: QuantumLayer) -> list[Gate]:
    """The circuit's gates in order of time, with the weights that turn each of them.

    Autograd shows what an angle depends on, at random weights and one random row of inputs in float64. A
    weight that is multiplied by zero turns nothing.

    Args:
        layer: A layer that has run once, so that the number of features is known.

    Raises:
        ValueError: The layer has not run yet.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(shape: Sequence[int]) -> Tensor:
        return torch.rand(tuple(shape), generator=generator, dtype=torch.float64).add_(0.1).requires_grad_()

    weights = {name: draw(weight.shape) for name, weight in layer._weights().items()}
    inputs = draw((*[1] * layer.takes_batches, n_features(layer))).detach()  # of norm 1, like amplitudes
    inputs = (inputs / inputs.norm()).requires_grad_()
    with torch.enable_grad():
        tape = qp.workflow.construct_tape(layer.qnode, level="user")(**{layer.input_arg: inputs}, **weights)
        [tape], _ = qp.transforms.decompose(tape, stopping_condition=is_elementary)
        labels = qp.wires.Wires.all_wires([layer.qnode.device.wires or [], tape.wires])
        place = {wire: i for i, wire in enumerate(labels)}
        live: set[int] = set()
        for measurement in tape.measurements:
            live |= {place[wire] for wire in measurement.wires or labels}  # a state measures every wire
        gates = []
        for operation in reversed(tape.operations):  # back through the light cone of the measurements
            gates.append(_gate(operation, place, inputs, list(weights.values()), live))
            live |= set(gates[-1].wires) if gates[-1].reaches else set()
    return gates[::-1]


def _gate(
    operation: qp.operation.Operator,
    place: dict[object, int],
    inputs: Tensor,
    weights: list[Tensor],
    live: set[int],
) -> Gate:
    if isinstance(operation, qp.ops.op_math.Adjoint) and operation.base.has_adjoint:
        operation = operation.base.adjoint()  # RY(-t), not Adjoint(RY(t)); CNOT is its own adjoint
    controls = list(getattr(operation, "control_wires", ()))
    others = [wire for wire in operation.wires if wire not in controls]
    if isinstance(operation, qp.ops.Conditional):  # controlled by earlier measurements
        measured = [wire for earlier in operation.meas_val.measurements for wire in earlier.wires]
        controls = measured + controls
    wires, leaves = tuple(place[wire] for wire in (*controls, *others)), [inputs, *weights]
    turned = torch.zeros(sum(leaf.numel() for leaf in leaves), dtype=torch.bool)
    for value in operation.data:
        if isinstance(value, Tensor) and value.requires_grad:
            total = (value.abs() if value.is_complex() else value).sum()
            parts = torch.autograd.grad(
                total, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            turned |= torch.cat([part.flatten() != 0 for part in parts])
    n, places = inputs.numel(), turned.nonzero().flatten().tolist()
    turns, features = tuple(i - n for i in places if i >= n), tuple(i for i in places if i < n)
    return Gate(operation.name, wires, len(controls), turns, features, bool(live & set(wires)))


def slopes(layer: QuantumLayer, rows: Tensor, *, elsewhere: bool = False, mixtures: int = 1) -> Tensor:
    """Derivative of the outputs by each weight, root mean square over rows and outputs, without shots.

    It is estimated from random mixtures of all outputs, each of which takes one backward pass. It is zero if
    and only if no output of any row depends on the weight.

    Args:
        layer: Layer whose frozen weights count too.
        rows: Inputs of shape (n_rows, n_features).
        elsewhere: Whether to use random angles in place of the present weights.
        mixtures: Number of mixtures over which squares are averaged.

    Returns:
        A tensor of shape (n_weights,), in the order of `weight_names`.
    """
    copy = exact_copy(layer, elsewhere=elsewhere).requires_grad_(True)
    weights, generator = list(copy.parameters()), torch.Generator().manual_seed(0)
    with torch.enable_grad():
        outputs = copy.by_row(few(rows))
        outputs = torch.view_as_real(outputs) if outputs.is_complex() else outputs
    squares = torch.zeros(sum(weight.numel() for weight in weights), dtype=torch.float64)
    for _ in range(mixtures):
        mixture = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
        parts = torch.autograd.grad(
            outputs, weights, mixture, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        squares += torch.cat([part.flatten() for part in parts]).square() / mixtures
    return (squares / outputs.numel()).sqrt()


def exact_copy(layer: QuantumLayer, *, elsewhere: bool = False) -> QuantumLayer:
    """A copy in float64 on the CPU, without shots; with random angles as weights if `elsewhere`."""
    qnode = layer.qnode
    if qnode.shots.total_shots is not None:
        qnode = qp.set_shots(qnode.update(diff_method="best"), None)
    copy = layer.with_qnode(qnode).cpu().double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in copy.parameters() if elsewhere else ():
            weight.copy_(2 * torch.pi * torch.rand(weight.shape, generator=generator))
    return copy


def few(rows: Tensor) -> Tensor:
    """At most `MOST_ROWS` rows, evenly spaced, in float64 on the CPU."""
    return rows[:: -(-len(rows) // MOST_ROWS)].cpu().double()

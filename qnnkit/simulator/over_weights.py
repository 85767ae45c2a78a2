"""A circuit for many sets of weights at once: a batch in which every row has weights of its own."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pennylane as qp
import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.simulator.circuit import apart, composed, taken
from qnnkit.simulator.fused import Argument, Fused
from qnnkit.simulator.gates import NotFusable
from qnnkit.simulator.queueing import ALWAYS_IN_PARTS, Structure, queue, structure, transformed


class OverWeights(Fused):
    """A circuit as a function of inputs and weights, a set of weights for every row.

    To the program every angle is one of the inputs': states are turned by phases, row by row, and no
    matrices depend on weights. It computes in float64, on the CPU; gradients are by hand, as for layers.

    Args:
        qnode: Takes `input_name` (unless `n_features` is 0) and the names of `weight_shapes`.
        n_features: Length of `inputs`; 0 for a circuit that takes none.
        weight_shapes: Shapes by name.
        input_name: Name of the argument that takes the data.

    Raises:
        NotFusable: The circuit has no fused form; the message completes "because ...".

    Example:
        >>> from qnnkit import circuits
        >>> values = OverWeights(*circuits.build("data_reuploading", n_qubits=2, n_layers=3), 2)
        >>> values(torch.zeros(2), {"weights": torch.rand(50, 3, 2, 3)}).shape
        torch.Size([50, 2])
    """

    def __init__(
        self,
        qnode: qp.QNode,
        weight_shapes: Mapping[str, tuple[int, ...]],
        n_features: int,
        *,
        input_name: str = "inputs",
    ):
        self.weight_shapes, self.n_features = dict(weight_shapes), n_features
        self.sizes = [n_features, *(math.prod(shape) for shape in weight_shapes.values())]

        def record(arguments: Sequence[Tensor]) -> Structure:
            features, *parts = arguments[0].split(self.sizes)
            shapes = self.weight_shapes.items()
            weights = {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
            tape, _ = queue(qnode, {**({input_name: features} if n_features else {}), **weights})
            [tape], finish = transformed(qnode, tape)
            if finish is not None:
                raise NotFusable("a transform of it computes with the measured values")
            return structure(tape, in_parts)

        in_parts, n = set(ALWAYS_IN_PARTS), sum(self.sizes)
        self._record = record
        one = torch.full((n,), max(1, n_features) ** -0.5, dtype=torch.float64)  # amplitudes have norm 1
        with apart():
            made, of_numbers = taken(lambda: record([one]), in_parts, qnode.device.wires)
        self.is_affine = True
        """Whether the angles are an affine map of a row."""
        try:
            own, arguments = composed(of_numbers, made.key, record, [(n,)]), [Argument(n, True)]
        except NotFusable:
            self.is_affine, own = False, of_numbers
            arguments = [Argument(math.prod(np.shape(leaf)), True) for leaf in made.leaves]
        super().__init__(own, arguments, torch.float64)

    def numbers(self, rows: Tensor) -> list[Tensor]:
        """What the program takes, for features and weights of shape (batch, n)."""
        if self.is_affine:
            return [rows]

        def of_one(row: Tensor) -> tuple[Tensor, ...]:
            return tuple(torch.as_tensor(leaf, dtype=torch.float64) for leaf in self._record([row]).leaves)

        return list(torch.func.vmap(of_one)(rows))

    def __call__(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Measured values of shape (batch, n_outputs), or states of shape (batch, 2**n_wires), on the CPU.

        Args:
            inputs: Of shape (batch, n_features), or (n_features,) for the same in every row; in radians.
            weights: By name, each of shape (batch, *shape).
        """
        rows = self._rows(inputs, weights)
        values = self.shaped(super().__call__(self.numbers(rows), len(rows)))
        return values if len(values) == len(rows) else values.expand(len(rows), *values.shape[1:])

    def _rows(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Features and weights side by side, of shape (batch, n_features + n_weights)."""
        batch = {len(weight) for weight in weights.values()} | ({len(inputs)} if inputs.ndim == 2 else set())
        shapes = {name: tuple(weight.shape[1:]) for name, weight in weights.items()}
        if shapes != self.weight_shapes or len(batch) != 1:
            given = {name: tuple(weight.shape) for name, weight in weights.items()}
            rule = f"have the shapes (batch, *shape) of {self.weight_shapes}, and as many rows as inputs"
            step = "Give one set of weights for each row, by name."
            raise ValueError(checks.message("weights", rule, given, step))
        checks.last_axis("inputs", inputs, self.n_features, "Give the features the circuit was built for.")
        [n] = batch
        flat = [weights[name].reshape(n, -1) for name in self.weight_shapes]
        return torch.cat([inputs.expand(n, -1), *flat], dim=1).to(self.device, self.dtype)

"""A circuit for many sets of weights at once: a batch in which every row has weights of its own."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pennylane as qp
import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.simulator.fused import Fused
from qnnkit.simulator.graph import NotFusable
from qnnkit.simulator.queueing import queue, transformed
from qnnkit.simulator.trace import Argument, trace


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

        def record(arguments: Sequence[Tensor]) -> Any:
            features, *parts = arguments[0].split(self.sizes)
            shapes = self.weight_shapes.items()
            weights = {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
            tape, _ = queue(qnode, {**({input_name: features} if n_features else {}), **weights})
            [tape], finish = transformed(qnode, tape)
            if finish is not None:
                raise NotFusable("a transform of it computes with the measured values")
            return tape.operations, tape.measurements

        row = Argument((sum(self.sizes),), torch.float64, on_rows=True, batched=False)
        super().__init__(trace(record, [row], qnode.device.wires), torch.float64, "cpu")

    def __call__(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Measured values of shape (batch, n_outputs), or states of shape (batch, 2**n_wires), on the CPU.

        Args:
            inputs: Of shape (batch, n_features), or (n_features,) for the same in every row; in radians.
            weights: By name, each of shape (batch, *shape).
        """
        rows = self._rows(inputs, weights)
        values = self.shaped(super().__call__([rows], len(rows)))
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

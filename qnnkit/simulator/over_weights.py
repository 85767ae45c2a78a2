"""A circuit for many sets of weights at once: a batch in which every row has weights of its own."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pennylane as qp
import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.simulator.angles import Angles, is_smooth, replay
from qnnkit.simulator.fused import Fused
from qnnkit.simulator.trace import apart, trace


class _RowAngles(Angles):
    """Angles as a function of one row: features and weights in one vector."""

    def _find_form(self, inputs: Tensor, weights: Sequence[Tensor]) -> None:
        """Tells the form from the values at 0 and at every unit vector, checked at two random points.

        A Jacobian by autograd would take as many backward passes as there are angles: thousands.
        """
        if not all(is_smooth(node) for node in self.graph.graph.nodes):
            return
        n, generator = inputs.shape[-1], torch.Generator().manual_seed(0)
        random = torch.rand(2, n, generator=generator, dtype=torch.float64) * 2 - 1
        points = torch.cat([torch.zeros(1, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)])
        values = self.of_rows(torch.cat([points, random]))
        offset, matrix = values[0], values[1:-2] - values[0]
        if torch.allclose(values[-2:], random @ matrix + offset, rtol=0, atol=1e-11):
            self.matrix, self.offset = matrix.numpy(), offset.numpy()

    def of_rows(self, rows: Tensor) -> Tensor:
        """Of shape (batch, n_angles), by the graph."""
        return torch.func.vmap(lambda row: torch.stack(list(replay(self.graph, row, ()))))(rows)


class OverWeights(Fused):
    """A circuit as a function of inputs and weights, a set of weights for every row.

    To the program every angle is one of the inputs': states are turned by phases, row by row, and no
    matrices depend on weights. Gradients by inputs and by weights are by hand, as for layers.

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

    angles_of = _RowAngles

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

        def function(row: Tensor) -> Any:
            features, *parts = row.split(self.sizes)
            shapes = self.weight_shapes.items()
            given = {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
            return qnode.func(**({input_name: features} if n_features else {}), **given)

        of_row = copy.copy(qnode)  # with the transforms that were applied to it
        of_row.func = function
        row = torch.full((sum(self.sizes),), 0.1)
        apart(lambda: super(OverWeights, self).__init__(trace(of_row, row, {}, "row"), row, []))

    def __call__(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Measured values of shape (batch, n_outputs), or states of shape (batch, 2**n_wires).

        Args:
            inputs: Of shape (batch, n_features), or (n_features,) for the same in every row; in radians.
            weights: By name, each of shape (batch, *shape).
        """
        rows = self._rows(inputs, weights)
        if self.input_angles.affine:
            columns = rows.t()
        elif self.input_angles.size:
            columns = self.input_angles.of_rows(rows).t()
        else:
            columns = rows.new_zeros(0, len(rows))
        if self.amplitudes is not None:
            graph = self.amplitudes
            columns = self._below(columns, torch.func.vmap(lambda row: replay(graph, row, ())[0])(rows).t())
        values = self._shape(self.compiled(rows.device, rows.dtype)(columns.contiguous(), rows.new_zeros(0)))
        return values.expand(len(rows), *values.shape[1:])

    def _rows(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Features and weights side by side, of shape (batch, n_features + n_weights)."""
        step = "Give one set of weights for each row, by name."
        if set(weights) != set(self.weight_shapes):
            raise ValueError(checks.message("weights", f"be {[*self.weight_shapes]}", [*weights], step))
        batch = {len(weight) for weight in weights.values()} | ({len(inputs)} if inputs.ndim == 2 else set())
        shapes = {name: tuple(weight.shape[1:]) for name, weight in weights.items()}
        if shapes != self.weight_shapes or len(batch) != 1:
            told = {name: tuple(weight.shape) for name, weight in weights.items()}
            rule = f"have the shapes (batch, *shape) of {self.weight_shapes}, and as many rows as inputs"
            raise ValueError(checks.message("weights", rule, told, step))
        checks.last_axis("inputs", inputs, self.n_features, "Give the features the circuit was built for.")
        [n] = batch
        features = inputs if inputs.ndim == 2 else inputs.expand(n, -1)
        flat = [weights[name].reshape(n, -1) for name in self.weight_shapes]
        return torch.cat([features, *flat], dim=1)

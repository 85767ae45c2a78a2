"""A circuit for many sets of weights at once: a batch in which every row has its own weights."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pennylane as qp
import torch
from torch import Tensor

from qnnkit.simulator.circuit import affine, angles, apart, assembled, cut, parts
from qnnkit.simulator.fused import Fused
from qnnkit.simulator.gates import NotFusable
from qnnkit.simulator.queueing import single


class OverWeights(Fused):
    """A circuit as a function of inputs and weights, with one set of weights per row.

    The program treats every angle as an input: phases change the states row by row, and no matrix depends on
    weights. It computes in float64 on the CPU; gradients are hand-written, as for layers.

    Args:
        qnode: A QNode of `inputs` (unless `n_features` is 0) and the names in `weight_shapes`.
        weight_shapes: Shapes of the weights by name.
        n_features: Length of `inputs`; 0 for a circuit without inputs.

    Raises:
        NotFusable: The circuit has no fused form; the message completes "because ...".

    Example:
        >>> from qnnkit import circuits
        >>> values = OverWeights(*circuits.build("data_reuploading", n_qubits=2, n_layers=3), 2)
        >>> values(torch.zeros(2), {"weights": torch.rand(50, 3, 2, 3)}).shape
        torch.Size([50, 2])
    """

    def __init__(self, qnode: qp.QNode, weight_shapes: Mapping[str, tuple[int, ...]], n_features: int):
        self.weight_shapes, self.n_features, kinds = dict(weight_shapes), n_features, set()
        shapes = [(n_features,), *weight_shapes.values()]

        def gates(row: Tensor) -> list[tuple[str, Any]]:
            features, *weights = cut(row, shapes)
            arguments = {"inputs": features} if n_features else {}
            self.tape = single(qnode, arguments | dict(zip(weight_shapes, weights, strict=True)))
            return parts(self.tape.operations, kinds)

        def numbers(row: Tensor) -> list[Tensor]:
            operations = [gate for _, gate in gates(row)]
            return [angles(operations)[0], *(each.data[0] for each in operations[: self.is_given])]

        n = sum(map(math.prod, shapes))
        one = torch.full((n,), max(1, n_features) ** -0.5, dtype=torch.float64)  # amplitudes have norm 1
        with apart():
            circuit = assembled(gates(one), self.tape.measurements, qnode.device.wires, kinds)
        super().__init__(circuit, np.ones(len(circuit.offset)), torch.float64)
        self._numbers_of = torch.func.vmap(numbers)
        """Maps rows of inputs and weights to angles and amplitudes."""
        with contextlib.suppress(NotFusable), apart():
            matrix, offset, is_affine = affine(lambda row: numbers(row)[0], n)
            if is_affine.all() and not self.is_given:  # otherwise the Python runs at every call
                sparse, offset = torch.from_numpy(matrix).to_sparse(), torch.from_numpy(offset)
                self._numbers_of = lambda rows: [torch.sparse.mm(sparse, rows.T).T + offset]

    def __call__(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Measured values of shape (batch, n_outputs), or states of shape (batch, 2**n_wires), on the CPU.

        Args:
            inputs: Features of shape (batch, n_features), or (n_features,) if shared by all rows; in radians.
            weights: Weights by name, each of shape (batch, *shape).
        """
        flat = [weights[name].flatten(1) for name in self.weight_shapes]
        n = len(flat[0]) if flat else len(inputs)
        rows = torch.cat([inputs.expand(n, -1), *flat], dim=1).to(self.device, self.dtype)
        numbers, *amplitudes = self._numbers_of(rows)
        values = self.shaped(super().__call__(numbers, None, *amplitudes))
        return values if len(values) == n else values.expand(n, *values.shape[1:])

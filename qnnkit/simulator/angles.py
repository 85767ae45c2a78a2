"""Gate angles from inputs and weights: a matrix where they are affine, else the traced graph."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from qnnkit.simulator.graph import INPUTS, Graph


class Angles:
    """Angles as a function of one vector, of shape (n, batch), or of the weights, of shape (n,).

    If all are affine in it, matrix and offset tell them: angles = vector @ matrix + offset. Else the traced
    graph is run, and the vector is the angles themselves.

    Args:
        graph: What gives the angles.
        shapes: Of the graph's arguments, batch aside.
        of: Number of the argument that they may depend on; None for all but the first, flattened.
    """

    def __init__(self, graph: Graph, shapes: Sequence[tuple[int, ...]], of: int | None):
        self.graph, self.size, self.affine = graph, len(graph.wanted), False
        self.matrix, self.offset = np.eye(self.size), np.zeros(self.size)
        free = [i for i in range(len(shapes)) if (i == of if of is not None else i > 0)]
        sources = INPUTS if of is not None else ~INPUTS
        if not self.size or graph.degree > 1 or any(node.sources & ~sources for node in graph.wanted):
            return
        sizes = [math.prod(shapes[i]) for i in free]

        def angles(vector: Tensor) -> Tensor:
            parts = iter(vector.split(sizes))
            given = [
                next(parts).reshape(s) if i in free else vector.new_zeros(s) for i, s in enumerate(shapes)
            ]
            return torch.stack([angle.reshape(()) for angle in graph(given[0], given[1:], double=True)])

        n = sum(sizes)
        points = torch.cat([torch.zeros(1, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)])
        with contextlib.suppress(RuntimeError):  # numbers of fixed dtypes that do not mix with float64
            values = torch.func.vmap(angles)(points).numpy()
            self.offset, self.matrix, self.affine = values[0], values[1:] - values[0], True

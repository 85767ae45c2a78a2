"""Gate angles from inputs and weights: a matrix product where they are linear, else the traced graph."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, fx

EXACT = 1e-12
SMOOTH = (
    "add sub rsub mul div neg reciprocal sum mean prod square exp sigmoid sin cos sinh cosh tanh "
    "mm mv bmm dot addmm matmul linear einsum cumsum "
    "select slice view _unsafe_view reshape unsqueeze squeeze expand t transpose permute movedim flip roll "
    "cat stack unbind split split_with_sizes chunk clone detach alias contiguous _to_copy lift_fresh_copy "
    "constant_pad_nd zeros ones full empty zeros_like ones_like full_like new_zeros new_ones new_full "
    "scalar_tensor diagonal index_select gather sym_size sym_numel sym_stride getitem"
)
"""Operations of torch without kinks, steps or branches: what is linear near three points is so everywhere."""


class Angles:
    """The angles of some gates as a function of one vector per sample, or of the weights.

    Two forms, chosen when the circuit is compiled and equal in value:

    - affine: angles = vector @ matrix + offset;
    - the traced graph itself, for everything else (products of features, functions of them).

    Args:
        graph: (inputs, *weights) -> angles.
        wanted: Indices of the angles that are asked for, in order.
        inputs: Example inputs, float64.
        weights: Example weights, float64.
        on_inputs: Whether the angles differ from sample to sample.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        wanted: Sequence[int],
        inputs: Tensor,
        weights: Sequence[Tensor],
        *,
        on_inputs: bool,
    ):
        self.graph, self.on_inputs = only(graph, wanted), on_inputs
        self.matrix: np.ndarray | None = None
        self.offset: np.ndarray | None = None
        self.batched, self.n_features = inputs.ndim == 2, inputs.shape[-1]
        self.size = len(wanted)
        if self.size:
            with contextlib.suppress(
                RuntimeError
            ):  # a constant of the QNode's own dtype does not mix with float64
                self._find_form(inputs, weights)

    def _find_form(self, inputs: Tensor, weights: Sequence[Tensor]) -> None:
        """Tells the form by the Jacobian at two points, and checks what it predicts at a third.

        Three points tell for smooth functions only: what has kinks, steps or branches is left to the graph.
        """
        if not all(is_smooth(node) for node in self.graph.graph.nodes):
            return
        generator = torch.Generator().manual_seed(0)
        shapes = [weight.shape for weight in weights]

        def angles(vector: Tensor, other: Tensor) -> Tensor:
            flat, features = (other, vector) if self.on_inputs else (vector, other)
            parts = flat.split([shape.numel() for shape in shapes])
            given = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
            row = features.expand(2, -1) if self.batched else features
            found = self.graph(row, *given)
            return torch.stack([angle[0] if angle.ndim else angle for angle in found])

        n_features = inputs.shape[-1]
        n_weights = sum(shape.numel() for shape in shapes)
        n_vector, n_other = (n_features, n_weights) if self.on_inputs else (n_weights, n_features)

        def draw(n: int) -> Tensor:
            return torch.rand(n, generator=generator, dtype=torch.float64) * 2 - 1

        other = draw(n_other)
        with torch.enable_grad():
            first, second = (
                torch.autograd.functional.jacobian(lambda v: angles(v, other), draw(n_vector))
                for _ in range(2)
            )
        assert isinstance(first, Tensor) and isinstance(second, Tensor)
        offset = angles(torch.zeros(n_vector, dtype=torch.float64), other)
        third, elsewhere = draw(n_vector), draw(n_other)
        predicted = first @ third + offset
        if not torch.allclose(first, second, rtol=0, atol=EXACT):
            return
        if not torch.allclose(angles(third, elsewhere), predicted, rtol=0, atol=EXACT * 100):
            return  # not affine, or it depends on both inputs and weights
        self.matrix, self.offset = first.T.numpy(), offset.numpy()

    @property
    def affine(self) -> bool:
        return self.matrix is not None

    def affine_form(self) -> tuple[np.ndarray, np.ndarray]:
        """(matrix, offset): angles = vector @ matrix + offset; if not affine, the vector is the angles."""
        if self.matrix is None or self.offset is None:
            return np.eye(self.size), np.zeros(self.size)
        return self.matrix, self.offset

    def by_graph(self, inputs: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Of shape (n_angles, batch) if they depend on the inputs, else (n_angles,)."""
        found = torch.stack(list(replay(self.graph, inputs, weights)))
        if not self.on_inputs:
            return found
        return found[:, : len(inputs)] if self.batched else found.unsqueeze(1)


def is_smooth(node: fx.Node) -> bool:
    if node.op != "call_function":
        return True
    name = str(getattr(node.target, "__name__", node.target)).split(".")[0]
    value = node.meta.get("val")
    return name in SMOOTH.split() and (not isinstance(value, Tensor) or value.is_floating_point())


def replay(graph: fx.GraphModule, inputs: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The graph's outputs; for a batch of one, those of two, since of one is no batch to a traced graph."""
    if inputs.ndim == 2 and len(inputs) == 1:
        inputs = inputs.expand(2, -1)
    return graph(inputs, *weights)


def only(graph: fx.GraphModule, wanted: Sequence[int]) -> fx.GraphModule:
    """The graph that gives some of the outputs, without what the others need."""
    graph = copy.deepcopy(graph)
    [output] = [node for node in graph.graph.nodes if node.op == "output"]
    output.args = (tuple(output.args[0][i] for i in wanted),)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph

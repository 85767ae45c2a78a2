"""The batched simulator: a QNode as one fused torch program, exact, differentiable, on any torch device."""

from __future__ import annotations

import pennylane as qp
import torch

from qnnkit.simulator.array_api import autocasts, rounds
from qnnkit.simulator.fused import Fused, autograd_must
from qnnkit.simulator.graph import NotFusable
from qnnkit.simulator.over_weights import OverWeights
from qnnkit.simulator.programs import Programs
from qnnkit.simulator.trace import apart, is_elementary, trace

__all__ = [
    "Fused", "NotFusable", "OverWeights", "Programs", "autocasts", "autograd_must", "fuse", "is_elementary",
    "rounds", "trace",
]  # fmt: skip


def fuse(
    qnode: qp.QNode,
    inputs_shape: tuple[int, ...],
    weight_shapes: dict[str, tuple[int, ...]],
    dtype: torch.dtype = torch.float32,
    input_name: str = "inputs",
    device: torch.device | str = "cpu",
) -> Fused:
    """The program of a QNode for inputs of one form.

    Args:
        qnode: Takes `input_name` and the names of `weight_shapes`.
        inputs_shape: (batch, n_features), for any batch above 1; (1, n_features); or (n_features,).
        weight_shapes: Shapes by name, in the order in which the program takes its weights.
        dtype: Of inputs and weights.
        input_name: Name of the argument that takes the data.
        device: Of inputs and weights.

    Raises:
        NotFusable: The circuit has no fused form; the message completes "because ...".
    """

    def make() -> Fused:
        traced = trace(qnode, inputs_shape, weight_shapes, dtype, input_name, device)
        return Fused(traced, inputs_shape, list(weight_shapes.values()), dtype, device)

    return apart(make)

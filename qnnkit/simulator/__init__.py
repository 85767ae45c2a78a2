"""The batched simulator: a QNode as one fused torch program, exact, differentiable, on any torch device."""

from __future__ import annotations

import pennylane as qp
import torch

from qnnkit.simulator.fused import Fused
from qnnkit.simulator.over_weights import OverWeights
from qnnkit.simulator.together import together
from qnnkit.simulator.trace import NotFusable, Trace, apart, is_elementary, trace

__all__ = ["Fused", "NotFusable", "OverWeights", "fuse", "is_elementary", "together", "trace"]


_TRACES: dict[tuple, Trace] = {}
"""Of the kit's own circuits, each a second's work: a run builds the same one for every net and seed."""


def fuse(
    qnode: qp.QNode,
    inputs_shape: tuple[int, ...],
    weight_shapes: dict[str, tuple[int, ...]],
    dtype: torch.dtype = torch.float32,
    input_name: str = "inputs",
) -> Fused:
    """The program of a QNode for inputs of one form.

    Args:
        qnode: Takes `input_name` and the names of `weight_shapes`.
        inputs_shape: (batch, n_features), for any batch; or (n_features,).
        weight_shapes: Shapes by name, in the order in which the program takes its weights.
        dtype: Of inputs and weights.
        input_name: Name of the argument that takes the data.

    Raises:
        NotFusable: The circuit has no fused form; the message completes "because ...".
    """

    # A circuit of the kit's own, as it was built, is known by what it was built from.
    own = None if qnode.compile_pipeline or qnode.shots else vars(qnode.func).get("built_from")
    form = len(inputs_shape), inputs_shape[-1], tuple(weight_shapes.items()), dtype, input_name
    key = own, tuple(qnode.device.wires or ()), *form

    def make() -> Fused:
        inputs = torch.full(
            (3, *inputs_shape[1:]) if len(inputs_shape) == 2 else inputs_shape, 0.1, dtype=dtype
        )
        weights = {name: torch.full(shape, 0.1, dtype=dtype) for name, shape in weight_shapes.items()}
        found = _TRACES.get(key) or trace(qnode, inputs, weights, input_name)
        if own is not None:
            _TRACES[key] = found
        return Fused(found, inputs, list(weights.values()))

    return apart(make)

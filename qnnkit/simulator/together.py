"""Several circuits on the same inputs as one program: the filters of a quanvolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qnnkit.simulator.execute import CACHE_BYTES
from qnnkit.simulator.fused import Fused


def together(programs: Sequence[Fused], inputs: Tensor, weights: Sequence[Sequence[Tensor]]) -> Tensor | None:
    """Measured values of several circuits, of shape (batch, n_circuits, n_values); for frozen ones.

    With gradients it is right but not faster: each circuit's own backward pass is by hand.

    Circuits that embed the inputs once, in the same way, differ in one matrix each: the embedding is computed
    once, and the matrices, one below the other, are applied in one product.

    Args:
        programs: Of the circuits.
        inputs: Of shape (batch, n_features).
        weights: Of each circuit, in the order of its trace.

    Returns:
        None where the circuits are not of that kind; then each is to be run by itself.
    """
    kinds = {_embedding(program) for program in programs}
    if len(kinds) > 1 or None in kinds:
        return None
    compiled = [program.compiled(inputs.device, inputs.dtype) for program in programs]
    starts, ends = zip(*(one.steps for one in compiled), strict=True)
    rows = []
    for program, one, start, given in zip(programs, compiled, starts, weights, strict=True):
        [matrix] = start.matrices(one.matrices.run(program.vector(inputs, given)))
        rows.append(matrix[:, : 2 ** start.embedded[0]])
    matrix, tables = torch.cat(rows), torch.stack([end.table for end in ends])
    at_once = max(1, CACHE_BYTES // (len(matrix) * inputs.element_size()))
    at_once = at_once if inputs.device.type == "cpu" else max(1, len(inputs))
    values = []
    for part in inputs.t().split(at_once, dim=1):
        states = (matrix @ starts[0].features(part)).unflatten(0, (len(programs), 2, -1))
        re, im = states.unbind(1)
        values.append(tables @ torch.addcmul(re * re, im, im))  # (n_circuits, n_values, batch)
    return (values[0] if len(values) == 1 else torch.cat(values, dim=-1)).permute(2, 0, 1)


def _embedding(program: Fused) -> tuple | None:
    """What tells the embeddings of circuits apart; None for more than an embedding."""
    kinds = {kind for kind, _, _ in program.readout.shapes}
    reads = program.trace.as_list and kinds <= {"expval", "probs"} and set(program.readout.flips) == {0}
    half, start = program.plan.half, program.plan.start
    if half is None or not program.input_angles.affine or program.plan.steps or len(start) > 1 or not reads:
        return None
    arrays = [half, *program.input_angles.affine_form()]
    return program.n_wires, program.readout.n_columns, *((each.shape, each.tobytes()) for each in arrays)

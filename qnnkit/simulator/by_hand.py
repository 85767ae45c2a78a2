"""The gradient of a fused program: hand-written if possible, else by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit.simulator import steps
from qnnkit.simulator.array_api import Array, exactly, rounds, xp


def autograd_must() -> bool:
    """Whether torch must compute the gradients: under functional transforms, forward mode or torch.jit."""
    # torch has no public names for these; autograd.Function itself uses the second.
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


class Run(torch.autograd.Function):
    """Computes values from rows and the shared vector; see `Fused`."""

    @staticmethod
    def forward(ctx: Any, program: Any, given: Any, keep: bool, rows: Tensor, vector: Tensor) -> Tensor:
        ctx.program, ctx.tapes, ctx.given = program, [] if keep else None, given
        values, ctx.built = program.compute(*given, ctx.tapes)
        ctx.vector = vector  # it may change before the backward pass, which has a copy
        ctx.save_for_backward(rows)
        # detached, because the values may be on the tape, which would then refer back to this node
        return tensor_of(values).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled() or autograd_must() or _is_mapped(gradient):
            return Run._again(ctx, gradient)
        with exactly(gradient.device.type, ctx.given[0] is ctx.program.near):
            return Run._backward(ctx, gradient)

    @staticmethod
    def _again(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradients in a form that can be differentiated again or mapped: by torch, through `plain`."""
        # torch's own backward pass would round
        program = ctx.program.double if rounds(gradient.device.type) else ctx.program
        [rows], vector = ctx.saved_tensors, ctx.vector
        before = torch.as_tensor(ctx.given[2]).reshape(vector.shape)
        if not torch.equal(before, vector.detach()):  # changed since the forward pass
            vector = vector - vector.detach() + before
        with torch.enable_grad():
            inputs = [part.to(program.dtype) for part in (rows, vector)]
            values, back = torch.func.vjp(program.plain, *inputs)[:2]
            gradients = back(gradient.to(values.dtype))
        needed, given = ctx.needs_input_grad[3:], (rows, vector)
        gradients = [g.to(e.dtype) if n else None for g, e, n in zip(gradients, given, needed, strict=True)]
        return None, None, None, *gradients

    @staticmethod
    def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        program, needed = ctx.program, ctx.needs_input_grad[3:]
        ctx.saved_tensors  # noqa: B018  # raises if the rows were changed; a checkpoint recomputes them
        # The first backward pass frees what the forward pass kept, as in autograd.
        built, tapes, (way, parts, vector) = ctx.built, ctx.tapes, ctx.given
        ctx.built, ctx.tapes, (matrices, steps_) = None, None, way
        gradients: Any = gradient.numpy(force=True).T if way is program.near else gradient.t()
        built, saved = built or program.built(way, vector)
        first, to_rows = 0, []
        to_matrices: Any = [None] * len(built) if needed[1] else None
        for i, part in enumerate(parts):
            flowing = gradients[:, first : (first := first + samples_of(part))]
            flowing = in_chunks(flowing, len(part) if part.ndim == 3 else 1)
            tape = tapes[i] if tapes else None
            if tape is None:
                program.forward(way, part, built, tape := [])
            to = steps.Gradients(part if needed[0] else None, to_matrices)
            for step in reversed(steps_):
                flowing = step.backward(flowing, tape.pop(), built, to)
            to_rows.append(xp(part).zeros_like(part) if to.columns is None else to.columns)
        to_row = tensor_of(joined(to_rows)) if needed[0] else None
        if to_matrices is not None and way is program.mixed:
            to_matrices = [each.numpy() for each in to_matrices]
        if to_matrices is None:
            return None, None, None, to_row, None
        to_vector = tensor_of(matrices.backward(to_matrices, saved)).reshape(ctx.vector.shape)
        return None, None, None, to_row, to_vector


_is_mapped: Any = vars(torch._C)["_functorch"].is_legacy_batchedtensor
"""Whether a gradient stands for a batch of gradients, as under `is_grads_batched`."""


# --- parts of a batch -----------------------------------------------------------------------------


def in_chunks(columns: Array, n: int) -> Array:
    return columns if n == 1 else columns.reshape(len(columns), n, -1).swapaxes(0, 1)


def joined(parts: Sequence[Array]) -> Array:
    """An array of shape (batch, n), from parts of shape (n, samples) or (chunks, n, samples)."""
    rows = [p.T if p.ndim == 2 else p.swapaxes(1, 2).reshape(samples_of(p), p.shape[1]) for p in parts]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def samples_of(columns: Array) -> int:
    return columns.shape[-1] * (len(columns) if columns.ndim == 3 else 1)


def tensor_of(array: Array) -> Tensor:
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array

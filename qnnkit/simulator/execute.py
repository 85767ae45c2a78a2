"""Running a program: in plain torch where autograd must see everything, else with gradients by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from qnnkit.simulator.matrices import Constants
from qnnkit.simulator.steps import Gradients, Step

CACHE_BYTES = 2**20
"""On a CPU, a batch is run in parts whose state takes this much: most of the time is memory traffic."""
FEWEST_COLUMNS = 16
"""No part has fewer samples than this: thinner matrix products are slow."""
KEPT_BYTES = 2**27
"""States kept for the backward pass; a batch that would need more runs its forward pass again there."""


@dataclass
class Compiled:
    """A program on one device, in one dtype: everything that no input and no weight changes."""

    matrices: Constants
    steps: list[Step]
    state_bytes: int
    """Of one sample."""
    fast: Callable[[Tensor, Tensor], Tensor] | None = None
    """The plain program through torch.compile, for batches of one size; see `Fused.compile`."""
    fast_batch: int | None = None

    def __call__(self, columns: Tensor, vector: Tensor, *, keep: bool = True) -> Tensor:
        """Values of shape (n_columns, batch), or states of shape (2, 2**n_wires, batch).

        Args:
            columns: Inputs or their angles, of shape (n, batch); batch 1 if nothing depends on them.
            vector: Weights or their angles, of shape (m,).
            keep: Whether states may be kept for the way back; else they are computed again there.
        """
        if autograd_must():
            return self.run(columns, vector)
        if self.fast is not None and columns.shape[1] == self.fast_batch:
            if keep or not torch.is_grad_enabled():
                return self.fast(columns, vector)
            return checkpoint(self.fast, columns, vector, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled():
            return _Run.apply(self, columns, vector, keep)
        groups, _ = self.matrices.forward(vector)
        return _joined([self.forward(part, groups, None) for part in self.parts(columns)])

    def speed_up(self, columns: Tensor, vector: Tensor) -> None:
        """Compiles the plain program for batches of this size: a shape that varies costs more than it gains.

        Raises:
            Exception: There is no compiler, or it fails; the program runs as before.
        """
        example = columns.detach().requires_grad_(), vector.detach().requires_grad_()
        own = [columns.device] if columns.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices=own),
            torch.enable_grad(),
            beside_the_graph(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # the compiler's own, of no use to whoever trains
            fast = torch.compile(self.run, dynamic=False)
            fast(*example).sum().backward()
        self.fast, self.fast_batch = fast, columns.shape[1]

    def run(self, columns: Tensor, vector: Tensor) -> Tensor:
        """The same in plain torch."""
        groups, state = self.matrices.run(vector), None
        for step in self.steps:
            state = step.run(state, columns, step.matrices(groups))
        assert state is not None  # a program has steps
        return state

    def forward(self, columns: Tensor, groups: Sequence[Tensor], tape: list[Any] | None) -> Tensor:
        """From columns and matrices to values, without a graph; what the way back needs goes on the tape."""
        state: Any = None
        for step in self.steps:
            state, saved = step.forward(state, columns, groups)
            if tape is not None:
                tape.append(saved)
        return state

    def backward(
        self, gradient: Tensor, tape: list[Any], columns: Tensor, groups: Sequence[Tensor], to: Gradients
    ) -> None:
        """Adds to the gradients in `to`; uses the tape up, so that its memory serves the steps before."""
        flowing: Any = gradient
        for step in reversed(self.steps):
            flowing = step.backward(flowing, tape.pop(), columns, groups, to)

    def parts(self, columns: Tensor) -> tuple[Tensor, ...]:
        """The batch in parts that fit the cache (CPU), or the memory to be kept (elsewhere)."""
        if columns.device.type == "cpu":
            return columns.split(max(FEWEST_COLUMNS, CACHE_BYTES // self.state_bytes), dim=1)
        return columns.split(max(1, KEPT_BYTES // (self.state_bytes * len(self.steps))), dim=1)

    def keeps(self, n_columns: int) -> bool:
        """Whether the states of a batch are kept for the way back."""
        return n_columns * self.state_bytes * len(self.steps) <= KEPT_BYTES


def autograd_must() -> bool:
    """Whether the gradients by hand do not serve: under functional transforms, forward mode, a compiler."""
    # Neither has a public name; autograd.Function itself asks the first.
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def beside_the_graph() -> saved_tensors_hooks:
    """Inside, what autograd saves is no business of hooks from outside, such as those of a checkpoint.

    torch's checkpoint counts what is saved on the way forward, and must find as much when it computes again:
    what is done only once is not to be counted.
    """
    return saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class _Run(torch.autograd.Function):
    """Columns and a vector of weights -> values."""

    @staticmethod
    def forward(ctx: Any, program: Compiled, columns: Tensor, vector: Tensor, keep: bool) -> Tensor:
        ctx.program, parts = program, program.parts(columns)
        groups, ctx.built = program.matrices.forward(vector)
        ctx.tapes = [[] for _ in parts] if keep and program.keeps(columns.shape[1]) else None
        tapes = ctx.tapes or [None] * len(parts)
        values = [program.forward(part, groups, tape) for part, tape in zip(parts, tapes, strict=True)]
        ctx.save_for_backward(columns, vector)
        return _joined(values).detach()  # a state may be on the tape itself: no cycle through this node

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        with torch.autocast(gradient.device.type, enabled=False):  # it may still hold around backward()
            return _Run._backward(ctx, gradient)

    @staticmethod
    def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        program, (_, *needed, _), (columns, vector) = ctx.program, ctx.needs_input_grad, ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: by autograd, through plain torch
            wanted = [given for given, needs in zip((columns, vector), needed, strict=True) if needs]
            values = program.run(columns, vector)
            found = iter(torch.autograd.grad(values, wanted, gradient, create_graph=True, allow_unused=True))
            return (None, *(next(found) if needs else None for needs in needed), None)
        # What the forward pass kept goes with the first backward pass, as autograd's does.
        built, tapes, ctx.built, ctx.tapes = ctx.built, ctx.tapes, None, None
        if built is None:
            _, built = program.matrices.forward(vector)
        groups = [products[-1] for _, products in built]
        to_columns = torch.zeros_like(columns, memory_format=torch.contiguous_format) if needed[0] else None
        to_groups = [torch.zeros_like(group) if needed[1] else None for group in groups]
        parts, first = program.parts(columns), 0
        for part, tape in zip(parts, tapes or [None] * len(parts), strict=True):
            here = slice(first, first := first + part.shape[1])
            if tape is None:
                program.forward(part, groups, tape := [])
            to = Gradients(None if to_columns is None else to_columns[:, here], to_groups)
            program.backward(gradient[..., here], tape, part, groups, to)
        to_vector = program.matrices.backward(to_groups, built) if needed[1] else None
        return None, to_columns, to_vector, None

"""A loss over a large batch in the memory of a small one: gradients with respect to embeddings are cached.

Gao et al. 2021, arXiv:2101.06983, section 3: the batch is embedded chunk by chunk without a graph, the loss
is differentiated down to the embeddings, and each chunk is embedded anew to carry its part further down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qnnkit import checks
from qnnkit.checkpoint import own_generators, random_state, set_random_state


def outputs(model: nn.Module, batch: Mapping[str, Tensor], micro_batch: int) -> tuple[Tensor, ...]:
    """What `model(**batch)` gives, a tuple of tensors, each computed in chunks of the batch.

    Their backward pass computes each chunk again, with the same random numbers and under the same autocast:
    the gradient is that of the whole batch at once, for about one forward pass more. The model must treat
    samples apart from each other (no batch normalisation), and its weights stay until then.

    Args:
        model: Gives a tuple of tensors, (batch, ...) each.
        batch: Its arguments, of one length.
        micro_batch: Samples at once.

    Raises:
        ValueError: `micro_batch` is below 1.
        NotImplementedError: The model is spread over several processes.
    """
    checks.positive("micro_batch", micro_batch, "Use 64, or None for the whole batch at once.")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        step = "Use one process, or a batch that fits at once."
        raise NotImplementedError(
            checks.message("micro_batch", "be None on several processes", micro_batch, step)
        )
    n = len(next(iter(batch.values())))
    parts = [
        {name: values[first : first + micro_batch] for name, values in batch.items()}
        for first in range(0, n, micro_batch)
    ]
    return _Cached.apply(model, parts, *(weight for weight in model.parameters() if weight.requires_grad))


class _Cached(torch.autograd.Function):
    """Chunks of a batch and the weights that are trained -> outputs of the model on all chunks."""

    @staticmethod
    def forward(ctx: Any, model: nn.Module, parts: list[dict[str, Tensor]], *weights: Tensor) -> Any:
        ctx.model, ctx.parts, ctx.states = model, parts, []
        kind = next(iter(parts[0].values())).device.type
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        ctx.autocast = lambda: torch.autocast(kind, dtype) if enabled else contextlib.nullcontext()
        found = []
        for part in parts:
            ctx.states.append(random_state())
            found.append(model(**part))
        ctx.save_for_backward(*weights)  # which tells if one of them has been changed before the way back
        return tuple(torch.cat(each) for each in zip(*found, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        weights, first = ctx.saved_tensors, 0
        total: list[Tensor | None] = [None] * len(weights)
        with own_generators():
            for part, state in zip(ctx.parts, ctx.states, strict=True):
                set_random_state(state)
                with torch.enable_grad(), ctx.autocast():
                    found = ctx.model(**part)
                here = slice(first, first := first + len(found[0]))
                given = [gradient[here] for gradient in gradients]
                added = torch.autograd.grad(found, weights, given, allow_unused=True)
                for index, gradient in enumerate(added):
                    if gradient is not None:
                        so_far = total[index]
                        total[index] = gradient if so_far is None else so_far.add_(gradient)
        return None, None, *total

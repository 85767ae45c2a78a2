"""A batch computed in pieces, `micro_batch` samples at once, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.tasks import Step, Task


def samples(batch: Any) -> int | None:
    """Samples in a batch: the length that all its tensors share; None where it cannot be split."""
    from accelerate.utils import recursively_apply

    lengths: set[int | None] = set()

    def note(leaf: Any) -> None:
        lengths.add(len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else None)

    recursively_apply(note, batch, test_type=lambda leaf: leaf is not None)
    return lengths.pop() if len(lengths) == 1 else None


def pieces(batch: Any, micro_batch: int | None, fewest: int = 1) -> list[Any]:
    """A batch in the fewest pieces of at most `micro_batch` samples, as equal as can be.

    Args:
        batch: Tensors of one length, alone or in tuples, lists and dictionaries (None may stand among them).
        micro_batch: Most samples of a piece; None keeps the batch whole.
        fewest: Samples that a piece of several needs; where both cannot be had, this one counts.

    Raises:
        ValueError: The batch cannot be split.

    Example:
        >>> [len(piece) for piece in pieces(torch.zeros(10, 3), 4)]
        [3, 3, 4]
    """
    if micro_batch is None:
        return [batch]
    from accelerate.utils import slice_tensors

    n = samples(batch)
    if n is None:
        rule = "be None for a batch that cannot be split, as one of tensors of one length can"
        raise ValueError(checks.message("micro_batch", rule, micro_batch, "Leave it out."))
    number = max(1, min(-(-n // micro_batch), n // fewest))
    borders = itertools.pairwise(index * n // number for index in range(number + 1))
    return [batch] if number == 1 else [slice_tensors(batch, slice(*ends)) for ends in borders]


def smaller(batch: Any, micro_batch: int | None, fewest: int = 1) -> int | None:
    """The next `micro_batch` where pieces of that size do not fit; None where there is nothing to split."""
    n = samples(batch)
    if n is None:
        return None
    largest = n if micro_batch is None else max(map(samples, pieces(batch, micro_batch, fewest)))  # type: ignore[type-var]
    half = (largest + 1) // 2  # type: ignore[operator]
    return half if fewest <= half < min(largest, micro_batch or largest) else None  # type: ignore[type-var]


def fewest(model: nn.Module) -> int:
    """Samples that a piece needs: batch normalisation in training refuses a single one."""
    norms = (one for one in model.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm))
    return 2 if any(norm.training for norm in norms) else 1


def passes(task: Task, model: nn.Module, batch: Any, micro_batch: int | None) -> list[Callable[[], Step]]:
    """What computes a batch, piece by piece.

    A task with `whole`, whose loss looks at the batch as a whole, is called once with `micro_batch=` beside.
    """
    if getattr(task, "whole", False):
        return [lambda: task(model, batch, micro_batch=micro_batch)]  # type: ignore[call-arg]
    return [lambda piece=piece: task(model, piece) for piece in pieces(batch, micro_batch, fewest(model))]


def joined(steps: Sequence[Step]) -> Step:
    """What a batch gives, from what its pieces gave: means over all that they count; no graph is kept."""
    first, *others = steps
    if not others:
        return Step(first.loss.detach(), first.sums, first.count)
    count = sum(step.count for step in steps)
    loss = torch.stack([step.loss.detach() * (step.count / (count or 1)) for step in steps]).sum()
    sums = {name: sum(step.sums[name] for step in steps) for name in first.sums}
    return Step(loss, sums, count)  # type: ignore[arg-type]

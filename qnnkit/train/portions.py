"""Batches computed whole, or in parts one after the other since memory ran out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit.tasks import Step
from qnnkit.train import memory
from qnnkit.train.progress import Progress


class Portions:
    """What to compute at once, for a training.

    Args:
        progress: Keeps how many samples that are, in `at_once`.
        shrinks: Whether less is to be computed at once where memory runs out.
        model: For the sentence that says so.
        device: What memory runs out on.
        tell: Called with that sentence.
    """

    def __init__(
        self,
        progress: Progress,
        shrinks: bool,
        model: nn.Module,
        device: torch.device,
        tell: Callable[[str], None],
    ):
        self.progress, self.may_shrink = progress, shrinks
        self.model, self.device, self.tell = model, device, tell
        self.where, self.batch = "the beginning", None
        """What is being computed."""
        self.buffers: list[tuple[nn.Module, str, Tensor]] = []

    def at(self, where: str, batch: Any = None) -> None:
        """Notes what is being computed, for what is told where memory runs out."""
        self.where, self.batch = where, batch

    def of(self, batch: Any) -> list[Any]:
        return parts(batch, self.progress.at_once, self._fewest())

    def begin(self) -> None:
        """Keeps what the update that begins changes on the way: running statistics and other buffers."""
        if self.may_shrink:
            self.buffers = [
                (module, name, buffer.clone())
                for module in self.model.modules()
                if module.training
                for name, buffer in module.named_buffers(recurse=False)
            ]

    def back(self) -> None:
        """Puts buffers back to where the update began."""
        for module, name, kept in self.buffers:
            module.get_buffer(name).data.copy_(kept)

    def _fewest(self) -> int:
        """Samples that a part needs: batch normalisation in training refuses a single one."""
        norms = (one for one in self.model.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm))
        return 2 if any(norm.training for norm in norms) else 1

    def shrink(self, error: Exception) -> bool:
        """Whether to compute again, in smaller parts: memory ran out, and there is something to split."""
        if not self.may_shrink or not memory.ran_out(error):
            return False
        smaller = halved(self.batch, self.progress.at_once, self._fewest())
        if smaller is None:
            return False
        self.progress.at_once = smaller
        self.tell(memory.shrunk(self.where, samples(self.batch), smaller, self.model))
        return True

    def measured(self, compute: Callable[[Any], Step], batch: Any) -> Step:
        """What a batch gives without gradients, in as few parts as fit."""
        while True:
            try:
                return joined([compute(part) for part in self.of(batch)])
            except (RuntimeError, MemoryError) as error:
                if not self.shrink(error):
                    raise
            memory.release(self.device)  # out of the error's reach, which holds what was computed


def parts(batch: Any, at_once: int | None, fewest: int = 1) -> list[Any]:
    """A batch in the fewest parts of at most `at_once` samples, as equal as can be.

    Args:
        batch: Tensors of one length, alone or in tuples, lists and dictionaries (None may stand among them).
            One that cannot be split stays whole.
        at_once: Most samples of a part; None keeps the batch whole.
        fewest: Samples that a part of several needs; where both cannot be had, this one counts.

    Example:
        >>> [len(part) for part in parts(torch.zeros(10, 3), at_once=4)]
        [3, 3, 4]
    """
    n = samples(batch)
    if at_once is None or n is None or n <= at_once:
        return [batch]
    number = _number(n, at_once, fewest)
    borders = [index * n // number for index in range(number + 1)]
    return [_cut(batch, first, last) for first, last in itertools.pairwise(borders)]


def halved(batch: Any, at_once: int | None, fewest: int = 1) -> int | None:
    """What `at_once` is next where parts of that size do not fit; None where there is nothing to split."""
    n = samples(batch)
    if n is None:
        return None
    largest = n if at_once is None else math.ceil(n / _number(n, at_once, fewest))
    smaller = (largest + 1) // 2
    return smaller if fewest <= smaller < min(largest, at_once or largest) else None


def _number(n: int, at_once: int, fewest: int) -> int:
    return max(1, min(math.ceil(n / at_once), n // fewest))


def samples(batch: Any) -> int | None:
    """Samples in a batch: the length that all its tensors share; None where it cannot be split."""
    lengths = {len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else None for leaf in _leaves(batch)}
    return lengths.pop() if len(lengths) == 1 else None


def joined(steps: Sequence[Step]) -> Step:
    """What a batch gives, from what its parts gave: means over all that they count; no graph is kept."""
    first, *others = steps
    if not others:
        return Step(first.loss.detach(), first.sums, first.count)
    count = sum(step.count for step in steps)
    loss = torch.stack([step.loss.detach() * (step.count / count) for step in steps]).sum()
    sums = {name: sum(step.sums[name] for step in steps) for name in first.sums}
    return Step(loss, sums, count)  # pyright: ignore[reportArgumentType]


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for value in batch.values():
            yield from _leaves(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from _leaves(value)
    elif batch is not None:
        yield batch


def _cut(batch: Any, first: int, last: int) -> Any:
    if isinstance(batch, Mapping):
        cut = {name: _cut(value, first, last) for name, value in batch.items()}
        return cut if type(batch) is dict else type(batch)(cut)  # pyright: ignore[reportCallIssue]
    if isinstance(batch, tuple | list):
        values = [_cut(value, first, last) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return None if batch is None else batch[first:last]

"""A batch computed in pieces, `micro_batch` samples at once; and one training step, to be timed or traced."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.settings import Settings
from qnnkit.tasks import Step, Task
from qnnkit.train.optimizer import Group, optimizer_of, trainable
from qnnkit.train.recompute import recomputing

PRECISIONS = ("float32", "bfloat16", "float16")
"""Of the classical layers."""


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
    parts = [batch] if micro_batch is None else pieces(batch, micro_batch, fewest(model))
    return [lambda piece=piece: task(model, piece) for piece in parts]


def joined(steps: Sequence[Step]) -> Step:
    """What a batch gives, from what its pieces gave: means over all that they count; no graph is kept."""
    first, *others = steps
    if not others:
        return Step(first.loss.detach(), first.sums, first.count)
    count = sum(step.count for step in steps)
    loss = torch.stack([step.loss.detach() * (step.count / (count or 1)) for step in steps]).sum()
    sums = {name: sum(step.sums[name] for step in steps) for name in first.sums}
    return Step(loss, sums, count)  # type: ignore[arg-type]


class Stepper:
    """Updates a model on batches that are given, without schedule, clipping and checkpoints.

    Args:
        model: Trained in place; moved to `device`.
        task: Gives the loss.
        config: Optimizer, micro_batch, precision, gradient checkpointing. A float16 scaler is left out.
        groups: Parameters by step size; all in one by default.
        device: Where to compute.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: Settings,
        groups: Sequence[Group] | None = None,
        device: torch.device | str = "cpu",
    ):
        self.device = torch.device(device)
        if any(weight.device != self.device for weight in model.parameters()):  # fake ones cannot be moved
            model.to(self.device)
        self.model, self.task, self.config = model.train(), task, config
        groups = trainable(groups or [Group("all", list(model.parameters()), config.learning_rate)])
        self.optimizer = optimizer_of(groups, config) if groups else None

    def passes(self, batch: Any) -> list[Callable[[], Tensor]]:
        """What computes the loss of a batch, which is moved to the device, piece by piece: a share each."""
        from accelerate.utils import send_to_device

        found = passes(self.task, self.model, send_to_device(batch, self.device), self.config.micro_batch)
        again = recomputing if self.config.gradient_checkpointing else contextlib.nullcontext

        def loss(compute: Callable[[], Any]) -> Tensor:
            with again(self.model), autocast(self.config.precision, self.device):
                return compute().loss / len(found)

        return [lambda compute=compute: loss(compute) for compute in found]

    def backward(self, loss: Tensor) -> None:
        if loss.requires_grad:
            loss.backward()

    def update(self) -> None:
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def __call__(self, batch: Any) -> None:
        """One update."""
        for compute in self.passes(batch):
            self.backward(compute())
        self.update()


def autocast(precision: str, device: torch.device) -> Any:
    """The surroundings in which a model computes in `precision`."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))

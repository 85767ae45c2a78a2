"""One training step: the optimizer, and a batch computed in pieces of `micro_batch` samples."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.settings import Settings
from qnnkit.tasks import Step, Task
from qnnkit.train.optimizer import Group, optimizer_of, trainable
from qnnkit.train.processes import Processes
from qnnkit.train.recompute import recomputing

PRECISIONS = ("float32", "bfloat16", "float16")
"""Precisions of the classical layers."""


def samples(batch: Any) -> int | None:
    """Number of samples in a batch, the common length of its tensors; None if it cannot be split."""
    from accelerate.utils import recursively_apply

    lengths: set[int | None] = set()

    def note(leaf: Any) -> None:
        lengths.add(len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else None)

    recursively_apply(note, batch, test_type=lambda leaf: leaf is not None)
    return lengths.pop() if len(lengths) == 1 else None


def pieces(batch: Any, micro_batch: int | None, fewest: int = 1) -> list[Any]:
    """A batch split into the fewest pieces of at most `micro_batch` samples, as equal as possible.

    Args:
        batch: Tensors of one length, alone or in tuples, lists and dictionaries that may also contain None.
        micro_batch: Most samples of a piece; None keeps the batch whole.
        fewest: Fewest samples per piece if there are several; takes precedence over `micro_batch`.

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
        rule = "be None for a batch that is not made of tensors of the same length"
        raise ValueError(checks.message("micro_batch", rule, micro_batch, "Omit it."))
    number = max(1, min(-(-n // micro_batch), n // fewest))
    borders = itertools.pairwise(index * n // number for index in range(number + 1))
    return [batch] if number == 1 else [slice_tensors(batch, slice(*ends)) for ends in borders]


def passes(task: Task, model: nn.Module, batch: Any, micro_batch: int | None) -> list[Callable[[], Step]]:
    """Calls that compute a batch piece by piece.

    A task with `whole`, whose loss depends on the batch as a whole, is called once with `micro_batch=`.
    """
    if getattr(task, "whole", False):
        return [partial(task, model, batch, micro_batch=micro_batch)]  # type: ignore[call-arg]
    norms = (each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm))
    fewest = 2 if any(norm.training for norm in norms) else 1  # batch normalisation rejects a single sample
    return [partial(task, model, piece) for piece in pieces(batch, micro_batch, fewest)]


def joined(steps: Sequence[Step]) -> Step:
    """The step of a batch from those of its pieces, without a graph: the loss is the mean over all counts."""
    first, *others = steps
    if not others:
        return Step(first.loss.detach(), first.sums, first.count)
    count = sum(step.count for step in steps)
    loss = torch.stack([step.loss.detach() * (step.count / (count or 1)) for step in steps]).sum()
    sums = {name: sum(step.sums[name] for step in steps) for name in first.sums}
    return Step(loss, sums, count)  # type: ignore[arg-type]


class Stepper:
    """A model with its optimizer; a call with a batch makes an update.

    The loop adds schedule, clipping, float16's scaler and checkpoints.

    Args:
        model: Trained in place; moved to `device`.
        task: Computes the loss.
        config: Optimizer, micro_batch, precision, gradient checkpointing.
        groups: Parameters by learning rate; all in one by default.
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
        self.groups = trainable(groups or [Group("all", list(model.parameters()), config.learning_rate)])
        self.optimizer: Any = optimizer_of(self.groups, config) if self.groups else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "float16")
        """Loss scaler of `add_gradient`; `backward` and `update` do not use it."""

    def passes(self, batch: Any, model: nn.Module | None = None) -> list[Callable[[], Step]]:
        """Calls that compute a batch piece by piece.

        Args:
            batch: A batch as the task takes it, on the device.
            model: Called in place of the model, for example a wrapper that distributes it over processes.
        """
        calls = passes(self.task, model or self.model, batch, self.config.micro_batch)
        return [self.surroundings()(call) for call in calls]

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """A context in which the model computes as the settings say, but returns float32 for exact losses."""
        with contextlib.ExitStack() as inside:
            if self.config.gradient_checkpointing and torch.is_grad_enabled():
                inside.enter_context(recomputing(self.model))
            if self.config.precision != "float32":
                from accelerate.utils import convert_to_fp32

                inside.enter_context(torch.autocast(self.device.type, getattr(torch, self.config.precision)))
                hook = self.model.register_forward_hook(lambda model, inputs, out: convert_to_fp32(out))
                inside.callback(hook.remove)
            yield

    def add_gradient(self, batch: Any, counts: bool, model: nn.Module, processes: Processes) -> Step:
        """Adds the gradient of the mean over everything a batch counts on all processes; returns its step.

        The total count is known only after the last piece, but gradients are added before. So each piece is
        weighted as if all had the count of the first, and the sum is corrected at the end. Numbers thus keep
        the size that a float16 scaler expects, and nothing is corrected if all pieces have the same count.

        Args:
            batch: This process's batch, on the device.
            counts: Whether the batch counts in this process; see `Share.batches`.
            model: The model, as returned by `processes.spread`.
            processes: All processes that train together.
        """
        calls, done, expected = self.passes(batch, model), [], 1.0
        for compute in calls:
            last = len(done) + 1 == len(calls)
            with contextlib.nullcontext() if last else processes.alone(model):
                step = compute()
                if not done:
                    [expected] = processes.sums(counts * step.count * len(calls))
                    expected = expected or 1.0  # if the first piece counts nothing
                share = counts * step.count * processes.world / expected  # gradients are means over processes
                self.scaler.scale(step.loss if share == 1 else step.loss * share).backward()
            done.append(joined([step]))
        whole = joined(done)
        [total] = processes.sums(counts * whole.count)
        if total and total != expected:
            for weight in self.model.parameters():
                if weight.grad is not None:
                    weight.grad *= expected / total
        return whole

    def backward(self, step: Step, share: float = 1.0) -> None:
        """Adds the gradient of a piece's loss times its share of the batch."""
        if step.loss.requires_grad:
            (step.loss * share).backward()

    def update(self) -> None:
        """Takes an optimizer step with the gradients that were added, and clears them."""
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def __call__(self, batch: Any) -> None:
        """Makes one update with a batch."""
        from accelerate.utils import send_to_device

        calls = self.passes(send_to_device(batch, self.device))
        for compute in calls:
            self.backward(compute(), 1 / len(calls))
        self.update()

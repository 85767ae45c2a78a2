"""Metrics of a net on a split, without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from qnnkit.checkpoint import own_generators
from qnnkit.tasks import Step, Task, complete
from qnnkit.train.progress import Totals
from qnnkit.train.stepper import joined, passes


def evaluate(
    model: nn.Module,
    task: Task,
    loader: DataLoader,
    device: torch.device | str = "cpu",
    *,
    micro_batch: int | None = None,
) -> dict[str, float]:
    """The task's metrics on a loader, as means over all samples (or tokens), by name.

    Args:
        model: The model; afterwards it is in evaluation mode on `device`.
        task: The task that computes the metrics.
        loader: The batches.
        device: Where to compute.
        micro_batch: Number of samples of a batch to compute at once; None for all.

    Raises:
        FloatingPointError: A metric is not finite.
        ValueError: `micro_batch` is set, but a batch is not made of tensors of the same length.
    """
    from accelerate.utils import send_to_device

    model.to(device).eval()

    def compute(batch: Any) -> Step:
        return joined([step() for step in passes(complete(task), model, batch, micro_batch)])

    with own_generators():  # a plain DataLoader draws a random number per pass
        return totals_of(compute, ((send_to_device(batch, device), True) for batch in loader)).means()


def totals_of(compute: Callable[[Any], Step], batches: Iterable[tuple[Any, bool]], kind: str = "") -> Totals:
    """Sums over the batches that count in this process; `kind` names the metrics in an error about NaN."""
    totals = Totals()
    with torch.no_grad():
        for batch, counts in batches:
            totals.add(compute(batch), counts)
    for name, value in totals.sums.items():
        if not math.isfinite(value):
            raise not_finite(f"{kind}{name}")
    return totals


def not_finite(what: str) -> FloatingPointError:
    """The error for a number that is NaN or infinite."""
    step = "Check the data; a lower learning rate, or clip_norm and quantum_clip_norm, may help."
    return FloatingPointError(f"The {what} is not finite. {step}")

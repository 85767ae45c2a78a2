"""A net's numbers on a split, without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from qnnkit.checkpoint import own_generators
from qnnkit.tasks import Step, Task
from qnnkit.train.finite import not_finite
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
    """The task's numbers on a loader: means over all samples.

    Args:
        model: Left in evaluation mode, on `device`.
        task: Gives the numbers.
        loader: Its batches.
        device: Where to compute.
        micro_batch: Samples of a batch that are computed at once; None are all.

    Raises:
        FloatingPointError: One of them is not finite; told are the layer and the batch.
    """
    from accelerate.utils import send_to_device

    model.to(device).eval()

    def compute(batch: Any) -> Step:
        return joined([step() for step in passes(task, model, batch, micro_batch)])

    with own_generators():  # a plain DataLoader draws a number per pass
        return totals_of(
            model, compute, lambda: ((send_to_device(batch, device), True) for batch in loader)
        ).means()


def totals_of(
    model: nn.Module,
    compute: Callable[[Any], Step],
    batches: Callable[[], Iterable[tuple[Any, bool]]],
    kind: str = "",
    where: str = "",
) -> Totals:
    """Sums over the batches that count here; `kind` and `where` are for what is said of numbers like NaN."""
    totals = Totals()
    with torch.no_grad():
        for batch, own in batches():
            totals.add(compute(batch), own)
        for name, value in totals.sums.items():
            if math.isfinite(value):
                continue
            for index, (batch, _) in enumerate(batches()):  # again, now that waiting for each is no matter
                if not math.isfinite(compute(batch).sums[name]):
                    raise not_finite(f"{kind}{name}", f"{where}batch {index}", model, compute, batch)
            raise FloatingPointError(f"The sum of the {kind}{name} is not finite, though each batch is.")
    return totals

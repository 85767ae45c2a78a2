"""Step sizes over a training."""

from __future__ import annotations

import math

from qnnkit.settings import Settings


def step_size(config: Settings, epoch: float, updates_per_epoch: int) -> float:
    """Factor on the step sizes at a fractional epoch: rises during warm-up, then falls to zero."""
    warmup, total = config.warmup_epochs, config.epochs
    if epoch < warmup:
        return (epoch + 1 / updates_per_epoch) / (warmup + 1 / updates_per_epoch)
    done = min(1.0, (epoch - warmup) / max(total - warmup, 1e-9))
    match config.schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return 1 - done
        case _:
            return 1.0

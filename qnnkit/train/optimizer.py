"""Groups of parameters that share a learning rate, their optimizer, and its schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from qnnkit.settings import Settings


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate and are clipped together.

    Args:
        name: Name in rows and messages.
        parameters: The parameters; frozen ones are ignored.
        learning_rate: Peak learning rate, which the schedule scales.
        clip_norm: Largest Euclidean norm of the group's gradient; None does not clip.
        weight_decay: Weight decay of the optimizer.
    """

    name: str
    parameters: Sequence[nn.Parameter]
    learning_rate: float
    clip_norm: float | None = None
    weight_decay: float = 0.0


def trainable(groups: Sequence[Group]) -> list[Group]:
    """The groups without frozen parameters; groups with only frozen parameters are omitted."""
    trained = [(group, [each for each in group.parameters if each.requires_grad]) for group in groups]
    return [replace(group, parameters=weights) for group, weights in trained if weights]


def optimizer_of(groups: Sequence[Group], config: Settings) -> torch.optim.Optimizer:
    """The optimizer for the configuration, with each group's learning rate and weight decay."""
    settings = [
        {"params": list(group.parameters), "lr": group.learning_rate, "weight_decay": group.weight_decay}
        for group in groups
    ]
    match config.optimizer:
        case "adam":
            return torch.optim.Adam(settings)
        case "adamw":
            return torch.optim.AdamW(settings)
        case "sgd":
            return torch.optim.SGD(settings, momentum=0.9)


def clip(groups: Sequence[Group], optimizer: torch.optim.Optimizer, factor: float) -> dict[str, float]:
    """Sets each group's learning rate and clips its gradient; returns the norms before clipping, by name.

    Args:
        groups: The groups, as passed to `optimizer_of`.
        optimizer: The groups' optimizer.
        factor: Factor on the learning rates; see `step_size`.
    """
    norms = {}
    for group, settings in zip(groups, optimizer.param_groups, strict=True):
        settings["lr"] = group.learning_rate * factor
        norm = nn.utils.get_total_norm([each.grad for each in group.parameters if each.grad is not None])
        if group.clip_norm:
            nn.utils.clip_grads_with_norm_(group.parameters, group.clip_norm, norm)
        norms[group.name] = float(norm)
    return norms


def step_size(config: Settings, epoch: float, updates_per_epoch: int) -> float:
    """The factor on the learning rates at a fractional epoch: warm-up, then `config.schedule`."""
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

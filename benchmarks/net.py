"""The net of the epoch: the kit's own of 88,000 weights, and a clock around a part of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qnnkit import measure
from qnnkit.models import ResidualQuanvNet, ResidualQuanvSettings


def hybrid_net(quanv: nn.Module, *, n_classes: int = 44) -> ResidualQuanvNet:
    """The net for grey images of 32x32, around a quanvolution of 4 maps."""
    config = ResidualQuanvSettings(hidden=114)
    net = ResidualQuanvNet(config, channels=1, image_size=(32, 32), n_classes=n_classes)
    net.middle.quanv = quanv
    return net


def clock(module: nn.Module) -> list[float]:
    """Grows with what enters and leaves the module, forward and backward: their sum is the seconds inside.

    In the backward pass autograd runs what was made last first, hence nothing of the rest of the net between.
    """
    stamps: list[float] = []

    def enters(module: nn.Module, tensors: Any) -> None:
        stamps.append(-measure.now(tensors[0].device))

    def leaves(module: nn.Module, entered: Any, left: Any) -> None:
        stamps.append(measure.now((left if isinstance(left, torch.Tensor) else left[0]).device))

    module.register_forward_pre_hook(enters)
    module.register_forward_hook(leaves)
    module.register_full_backward_pre_hook(enters)
    module.register_full_backward_hook(leaves)
    return stamps

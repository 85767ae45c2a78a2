"""The net of the epoch: the kit's own of 88,000 weights, with a clock around its quanvolution."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from qnnkit.models import ResidualQuanvNet, ResidualQuanvSettings


def hybrid_net(quanv: nn.Module, *, n_classes: int = 44) -> ResidualQuanvNet:
    """The net for grey images of 32x32, around a quanvolution of 4 maps whose seconds are counted."""
    config = ResidualQuanvSettings(hidden=114)
    net = ResidualQuanvNet(config, channels=1, image_size=(32, 32), n_classes=n_classes)
    net.middle.quanv = Timed(quanv)
    return net


class Timed(nn.Module):
    """A module that counts the seconds inside it, forward and backward, in `seconds`.

    The two stamps lie around the module, so that it can be compiled without them. In the backward pass
    autograd runs what was made last first, hence nothing of the rest of the net between the stamps.
    """

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.seconds = inner, 0.0

    def forward(self, maps: Tensor) -> Tensor:
        maps = _Stamp.apply(maps, self, True)
        return _Stamp.apply(self.inner(maps), self, False)

    def stamp(self, device: torch.device, *, enters: bool) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds += -time.perf_counter() if enters else time.perf_counter()


class _Stamp(torch.autograd.Function):
    """The identity, telling its `Timed` when the forward and the backward pass come by."""

    @staticmethod
    def forward(ctx, maps: Tensor, timed: Timed, enters: bool) -> Tensor:
        ctx.timed, ctx.enters = timed, enters
        timed.stamp(maps.device, enters=enters)
        return maps.view_as(maps)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.timed.stamp(gradient.device, enters=not ctx.enters)
        return gradient, None, None

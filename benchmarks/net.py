"""The net of the epoch: a residual stem, a trainable quanvolution, attention, a skip and a small head."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn


class HybridNet(nn.Module):
    """Classes of grey images of 32x32, through 64 evaluations of one circuit per image.

    Args:
        quanv: Maps angles of shape (batch, 4, 8, 8) to values of shape (batch, 16, 4, 4).
        n_classes: Number of classes.

    Example:
        >>> from qnnkit import Quanv2d
        >>> net = HybridNet(Quanv2d(4, "data_reuploading"))
        >>> sum(weight.numel() for weight in net.parameters()), net(torch.zeros(2, 1, 32, 32)).shape
        (87951, torch.Size([2, 44]))
    """

    def __init__(self, quanv: nn.Module, *, n_classes: int = 44):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 24, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(24),
            nn.SiLU(),
            Residual(24, 64),
            nn.Conv2d(64, 4, 1),
        )
        self.quanv = Timed(quanv)
        self.scale = nn.Parameter(torch.ones(16, 1, 1))
        self.attention = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.SiLU(), nn.Conv2d(4, 16, 1), nn.Sigmoid()
        )
        self.skip = nn.Conv2d(4, 16, 2, stride=2)
        self.skip_weight = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256, 114), nn.SiLU(), nn.Linear(114, n_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for images in [0, 1], of shape (batch, 1, 32, 32)."""
        angles = math.pi * torch.sigmoid(self.stem(images))  # (batch, 4, 8, 8)
        values = self.scale * self.quanv(angles)  # (batch, 16, 4, 4)
        values = values * self.attention(values) + self.skip_weight * self.skip(angles)
        return self.head(values)


class Residual(nn.Module):
    """Two convolutions and what they are added to, at half the resolution."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.SiLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.outer = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 1, stride=2, bias=False), nn.BatchNorm2d(out_channels)
        )

    def forward(self, maps: Tensor) -> Tensor:
        return nn.functional.silu(self.inner(maps) + self.outer(maps))


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

"""Classical parts that several families of nets share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Two 3x3 convolutions and what they are added to; He et al. (2015), arXiv:1512.03385, fig. 2.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: 2 halves the sides.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.SiLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.outer: nn.Module = nn.Identity()
        if stride > 1 or in_channels != out_channels:
            self.outer = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, maps: Tensor) -> Tensor:
        return nn.functional.silu(self.inner(maps) + self.outer(maps))


def precise(make: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """`make(values)` in float32 under autocast, for what becomes angles; elsewhere as it is.

    bfloat16 knows an angle near pi only to 0.016 radians.
    """
    kind = values.device.type
    if not torch.is_autocast_enabled(kind):
        return make(values)
    with torch.autocast(kind, enabled=False):
        return make(values.to(torch.promote_types(values.dtype, torch.float32)))


def pixels(images: Tensor, like: nn.Module) -> Tensor:
    """uint8 images as numbers of 0 to 1, in the dtype of a module's weights.

    Channels come last in memory: a CPU convolves twice as fast so.
    """
    scaled = images.to(next(like.parameters()).dtype) / 255
    return scaled.contiguous(memory_format=torch.channels_last)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's own initial weights from a seed; the caller's generators are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPU's too
        yield

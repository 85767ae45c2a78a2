"""A trainable quanvolution between a residual stem and a small head."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.layers import Quanv2d
from qnnkit.models.blocks import Residual, pixels, precise, seeded
from qnnkit.models.quanv import QuanvSettings, quanvolution


class ResidualQuanvSettings(QuanvSettings):
    """Circuit, patches, and the sizes of the stem before them."""

    width: int = Field(default=64, ge=1)
    """Channels of the residual stem; its first layers have fewer."""
    blocks: int = Field(default=1, ge=1)
    """Residual blocks of the stem."""
    maps: int = Field(default=4, ge=1)
    """Channels that the stem hands to the quanvolution."""


class ResidualQuanvNet(nn.Module):
    """Pixels -> residual stem -> angles -> quanvolution beside a skip -> two linear layers -> logits.

    The stem quarters the sides and leaves `maps` channels: 32x32 becomes 4 maps of 8x8, and a circuit of
    four wires runs 64 times an image. With width 64, hidden 114 and 44 classes it has 87,936 weights.

    Args:
        config: Circuit, patches and sizes: `width`, `blocks`, `maps`, `hidden`, `dropout`.
        channels: Channels of the images.
        image_size: (height, width) of the images.
        n_classes: Number of logits.
        seed: Fixes every initial weight; no global generator is touched.
        backend: What runs the circuits, as in `QuantumLayer`.

    Raises:
        ValueError: The images are smaller than four patches a side.
    """

    def __init__(
        self,
        config: ResidualQuanvSettings,
        *,
        channels: int,
        image_size: tuple[int, int],
        n_classes: int,
        seed: int = 0,
        backend: str = "auto",
    ):
        super().__init__()
        least, kernel, stride = 4 * config.kernel_size, config.kernel_size, config.stride
        if min(image_size) < least:
            rule = f"be at least 4 * kernel_size = {least} pixels a side"
            step = "Use larger images or a smaller kernel_size."
            raise ValueError(checks.message("image_size", rule, tuple(image_size), step))
        quanv = quanvolution(config, config.maps, seed=seed, backend=backend)
        sides = [-(-side // 4) for side in image_size]  # two convolutions of stride 2, padded
        rows, columns = ((side - kernel) // stride + 1 for side in sides)
        first = max(1, 3 * config.width // 8)
        with seeded(seed):
            self.stem = nn.Sequential(
                nn.Conv2d(channels, first, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(first),
                nn.SiLU(),
                Residual(first, config.width, stride=2),
                *(Residual(config.width, config.width) for _ in range(config.blocks - 1)),
                nn.Conv2d(config.width, config.maps, 1),
            )
            self.middle = QuanvBesideSkip(quanv, nn.Conv2d(config.maps, quanv.out_channels, kernel, stride))
            self.head = nn.Sequential(
                nn.Flatten(),
                nn.Linear(quanv.out_channels * rows * columns, config.hidden),
                nn.SiLU(),
                nn.Dropout(config.dropout),
                nn.Linear(config.hidden, n_classes),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for uint8 images of shape (batch, channels, height, width)."""
        maps = self.stem(pixels(images, self.stem))  # (batch, maps, rows, columns)
        return self.head(self.middle(math.pi * precise(torch.sigmoid, maps)))


class QuanvBesideSkip(nn.Module):
    """A quanvolution, scaled and weighted by channel, added to a convolution of the same angles.

    Args:
        quanv: Takes angles of shape (batch, maps, rows, columns).
        skip: Gives maps of the same shape as `quanv` does.
    """

    def __init__(self, quanv: Quanv2d, skip: nn.Conv2d):
        super().__init__()
        channels = quanv.out_channels
        squeezed = max(1, channels // 4)
        self.quanv = quanv
        self.scale = nn.Parameter(torch.ones(()))
        self.attention = nn.Sequential(  # squeeze and excitation; Hu et al. (2017), arXiv:1709.01507
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )
        self.skip = skip
        self.skip_weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, angles: Tensor) -> Tensor:
        """Maps of shape (batch, out_channels, rows', columns'), for angles in radians."""
        values = self.scale * self.quanv(angles)
        return values * self.attention(values) + self.skip_weight * self.skip(angles)

    def without_quantum(self) -> nn.Module:
        """What is left without the circuit: the weighted skip; `controls` asks for it."""
        return Skip(self.skip, self.skip_weight)


class Skip(nn.Module):
    """A weighted convolution."""

    def __init__(self, skip: nn.Conv2d, skip_weight: nn.Parameter):
        super().__init__()
        self.skip, self.skip_weight = skip, skip_weight

    def forward(self, angles: Tensor) -> Tensor:
        """Maps of shape (batch, out_channels, rows', columns'), for angles in radians."""
        return self.skip_weight * self.skip(angles)

"""A quanvolutional net: circuits that slide over the image, and a small classical reader."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from qnnkit.layers import Quanv2d
from qnnkit.models.blocks import not_bytes, require_sides, seeded
from qnnkit.models.circuit_part import CircuitSettings


class QuanvSettings(CircuitSettings):
    """Settings of `QuanvNet`; `QuanvSettings.model_fields[NAME].description` is the meaning of one."""

    kernel_size: int = Field(default=2, ge=1)
    """Side of a patch, in pixels."""
    stride: int = Field(default=2, ge=1)
    """Step between patches, in pixels."""
    filters: int = Field(default=1, ge=1, le=10_000)
    """Number of circuits, each with its own weights."""
    hidden: int = Field(default=16, ge=1)
    """Channels (of QuanvNet) or units of the classical layer that reads the circuit's values."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the values before the last layer that is dropped, in training only."""


class QuanvNet(nn.Module):
    """Pixels -> angles -> quanvolution -> 3x3 convolution -> linear layer -> logits.

    Pixels of 0 to 255 become angles of 0 to pi.

    Args:
        channels: Channels of the images.
        image_size: (height, width) of the images.
        n_classes: Number of logits.
        circuit: Name of an ansatz, or a pair (qnode, weight_shapes), as in `Quanv2d`.
        kernel_size: Side of a patch, in pixels.
        stride: Step between patches, in pixels.
        hidden: Channels of the convolution.
        dropout: Fraction of the values before the last layer that is dropped, in training only.
        seed: Fixes every initial weight; no global generator is used.
        quanvolution: Further arguments of `Quanv2d`.

    Raises:
        ValueError: The images are smaller than a patch, or as in `Quanv2d`.
    """

    def __init__(
        self,
        channels: int,
        image_size: tuple[int, int],
        n_classes: int,
        *,
        circuit: Any = "data_reuploading",
        kernel_size: int = 2,
        stride: int = 2,
        hidden: int = 16,
        dropout: float = 0.0,
        seed: int = 0,
        **quanvolution: Any,
    ):
        super().__init__()
        require_sides(image_size, kernel_size, "kernel_size")
        quanvolution |= {"kernel_size": kernel_size, "stride": stride, "seed": seed}
        self.quanv = Quanv2d(channels, circuit, **quanvolution)
        rows, columns = ((side - kernel_size) // stride + 1 for side in image_size)
        with seeded(seed):
            self.reader = nn.Sequential(
                nn.Conv2d(self.quanv.out_channels, hidden, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Dropout(dropout),
                nn.Linear(hidden * rows * columns, n_classes),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for uint8 images, or for feature maps, as in `features`."""
        return self.reader(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """The reader's input: expectation values of shape (batch, out_channels, rows, columns).

        Args:
            images: uint8 of shape (batch, channels, height, width), or feature maps, returned unchanged.

        Raises:
            ValueError: Floating-point inputs do not have the shape of feature maps.
        """
        if images.is_floating_point():  # computed before, by `models.features`
            if images.shape[1] != self.quanv.out_channels:
                raise not_bytes(images, f", or feature maps of {self.quanv.out_channels} channels")
            return images
        angles = images.to(next(self.reader.parameters()).dtype) * (math.pi / 255)  # 0..255 -> 0..pi
        return self.quanv(angles)

    def steady_part(self) -> nn.Module:
        """The part whose outputs can be computed once and replace the images, if it is frozen."""
        return self.quanv

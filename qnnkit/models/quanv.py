"""A quanvolutional net: a layer of circuits slid over the image, and a small classical reader."""

from __future__ import annotations

import math

from pydantic import Field
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.layers import Quanv2d
from qnnkit.models.blocks import seeded
from qnnkit.models.circuit_part import CircuitSettings


class QuanvSettings(CircuitSettings):
    """Circuit, patches and sizes."""

    kernel_size: int = Field(default=2, ge=1)
    """Side of a patch, in pixels."""
    stride: int = Field(default=2, ge=1)
    """Step between patches, in pixels."""
    filters: int = Field(default=1, ge=1, le=10_000)
    """Number of circuits, each with its own weights."""
    hidden: int = Field(default=16, ge=1)
    """Channels (of QuanvNet) or units of the classical layer that reads the circuit's values."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the values before the last layer that is dropped, in training only."""


def quanvolution(config: QuanvSettings, channels: int, *, seed: int, backend: str) -> Quanv2d:
    """The quanvolution that settings ask for."""
    names = ("kernel_size", "stride", "filters", "trainable", "n_layers", "embedding", "initialisation")
    options = {name: getattr(config, name) for name in names}
    return Quanv2d(channels, config.circuit, seed=seed, backend=backend, **options)


class QuanvNet(nn.Module):
    """Pixels -> angles -> quanvolution -> 3x3 convolution -> linear layer -> logits.

    Args:
        config: Circuit, patches and sizes.
        channels: Channels of the images.
        image_size: (height, width) of the images.
        n_classes: Number of logits.
        seed: Fixes every initial weight; no global generator is touched.
        backend: What runs the circuits, as in `QuantumLayer`.

    Raises:
        ValueError: The images are smaller than a patch.
    """

    def __init__(
        self,
        config: QuanvSettings,
        *,
        channels: int,
        image_size: tuple[int, int],
        n_classes: int,
        seed: int = 0,
        backend: str = "auto",
    ):
        super().__init__()
        if min(image_size) < config.kernel_size:
            rule = f"be at least kernel_size = {config.kernel_size} pixels a side"
            step = "Use larger images or a smaller kernel_size."
            raise ValueError(checks.message("image_size", rule, tuple(image_size), step))
        self.quanv = quanvolution(config, channels, seed=seed, backend=backend)
        rows, columns = ((side - config.kernel_size) // config.stride + 1 for side in image_size)
        with seeded(seed):
            self.reader = nn.Sequential(
                nn.Conv2d(self.quanv.out_channels, config.hidden, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Dropout(config.dropout),
                nn.Linear(config.hidden * rows * columns, n_classes),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for images, or feature maps, as `features` gives them."""
        return self.reader(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the reader sees: expectation values of shape (batch, out_channels, rows, columns).

        Args:
            images: uint8, of shape (batch, channels, height, width); or feature maps, which return unchanged.

        Raises:
            ValueError: Numbers that are no bytes do not have the shape of feature maps.
        """
        if images.is_floating_point():  # computed before, by `models.features`
            if images.shape[1] != self.quanv.out_channels:
                rule = f"be uint8, or feature maps of {self.quanv.out_channels} channels"
                told = f"{images.dtype} of shape {tuple(images.shape)}"
                raise ValueError(checks.message("images", rule, told, "Give pixels of 0 to 255 as uint8."))
            return images
        angles = images.to(next(self.reader.parameters()).dtype) * (math.pi / 255)  # 0..255 -> 0..pi
        return self.quanv(angles)

    def steady_part(self) -> nn.Module:
        """The part whose values may be computed once and given in place of images, if it is frozen."""
        return self.quanv

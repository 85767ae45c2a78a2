"""A plain convolutional net: what a hybrid net has to be compared with."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.models.blocks import pixels, seeded
from qnnkit.settings import Base


class CNNSettings(Base):
    """Sizes of the net."""

    width: int = Field(default=64, ge=1)
    """Channels of the first layers; later ones have twice and four times as many."""
    hidden: int = Field(default=16, ge=1)
    """Units of the layer before the last."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the values before the last layer that is dropped, in training only."""


class SmallCNN(nn.Module):
    """Three pairs of 3x3 convolutions, each pair halving the sides, then two linear layers.

    The pairs have `width`, 2 and 4 times `width` channels. With width 32, hidden 512 and 28 classes it has
    1.35 million weights.

    Args:
        config: Sizes: `width`, `hidden`, `dropout`; what it says of circuits is unused.
        channels: Channels of the images.
        image_size: (height, width) of the images.
        n_classes: Number of logits.
        seed: Fixes every initial weight; no global generator is touched.
        backend: Unused: there is no circuit.

    Raises:
        ValueError: The images are smaller than 8 pixels a side.
    """

    def __init__(
        self,
        config: CNNSettings,
        *,
        channels: int,
        image_size: tuple[int, int],
        n_classes: int,
        seed: int = 0,
        backend: str = "auto",
    ):
        super().__init__()
        if min(image_size) < 8:
            rule, step = "be at least 8 pixels a side", "Use larger images."
            raise ValueError(checks.message("image_size", rule, tuple(image_size), step))
        widths = [config.width, 2 * config.width, 4 * config.width]
        with seeded(seed):
            self.body = nn.Sequential(*map(_pair, [channels, *widths[:-1]], widths), nn.AdaptiveAvgPool2d(4))
            self.head = nn.Sequential(
                nn.Flatten(),
                nn.Linear(16 * widths[-1], config.hidden),
                nn.ReLU(),
                nn.Dropout(config.dropout),
                nn.Linear(config.hidden, n_classes),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for uint8 images of shape (batch, channels, height, width)."""
        return self.head(self.body(pixels(images, self.body)))


def _pair(in_channels: int, out_channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )

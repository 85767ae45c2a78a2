"""A small convolutional net for images: a classical reference without a circuit."""

from pydantic import Field
from torch import Tensor, nn

import qnnkit
from qnnkit import data, tasks
from qnnkit.models.blocks import pixels, require_sides, seeded


class Settings(data.Images, qnnkit.Settings):
    width: int = Field(default=32, ge=1)
    """Channels of the first layers; later ones have twice and four times as many."""
    hidden: int = Field(default=512, ge=1)
    """Units of the layer before the last."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """Dropout rate before the last layer, in training only."""
    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 2e-3
    optimizer: str = "adamw"
    weight_decay: float = 0.02
    warmup_epochs: float = 2
    label_smoothing: float = 0.1
    augmentation: str = "affine"
    n_seeds: int = 3
    controls: tuple[str, ...] = ()


load, task = data.of, tasks.Classification.of


def build(settings, splits, seed):
    own = {name: getattr(settings, name) for name in ("width", "hidden", "dropout")}
    return SmallCNN(**splits.sizes, **own, seed=seed)


class SmallCNN(nn.Module):
    """Three pairs of 3x3 convolutions, each of which halves the sides, then two linear layers.

    The pairs have `width`, 2 and 4 times `width` channels. With width 32, hidden 512 and 28 classes it has
    1.35 million weights.

    Args:
        channels: Channels of the images.
        image_size: (height, width) of the images.
        n_classes: Number of logits.
        width: Channels of the first layers.
        hidden: Units of the layer before the last.
        dropout: Dropout rate before the last layer, in training only.
        seed: Fixes the initial weights; global generators do not change.

    Raises:
        ValueError: The images are smaller than 8 pixels a side.
    """

    def __init__(self, channels, image_size, n_classes, *, width, hidden, dropout, seed):
        super().__init__()
        require_sides(image_size, 8)
        widths = [width, 2 * width, 4 * width]
        with seeded(seed):
            self.body = nn.Sequential(*map(_pair, [channels, *widths[:-1]], widths), nn.AdaptiveAvgPool2d(4))
            self.head = nn.Sequential(
                nn.Flatten(),
                nn.Linear(16 * widths[-1], hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, n_classes),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for uint8 images of shape (batch, channels, height, width)."""
        return self.head(self.body(pixels(images, self.body)))


def _pair(in_channels: int, out_channels: int) -> nn.Module:
    layers = []
    for channels in (in_channels, out_channels):
        convolution = nn.Conv2d(channels, out_channels, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(out_channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2))

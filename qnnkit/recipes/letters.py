"""A trainable net of 88,000 weights on handwritten letters in one folder, with classes in the file names."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

import qnnkit
from qnnkit import data, models, tasks
from qnnkit.models.blocks import pixels, precise, require_sides, seeded


class Settings(data.Images, models.QuanvSettings, qnnkit.Settings):
    dataset: str = "flat_folder"  # the class is the last number of a name, or the group of label_pattern
    image_size: int | None = 32
    grey: bool | None = True
    validation_fraction: float = 0.1
    width: int = Field(default=64, ge=1)
    """Channels of the residual stem; its first layers have fewer."""
    blocks: int = Field(default=1, ge=1)
    """Residual blocks of the stem."""
    maps: int = Field(default=4, ge=1)
    """Output channels of the stem, the input of the quanvolution."""
    hidden: int = 114
    # Small rotations, shifts and scalings of the letters; chosen on the validation images of AHCD.
    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 4e-3
    quantum_learning_rate: float | None = 2e-2
    optimizer: str = "adamw"
    weight_decay: float = 0.02
    warmup_epochs: float = 2
    label_smoothing: float = 0.1
    augmentation: str = "affine"
    n_seeds: int = 3
    controls: tuple[str, ...] = ("classical", "no_entanglement", "frozen_random", "no_quantum")


load, task = data.of, tasks.Classification.of


def build(settings, splits, seed):
    stem = {name: getattr(settings, name) for name in ("width", "blocks", "maps")}
    own = settings.arguments(models.QuanvSettings)
    return ResidualQuanvNet(**splits.sizes, **stem, **own, seed=seed, backend=settings.backend)


class ResidualQuanvNet(nn.Module):
    """Pixels -> residual stem -> angles -> quanvolution with a parallel skip -> two linear layers -> logits.

    The stem divides the sides by four and has `maps` output channels: 32x32 becomes 4 maps of 8x8, and a
    circuit of four wires runs 64 times per image. With width 64, hidden 114 and 44 classes it has 87,936
    weights.

    Args:
        channels: Channels of the images.
        image_size: (height, width) of the images; each side must have at least four patches.
        n_classes: Number of logits.
        width, blocks, maps: Settings of the stem, see `Settings`.
        hidden: Units of the layer that reads the circuits' values.
        dropout: Dropout rate before the last layer, in training only.
        seed: Fixes the initial weights; global generators do not change.
        quanvolution: Arguments of `Quanv2d`, such as circuit, kernel_size and stride.
    """

    def __init__(
        self, channels, image_size, n_classes, *, width, blocks, maps, hidden, dropout, seed, **quanvolution
    ):
        super().__init__()
        kernel_size, stride = quanvolution["kernel_size"], quanvolution["stride"]
        require_sides(image_size, 4 * kernel_size, "kernel_size")
        quanv = qnnkit.Quanv2d(maps, seed=seed, **quanvolution)
        sides = [-(-side // 4) for side in image_size]  # two convolutions of stride 2, padded
        rows, columns = ((side - kernel_size) // stride + 1 for side in sides)
        first = max(1, 3 * width // 8)
        with seeded(seed):
            self.stem = nn.Sequential(
                nn.Conv2d(channels, first, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(first),
                nn.SiLU(),
                Residual(first, width, stride=2),
                *(Residual(width, width) for _ in range(blocks - 1)),
                nn.Conv2d(width, maps, 1),
            )
            skip = nn.Conv2d(maps, quanv.out_channels, kernel_size, stride)
            self.middle = QuanvBesideSkip(quanv, skip)
            self.head = nn.Sequential(
                nn.Flatten(),
                nn.Linear(quanv.out_channels * rows * columns, hidden),
                nn.SiLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, n_classes),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for uint8 images of shape (batch, channels, height, width)."""
        maps = self.stem(pixels(images, self.stem))  # (batch, maps, rows, columns)
        return self.head(self.middle(math.pi * precise(torch.sigmoid, maps)))


class Residual(nn.Module):
    """Two 3x3 convolutions with a residual connection; He et al. (2015), arXiv:1512.03385, fig. 2.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: 2 halves the sides.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1):
        super().__init__()
        self.stride = stride
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
                nn.Conv2d(in_channels, out_channels, 1, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, maps: Tensor) -> Tensor:
        # Instead of a strided 1x1 convolution, whose gradient writes out of bounds on CPUs with AVX2
        # (oneDNN issue 6035).
        taken = maps[..., :: self.stride, :: self.stride]
        return nn.functional.silu(self.inner(maps) + self.outer(taken))


class QuanvBesideSkip(nn.Module):
    """Sum of a quanvolution, scaled and weighted by channel, and a convolution of the same angles.

    Args:
        quanv: Quanvolution of angles of shape (batch, maps, rows, columns).
        skip: Convolution with outputs of the same shape as those of `quanv`.
    """

    def __init__(self, quanv: qnnkit.Quanv2d, skip: nn.Conv2d):
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
        """Returns maps of shape (batch, out_channels, rows', columns') for angles in radians."""
        values = self.scale * self.quanv(angles)
        return values * self.attention(values) + self.skip_weight * self.skip(angles)

    def without_quantum(self) -> nn.Module:
        """Returns the net without the circuit, the weighted skip, for `controls`."""
        return Skip(self.skip, self.skip_weight)


class Skip(nn.Module):
    """A weighted convolution."""

    def __init__(self, skip: nn.Conv2d, skip_weight: nn.Parameter):
        super().__init__()
        self.skip, self.skip_weight = skip, skip_weight

    def forward(self, angles: Tensor) -> Tensor:
        """Returns maps of shape (batch, out_channels, rows', columns') for angles in radians."""
        return self.skip_weight * self.skip(angles)

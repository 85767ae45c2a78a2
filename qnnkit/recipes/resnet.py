"""Images by a ResNet18, from scratch or from `pretrained`: a classical reference without a circuit."""

from pydantic import Field
from torch import Tensor, nn

import qnnkit
from qnnkit import data, models
from qnnkit.models.blocks import seeded
from qnnkit.recipes import cnn


class Settings(data.Images, models.ResNetSettings, qnnkit.Settings):
    stem_stride: int = 2  # 4 is four times as fast, and sees less
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the backbone's values that is dropped, in training only."""
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


load, task = cnn.load, cnn.task


def build(settings, splits, seed):
    backbone, sizes = settings.arguments(models.ResNetSettings), splits.sizes
    dropout = settings.dropout
    return ResNet18(sizes["channels"], sizes["n_classes"], dropout=dropout, seed=seed, **backbone)


class ResNet18(models.OnBackbone):
    """ResNet18 -> linear layer -> logits: a classical reference.

    Args:
        channels: Channels of the images.
        n_classes: Number of logits.
        dropout: Share of the backbone's values that is dropped, in training only.
        seed: Fixes every initial weight; no global generator is touched.
        backbone: What else `Backbone` takes.
    """

    def __init__(self, channels: int, n_classes: int, *, dropout=0.0, seed=0, **backbone):
        super().__init__()
        with seeded(seed):
            self.backbone = models.Backbone(channels, **backbone)
            self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(self.backbone.n_features, n_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for uint8 images, or features as `features` gives them."""
        return self.head(self.features(images))

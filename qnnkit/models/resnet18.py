"""ResNet18 of transformers without its last layer, and what nets on it have in common."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from qnnkit import checks
from qnnkit.models.blocks import normalised, not_bytes, pixels, published
from qnnkit.settings import Base, Place

# Of the photographs that published weights were trained on, by colour.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ResNetSettings(Base):
    """Settings of the backbone."""

    pretrained: Place | None = None
    """Folder, or name on the Hugging Face Hub, of a ResNet's weights; None starts from scratch."""
    stem_stride: Literal[1, 2, 4] = 2
    """How much the stem of a ResNet from scratch shrinks images: 4 for photographs, 1 or 2 for small ones."""
    frozen_backbone: bool = False
    """Whether a ResNet's own weights stay as they are; its features are then computed once."""


class Backbone(nn.Module):
    """ResNet18 (He et al. 2015, arXiv:1512.03385) without its last layer, as transformers builds it.

    Args:
        channels: Channels of the images.
        pretrained: Folder or name of its weights, of which only safetensors are read; None: from scratch.
        frozen_backbone: Whether weights, and the statistics of the normalisation, stay as they are.
        stem_stride: From scratch, how much the stem shrinks the sides: 4 as published for photographs (7x7,
            pooled), 2 or 1 for small images (3x3).

    Raises:
        ValueError: `pretrained` cannot be reached, or is no ResNet for as many channels.
    """

    def __init__(
        self,
        channels: int,
        *,
        pretrained: str | None = None,
        frozen_backbone: bool = False,
        stem_stride: int = 2,
    ):
        super().__init__()
        from transformers import ResNetConfig, ResNetModel

        self.frozen, self.pretrained = frozen_backbone, pretrained
        if self.pretrained is None:
            shape: dict[str, Any] = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
            sizes = ResNetConfig(num_channels=channels, embedding_size=64, layer_type="basic", **shape)
            self.net: Any = ResNetModel(sizes)
            if stem_stride < 4:
                embedder: Any = self.net.embedder
                embedder.embedder.convolution = nn.Conv2d(channels, 64, 3, stem_stride, 1, bias=False)
                embedder.pooler = nn.Identity()
        else:
            self.net = published(ResNetModel, self.pretrained, what="ResNet", model_type="resnet")
            if self.net.config.num_channels not in (3, channels):
                step = f"The images have {channels}. Give other weights, or None to start from scratch."
                rule, value = "read images of as many channels", f"one for {self.net.config.num_channels}"
                raise ValueError(checks.message("pretrained", rule, value, step))
        for stage in self.net.encoder.stages:
            for block in stage.layers:  # a whole stage would hold too much when it is computed again
                block.recomputed = True
        self.n_features = int(self.net.config.hidden_sizes[-1])
        self.in_channels = int(self.net.config.num_channels)
        if self.frozen:
            self.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Backbone:
        """A frozen one stays in evaluation mode: its normalisation must not follow the batches."""
        return super().train(mode and not self.frozen)

    def forward(self, images: Tensor) -> Tensor:
        """Features of shape (batch, n_features) for images of 0 to 1, of shape (batch, channels, h, w)."""
        if self.pretrained is not None and self.in_channels == 3:
            images = normalised(images, self.in_channels, IMAGENET_MEAN, IMAGENET_STD)
        return self.net(images).pooler_output.flatten(1)

    @property
    def origin(self) -> str:
        """What it starts from, in words, for tables."""
        start = "from scratch" if self.pretrained is None else f"from {self.pretrained}"
        return f"ResNet {start}, {'frozen' if self.frozen else 'trained'}"

    def extra_repr(self) -> str:
        return self.origin


class OnBackbone(nn.Module):
    """A net whose backbone's features may replace the images."""

    backbone: Backbone

    def features(self, images: Tensor) -> Tensor:
        """What the backbone makes of uint8 images, of shape (batch, n); features return unchanged."""
        if not images.is_floating_point():
            return self.backbone(pixels(images, self.backbone))
        if images.ndim != 2 or images.shape[1] != self.backbone.n_features:
            raise not_bytes(images, f", or features of shape (batch, {self.backbone.n_features})")
        return images

    def steady_part(self) -> nn.Module:
        """The part whose values may be computed once and given in place of images, if it is frozen."""
        return self.backbone

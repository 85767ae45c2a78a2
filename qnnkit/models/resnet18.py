"""transformers' ResNet18 without its last layer, and the base class of nets on top of it."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from qnnkit import checks
from qnnkit.models.blocks import normalised, not_bytes, pixels, published
from qnnkit.settings import Base, Place

# Mean and standard deviation, by colour, of the photographs that published weights were trained on.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ResNetSettings(Base):
    """Settings of `Backbone`; `ResNetSettings.model_fields[NAME].description` is the meaning of one."""

    pretrained: Place | None = None
    """Folder, or name on the Hugging Face Hub, of a ResNet's weights; None starts from scratch."""
    stem_stride: Literal[1, 2, 4] = 2
    """Factor by which a new ResNet's stem shrinks images: 4 for photographs, 1 or 2 for small ones."""
    frozen_backbone: bool = False
    """Whether the ResNet's weights are frozen; its features are then computed once."""


class Backbone(nn.Module):
    """ResNet18 (He et al. 2015, arXiv:1512.03385) without its last layer, as transformers builds it.

    Args:
        channels: Channels of the images.
        pretrained: Folder or name of its weights (only safetensors are read); None starts from scratch.
        frozen_backbone: Whether the weights and the normalisation statistics are frozen.
        stem_stride: From scratch, the factor by which the stem shrinks the sides: 4 as published for
            photographs (7x7, pooled), 2 or 1 for small images (3x3).

    Attributes:
        n_features: Number of features of an image; from scratch, 512.
        in_channels: Channels that the first layer reads.

    Raises:
        ValueError: `stem_stride` is not 4, 2 or 1; or `pretrained` cannot be reached, or is not a ResNet for
            that number of channels.
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

        if stem_stride not in (1, 2, 4):
            step = "Use 2 or 1 for small images."
            raise ValueError(checks.message("stem_stride", "be 4, 2 or 1", stem_stride, step))
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
                step = "Give other weights, or None to start from scratch."
                rule, value = f"be for images of {channels} channels", f"for {self.net.config.num_channels}"
                raise ValueError(checks.message("pretrained", rule, value, step))
        for stage in self.net.encoder.stages:
            for block in stage.layers:  # recomputing a whole stage would take too much memory
                block.recomputed = True
        self.n_features = int(self.net.config.hidden_sizes[-1])
        self.in_channels = int(self.net.config.num_channels)
        if self.frozen:
            self.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Backbone:
        """Sets the mode; a frozen backbone stays in evaluation mode, so that its statistics do not change."""
        return super().train(mode and not self.frozen)

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, n_features) for images with values from 0 to 1, shape (batch, channels, h, w)."""
        if self.pretrained is not None and self.in_channels == 3:
            images = normalised(images, self.in_channels, IMAGENET_MEAN, IMAGENET_STD)
        return self.net(images).pooler_output.flatten(1)

    @property
    def origin(self) -> str:
        """A description of its initial weights, for tables."""
        start = "from scratch" if self.pretrained is None else f"from {self.pretrained}"
        return f"ResNet {start}, {'frozen' if self.frozen else 'trained'}"

    def extra_repr(self) -> str:
        return self.origin


class OnBackbone(nn.Module):
    """Base class of nets that accept the features of their `backbone` in place of images."""

    backbone: Backbone

    def features(self, images: Tensor) -> Tensor:
        """The backbone's features (batch, n_features) for uint8 images; features are returned unchanged.

        Raises:
            ValueError: The inputs are neither.
        """
        if not images.is_floating_point():
            return self.backbone(pixels(images, self.backbone))
        if images.ndim != 2 or images.shape[1] != self.backbone.n_features:
            raise not_bytes(images, f", or features of shape (batch, {self.backbone.n_features})")
        return images

    def steady_part(self) -> nn.Module:
        """The part whose outputs can be computed once and replace the images, if it is frozen."""
        return self.backbone

"""ResNet18 of transformers: alone, as a classical reference, or with a circuit behind it."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.models.blocks import pixels, precise, published, seeded
from qnnkit.models.circuit_part import CircuitSettings, layer, n_features
from qnnkit.settings import Base, Place

# Of the photographs that published weights were trained on, by colour.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ResNetSettings(Base):
    """Of the backbone."""

    pretrained: Place | None = None
    """Folder, or name on the Hugging Face Hub, of a ResNet's weights; None starts from scratch."""
    stem_stride: Literal[1, 2, 4] = 2
    """How much the stem of a ResNet from scratch shrinks images: 4 for photographs, 1 or 2 for small ones."""
    frozen_backbone: bool = False
    """Whether a ResNet's own weights stay as they are; what it makes of the images is then kept."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the backbone's values that is dropped, in training only."""


class Backbone(nn.Module):
    """ResNet18 (He et al. 2015, arXiv:1512.03385) without its last layer, as transformers builds it.

    Args:
        config: Weights, of which only safetensors are read; whether they, and the statistics of the
            normalisation, stay as they are; and, from scratch, how much the stem shrinks the sides: 4 as
            published for photographs (7x7, pooled), 2 or 1 for small images (3x3).
        channels: Channels of the images.

    Raises:
        ValueError: `pretrained` cannot be reached, or is no ResNet for as many channels.
    """

    def __init__(self, config: ResNetSettings, channels: int):
        super().__init__()
        from transformers import ResNetConfig, ResNetModel

        self.frozen, self.pretrained = config.frozen_backbone, config.pretrained
        if self.pretrained is None:
            shape: dict[str, Any] = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
            sizes = ResNetConfig(num_channels=channels, embedding_size=64, layer_type="basic", **shape)
            self.net: Any = ResNetModel(sizes)
            if config.stem_stride < 4:
                embedder: Any = self.net.embedder
                embedder.embedder.convolution = nn.Conv2d(channels, 64, 3, config.stem_stride, 1, bias=False)
                embedder.pooler = nn.Identity()
        else:
            self.net = published(ResNetModel, self.pretrained, what="ResNet", model_type="resnet")
            if self.net.config.num_channels not in (3, channels):
                step = "Give a local folder with config.json and model.safetensors, or None to start from "
                step = f"The images have {channels}. {step}scratch."
                rule, told = "read images of as many channels", f"one for {self.net.config.num_channels}"
                raise ValueError(checks.message("pretrained", rule, told, step))
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
            images = images.expand(-1, self.in_channels, -1, -1)  # grey as red, green and blue
            mean, std = (images.new_tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
            images = (images - mean) / std
        return self.net(images).pooler_output.flatten(1)

    @property
    def origin(self) -> str:
        """What it starts from, in words, for tables."""
        start = "from scratch" if self.pretrained is None else f"from {self.pretrained}"
        return f"ResNet {start}, {'frozen' if self.frozen else 'trained'}"

    def extra_repr(self) -> str:
        return self.origin


class _OnBackbone(nn.Module):
    """A net whose backbone's features may stand for images."""

    backbone: Backbone

    def features(self, images: Tensor) -> Tensor:
        """What the backbone makes of uint8 images, of shape (batch, n); features return unchanged."""
        if not images.is_floating_point():
            return self.backbone(pixels(images, self.backbone))
        if images.ndim != 2 or images.shape[1] != self.backbone.n_features:
            rule = f"be uint8, or features of shape (batch, {self.backbone.n_features})"
            told = f"{images.dtype} of shape {tuple(images.shape)}"
            raise ValueError(checks.message("images", rule, told, "Give pixels of 0 to 255 as uint8."))
        return images

    def steady_part(self) -> nn.Module:
        """The part whose values may be computed once and given in place of images, if it is frozen."""
        return self.backbone


class ResNetCircuitSettings(ResNetSettings, CircuitSettings):
    """Of the backbone, the circuit, and the layers behind it."""

    n_qubits: int = Field(default=4, ge=1)
    """Wires of the circuit."""
    hidden: int = Field(default=16, ge=1)
    """Units of the classical layer that reads the circuit's values."""


class ResNetCircuit(_OnBackbone):
    """ResNet18 -> n angles in (0, pi) -> one circuit -> two linear layers -> logits.

    After the dressed circuit of Mari et al. (2020), arXiv:1912.08278, sec. 2; their Hadamards before angles
    in (-pi/2, pi/2) are the shift of the angles here. Where the backbone is frozen, its features are
    computed once (`models.features`).

    Args:
        config: `pretrained`, `frozen_backbone`, `stem_stride`, `hidden`, `dropout`, and what it says of the
            circuit: `n_qubits`, `n_layers`, `circuit`, `embedding`, `initialisation`, `trainable`.
        channels: Channels of the images.
        image_size: (height, width) of the images.
        n_classes: Number of logits.
        seed: Fixes every initial weight; no global generator is touched.
        backend: What runs the circuits, as in `QuantumLayer`.
    """

    def __init__(
        self,
        config: ResNetCircuitSettings,
        *,
        channels: int,
        image_size: tuple[int, int],
        n_classes: int,
        seed: int = 0,
        backend: str = "auto",
    ):
        super().__init__()
        n_angles = n_features(config)
        with seeded(seed):
            self.backbone = Backbone(config, channels)
            self.reduce = nn.Sequential(
                nn.Dropout(config.dropout),
                nn.Linear(self.backbone.n_features, n_angles),
                nn.BatchNorm1d(n_angles),  # angles that differ from the first step on
            )
            self.circuit = layer(config, seed=seed * 1000, backend=backend)
            self.head = nn.Sequential(
                nn.Linear(config.n_qubits, config.hidden), nn.SiLU(), nn.Linear(config.hidden, n_classes)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for uint8 images, or features as `features` gives them."""
        angles = math.pi * torch.sigmoid(precise(self.reduce, self.features(images)))  # (batch, n_features)
        return self.head(self.circuit(angles))


class ResNet18(_OnBackbone):
    """ResNet18 -> linear layer -> logits: a classical reference.

    Args:
        config: `pretrained`, `frozen_backbone`, `stem_stride`, `dropout`; what it says of circuits is unused.
        channels: Channels of the images.
        image_size: (height, width) of the images.
        n_classes: Number of logits.
        seed: Fixes every initial weight; no global generator is touched.
        backend: Unused: there is no circuit.
    """

    def __init__(
        self,
        config: ResNetSettings,
        *,
        channels: int,
        image_size: tuple[int, int],
        n_classes: int,
        seed: int = 0,
        backend: str = "auto",
    ):
        super().__init__()
        with seeded(seed):
            self.backbone = Backbone(config, channels)
            self.head = nn.Sequential(
                nn.Dropout(config.dropout), nn.Linear(self.backbone.n_features, n_classes)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, n_classes) for uint8 images, or features as `features` gives them."""
        return self.head(self.features(images))

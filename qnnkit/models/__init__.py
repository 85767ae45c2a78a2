"""The nets that recipes name, one family a file."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from qnnkit import checks
from qnnkit.config import ModelConfig
from qnnkit.models.clip import Clip
from qnnkit.models.cnn import SmallCNN
from qnnkit.models.quanv import QuanvNet
from qnnkit.models.residual_quanv import ResidualQuanvNet
from qnnkit.models.resnet import ResNet18, ResNetCircuit
from qnnkit.models.summary import table

MODELS: dict[str, Callable[..., nn.Module]] = {
    "quanv": QuanvNet,
    "residual_quanv": ResidualQuanvNet,
    "resnet_circuit": ResNetCircuit,
    "resnet18": ResNet18,
    "cnn": SmallCNN,
}
CLASSICAL = ("resnet18", "cnn")
"""Entries without a circuit: references, for which there are no controls."""


def build(config: ModelConfig, **sizes) -> nn.Module:
    """The net that `config.model` names, for images of the given `channels`, `image_size` and `n_classes`.

    Raises:
        ValueError: No family has that name; the message lists them.
    """
    return MODELS[checks.choice("model", config.model, MODELS)](config, **sizes)


__all__ = [
    "CLASSICAL",
    "MODELS",
    "Clip",
    "QuanvNet",
    "ResNet18",
    "ResNetCircuit",
    "ResidualQuanvNet",
    "SmallCNN",
    "build",
    "table",
]

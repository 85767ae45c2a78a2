"""The nets of the shipped recipes, one family a file, each with its settings."""

from __future__ import annotations

from qnnkit.models.causal_lm import LanguageModelSettings, causal_lm, language_model
from qnnkit.models.clip import CLIP, Clip, ClipSettings
from qnnkit.models.conv import CNNSettings, SmallCNN
from qnnkit.models.quanv import QuanvNet, QuanvSettings
from qnnkit.models.residual_quanv import ResidualQuanvNet, ResidualQuanvSettings
from qnnkit.models.resnet18 import ResNet18, ResNetCircuit, ResNetCircuitSettings, ResNetSettings
from qnnkit.models.summary import table

MODELS = {
    "quanv": (QuanvNet, QuanvSettings),
    "residual_quanv": (ResidualQuanvNet, ResidualQuanvSettings),
    "resnet_circuit": (ResNetCircuit, ResNetCircuitSettings),
    "resnet18": (ResNet18, ResNetSettings),
    "cnn": (SmallCNN, CNNSettings),
}
"""Families of nets for images, and the settings of each."""

__all__ = [
    "CLIP", "MODELS", "CNNSettings", "Clip", "ClipSettings", "LanguageModelSettings", "QuanvNet",
    "QuanvSettings", "ResNet18", "ResNetCircuit", "ResNetCircuitSettings", "ResNetSettings",
    "ResidualQuanvNet", "ResidualQuanvSettings", "SmallCNN", "causal_lm", "language_model", "table",
]  # fmt: skip

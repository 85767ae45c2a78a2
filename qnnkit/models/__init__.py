"""Nets that several recipes share, with their settings; other nets are in the file of their recipe.

`CLIP` has the sizes of `Clip` by name: hidden size, layers and heads of both towers; image side, patch side,
projection and vocabulary.
"""

from __future__ import annotations

from qnnkit.models.causal_lm import LanguageModelSettings, causal_lm, language_model
from qnnkit.models.circuit_part import CircuitSettings, circuit_layer
from qnnkit.models.clip import CLIP, Clip, ClipSettings
from qnnkit.models.quanv import QuanvNet, QuanvSettings
from qnnkit.models.resnet18 import Backbone, OnBackbone, ResNetSettings
from qnnkit.models.summary import table

__all__ = [
    "CLIP", "Backbone", "CircuitSettings", "Clip", "ClipSettings", "LanguageModelSettings",
    "OnBackbone", "QuanvNet", "QuanvSettings", "ResNetSettings", "causal_lm", "circuit_layer",
    "language_model", "table",
]  # fmt: skip

"""The nets that recipes name, one family a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from qnnkit import checks
from qnnkit.config import QUANTUM_ADAPTERS, ModelConfig
from qnnkit.models.causal_lm import causal_lm, four_bit
from qnnkit.models.clip import Clip
from qnnkit.models.cnn import SmallCNN
from qnnkit.models.quanv import QuanvNet
from qnnkit.models.residual_quanv import ResidualQuanvNet
from qnnkit.models.resnet import ResNet18, ResNetCircuit
from qnnkit.models.summary import table


def _clip(config: ModelConfig, *, seed: int = 0, backend: str = "auto", **sizes: Any) -> Clip:
    return Clip(
        **sizes,
        size=config.size,
        patch_size=config.patch_size,
        pretrained=config.pretrained,
        head=config.head,
        n_qubits=config.n_qubits,
        n_layers=config.n_layers,
        circuit=config.circuit,
        embedding=config.embedding,
        initialisation=config.initialisation,
        trainable=config.trainable,
        seed=seed,
        backend=backend,
    )


def _causal_lm(
    config: ModelConfig, *, seed: int = 0, backend: str = "auto", device: Any = "cpu", **sizes: Any
) -> nn.Module:
    dtype = config.base_precision
    if config.four_bit and str(device) != "meta":
        return four_bit(str(config.pretrained), device=device, dtype=dtype, **sizes)
    return causal_lm(config.pretrained or config.size, seed=seed, dtype=dtype, device=device, **sizes)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "quanv": QuanvNet,
    "residual_quanv": ResidualQuanvNet,
    "resnet_circuit": ResNetCircuit,
    "resnet18": ResNet18,
    "cnn": SmallCNN,
    "clip": _clip,
    "causal_lm": _causal_lm,
}
CLASSICAL = ("resnet18", "cnn")
"""Entries without a circuit: references, for which there are no controls."""
_KINDS = {"clip": "captions", "causal_lm": "tokens"}


def kind(name: str) -> str:
    """The kind of data that the entry called `name` takes: "images", "captions" or "tokens"."""
    return _KINDS.get(checks.choice("model", name, MODELS), "images")


def has_circuit(config: ModelConfig) -> bool:
    """Whether there is a circuit in the net that the settings name."""
    if config.model == "clip":
        return config.head == "quantum"
    if config.model == "causal_lm":
        return config.adapter in QUANTUM_ADAPTERS
    return config.model not in CLASSICAL


def build(config: ModelConfig, **sizes: Any) -> nn.Module:
    """The net that `config.model` names, without an adapter.

    Args:
        config: Its settings.
        sizes: What the data say of themselves (`splits.sizes`): of images `channels`, `image_size` and
            `n_classes`; `seed` and `backend` beside them, and `device` of language models: where
            `config.four_bit` puts them, or "meta" for one without weights.

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
    "causal_lm",
    "has_circuit",
    "kind",
    "table",
]

"""Nets of the kit and of its recipes by name, and tiny language models, for several test files."""

from functools import partial
from inspect import signature
from unittest import mock

import torch
from torch import nn

from qnnkit import models
from qnnkit.models.blocks import seeded
from qnnkit.recipes import cnn, letters, resnet_circuit_trained


def _resnet_circuit(
    channels, n_classes, *, n_qubits=4, hidden=16, dropout=0.0, seed=0, width=None, **settings
):
    """The net of the recipe; with `width`, its backbone is a ResNet of four narrow blocks."""
    from transformers import ResNetConfig

    shape = {"hidden_sizes": [width] * 4, "depths": [1] * 4} if width else {}
    options = {name: settings.pop(name) for name in BACKBONE & settings.keys()}
    circuit = models.circuit_layer(n_qubits, seed=seed * 1000, **settings)
    options |= {"hidden": hidden, "dropout": dropout, "seed": seed}
    with mock.patch("transformers.ResNetConfig", lambda **fields: ResNetConfig(**fields | shape)):
        return resnet_circuit_trained.ResNetCircuit(channels, n_classes, *circuit, **options)


BACKBONE = models.ResNetSettings.model_fields.keys()
SMALL = {"hidden": 16, "dropout": 0.0, "seed": 0}
QUANV = {"width": 64, "blocks": 1, "maps": 4, "circuit": "data_reuploading", "kernel_size": 2, "stride": 2}
NETS = {
    "quanv": models.QuanvNet,
    "residual_quanv": partial(letters.ResidualQuanvNet, **SMALL, **QUANV),
    "resnet_circuit": _resnet_circuit,
    "cnn": partial(cnn.SmallCNN, **SMALL, width=64),
}
HYBRID = ("quanv", "residual_quanv", "resnet_circuit")
SLIDING = ("quanv", "residual_quanv")


def family(name: str, shared: dict | None = None, *, sizes: dict, **settings) -> nn.Module:
    """Builds one of NETS.

    Args:
        name: In NETS.
        shared: Arguments that are omitted if a net does not take them; the same holds for `sizes`.
        sizes: `channels`, `image_size`, `n_classes`, and optionally `seed` and `backend`.
        **settings: Settings that the net must take.
    """
    usual = (shared or {}) | sizes
    known = [*signature(NETS[name]).parameters, *(["backend"] if name in HYBRID else [])]
    return NETS[name](**{key: usual[key] for key in usual if key in known} | settings)


def llama(seed: int = 0, **settings):
    """A tiny transformers Llama, with weights from a seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    usual = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    }
    with seeded(seed):
        return LlamaForCausalLM(LlamaConfig(**usual | settings))


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with all trained weights changed, so that an adapter has an effect."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return model

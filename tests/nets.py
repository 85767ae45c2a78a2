"""Nets of the families in MODELS, by name, and tiny language models: what several files of tests share."""

from __future__ import annotations

import torch
from torch import nn

from qnnkit import MODELS
from qnnkit.models.blocks import seeded

HYBRID = ("quanv", "residual_quanv", "resnet_circuit")
SLIDING = ("quanv", "residual_quanv")


def family(name: str, shared: dict | None = None, *, sizes: dict, **settings) -> nn.Module:
    """A net of a family.

    Args:
        name: In MODELS.
        shared: Settings that a family takes where it has them.
        sizes: `channels`, `image_size`, `n_classes`, and maybe `seed` and `backend`.
        **settings: That it must have.
    """
    made, kind = MODELS[name]
    usual = {key: value for key, value in (shared or {}).items() if key in kind.model_fields}
    return made(kind(**usual | settings), **sizes)


def llama(seed: int = 0, **settings):
    """A tiny Llama of transformers, with weights from a seed."""
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
    """The model with every trained weight moved, so that an adapter does something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return model

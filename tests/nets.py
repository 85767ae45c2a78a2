"""Nets of the families in MODELS, by name: what several files of tests share."""

from __future__ import annotations

from torch import nn

from qnnkit import MODELS

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

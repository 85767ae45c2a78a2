"""Features of a dataset from a net's frozen part, computed once and kept in the workspace."""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import replace
from typing import Any

import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import __version__
from qnnkit.data import cache
from qnnkit.data.splits import SPLITS, ImageSplits
from qnnkit.layers import BACKENDS, QuantumLayer, evaluating

FORMAT = 3
"""Version of the cached files. Raise it when the same key would hold different values."""
BATCH = 256
MOST_BYTES = 4 * 2**30
"""Most bytes of features to keep in memory; a part with more features runs in every epoch."""


def of(net: nn.Module, splits: ImageSplits, device: torch.device | str = "cpu") -> ImageSplits:
    """`splits` with features in place of images if a frozen part of the net computes them; else unchanged.

    The features are computed once, without gradients, and from then on read from
    `features/<hash>.safetensors` in the workspace. The hash covers circuits, weights and data; a truncated
    file is computed again.

    Args:
        net: A net that accepts features in place of images; moved to `device`. It has `steady_part()`, which
            returns the module that computes the features, and `features(images)`.
        splits: The images.
        device: Where to compute.
    """
    with evaluating(net):
        n_images = sum(len(splits.split(name)) for name in SPLITS)
        part = _steady_part(net, splits.train.images[:1], n_images, device)
        if part is None:
            return splits

        def compute() -> dict[str, Tensor]:
            return {name: _compute(net, splits.split(name).images, device) for name in SPLITS}

        maps = cache.kept("features", _key(part, splits), compute)
    return replace(splits, **{name: replace(splits.split(name), images=maps[name]) for name in SPLITS})


def training_batch(model: nn.Module, batch: Any, config: Any, n: int) -> Any:
    """A batch as a net receives it in training on the CPU, with features in place of images if they are kept.

    Args:
        model: The net.
        batch: A batch as the task takes it.
        config: Settings, which determine whether augmentation changes images in every epoch.
        n: Number of samples of the whole dataset; too many features are not kept.
    """
    if not hasattr(model, "steady_part") or config.of_kit("augmentation", "none") != "none":
        return batch
    images, labels = batch
    with evaluating(model), torch.no_grad():
        is_steady = _steady_part(model, images[:1], n, "cpu") is not None
        return (_compute(model, images, "cpu"), labels) if is_steady else batch


def _steady_part(net: Any, image: Tensor, n_images: int, device: torch.device | str) -> nn.Module | None:
    """The part of a net with the same values in every epoch: nothing trained, no shots, no noise.

    None if there is no such part, or if its values for all images take more than `MOST_BYTES`.
    """
    part = net.steady_part() if hasattr(net, "steady_part") else None
    if part is None or any(weight.requires_grad for weight in part.parameters()):
        return None
    circuits = [module for module in part.modules() if isinstance(module, QuantumLayer)]
    if any(layer.backend not in BACKENDS or layer.qnode.shots for layer in circuits):
        return None
    size = net.to(device).features(image.to(device)).nbytes
    return None if size * n_images > MOST_BYTES else part


def _compute(net: Any, images: Tensor, device: torch.device | str) -> Tensor:
    return torch.cat([net.features(part.to(device)).cpu() for part in images.split(BATCH)]).contiguous()


def _key(part: nn.Module, splits: ImageSplits) -> str:
    """SHA-256 (hex) of all that determines the values: versions, data, modules, weights and circuits."""
    digest = hashlib.sha256()
    versions = (FORMAT, __version__, qp.__version__)
    digest.update(repr((versions, splits.fingerprint(), repr(part))).encode())
    for name, value in part.state_dict().items():
        digest.update(repr((name, value.dtype, tuple(value.shape))).encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for layer in part.modules():
        if isinstance(layer, QuantumLayer):
            digest.update(_values(layer))
    return digest.hexdigest()


def _values(layer: QuantumLayer) -> bytes:
    """A circuit's values at a few random inputs, in float64; they change with the circuit or its Python.

    Rounded to ten digits, because another machine may round differently in the sixteenth.
    """
    assert layer.n_features is not None  # it has just run
    generator = torch.Generator().manual_seed(0)
    rows = math.pi * torch.rand(8, layer.n_features, generator=generator, dtype=torch.float64)
    values = copy.deepcopy(layer).cpu().double().by_row(rows).round(decimals=10) + 0.0  # and no -0.0
    return values.numpy().tobytes()

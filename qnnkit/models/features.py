"""What the frozen part of a net makes of a dataset: computed once, and kept in the workspace."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import __version__, workspace
from qnnkit.data import cache
from qnnkit.data.splits import SPLITS, ImageSplits
from qnnkit.layers import BACKENDS, QuantumLayer, evaluating

FORMAT = 2
"""Of the file; another number when the same key is to mean other values."""
BATCH = 256
MOST_BYTES = 4 * 2**30
"""More than this would crowd the memory: such a part runs anew in every epoch."""


def of(net: nn.Module, splits: ImageSplits, device: torch.device | str = "cpu") -> ImageSplits:
    """`splits` with features in place of images, for a net with a frozen part to make them; else as they are.

    They are computed without a graph when first asked for, and read from `features/<hash>.safetensors` of the
    workspace from then on. The hash is over circuits, weights and data; a file that is damaged is made anew.

    Args:
        net: Takes what comes back in place of the images; moved to `device`. It offers `steady_part()`, the
            module that makes the features, and `features(images)`.
        splits: The images.
        device: Where to compute.
    """
    with torch.no_grad():
        n_images = sum(len(splits.split(name)) for name in SPLITS)
        found = _maker(net, splits.train.images[:1], n_images, device)
        if found is None:
            return splits
        compute, part = found
        key, folder = _key(part, splits), workspace.shelf("features")
        path = None if folder is None else folder / f"{key}.safetensors"
        maps = None
        if path is not None:
            maps = cache.read(path, key, SPLITS, what="Features", mended="computed anew")
        if maps is None:
            maps = {name: _compute(compute, splits.split(name).images, device) for name in SPLITS}
            if path is not None:
                cache.write(path, key, maps, what="Features")
    return replace(splits, **{name: replace(splits.split(name), images=maps[name]) for name in SPLITS})


def made(net: nn.Module, images: Tensor, n_images: int, device: torch.device | str = "cpu") -> Tensor:
    """What `of` gives for these images out of `n_images`, computed for them alone and not kept."""
    with torch.no_grad():
        found = _maker(net, images[:1], n_images, device)
        return images if found is None else _compute(found[0], images, device)


def training_batch(model: nn.Module, batch: Any, config: Any, n: int, place: Any = "cpu") -> Any:
    """A batch as training hands it to a net: of images, maybe what its frozen part made of them before.

    Args:
        model: The net; moved to `place` where it makes something of the images.
        batch: As the task takes it.
        config: Says whether images are others in every epoch.
        n: Samples of the whole dataset: too many features would not be kept.
        place: Where to compute.
    """
    if isinstance(batch, dict) or config.of_kit("augmentation", "none") != "none":
        return batch
    if not hasattr(model, "steady_part"):
        return batch
    images, labels = batch
    with evaluating(model):
        return made(model, images, n, place), labels


def _maker(
    net: nn.Module, image: Tensor, n_images: int, device: torch.device | str
) -> tuple[Callable[[Tensor], Tensor], nn.Module] | None:
    """What makes features of images, and the module in it; None where they are not made beforehand."""
    offer = getattr(net, "steady_part", None)
    if offer is None or not _is_steady(part := offer()):
        return None
    compute: Callable[[Tensor], Tensor] = net.to(device).features  # pyright: ignore[reportAssignmentType]
    return None if compute(image.to(device)).nbytes * n_images > MOST_BYTES else (compute, part)


def _is_steady(part: nn.Module) -> bool:
    """Whether it gives the same values in every epoch: nothing trained, no shots, no noise."""
    circuits = [module for module in part.modules() if isinstance(module, QuantumLayer)]
    exact = all(layer.backend in BACKENDS and not layer.qnode.shots for layer in circuits)
    return exact and not any(weight.requires_grad for weight in part.parameters())


def _compute(compute: Callable[[Tensor], Tensor], images: Tensor, device: torch.device | str) -> Tensor:
    rows = [compute(part.to(device)).cpu() for part in images.split(BATCH)]
    return torch.cat(rows).contiguous()


def _key(part: nn.Module, splits: ImageSplits) -> str:
    """SHA-256 (hex) over all that decides the values: versions, data, modules, weights, and each circuit."""
    digest = hashlib.sha256()
    versions = (FORMAT, __version__, qp.__version__)
    digest.update(repr((versions, splits.fingerprint(), repr(part))).encode())
    for name, value in part.state_dict().items():
        digest.update(repr((name, value.dtype, tuple(value.shape))).encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for layer in part.modules():
        if isinstance(layer, QuantumLayer):
            _add_circuit(digest, layer)
    return digest.hexdigest()


def _add_circuit(digest: Any, layer: QuantumLayer) -> None:
    """Tells a circuit by its gates and measurements on a few random inputs, and by what it makes of these.

    To three digits: so no change of it, be it in Python out of sight of the gates, keeps its name.
    """
    assert layer.n_features is not None  # it has just run
    generator = torch.Generator().manual_seed(0)
    rows = math.pi * torch.rand(8, layer.n_features, generator=generator, dtype=torch.float64)
    weights = {name: weight.detach().cpu() for name, weight in layer.qnode_weights.items()}
    tape = qp.workflow.construct_tape(layer.qnode, level="user")(**{layer.input_arg: rows}, **weights)
    values = layer(rows.to(next(iter(layer.parameters())))).cpu().round(decimals=3) + 0.0  # and no -0.0
    observed = [part.obs for part in tape.measurements if isinstance(part.obs, qp.operation.Operator)]
    told = [(part.name, part.wires.tolist(), repr(part.hyperparameters)) for part in tape.operations]
    digest.update(repr((told, tape.measurements)).encode())
    data = [number for part in (*tape.operations, *observed) for number in part.data]
    for array in map(np.asarray, (*data, values)):
        digest.update(repr((array.shape, array.dtype)).encode() + array.tobytes())

"""What frozen circuits make of a dataset: computed once, and kept in the workspace."""

from __future__ import annotations

import hashlib
import math
import warnings
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pennylane as qp
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from qnnkit import __version__, workspace
from qnnkit.data.splits import SPLITS, ImageSplits
from qnnkit.layers import BACKENDS, QuantumLayer
from qnnkit.models.quanv import QuanvNet

FORMAT = 1
"""Of the file; another number when the same key is to mean other values."""
BATCH = 256
MOST_BYTES = 4 * 2**30
"""More than this would crowd the memory: such circuits run anew in every epoch."""


def of(net: nn.Module, splits: ImageSplits, device: torch.device | str = "cpu") -> ImageSplits:
    """`splits` with feature maps in place of images, for a net with a frozen quanvolution; else as they are.

    They are computed without a graph when first asked for, and read from `features/<hash>.safetensors` of the
    workspace from then on. The hash is over circuits, weights and data; a file that is damaged is made anew.

    Args:
        net: Takes what comes back in place of the images; moved to `device`.
        splits: The images.
        device: Where to compute.
    """
    if not isinstance(net, QuanvNet) or not all(map(_is_steady, net.quanv.filters)):
        return splits
    net.to(device)
    with torch.no_grad():
        size = net.feature_maps(splits.train.images[:1].to(device)).nbytes
        if size * sum(len(splits.split(name)) for name in SPLITS) > MOST_BYTES:
            return splits
        key, folder = _key(net, splits), workspace.shelf("features")
        path = None if folder is None else folder / f"{key}.safetensors"
        maps = None if path is None else _read(path, key)
        if maps is None:
            maps = {name: _compute(net, splits.split(name).images, device) for name in SPLITS}
            if path is not None:
                _write(path, key, maps)
    return replace(splits, **{name: replace(splits.split(name), images=maps[name]) for name in SPLITS})


def _is_steady(layer: nn.Module) -> bool:
    """Whether it is a circuit that gives the same values in every epoch: not trained, no shots, no noise."""
    return (
        isinstance(layer, QuantumLayer)
        and not any(weight.requires_grad for weight in layer.parameters())
        and layer.backend in BACKENDS
        and not layer.qnode.shots
    )


def _compute(net: QuanvNet, images: Tensor, device: torch.device | str) -> Tensor:
    return torch.cat([net.feature_maps(part.to(device)).cpu() for part in images.split(BATCH)]).contiguous()


def _key(net: QuanvNet, splits: ImageSplits) -> str:
    """SHA-256 (hex) over all that decides the values: versions, data, patches, and each circuit.

    A circuit is told by its gates and measurements on a few random patches, and by what it makes of these, to
    three digits: so no change of it, be it in Python out of sight of the gates, keeps its name.
    """
    quanv, digest = net.quanv, hashlib.sha256()
    versions = (FORMAT, __version__, qp.__version__)
    patches = (quanv.in_channels, quanv.kernel_size, quanv.stride, len(quanv.filters))
    digest.update(repr((versions, splits.fingerprint(), patches)).encode())
    generator = torch.Generator().manual_seed(0)
    rows = math.pi * torch.rand(8, quanv.kernel_size**2, generator=generator, dtype=torch.float64)
    for layer in quanv.filters:
        assert isinstance(layer, QuantumLayer)
        weights = {name: weight.detach().cpu() for name, weight in layer.qnode_weights.items()}
        tape = qp.workflow.construct_tape(layer.qnode, level="user")(**{layer.input_arg: rows}, **weights)
        values = layer(rows.to(next(net.parameters()))).cpu().round(decimals=3) + 0.0  # and no -0.0
        observed = [part.obs for part in tape.measurements if isinstance(part.obs, qp.operation.Operator)]
        told = [(part.name, part.wires.tolist(), repr(part.hyperparameters)) for part in tape.operations]
        digest.update(repr((told, tape.measurements)).encode())
        data = [number for part in (*tape.operations, *observed) for number in part.data]
        for array in map(np.asarray, (*data, *weights.values(), values)):
            digest.update(repr((array.shape, array.dtype)).encode() + array.tobytes())
    return digest.hexdigest()


def _read(path: Path, key: str) -> dict[str, Tensor] | None:
    """The maps of a file that is whole; None without one."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            maps = {name: file.get_tensor(name) for name in SPLITS}
            if file.metadata()["crc32"] != _checksum(maps, key):
                raise ValueError("its checksum does not fit")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        warnings.warn(f"Features `{path}` are damaged ({error}) and are computed anew.", stacklevel=3)
        return None
    return maps


def _write(path: Path, key: str, maps: dict[str, Tensor]) -> None:
    try:
        workspace.make_folder(path.parent)
        workspace.write_bytes(path, save(maps, metadata={"crc32": _checksum(maps, key)}))
    except OSError as error:
        told = f"The features of frozen circuits stay in memory. {error.strerror or error}"
        warnings.warn(told, stacklevel=3)


def _checksum(maps: dict[str, Tensor], key: str) -> str:
    """CRC-32 (hex) of all that a file says: a disk's flipped bit must not train on in silence."""
    crc = zlib.crc32(key.encode())
    for name in SPLITS:
        crc = zlib.crc32(repr((name, maps[name].dtype, tuple(maps[name].shape))).encode(), crc)
        crc = zlib.crc32(maps[name].reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"

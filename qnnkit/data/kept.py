"""Tensors kept as one file that can be made again: a file that is damaged, or of another key, is as none."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from qnnkit import workspace


def read(path: Path, key: str, names: Sequence[str], *, what: str, mended: str) -> dict[str, Tensor] | None:
    """The tensors of these names in a file that is whole; None without one.

    A damaged one is warned of: `what` it held ("Images"), and how that is `mended` ("read anew").
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in names}
            if file.metadata()["crc32"] != _checksum(tensors, key):
                raise ValueError("its checksum does not fit")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        warnings.warn(f"{what} `{path}` are damaged ({error}) and are {mended}.", stacklevel=3)
        return None
    return tensors


def write(path: Path, key: str, tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Writes the file, whole or not at all; where nothing can be written there is a warning, no error."""
    try:
        workspace.make_folder(path.parent)
        workspace.write_bytes(path, save(dict(tensors), metadata={"crc32": _checksum(tensors, key)}))
    except OSError as error:
        warnings.warn(f"{what} stay in memory. {error.strerror or error}", stacklevel=3)


def _checksum(tensors: Mapping[str, Tensor], key: str) -> str:
    """CRC-32 (hex) of all that a file says: a disk's flipped bit must not train on in silence."""
    crc = zlib.crc32(key.encode())
    for name, tensor in tensors.items():
        crc = zlib.crc32(repr((name, tensor.dtype, tuple(tensor.shape))).encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"

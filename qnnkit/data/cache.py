"""Tensors that can be made again, cached as one file in the workspace: images out of many files, features.

A file that is damaged, or of another key, counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from qnnkit import __version__, workspace
from qnnkit.data.images import Stack
from qnnkit.data.places import Member

_cached = ContextVar("cached", default=True)
FORMAT = 2
"""Of the file; another number when the same key is to mean other values."""
ARRAYS = ("images", "labels", "sides")
TEXTS = ("sources", "classes", "notes")


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


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Inside, images kept from before do not stand for files of the same names, sizes and times."""
    token = _cached.set(False)
    try:
        yield
    finally:
        _cached.reset(token)


def stacked(members: Iterable[Member], options: Mapping[str, object], make: Callable[[], Stack]) -> Stack:
    """What `make` gives, read from `datasets/<hash>.safetensors` of the workspace once it has been made.

    The hash is over names, sizes and times of the files (in an archive: checksums) and over the options; a
    file that is damaged is made anew. Without a workspace nothing is kept.
    """
    shelf = workspace.shelf("datasets") if _cached.get() else None
    if shelf is None:
        return make()
    key = _key(members, options)
    path = shelf / f"{key}.safetensors"
    tensors = read(path, key, (*ARRAYS, "told"), what="Images", mended="read anew")
    if tensors is not None:
        return _stack(tensors)
    stack = make()
    write(path, key, _tensors(stack), what="Images")
    return stack


def _key(members: Iterable[Member], options: Mapping[str, object]) -> str:
    """SHA-256 (hex) over all that decides the values."""
    digest = hashlib.sha256(repr((FORMAT, __version__, PIL.__version__, sorted(options.items()))).encode())
    for member in members:
        digest.update(repr((member.name, member.size, member.stamp)).encode())
    return digest.hexdigest()


def _tensors(stack: Stack) -> dict[str, Tensor]:
    texts = json.dumps({name: getattr(stack, name) for name in TEXTS}).encode()
    arrays = {name: np.require(getattr(stack, name), requirements=["C", "W"]) for name in ARRAYS}
    return {name: torch.from_numpy(each) for name, each in arrays.items()} | {
        "told": torch.frombuffer(bytearray(texts), dtype=torch.uint8)
    }


def _stack(tensors: dict[str, Tensor]) -> Stack:
    arrays: dict[str, Any] = {name: each.numpy() for name, each in tensors.items()}
    texts = json.loads(arrays.pop("told").tobytes())
    arrays |= {name: tuple(texts[name]) for name in TEXTS}
    return Stack(**arrays)

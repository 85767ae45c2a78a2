"""What reading many files came to, kept as one file in the workspace."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import PIL
import torch

from qnnkit import __version__, workspace
from qnnkit.data import kept
from qnnkit.data.assemble import Stack
from qnnkit.data.places import Member

FORMAT = 2
"""Of the file; another number when the same key is to mean other values."""
ARRAYS = ("images", "labels", "sides")
TOLD = ("sources", "classes", "notes")


def stacked(
    members: Iterable[Member], options: Mapping[str, object], make: Callable[[], Stack], cached: bool = True
) -> Stack:
    """What `make` gives, read from `datasets/<hash>.safetensors` of the workspace once it has been made.

    The hash is over names, sizes and times of the files (in an archive: checksums) and over the options; a
    file that is damaged is made anew. Without a workspace nothing is kept.
    """
    shelf = workspace.shelf("datasets") if cached else None
    if shelf is None:
        return make()
    key = _key(members, options)
    path = shelf / f"{key}.safetensors"
    tensors = kept.read(path, key, (*ARRAYS, "told"), what="Images", mended="read anew")
    if tensors is not None:
        return _stack(tensors)
    stack = make()
    kept.write(path, key, _tensors(stack), what="Images")
    return stack


def _key(members: Iterable[Member], options: Mapping[str, object]) -> str:
    """SHA-256 (hex) over all that decides the values."""
    digest = hashlib.sha256(repr((FORMAT, __version__, PIL.__version__, sorted(options.items()))).encode())
    for member in members:
        digest.update(repr((member.name, member.size, member.stamp)).encode())
    return digest.hexdigest()


def _tensors(stack: Stack) -> dict[str, torch.Tensor]:
    told = json.dumps({name: getattr(stack, name) for name in TOLD}).encode()
    arrays = {name: np.require(getattr(stack, name), requirements=["C", "W"]) for name in ARRAYS}
    return {name: torch.from_numpy(each) for name, each in arrays.items()} | {
        "told": torch.frombuffer(bytearray(told), dtype=torch.uint8)
    }


def _stack(tensors: dict[str, torch.Tensor]) -> Stack:
    arrays: dict[str, Any] = {name: each.numpy() for name, each in tensors.items()}
    told = json.loads(arrays.pop("told").tobytes())
    return Stack(**arrays, **{name: tuple(told[name]) for name in TOLD})

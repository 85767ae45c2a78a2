"""What reading many files came to, kept as one file in the workspace."""

from __future__ import annotations

import hashlib
import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import PIL
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from qnnkit import __version__, workspace
from qnnkit.data.assemble import Stack
from qnnkit.data.places import Member

FORMAT = 1
"""Of the file; another number when the same key is to mean other values."""
ARRAYS = ("images", "labels", "sides")


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
    stack = _read(path, key)
    if stack is None:
        stack = make()
        _write(path, key, stack)
    return stack


def _key(members: Iterable[Member], options: Mapping[str, object]) -> str:
    """SHA-256 (hex) over all that decides the values."""
    digest = hashlib.sha256(repr((FORMAT, __version__, PIL.__version__, sorted(options.items()))).encode())
    for member in members:
        digest.update(repr((member.name, member.size, member.stamp)).encode())
    return digest.hexdigest()


def _read(path: Path, key: str) -> Stack | None:
    """The stack in a file that is whole; None without one."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in (*ARRAYS, "told")}
            if file.metadata()["crc32"] != _checksum(arrays, key):
                raise ValueError("its checksum does not fit")
        told = json.loads(arrays["told"].tobytes())
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        warnings.warn(f"Images `{path}` are damaged ({error}) and are read anew.", stacklevel=4)
        return None
    sources, classes, notes = (tuple(told[name]) for name in ("sources", "classes", "notes"))
    return Stack(arrays["images"], arrays["labels"], arrays["sides"], sources, classes, notes)


def _write(path: Path, key: str, stack: Stack) -> None:
    told = {"sources": stack.sources, "classes": stack.classes, "notes": stack.notes}
    arrays = {name: np.ascontiguousarray(getattr(stack, name)) for name in ARRAYS}
    arrays["told"] = np.frombuffer(json.dumps(told).encode(), np.uint8)
    try:
        workspace.make_folder(path.parent)
        workspace.write_bytes(path, save(arrays, metadata={"crc32": _checksum(arrays, key)}))
    except OSError as error:
        warnings.warn(f"The images stay in memory only. {error.strerror or error}", stacklevel=4)


def _checksum(arrays: dict[str, np.ndarray], key: str) -> str:
    """CRC-32 (hex) of all that a file says: a disk's flipped bit must not train on in silence."""
    crc = zlib.crc32(key.encode())
    for name, array in sorted(arrays.items()):
        crc = zlib.crc32(repr((name, array.dtype.str, array.shape)).encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, crc)
    return f"{crc:08x}"

"""One checkpoint per safetensors file, whose name contains a hash of its content.

Tensors are stored unchanged, everything else as JSON in the header. Nothing is pickled, so reading a
checkpoint cannot execute code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qnnkit.workspace import draft_of, writing

FORMAT = 3
NAME = re.compile(r"checkpoint-(\d{6,})-([0-9a-f]{16})\.safetensors")
"""Pattern of file names: a number, and the first 16 hexadecimal digits of the file's SHA-256."""
GONE = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
"""Error numbers of a file that is not there."""
Packed = tuple[Any, dict[str, Tensor]]
"""A state as JSON, and its tensors by name."""


def packed(state: dict[str, Any]) -> Packed:
    """`state` with every tensor copied to the CPU, so that training can continue while it is written.

    Args:
        state: Nested dictionaries, lists and tuples of tensors, numbers, strings and None, as returned by
            `state_dict` methods. Keys have the same types, except tensors and lists.

    Raises:
        TypeError: `state` holds something else.
    """
    tensors: dict[str, Tensor] = {}
    return _pack(state, "", tensors), tensors


def write(folder: Path, number: int, state: Packed) -> Path:
    """Writes a checkpoint under a new name and returns its path; existing files stay.

    Args:
        folder: An existing folder.
        number: Number of the checkpoint; newer ones have higher numbers.
        state: The result of `packed`.

    Raises:
        OSError: The disk is full or read-only; the message says what to do.
    """
    path = folder / f"checkpoint-{number:06d}"
    draft, header = draft_of(path), json.dumps({"format": FORMAT, "state": state[0]})
    with writing(path):
        try:
            save_file(state[1], draft, metadata={"qnnkit": header})
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            return draft.replace(folder / f"{path.name}-{hash_of(draft)[:16]}.safetensors")
        except (OSError, SafetensorError) as error:  # `make_folder` has tested all other causes
            draft.unlink(missing_ok=True)
            raise OSError(getattr(error, "errno", errno.ENOSPC), str(error)) from None


def read(path: Path) -> dict[str, Any]:
    """The state that was passed to `write`.

    Raises:
        ValueError: There is no such file, it does not match its name, or it is not a checkpoint.
        OSError: It cannot be read, which may pass: a newer checkpoint must not replace it.
    """
    named = NAME.fullmatch(path.name)
    try:
        if named is None or hash_of(path)[:16] != named[2]:
            raise ValueError("its content does not match the hash in its name")
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["qnnkit"])
            return {**_unpacked(header["state"], file.get_tensor)}
    except Exception as error:  # a crafted header can raise anything
        if isinstance(error, OSError) and error.errno not in GONE:
            step = "Run the same command again; delete it only if it stays unreadable."
            raise OSError(error.errno, f"Cannot read `{path}` ({error.strerror}). {step}") from None
        raise ValueError(f"Checkpoint `{path}` is damaged ({error or type(error).__name__}).") from None


def hash_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON, with its tensors collected in `tensors` under readable names."""
    match value:
        case Tensor():
            while name in tensors:  # "0" next to 0, "a/b" next to b in a
                name += "'"
            plain = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            tensors[name] = plain.detach().to("cpu", copy=True).contiguous()
            return {"complex" if value.is_complex() else "tensor": name}
        case dict():
            keys = [_pack(key, name, tensors) for key in value]
            values = [_pack(each, f"{name}/{key}".lstrip("/"), tensors) for key, each in value.items()]
            return {"dict": [list(pair) for pair in zip(keys, values, strict=True)]}
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [_pack(each, f"{name}/{index}", tensors) for index, each in enumerate(value)]}
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"A checkpoint holds tensors and plain values, but {name} is a {type(value).__name__}.")


def _unpacked(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """The value passed to `packed`, from its JSON and tensors by name."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            return tensor(content)
        case "complex":  # safetensors has no complex numbers of double precision
            return torch.view_as_complex(tensor(content))
        case "dict":
            return {_unpacked(key, tensor): _unpacked(each, tensor) for key, each in content}
        case "list":
            return [_unpacked(each, tensor) for each in content]
        case "tuple":
            return tuple(_unpacked(each, tensor) for each in content)
    raise ValueError(f"it holds a {kind}")

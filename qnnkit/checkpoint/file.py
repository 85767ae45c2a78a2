"""One checkpoint in one safetensors file, whose name holds a hash of its content.

Tensors go into the file as they are, everything else as JSON in its header; nothing is pickled, so a
checkpoint cannot execute code when it is read.
"""

from __future__ import annotations

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

from qnnkit.workspace import cannot_write, draft_of

FORMAT = 3
NAME = re.compile(r"checkpoint-(\d{6,})-([0-9a-f]{16})\.safetensors")
"""Number, and the first 16 hexadecimal digits of the file's SHA-256."""


def write(folder: Path, number: int, state: dict[str, Any]) -> Path:
    """Writes a checkpoint under a name of its own; any file that was there before stays.

    Args:
        folder: Where to; it exists.
        number: The newer, the higher.
        state: Dictionaries, lists and tuples, however nested, of tensors, numbers, strings and None, as
            `state_dict` methods give them. Keys are the same, without tensors and lists.

    Raises:
        OSError: The disk is full or read-only; the message says what to do.
        TypeError: `state` holds something else.
    """
    tensors: dict[str, Tensor] = {}
    header = json.dumps({"format": FORMAT, "state": _pack(state, "", tensors)})
    path = folder / f"checkpoint-{number:06d}"
    draft = draft_of(path)
    try:
        save_file(_alone(tensors), draft, metadata={"qnnkit": header})
        with draft.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        named = folder / f"{path.name}-{digest[:16]}.safetensors"
        draft.replace(named)
        _flush_folder(folder)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise cannot_write(path, _as_os_error(error)) from None
    return named


def read(path: Path) -> dict[str, Any]:
    """The state that `write` was given.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not what its name says, or no checkpoint.
    """
    named = NAME.fullmatch(path.name)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if named is None or digest[:16] != named[2]:
            raise ValueError("its content does not fit the hash in its name")
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["qnnkit"])
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, not {FORMAT}")
            state = _unpack(header["state"], file.get_tensor)
        if not isinstance(state, dict):
            raise ValueError("it holds no state")
    except OSError:
        raise
    except Exception as error:  # whatever a crafted header leads to
        raise ValueError(f"Checkpoint `{path}` is damaged ({error or type(error).__name__}).") from None
    return state


def copied(state: Any) -> Any:
    """`state` with every tensor copied to the CPU: training may go on while it is written."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        values = [copied(value) for value in state]
        return values if isinstance(state, list) else tuple(values)
    return state


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON in place of `value`, with its tensors gathered under names that people can read."""
    match value:
        case Tensor():
            while name in tensors:  # "0" beside 0, "a/b" beside b in a
                name += "'"
            tensors[name] = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            return {"complex" if value.is_complex() else "tensor": name}
        case dict():
            items = [
                [_key(key, name), _pack(each, f"{name}/{key}".lstrip("/"), tensors)]
                for key, each in value.items()
            ]
            return {"dict": items}
        case list() | tuple():
            items = [_pack(each, f"{name}/{index}", tensors) for index, each in enumerate(value)]
            return {"list" if isinstance(value, list) else "tuple": items}
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"A checkpoint holds tensors and plain values, but {name} is a {type(value).__name__}.")


def _key(key: Any, name: str) -> Any:
    """JSON in place of a dictionary's key: a plain value, or a tuple of such."""
    if isinstance(key, tuple):
        return {"tuple": [_key(each, name) for each in key]}
    if key is None or isinstance(key, bool | int | float | str):
        return key
    raise TypeError(f"A checkpoint holds plain keys, but {name} has a key that is a {type(key).__name__}.")


def _unpack(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            return tensor(content)
        case "complex":  # safetensors has no complex numbers of double precision
            return torch.view_as_complex(tensor(content))
        case "dict":
            return {_unpack(key, tensor): _unpack(each, tensor) for key, each in content}
        case "list":
            return [_unpack(each, tensor) for each in content]
        case "tuple":
            return tuple(_unpack(each, tensor) for each in content)
    raise ValueError(f"it holds a {kind}")


def _alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each contiguous and in memory of its own, as safetensors wants them; tied weights are written twice."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        found[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in taken else tensor
        taken.add(found[name].untyped_storage().data_ptr())
    return found


def _as_os_error(error: OSError | SafetensorError) -> OSError:
    """safetensors tells of a full disk in words: `(os error 28)`, in older versions `Os { code: 28, ...`."""
    if isinstance(error, OSError):
        return error
    found = re.search(r"(?:os error|Os { code:) (\d+)", str(error))
    number = int(found[1]) if found else 0
    return OSError(number, os.strerror(number) if number else str(error))


def _flush_folder(folder: Path) -> None:
    """Makes the new name last through a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:  # Drive's file system flushes files only
            pass
        finally:
            os.close(descriptor)

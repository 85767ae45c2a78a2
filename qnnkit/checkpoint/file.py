"""Write, keep and restore the state of a training: one safetensors file, made current by one rename.

Tensors go into the file as they are, everything else as JSON in its header; nothing is pickled, so a
checkpoint cannot execute code when it is read.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from qnnkit.workspace import write_bytes


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: dict[str, Any],
) -> None:
    """Writes a checkpoint; whatever `path` held before stays whole until the new one is.

    Args:
        path: File to make or replace.
        model: Its parameters and buffers are kept.
        optimizer: Its state is kept.
        progress: Plain JSON values: epoch, best score, schedule, history.

    Raises:
        OSError: The disk is full or read-only; the message says what to do.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    state = optimizer.state_dict()
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                plain.setdefault(str(index), {})[key] = value
    for name, generator in _generators().items():
        tensors[f"random.{name}"] = generator
    header = json.dumps(
        {"optimizer": {"param_groups": state["param_groups"], "state": plain}, "progress": progress}
    )
    alone = _alone(tensors)
    write_bytes(path, save(alone, metadata={"qnnkit": header, "crc32": checksum(alone, header)}))


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Puts a checkpoint's state back and returns its `progress`.

    Without an optimizer only the model's weights are restored (to evaluate); with one, also its state and
    torch's random generators (to go on training).

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, or belongs to another model.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(metadata["qnnkit"])
        found = checksum(tensors, metadata["qnnkit"])
        if metadata.get("crc32", found) != found:
            raise ValueError("its checksum does not fit")
        settings, progress = header["optimizer"], header["progress"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"Checkpoint `{path}` is damaged ({error}). Delete the folder it is in; this net is then trained "
            "from the beginning."
        ) from None
    weights = _under(tensors, "model.")
    _require_fit(path, weights, model)
    model.load_state_dict(weights)
    if optimizer is not None:
        entries = {int(index): dict(values) for index, values in settings["state"].items()}
        for name, tensor in _under(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            entries.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({"state": entries, "param_groups": settings["param_groups"]})
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["random.cuda"])
    return progress


def keep_as(path: Path, name: str) -> None:
    """Gives the checkpoint at `path` a second name beside it, replacing what had that name.

    A hard link costs nothing; where the file system has none (Drive), the file is copied.
    """
    target, link = path.with_name(name), path.with_name(f".{name}.{os.getpid()}")
    try:
        link.unlink(missing_ok=True)
        link.hardlink_to(path)
        link.replace(target)
    except OSError:
        write_bytes(target, path.read_bytes())


def _alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each on the CPU and in memory of its own, as safetensors wants them; tied weights are written twice."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        found[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in taken else tensor
        taken.add(found[name].untyped_storage().data_ptr())
    return found


def checksum(tensors: dict[str, Tensor], header: str) -> str:
    """CRC-32 of all that a file says: a disk's flipped bit must not train on in silence."""
    crc = zlib.crc32(header.encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _require_fit(path: Path, weights: dict[str, Tensor], model: nn.Module) -> None:
    """Refuses another model's weights before any is put in place."""
    there = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    here = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in here | there:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"Checkpoint `{path}` belongs to another model: `{name}` has shape {there.get(name)} there, "
                f"{here.get(name)} here. Choose another folder, or build the model that it was made from."
            )


def _generators() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

"""Which of a model's weights a checkpoint holds, and how they are put back."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import torch
from torch import Tensor, nn

FROZEN = "(frozen)"
"""Name under which the digest of what is left out stands among the weights."""
MOST = 2**16
"""Numbers of each frozen weight that the digest is over, evenly spread: of billions, all would take long."""


def kept(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model, as a checkpoint holds it.

    Where PEFT has put an adapter around a model, its frozen weights are left out: they are those of the base,
    which is built anew from where it came, and may be a thousand times as large. A digest of them stands in
    their place.
    """
    frozen = _left_out(model)
    return of(model) | ({FROZEN: _digest(frozen)} if frozen else {})


def of(model: nn.Module) -> dict[str, Tensor]:
    """As `kept`, without the digest."""
    frozen = _left_out(model)
    # What a weight in 4 bits is unpacked by stands beside it, under names that begin with its own.
    return {
        name: value
        for name, value in model.state_dict().items()
        if not any(part in frozen for part in itertools.accumulate(name.split("."), "{}.{}".format))
    }


def load(path: Path, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Puts weights that were read from `path` into a model; nothing is changed where one does not fit.

    Raises:
        ValueError: They belong to another model, or were trained on other frozen weights.
    """
    here, there = (
        {name: tuple(tensor.shape) for name, tensor in state.items()} for state in (kept(model), weights)
    )
    for name in here | there:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"Checkpoint `{path}` belongs to another model: `{name}` has shape {there.get(name)} there, "
                f"{here.get(name)} here. Choose another folder, or build the model that it was made from."
            )
    if FROZEN in weights and not torch.equal(weights[FROZEN].cpu(), kept(model)[FROZEN]):
        raise ValueError(
            f"Checkpoint `{path}` belongs to another base model: its frozen weights are not these. Give the "
            "base that the adapter was trained on, kept as it was there (in 4 bits, or half precision)."
        )
    model.load_state_dict(
        {name: tensor for name, tensor in weights.items() if name != FROZEN}, strict=FROZEN not in weights
    )


def _left_out(model: nn.Module) -> dict[str, Tensor]:
    """The frozen weights that a checkpoint does without, by name."""
    if not any(hasattr(module, "peft_config") for module in model.modules()):
        return {}
    every = model.named_parameters(remove_duplicate=False)  # tied ones stand in the state under each name
    return {name: weight for name, weight in every if not weight.requires_grad}


def _digest(weights: dict[str, Tensor]) -> Tensor:
    """SHA-256 over names, shapes and numbers: uint8 of shape (32,)."""
    digest = hashlib.sha256()
    for name, weight in weights.items():
        flat = weight.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // MOST)].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        digest.update(some.astype("<f4").tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)

"""Which of a model's weights a checkpoint holds, and how they are put back."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import torch
from torch import Tensor, nn

FROZEN = "(frozen)"
"""Name under which samples of what is left out stand among the weights."""
LEAST = 4096
"""Bytes of the smallest weight that is left out: circuits' angles never are."""
SAMPLES = 64
"""Of each weight that is left out, evenly spread; compared to CLOSE, for another machine's generators and
libraries round otherwise."""
CLOSE = {"rtol": 1e-5, "atol": 1e-7}


def saved_state(model: nn.Module, base: int | None = None) -> dict[str, Tensor]:
    """The state of a model, as a checkpoint holds it: whole, but for frozen weights of a named base.

    Args:
        model: Where PEFT has put an adapter around one, its frozen weights are always left out.
        base: What `digest` gave of the model as it was built: frozen weights that were read from a name or a
            folder are left out as long as they are those. None, and a task that moves them, keeps them all.
    """
    if _adapted(model) or (base and base == digest(model)):
        return of(model, rebuilt=True) | _sampled(_base(model))
    return of(model)


def of(model: nn.Module, rebuilt: bool = False) -> dict[str, Tensor]:
    """As `saved_state`, without samples; `rebuilt` says whether the base's frozen weights are left out."""
    return _without(model, _base(model) if rebuilt or _adapted(model) else {})


def digest(model: nn.Module) -> int:
    """Of every bit of the base's frozen weights; 0 where there are none, or PEFT's adapter says so."""
    found = 0
    for weight in () if _adapted(model) else _base(model).values():
        bits = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(bits.numpy().data, found)
    return found


def _sampled(left_out: dict[str, Tensor]) -> dict[str, Tensor]:
    """Some numbers of each weight that a checkpoint does without: float32 of shape (n,), if any."""
    flat = [weight.detach().reshape(-1) for weight in left_out.values()]
    flat = [torch.view_as_real(each).reshape(-1) if each.is_complex() else each for each in flat]
    some = [each[:: -(-len(each) // SAMPLES)].float().cpu() for each in flat]
    return {FROZEN: torch.cat(some)} if some else {}


def require_fit(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Refuses weights of another model.

    Raises:
        ValueError: They are, or they were trained on other frozen weights.
    """
    left_out = {}
    if FROZEN in weights or _adapted(model):  # an earlier version left out frozen weights of any module
        left_out = {name: weight for name, weight in _frozen(model).items() if name not in weights}
    own = _without(model, left_out) | _sampled(left_out)
    here, there = ({name: _shape(value) for name, value in state.items()} for state in (own, weights))
    for name in here | there:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"it belongs to another model: `{name}` has shape {there.get(name)} there, {here.get(name)} "
                "here. Choose another folder, or build the model that it was made from"
            )
    if FROZEN in weights and not torch.allclose(weights[FROZEN].cpu(), own[FROZEN], **CLOSE, equal_nan=True):
        raise ValueError(
            "it belongs to another base model: its frozen weights are not these. Give the base that it was "
            "trained on, kept as it was there, in 4 bits or half precision"
        )


def load(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Puts weights that were read into a model; nothing is changed where one does not fit.

    Args:
        model: Of the same kind as the one that they are of.
        weights: As `saved_state` gives them.

    Raises:
        ValueError: As in `require_fit`.
    """
    require_fit(model, weights)
    model.load_state_dict(
        {name: tensor for name, tensor in weights.items() if name != FROZEN}, strict=FROZEN not in weights
    )


def _shape(value: Any) -> Any:
    """Of a tensor; of what a module keeps beside its tensors, None."""
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _adapted(model: nn.Module) -> bool:
    return any(hasattr(module, "peft_config") for module in model.modules())


def _without(model: nn.Module, left_out: dict[str, Tensor]) -> dict[str, Tensor]:
    # What a weight in 4 bits is unpacked by stands beside it, under names that begin with its own.
    return {
        name: value
        for name, value in model.state_dict().items()
        if not any(part in left_out for part in itertools.accumulate(name.split("."), "{}.{}".format))
    }


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    every = model.named_parameters(remove_duplicate=False)  # tied ones stand in the state under each name
    return {name: weight for name, weight in every if not weight.requires_grad and weight.nbytes >= LEAST}


def _base(model: nn.Module) -> dict[str, Tensor]:
    """The frozen weights of modules that are read from a name or a folder, as transformers' and PEFT's."""
    bases = [
        f"{prefix}." if prefix else ""
        for prefix, module in model.named_modules()
        if hasattr(module, "peft_config") or getattr(module, "name_or_path", "")
    ]
    return {name: weight for name, weight in _frozen(model).items() if name.startswith(tuple(bases))}

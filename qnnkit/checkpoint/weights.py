"""Which of a model's weights a checkpoint holds, and how they are put back."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

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


class Built(NamedTuple):
    """How the frozen weights of a model are had anew."""

    digest: int
    """What `digest` gives of the model as it is built."""
    again: Callable[[], nn.Module]
    """Builds it once more, with the same frozen weights."""


def saved_state(model: nn.Module, built: Built | None = None) -> dict[str, Tensor]:
    """The state of a model, as a checkpoint holds it: buffers whole, and all weights but the frozen ones that
    are built anew from where they came.

    Args:
        model: Where PEFT has put an adapter around one, its frozen weights are always left out.
        built: Its frozen weights are left out as long as they are those that it was built with; None, and a
            task that moves them, as a mean of others, keeps them all.
    """
    if _adapted(model) or (built is not None and built.digest == digest(model)):
        return of(model, rebuilt=True) | _sampled(model)
    return of(model)


def of(model: nn.Module, rebuilt: bool = False) -> dict[str, Tensor]:
    """As `kept`, without the samples; `rebuilt` tells whether all frozen weights are left out."""
    return _state(model, _frozen(model) if rebuilt or _adapted(model) else {})


def digest(model: nn.Module) -> int:
    """Of every bit of the frozen weights that a checkpoint may do without; 0 where PEFT's adapter says so."""
    found = 0
    for weight in () if _adapted(model) else _frozen(model).values():
        bits = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(bits.numpy().data, found)
    return found


def _sampled(model: nn.Module) -> dict[str, Tensor]:
    """Some numbers of each frozen weight that a checkpoint may do without: float32 of shape (n,), if any."""
    flat = [weight.detach().reshape(-1) for weight in _frozen(model).values()]
    flat = [torch.view_as_real(each).reshape(-1) if each.is_complex() else each for each in flat]
    some = [each[:: -(-len(each) // SAMPLES)].float().cpu() for each in flat]
    return {FROZEN: torch.cat(some)} if some else {}


def require_fit(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Refuses weights of another model.

    Raises:
        ValueError: They are, or they were trained on other frozen weights.
    """
    own = of(model, rebuilt=FROZEN in weights)
    own |= _sampled(model) if FROZEN in weights or _adapted(model) else {}
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


def load(model: nn.Module, weights: dict[str, Tensor], built: Built | None = None) -> None:
    """Puts weights that were read into a model; nothing is changed where one does not fit.

    Args:
        model: Of the same kind as the one that they are of.
        weights: As `kept` gives them.
        built: Where frozen weights that they leave out have been moved since, these are put back first.

    Raises:
        ValueError: As in `require_fit`.
    """
    if built is not None and FROZEN in weights and built.digest != digest(model):
        model.load_state_dict(_frozen(built.again()), strict=False)
    require_fit(model, weights)
    model.load_state_dict(
        {name: tensor for name, tensor in weights.items() if name != FROZEN}, strict=FROZEN not in weights
    )


def _state(model: nn.Module, without: dict[str, Tensor]) -> dict[str, Tensor]:
    # What a weight in 4 bits is unpacked by stands beside it, under names that begin with its own.
    return {
        name: value
        for name, value in model.state_dict().items()
        if not any(part in without for part in itertools.accumulate(name.split("."), "{}.{}".format))
    }


def _shape(value: Any) -> Any:
    """Of a tensor; of what a module keeps beside its tensors, None."""
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _adapted(model: nn.Module) -> bool:
    return any(hasattr(module, "peft_config") for module in model.modules())


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    every = model.named_parameters(remove_duplicate=False)  # tied ones stand in the state under each name
    return {name: weight for name, weight in every if not weight.requires_grad and weight.nbytes >= LEAST}

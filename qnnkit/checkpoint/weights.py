"""Which of a model's weights a checkpoint holds, and how they are put back."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

FROZEN = "(frozen)"
"""Name under which samples of the omitted weights are among the others."""
LEAST = 4096
"""Bytes of the smallest weight that is omitted: circuits' angles never are."""
SAMPLES = 64
"""Of each omitted weight, evenly spread; compared to rounding, since other machines round otherwise."""


def saved_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model, as a checkpoint holds it: whole, but for the frozen weights of PEFT's base."""
    return of(model) | _sampled(_base(model))


def of(model: nn.Module) -> dict[str, Tensor]:
    """As `saved_state`, without samples of what is omitted."""
    return _without(model, _base(model))


def load(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Puts weights that were read into a model; nothing is changed where one does not fit.

    Args:
        model: Of the same kind as the one that they are of.
        weights: As `saved_state` gives them; earlier versions omitted frozen weights of other modules too.

    Raises:
        ValueError: They are of another model, or were trained on other frozen weights.
    """
    frozen = _frozen(model) if FROZEN in weights else {}
    omitted = {name: weight for name, weight in frozen.items() if name not in weights}
    own = _without(model, omitted) | _sampled(omitted)
    for name in own | weights:
        here, there = (getattr(state.get(name), "shape", None) for state in (own, weights))
        if here != there:
            reason = f"it belongs to another model: `{name}` has shape {there} there, {here} here"
            raise ValueError(f"{reason}. Choose another folder, or build the model that it was made from")
    there = weights.get(FROZEN)
    if there is not None and not torch.allclose(there.cpu(), own[FROZEN], 1e-5, 1e-7, equal_nan=True):
        step = "Give the base that it was trained on, kept as it was there, in 4 bits or half precision"
        raise ValueError(f"it belongs to another base model: its frozen weights are not these. {step}")
    saved = {name: tensor for name, tensor in weights.items() if name != FROZEN}
    model.load_state_dict(saved, strict=FROZEN not in weights)


def _sampled(omitted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Some numbers of each weight that a checkpoint does without: float32 of shape (n,), if any."""
    flat = [weight.detach().reshape(-1) for weight in omitted.values()]
    some = [each[:: -(-len(each) // SAMPLES)].float().cpu() for each in flat]
    return {FROZEN: torch.cat(some)} if some else {}


def _without(model: nn.Module, omitted: dict[str, Tensor]) -> dict[str, Tensor]:
    # What a weight in 4 bits is unpacked by is next to it, under names that begin with its own.
    return {
        name: value
        for name, value in model.state_dict().items()
        if not any(part in omitted for part in itertools.accumulate(name.split("."), "{}.{}".format))
    }


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    every = model.named_parameters(remove_duplicate=False)  # tied ones are in the state under each name
    return {name: weight for name, weight in every if not weight.requires_grad and weight.nbytes >= LEAST}


def _base(model: nn.Module) -> dict[str, Tensor]:
    """The frozen weights of modules that PEFT has put an adapter around."""
    bases = tuple(
        f"{name}." if name else "" for name, each in model.named_modules() if hasattr(each, "peft_config")
    )
    return {name: weight for name, weight in _frozen(model).items() if name.startswith(bases)}

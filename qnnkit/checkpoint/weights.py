"""Which of a model's weights a checkpoint contains, and how they are loaded."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

FROZEN = "(frozen)"
"""Name of the entry with samples of the omitted weights."""
LEAST = 4096
"""Bytes of the smallest weight that can be omitted; circuits' angles never are."""
SAMPLES = 64
"""Samples of each omitted weight, evenly spaced; compared up to rounding, which differs between machines."""


def saved_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model for a checkpoint: everything except the frozen weights of a PEFT base model."""
    return of(model) | _sampled(_base(model))


def of(model: nn.Module) -> dict[str, Tensor]:
    """The result of `saved_state` without samples of the omitted weights."""
    return _without(model, _base(model))


def load(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Loads weights into a model; changes nothing if one does not fit.

    Args:
        model: A model like the saved one.
        weights: Weights from `saved_state`; earlier versions omitted frozen weights of other modules too.

    Raises:
        ValueError: The weights belong to another model, or were trained on other frozen weights.
    """
    frozen = _frozen(model) if FROZEN in weights else {}
    omitted = {name: weight for name, weight in frozen.items() if name not in weights}
    expected = _without(model, omitted) | _sampled(omitted)
    for name in expected | weights:
        here, there = (getattr(state.get(name), "shape", None) for state in (expected, weights))
        if here != there:
            reason = f"it belongs to another model: `{name}` has shape {there} there, {here} in this one"
            raise ValueError(f"{reason}. Choose another folder, or build the model that was saved")
    there = weights.get(FROZEN)
    if there is not None and not torch.allclose(there.cpu(), expected[FROZEN], 1e-5, 1e-7, equal_nan=True):
        step = "Use the base model that it was trained on, in the same precision (4 bits or half)"
        raise ValueError(f"it belongs to another base model with different frozen weights. {step}")
    saved = {name: tensor for name, tensor in weights.items() if name != FROZEN}
    model.load_state_dict(saved, strict=FROZEN not in weights)


def _sampled(omitted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Samples of each weight that a checkpoint omits: float32 of shape (n,), if there are any."""
    flat = [weight.detach().reshape(-1) for weight in omitted.values()]
    some = [each[:: -(-len(each) // SAMPLES)].float().cpu() for each in flat]
    return {FROZEN: torch.cat(some)} if some else {}


def _without(model: nn.Module, omitted: dict[str, Tensor]) -> dict[str, Tensor]:
    # Quantisation data of a 4-bit weight is stored under names that begin with the weight's name.
    return {
        name: value
        for name, value in model.state_dict().items()
        if not any(part in omitted for part in itertools.accumulate(name.split("."), "{}.{}".format))
    }


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    every = model.named_parameters(remove_duplicate=False)  # tied weights are in the state under each name
    return {name: weight for name, weight in every if not weight.requires_grad and weight.nbytes >= LEAST}


def _base(model: nn.Module) -> dict[str, Tensor]:
    """The frozen weights of modules that PEFT has wrapped in an adapter."""
    bases = tuple(
        f"{name}." if name else "" for name, each in model.named_modules() if hasattr(each, "peft_config")
    )
    return {name: weight for name, weight in _frozen(model).items() if name.startswith(bases)}

"""An adapter tried on a model without weights: what it would have, and whether it fits."""

from __future__ import annotations

import copy
import itertools
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


def on_skeleton(model: nn.Module, chosen: PeftConfig, name: str = "default") -> PeftModel:
    """The adapter on a copy of the model whose weights take no memory; nothing is drawn, moved or changed.

    Args:
        model: The base model, or a PeftModel, which gets another adapter.
        chosen: What adapter; left as it was.
        name: That it is given.

    Raises:
        Exception: What PEFT raises where it cannot be put on this model.
    """
    from peft import PeftModel, get_peft_model

    from qnnkit.models.blocks import seeded

    bare: dict[int, Any] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        empty: Tensor = torch.empty_like(tensor.data, device="meta")
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, tensor.requires_grad)
            vars(empty).update(vars(tensor))  # of weights in 4 bits, how they are kept: PEFT asks for it
        bare[id(tensor)] = empty
    skeleton, asked = copy.deepcopy(model, bare), copy.deepcopy(chosen)
    with torch.device("meta"), seeded(0), warnings.catch_warnings(action="ignore"):
        if not isinstance(skeleton, PeftModel):
            return get_peft_model(skeleton, asked, name)  # type: ignore[arg-type]
        skeleton.add_adapter(name, asked)
        return skeleton

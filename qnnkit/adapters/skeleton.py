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
    """The adapter on a copy of the model; nothing of the model is drawn, moved or changed.

    The copy's weights take no memory, but for methods that PEFT cannot build without their numbers.

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

    def put(whole: Any) -> PeftModel:
        asked = copy.deepcopy(chosen)
        with seeded(0), warnings.catch_warnings(action="ignore"):
            if not isinstance(whole, PeftModel):
                return get_peft_model(whole, asked, name)  # type: ignore[arg-type]
            whole.add_adapter(name, asked)
            return whole

    try:
        with torch.device("meta"):
            return put(copy.deepcopy(model, bare))
    except RuntimeError:  # some methods, such as BOFT and SHiRA, look at numbers
        return put(copy.deepcopy(model))

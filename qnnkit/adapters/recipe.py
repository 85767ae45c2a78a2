"""Parts of recipes with adapters: settings, the adapted model, and controls with equally many weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from pydantic import Field
from torch import nn

from qnnkit import checks
from qnnkit.adapters.attach import adapt, names, size
from qnnkit.adapters.sources import QUANTUM_PEFT
from qnnkit.models.causal_lm import LanguageModelSettings, language_model
from qnnkit.settings import Words

CONTROLS = ("lora", "vera", "no_entanglement", "frozen_random")
_CHANGED = {"no_entanglement": {"entangled": False}, "frozen_random": {"train_circuit": False}}


class AdapterSettings(LanguageModelSettings):
    """Settings of a frozen language model and its adapter."""

    adapter: str = "quantum_peft"
    """Method that adapts the frozen model: lora, vera, quantum_peft, or another method of PEFT."""
    adapter_weights: int | None = Field(default=None, ge=1)
    """Approximate number of weights of the adapter; None derives it from the rank."""
    rank: int | None = Field(default=None, ge=1)
    """Rank r of the updates; None derives it from adapter_weights, or takes the method's default."""
    alpha: float | None = Field(default=None, gt=0)
    """LoRA's updates are scaled by alpha / r; None takes twice the rank."""
    targets: Words | None = None
    """Names of the layers that are adapted; None takes the query and value projections."""
    base_precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the frozen weights; 16 bits need about half of the memory of 32."""
    four_bit: bool = False
    """Whether to store the frozen weights in 4 bits (QLoRA), if CUDA and bitsandbytes are available."""


def require_base(settings: Any) -> None:
    """Raises a ValueError without a pretrained model, or if a method without circuits has controls."""
    checks.choice("adapter", settings.adapter, names())
    if settings.controls and settings.adapter != QUANTUM_PEFT:
        step = "Set controls=() for an adapter without a circuit."
        raise ValueError(checks.message("controls", "be left out", list(settings.controls), step))
    if settings.pretrained is None:
        step = "Give the folder or Hub name of a trained model, such as the model/ of a finished run."
        rule = "name the weights that an adapter changes"
        raise ValueError(checks.message("pretrained", rule, None, step))


def build(settings: Any, splits: Any, seed: int, net: str = "") -> nn.Module:
    """Returns the frozen model with its adapter, or with the control `net` of equally many weights instead.

    Nets of the same seed and with the same angles have the same initial weights.
    """
    base = language_model(settings, splits, seed)
    with checks.renamed({"target_modules": "targets", "name": "adapter", "r": "rank"}):
        options = {"n_weights": settings.adapter_weights, "targets": settings.targets, "r": settings.rank}
        options["lora_alpha"] = settings.alpha
        options = {key: value for key, value in options.items() if value is not None} | _CHANGED.get(net, {})
        if net not in ("lora", "vera"):
            return adapt(base, settings.adapter, seed=seed, **options)
        n_weights = settings.adapter_weights or size(base, settings.adapter, **options)
        return adapt(base, net, seed=seed, n_weights=n_weights, targets=settings.targets)


def controls(settings: Any, splits: Any, seed: int) -> dict[str, Callable[[], nn.Module]]:
    """Returns functions that build the controls, so that two of them are never in memory at once."""
    return {net: partial(build, settings, splits, seed, net) for net in CONTROLS}

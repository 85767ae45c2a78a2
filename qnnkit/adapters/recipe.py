"""An adapter as a recipe has it: its settings, the net with it, and its controls of as many weights."""

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
    """Which adapter, on which frozen language model."""

    adapter: str = "quantum_peft"
    """What adapts the frozen model: lora, vera, quantum_peft, or another method of PEFT."""
    adapter_weights: int | None = Field(default=None, ge=1)
    """About how many weights it has; None leaves that to its rank."""
    rank: int | None = Field(default=None, ge=1)
    """Rank r of its updates; None takes that of adapter_weights, or the method's own."""
    alpha: float | None = Field(default=None, gt=0)
    """LoRA's updates are scaled by alpha / r; None takes twice the rank."""
    targets: Words | None = None
    """Names of the layers that it changes; None takes the query and value projections."""
    base_precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision in which the frozen weights are kept; half of it for about half of the memory."""
    four_bit: bool = False
    """Whether the frozen weights are kept in 4 bits (QLoRA) where CUDA and bitsandbytes allow it."""


def require_base(settings: Any) -> None:
    """Refuses an adapter to weights that nobody trained."""
    checks.choice("adapter", settings.adapter, names())
    if settings.controls and settings.adapter != QUANTUM_PEFT:
        step = "Set controls=() for an adapter without a circuit."
        raise ValueError(checks.message("controls", "be left out", list(settings.controls), step))
    if settings.pretrained is None:
        step = "Give the folder or Hub name of a trained model, such as the model/ of a finished run."
        rule = "name the weights that an adapter changes"
        raise ValueError(checks.message("pretrained", rule, None, step))


def build(settings: Any, splits: Any, seed: int, net: str = "") -> nn.Module:
    """The frozen model with its adapter, or with the control `net` in its place, of as many weights.

    Nets of one seed that have the same angles start alike.
    """
    base = language_model(settings, splits, seed)
    with checks.renamed({"target_modules": "targets", "name": "adapter", "r": "rank"}):
        own = {"n_weights": settings.adapter_weights, "targets": settings.targets, "r": settings.rank}
        own["lora_alpha"] = settings.alpha
        own = {name: value for name, value in own.items() if value is not None} | _CHANGED.get(net, {})
        if net not in ("lora", "vera"):
            return adapt(base, settings.adapter, seed=seed, **own)
        n_weights = settings.adapter_weights or size(base, settings.adapter, **own)
        return adapt(base, net, seed=seed, n_weights=n_weights, targets=settings.targets)


def controls(settings: Any, splits: Any, seed: int) -> dict[str, Callable[[], nn.Module]]:
    """Functions that make each control; two of them are never in memory at once."""
    return {net: partial(build, settings, splits, seed, net) for net in CONTROLS}

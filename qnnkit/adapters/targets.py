"""Which linear layers of a model an adapter is put on."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from qnnkit import checks

if TYPE_CHECKING:
    from peft import PeftConfig


LORA_TARGETS = ("q_proj", "v_proj")
"""What LoRA adapts: its paper's best use of few weights; Hu et al. (2021), arXiv:2106.09685, table 5."""


def sizes_of(layer: nn.Module) -> tuple[int, int] | None:
    """(in_features, out_features) of a linear layer or of transformers' Conv1D; None of anything else."""
    from transformers.pytorch_utils import Conv1D

    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return (layer.nx, layer.nf) if isinstance(layer, Conv1D) else None


def linear_layers(model: nn.Module) -> dict[str, tuple[int, int]]:
    """(in_features, out_features) of every linear layer by name; those of adapters are left out.

    Example:
        >>> linear_layers(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
        {'0': (4, 8), '2': (8, 2)}
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    found: dict[str, tuple[int, int]] = {}
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue
        if isinstance(module, BaseTunerLayer):
            inside.append(f"{name}.")
            module = module.get_base_layer()
        if (sizes := sizes_of(module)) is not None:
            found[name] = sizes
    return found


def matched(
    model: nn.Module, targets: Iterable[str] | str | None = None, **options: Any
) -> dict[str, tuple[int, int]]:
    """(in_features, out_features) by name of the linear layers that PEFT finds for `targets`.

    Args:
        model: The base model.
        targets: As PEFT's `target_modules`: last parts of names, a regular expression, "all-linear", or None
            for what PEFT itself adapts in models of this type.
        options: PEFT's `layers_to_transform`, `layers_pattern`, `exclude_modules`.

    Raises:
        ValueError: None is found; the message lists the names there are.

    Example:
        >>> matched(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), ["2"])
        {'2': (8, 2)}
    """
    from peft import LoraConfig

    wanted = sorted(targets) if targets is not None and not isinstance(targets, str) else targets
    return matched_by(model, LoraConfig(target_modules=wanted, **options))


def matched_by(model: nn.Module, config: PeftConfig) -> dict[str, tuple[int, int]]:
    """As `matched`, for the targets of a config, which is left as it was."""
    from peft.tuners.tuners_utils import _maybe_include_all_linear_layers, check_target_module_exists

    asked: Any = copy.copy(config)
    wanted, there = asked.target_modules, linear_layers(model)
    if wanted is None:
        asked.target_modules = set(usual(model))
    elif isinstance(wanted, str) and wanted.lower() == "all-linear":
        asked = _maybe_include_all_linear_layers(asked, model)
    found = {name: sizes for name, sizes in there.items() if check_target_module_exists(asked, name)}
    if not found:
        told = sorted(wanted) if isinstance(wanted, set | list | tuple) else wanted
        rule = "name linear layers of the model"
        raise ValueError(checks.message("target_modules", rule, told, _choices(there)))
    return found


def usual(model: nn.Module) -> list[str]:
    """What LoRA adapts in models of this type, as PEFT has it, else LORA_TARGETS; nothing where none are."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    known = USUAL.get(str(getattr(getattr(model, "config", None), "model_type", None)))
    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    return list(known or (LORA_TARGETS if names >= set(LORA_TARGETS) else ()))


def require(model: nn.Module, targets: Iterable[str] | str | None) -> None:
    """Refuses targets, as of `matched`, one of which names no layer; PEFT is content with one that does.

    Raises:
        ValueError: As said.
    """
    if targets is None or (isinstance(targets, str) and targets.lower() == "all-linear"):
        return
    names = [name for name, module in model.named_modules() if not any(module.children())]
    if isinstance(targets, str):
        lost = [] if any(re.fullmatch(targets, name) for name in names) else [targets]
    else:
        lost = sorted(each for each in targets if not any(f".{name}".endswith(f".{each}") for name in names))
    if lost:
        there = _choices(linear_layers(model))
        raise ValueError(checks.message("target_modules", "name layers of the model", lost[0], there))


def _choices(there: Iterable[str]) -> str:
    """The names to choose from: last parts of names, as PEFT takes them."""
    ends = dict.fromkeys(name if re.fullmatch(r"[\d.]+", name) else name.rsplit(".", 1)[-1] for name in there)
    if not ends:
        return "The model has no linear layer."
    return f"Its linear layers are called {', '.join(ends)}."

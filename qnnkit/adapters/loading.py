"""An adapter from a folder, checked against the model before anything is changed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from qnnkit import checks
from qnnkit.adapters.later import register
from qnnkit.adapters.sizes import on_skeleton

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def load(
    model: nn.Module, folder: str | Path, *, name: str = "default", trainable: bool = False
) -> PeftModel:
    """`PeftModel.from_pretrained` for a folder, after a look whether the adapter was made for such a model.

    Args:
        model: The base model, or a PeftModel, which gets another adapter.
        folder: Holds `adapter_config.json` and `adapter_model.safetensors`.
        name: That the adapter is given.
        trainable: Whether it trains on.

    Raises:
        FileNotFoundError: The folder or one of its files is not there.
        ValueError: The adapter is of an unknown method, or was made for other linear layers; or a PeftModel
            has an adapter of that name.

    Warns:
        UserWarning: Layers and sizes match, but the base model had another name.
    """
    register()
    from peft import PeftModel

    from qnnkit.models.blocks import seeded

    place = checks.folder("folder", folder, "Give the folder that save_pretrained wrote.")
    for file in (CONFIG, WEIGHTS):
        if not (place / file).is_file():
            step = "Give the folder that save_pretrained wrote."
            raise FileNotFoundError(checks.message("folder", f"hold {file}", str(place), step))
    there = isinstance(model, PeftModel)
    if there and name in model.peft_config:
        step = f"The model has {', '.join(model.peft_config)}."
        raise ValueError(checks.message("name", "be new to the model", name, step))
    config = _config(place)
    base: Any = model.get_base_model() if there else model
    if differs := _difference(base, config, place):
        made_for = config.base_model_name_or_path
        step = f"Load {made_for}." if made_for else "Load the base model that it was made for."
        rule = f"hold an adapter of this {type(base).__name__}"
        raise ValueError(checks.message("folder", rule, f"{place}, {differs}", step))
    ours, theirs = getattr(base, "name_or_path", "") or "", config.base_model_name_or_path or ""
    if ours and theirs and ours != theirs:
        told = (
            f"The adapter in {place} was made for {theirs}, the model is {ours}; the layers have equal sizes."
        )
        warnings.warn(told, stacklevel=2)
    # PEFT draws initial weights before it reads those in the file; nobody's generator moves for them.
    with (
        seeded(0),
        warnings.catch_warnings(),
    ):  # and it asks transformers by a name that is going to be changed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        if there:
            model.load_adapter(str(place), name, is_trainable=trainable)
            return model
        return PeftModel.from_pretrained(model, str(place), adapter_name=name, is_trainable=trainable)


def _config(folder: Path) -> PeftConfig:
    from peft import PeftConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as KNOWN

    try:
        kind = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["peft_type"]
    except (ValueError, KeyError, TypeError) as error:
        step = "Copy the folder again."
        rule = f"hold a readable {CONFIG}"
        raise ValueError(checks.message("folder", rule, str(folder), f"{step} ({error})")) from None
    checks.choice("peft_type", kind, sorted(str(known.value) for known in KNOWN))
    return PeftConfig.from_pretrained(str(folder))


def _difference(base: nn.Module, config: PeftConfig, folder: Path) -> str | None:
    """The first thing by which the weights in a folder do not fit the model; None if all do."""
    from peft import get_peft_model_state_dict
    from safetensors import SafetensorError, safe_open

    try:
        expected = get_peft_model_state_dict(on_skeleton(base, config), save_embedding_layers=False)
    except ValueError as error:
        return f"whose layers are not in this model ({error})"
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            found = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        return f"whose {WEIGHTS} is damaged ({error})"
    for key, weight in expected.items():
        if key not in found:
            return f"which lacks {key}"
        if found[key] != tuple(weight.shape):
            return f"where {key} has the shape {found[key]} and not {tuple(weight.shape)}"
    more = [key for key in found if key not in expected]
    if more and not getattr(config, "modules_to_save", None):
        return f"which has {more[0]} beside what this model takes"
    return None

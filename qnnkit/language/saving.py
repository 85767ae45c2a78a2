"""Language models as folders that plain transformers and PEFT load."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace


def save_adapter(model: Any, tokenizer: Any, folder: str | Path, training_config: Any = None) -> Path:
    """Writes an adapter: what `adapters.load(base, folder)`, or PEFT, loads; whole, or not at all.

    The folder holds `adapter_config.json`, `adapter_model.safetensors`, the tokenizer's files and
    `training_config.json`. The weights of the base are not in it. An earlier save there is replaced.

    Args:
        model: A model with an adapter.
        tokenizer: The one that it was trained with.
        folder: Where to.
        training_config: A Settings or a dictionary of plain values; None writes none.

    Returns:
        The folder's absolute path.

    Raises:
        ValueError: The model has no adapter.
        FileExistsError: Something else is in the folder.
        OSError: It cannot be written.
    """
    if not _is_adapted(model):
        step = "Save a whole model by save_model."
        raise ValueError(checks.message("model", "have an adapter", type(model).__name__, step))
    return _save(model, tokenizer, folder, training_config)


def save_model(model: Any, tokenizer: Any, folder: str | Path, training_config: Any = None) -> Path:
    """Writes a whole model: what `AutoModelForCausalLM.from_pretrained(folder)` loads; or nothing at all.

    The folder holds `config.json`, `model.safetensors`, the tokenizer's files and `training_config.json`.
    An earlier save there is replaced. From then on the model is named after the folder, so that an adapter
    to it says what it belongs to.

    Raises:
        ValueError: The model has an adapter that is not merged.
        FileExistsError: Something else is in the folder.
        OSError: It cannot be written.
    """
    if _is_adapted(model):
        step = "Save it by save_adapter, or merge(model) first."
        raise ValueError(checks.message("model", "have no adapter", type(model).__name__, step))
    path = _save(model, tokenizer, folder, training_config)
    model.name_or_path = model.config._name_or_path = str(path)
    return path


def merge(model: Any, *, in_place: bool = False) -> Any:
    """The model with its adapter worked into its weights: a plain model of transformers, without PEFT.

    Args:
        model: Stays as it is: what is merged is a copy, which takes the memory of the model once more.
        in_place: Uses `model` up, without a copy.

    Raises:
        ValueError: The model has no adapter.
        NotImplementedError: The method cannot be merged, as one that adds tokens or computes per token.
    """
    if not _is_adapted(model):
        raise ValueError(
            checks.message(
                "model", "have an adapter", type(model).__name__, "It is whole: save_model saves it."
            )
        )
    reason = "has no merge_and_unload"
    with warnings.catch_warnings(action="ignore"):
        try:
            if not model.active_peft_config.is_prompt_learning:
                return (model if in_place else copy.deepcopy(model)).merge_and_unload()
            reason = "adds tokens to the input"
        except (AttributeError, NotImplementedError, ValueError) as error:
            reason = str(error).strip().split("\n")[0].rstrip(".") or reason
    rule = "have an adapter that can be merged, such as lora or vera"
    told = str(getattr(model.active_peft_config.peft_type, "value", model.active_peft_config.peft_type))
    step = f"Save it by save_adapter ({reason})."
    raise NotImplementedError(checks.message("model", rule, told.lower(), step))


def _is_adapted(model: Any) -> bool:
    from peft import PeftModel

    return isinstance(model, PeftModel)


def _save(model: Any, tokenizer: Any, folder: str | Path, training_config: Any) -> Path:
    with workspace.whole_folder(folder) as draft:
        with warnings.catch_warnings(action="ignore"):  # that a base could not be asked for on the Hub
            model.save_pretrained(str(draft))
        tokenizer.save_pretrained(str(draft))
        if training_config is not None:
            plain = getattr(training_config, "model_dump", lambda mode: training_config)(mode="json")
            workspace.write_json(draft / "training_config.json", plain)
    return Path(folder).expanduser().absolute()

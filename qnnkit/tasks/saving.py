"""Language models as folders that plain transformers and PEFT load."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

from qnnkit import checks, words, workspace


def adapted(model: Any) -> bool:
    """Whether a model has an adapter of PEFT."""
    return hasattr(model, "active_peft_config")


def save(model: Any, tokenizer: Any, folder: str | Path, settings: Any = None) -> Path:
    """Writes a language model, whole or not at all; of one with an adapter the adapter alone.

    A model is what `AutoModelForCausalLM.from_pretrained(folder)` loads, and is named after the folder from
    then on, so that its adapters name it; an adapter is what `adapters.load(base, folder)`, or PEFT, loads.
    The tokenizer's files lie beside it. An earlier save there is replaced.

    Args:
        model: One of transformers, with an adapter or without.
        tokenizer: The one that it was trained with.
        folder: Where to.
        settings: A Settings or a dictionary of plain values, for `training_config.json`; None writes none.

    Returns:
        The folder's absolute path.

    Raises:
        FileExistsError: Something else is in the folder.
        OSError: It cannot be written.
    """
    with workspace.whole_folder(folder) as draft:
        with warnings.catch_warnings(action="ignore"):  # that a base could not be asked for on the Hub
            model.save_pretrained(str(draft))
        tokenizer.save_pretrained(str(draft))
        if settings is not None:
            plain = getattr(settings, "model_dump", lambda mode: settings)(mode="json")
            workspace.write_json(draft / "training_config.json", plain)
    path = Path(folder).expanduser().absolute()
    if not adapted(model):
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
    if not adapted(model):
        kind, step = type(model).__name__, "It is whole: tasks.save saves it."
        raise ValueError(checks.message("model", "have an adapter", kind, step))
    reason = "has no merge_and_unload"
    with warnings.catch_warnings(action="ignore"):
        try:
            if not model.active_peft_config.is_prompt_learning:
                return (model if in_place else copy.deepcopy(model)).merge_and_unload()
            reason = "adds tokens to the input"
        except (AttributeError, NotImplementedError, ValueError) as error:
            reason = words.first_line(error) if str(error) else reason
    rule = "have an adapter that can be merged, such as lora or vera"
    told = str(getattr(model.active_peft_config.peft_type, "value", model.active_peft_config.peft_type))
    raise NotImplementedError(checks.message("model", rule, told.lower(), f"Save it as it is ({reason})."))

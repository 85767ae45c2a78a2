"""Saving language models as folders that transformers and PEFT load without qnnkit."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnkit import adapters, checks, workspace


def adapted(model: Any) -> bool:
    """Returns whether a model has a PEFT adapter."""
    return hasattr(model, "active_peft_config")


def save(
    model: Any,
    tokenizer: Any,
    folder: str | Path,
    settings: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
) -> Path:
    """Writes a language model, or only its adapter if it has one, completely or not at all.

    `AutoModelForCausalLM.from_pretrained(folder)` loads a model; the model is named after the folder from
    then on, so that its adapters refer to it. `adapters.load(base, folder)`, or PEFT, loads an adapter.
    The tokenizer and a model card are in the same folder. An earlier save there is replaced.

    The base model of an adapter is named so that other machines find it: by its path from the workspace if it
    is there (`./runs/base/model`), by its path from the adapter if it is in another run, else unchanged.

    Args:
        model: A model of transformers, with or without an adapter.
        tokenizer: The tokenizer that it was trained with.
        folder: Destination.
        settings: Plain values for `training_config.json`; None writes no such file.
        facts: Rows of the model card's table, such as the data and the score.

    Returns:
        The folder's absolute path.

    Raises:
        FileExistsError: The folder contains something else.
        OSError: It cannot be written.
    """
    path = Path(folder).expanduser().absolute()
    with workspace.whole_folder(path) as draft:
        with warnings.catch_warnings(action="ignore"):  # that the Hub could not be asked for the base
            model.save_pretrained(str(draft))
        tokenizer.save_pretrained(str(draft))
        base = ""
        for file in sorted(draft.rglob("adapter_config.json"), reverse=True):  # the folder's own file is last
            described = json.loads(file.read_text())
            base = described["base_model_name_or_path"] = _base_name(described, path)
            workspace.write_bytes(file, json.dumps(described, indent=2, sort_keys=True).encode())
        workspace.write_bytes(draft / "README.md", _card(model, path, base, facts or {}).encode())
        if settings is not None:
            workspace.write_json(draft / "training_config.json", settings)
    if not adapted(model):
        model.name_or_path = model.config._name_or_path = str(path)
    return path


def _base_name(described: Mapping[str, Any], folder: Path) -> str:
    """Returns a name of the base of an adapter in `folder` that is valid on other machines."""
    name = workspace.portable(described.get("base_model_name_or_path") or "")
    if Path(name).is_absolute() and (Path(name).parent / "provenance.json").exists():  # of a run
        return os.path.relpath(name, folder)
    return name


def _card(model: Any, folder: Path, base: str, facts: Mapping[str, str]) -> str:
    """Returns the README.md of a saved model: its facts, and code that loads it without qnnkit."""
    name, read, rows = folder.name, "AutoModelForCausalLM.from_pretrained", {}
    library, load = "transformers", [f'model = {read}("{name}")']
    if adapted(model):
        base = Path(base).name if Path(base).is_absolute() else base
        numbers, rank = adapters.count(model), getattr(model.active_peft_config, "r", None)
        kind = adapters.QUANTUM_PEFT if vars(model).get("circuits") else _method(model)
        rows = {"base model": f"`{base}`", "method": f"{kind}, r {rank}" if rank else kind}
        rows["weights"] = f"{numbers['weights']:,} trained, {numbers['angles']:,} of circuits"
        library, load = "peft", [f'base = {read}("{base}")', "from peft import PeftModel"]
        load.append(f'model = PeftModel.from_pretrained(base, "{name}")')
    lines = ["---", f"library_name: {library}", "tags: [qnnkit]", "---", "", f"# {name}", ""]
    lines += ["|  |  |", "|---|---|", *(f"| {key} | {value} |" for key, value in {**rows, **facts}.items())]
    lines += ["", "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", *load]
    return "\n".join([*lines, f'tokenizer = AutoTokenizer.from_pretrained("{name}")', "```", ""])


def _method(model: Any) -> str:
    return str(model.active_peft_config.peft_type).rpartition(".")[2].lower()


def merge(model: Any, *, in_place: bool = False) -> Any:
    """Merges the adapter into the weights of its model; returns a model of transformers without PEFT.

    If the adapter changes one of two tied layers (embedding and head), they are no longer tied.

    Args:
        model: A model with an adapter. It does not change, because a copy is merged, which takes the model's
            memory once more.
        in_place: Merges `model` itself, without a copy.

    Raises:
        ValueError: The model has no adapter.
        NotImplementedError: The method cannot be merged, because it adds tokens or computes per token.
    """
    if not adapted(model):
        kind, step = type(model).__name__, "It needs no merging: save it with tasks.save."
        raise ValueError(checks.message("model", "have an adapter", kind, step))
    model = model if in_place else copy.deepcopy(model)
    weights = [weight for module in model.modules() for weight in module.parameters(recurse=False)]
    for layer in model.modules():
        weight = getattr(getattr(layer, "base_layer", None), "weight", None)
        if sum(weight is each for each in weights) > 1:  # of a tied layer, which PEFT would change too
            layer.base_layer.weight = copy.deepcopy(weight)
            model.get_base_model().config.tie_word_embeddings = False
    with warnings.catch_warnings(action="ignore"):
        try:
            return model.merge_and_unload()
        except (AttributeError, NotImplementedError, ValueError) as error:
            rule, step = "have an adapter that can be merged, such as lora or vera", f"PEFT says: {error}."
            raise NotImplementedError(checks.message("model", rule, _method(model), step)) from None

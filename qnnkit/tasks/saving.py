"""Language models as folders that plain transformers and PEFT load."""

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
    """Whether a model has an adapter of PEFT."""
    return hasattr(model, "active_peft_config")


def save(
    model: Any,
    tokenizer: Any,
    folder: str | Path,
    settings: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
) -> Path:
    """Writes a language model, whole or not at all; of one with an adapter the adapter alone.

    A model is what `AutoModelForCausalLM.from_pretrained(folder)` loads, and is named after the folder from
    then on, so that its adapters name it; an adapter is what `adapters.load(base, folder)`, or PEFT, loads.
    The tokenizer and a model card are in the same folder. An earlier save there is replaced.

    An adapter names its base as other machines can: a base in the workspace by its path from there
    (`./runs/base/model`), one in a run elsewhere by its path from the adapter, any other as it was given.

    Args:
        model: One of transformers, with an adapter or without.
        tokenizer: The one that it was trained with.
        folder: Where to.
        settings: Plain values for `training_config.json`; None writes none.
        facts: Rows of the model card's table, such as the data and the score.

    Returns:
        The folder's absolute path.

    Raises:
        FileExistsError: Something else is in the folder.
        OSError: It cannot be written.
    """
    path = Path(folder).expanduser().absolute()
    with workspace.whole_folder(path) as draft:
        with warnings.catch_warnings(action="ignore"):  # that a base could not be asked for on the Hub
            model.save_pretrained(str(draft))
        tokenizer.save_pretrained(str(draft))
        base = ""
        for file in sorted(draft.rglob("adapter_config.json"), reverse=True):  # that of the folder is last
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
    """The base of an adapter in `folder`, by a name that holds on other machines."""
    base = described.get("base_model_name_or_path") or ""
    name = workspace.portable(base)
    if Path(name).is_absolute() and (Path(name).parent / "provenance.json").exists():  # of a run
        return os.path.relpath(name, folder)
    return name


def _card(model: Any, folder: Path, base: str, facts: Mapping[str, str]) -> str:
    """README.md of a saved model: what it is, what it was trained on, and how plain libraries load it."""
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
    with warnings.catch_warnings(action="ignore"):
        try:
            return (model if in_place else copy.deepcopy(model)).merge_and_unload()
        except (AttributeError, NotImplementedError, ValueError) as error:
            rule, step = "have an adapter that can be merged, such as lora or vera", f"PEFT says: {error}."
            raise NotImplementedError(checks.message("model", rule, _method(model), step)) from None

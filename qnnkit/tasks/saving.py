"""Language models as folders that plain transformers and PEFT load."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnkit import adapters, checks, words, workspace


def adapted(model: Any) -> bool:
    """Whether a model has an adapter of PEFT."""
    return hasattr(model, "active_peft_config")


def save(
    model: Any,
    tokenizer: Any,
    folder: str | Path,
    settings: Any = None,
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
        settings: A Settings or a dictionary of plain values, for `training_config.json`; None writes none.
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
        workspace.write_bytes(draft / "README.md", _card(model, tokenizer, path, base, facts or {}).encode())
        if settings is not None:
            plain = getattr(settings, "model_dump", lambda mode: settings)(mode="json")
            workspace.write_json(draft / "training_config.json", plain)
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


CARD = """\
---
library_name: {library}
tags: [qnnkit]{on_hub}
---

# {name}

|  |  |
|---|---|
{rows}

Without qnnkit:

```python
{load}
```

{where}"""


def _card(model: Any, tokenizer: Any, folder: Path, base: str, facts: Mapping[str, str]) -> str:
    """README.md of a saved model: what it is, what it was trained on, and how plain libraries load it."""
    name, library = folder.name, "peft" if adapted(model) else "transformers"
    given = Path(base).name if Path(base).is_absolute() else base or "BASE"
    load = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if adapted(model):
        chosen, numbers = model.active_peft_config, adapters.count(model)
        method = str(getattr(chosen.peft_type, "value", chosen.peft_type)).lower()
        if getattr(model, "circuits", {}):
            method = f"{adapters.QUANTUM_PEFT}: circuits gave the weights of {method}"
        sizes = [f"{key} {getattr(chosen, key)}" for key in ("r", "lora_alpha") if hasattr(chosen, key)]
        weights = f"{numbers['weights']:,} trained, {numbers['angles']:,} of circuits"
        rows = {"base model": f"`{given}`", "method": " ".join([method, *sizes])}
        rows["weights of the adapter"] = weights
        load = ["from peft import PeftModel", *load]
        load.append(f'base = AutoModelForCausalLM.from_pretrained("{given}")')
        load.append(f'model = PeftModel.from_pretrained(base, "{name}")  # this folder')
    else:
        rows = {"weights": f"{sum(each.numel() for each in model.parameters()):,}"}
        load.append(f'model = AutoModelForCausalLM.from_pretrained("{name}")  # this folder')
    if hasattr(tokenizer, "chat_template"):  # one of transformers
        load.append(f'tokenizer = AutoTokenizer.from_pretrained("{name}")')
    is_on_hub = base.count("/") == 1 and not base.startswith(("/", "."))
    return CARD.format(
        name=name,
        library=library,
        on_hub=f"\nbase_model: {base}" if is_on_hub else "",
        rows="\n".join(f"| {key} | {value} |" for key, value in {**rows, **facts}.items()),
        load="\n".join(load),
        where="A path that begins with `./` is seen from the workspace.\n" * given.startswith("./"),
    )


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

"""An adapter put on a model, new or from a folder: tried on a skeleton of it before anything is changed."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from qnnkit import checks
from qnnkit.adapters.later import register
from qnnkit.adapters.sizes import config
from qnnkit.adapters.skeleton import on_skeleton
from qnnkit.adapters.targets import require, usual

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SEEDS = ("seed", "projection_prng_key")
"""Settings from which quantum adapters draw angles, and VeRA its projections."""


def adapt(
    model: nn.Module,
    name: str = "lora",
    *,
    n_weights: int | None = None,
    targets: Iterable[str] | str | None = None,
    seed: int = 0,
    **options: Any,
) -> PeftModel:
    """`model`, changed in place, with the few weights of a PEFT method to train; its own are frozen.

    Args:
        model: One without an adapter.
        name: "lora", "vera", "quantum_peft" or another method that PEFT knows.
        n_weights: About how many weights it trains; None leaves that to `options` and the defaults.
        targets: As PEFT's `target_modules`; None for what PEFT adapts in models of this type.
        seed: Fixes initial weights, a circuit's angles and VeRA's projections among them; the caller's
            generators are left alone.
        options: Other settings of the method's configuration.

    Raises:
        ValueError: As of `config`; or there is an adapter already, a target names no layer, or PEFT refuses.
            The model is then as it was.

    Example:
        >>> model = adapt(nn.Sequential(nn.Linear(8, 8)), "lora", targets=["0"], r=2)
        >>> sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        32
    """
    from peft import get_peft_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    from qnnkit.models.blocks import seeded

    if hasattr(model, "peft_config") or any(isinstance(each, BaseTunerLayer) for each in model.modules()):
        step = "Merge it first, build the model anew, or put a saved one beside it by adapters.load."
        raise ValueError(checks.message("model", "have no adapter yet", type(model).__name__, step))
    chosen: Any = config(name, n_weights=n_weights, model=model, targets=targets, **options)
    for own in SEEDS:  # these methods draw from a number of their own, whatever the generators' state
        if hasattr(chosen, own) and own not in options:
            setattr(chosen, own, seed)
    if chosen.task_type is None and callable(getattr(model, "generate", None)):
        chosen.task_type = "CAUSAL_LM"  # so that PEFT's own classes load it by its folder alone
    require(model, getattr(chosen, "target_modules", None))
    try:
        try:
            on_skeleton(model, chosen)
        except (ValueError, AttributeError) as error:  # PEFT knows no usual targets of this method
            if targets is not None or "target_module" not in str(error) or not usual(model):
                raise
            chosen.target_modules = usual(model)
            on_skeleton(model, chosen)
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        step = f"It says: {_first_line(error)}."
        raise ValueError(checks.message("name", "be one that PEFT can build here", name, step)) from None
    with seeded(seed), warnings.catch_warnings(action="ignore"):  # PEFT warns of what it then does right
        return get_peft_model(model, chosen)  # type: ignore[arg-type]


def load(
    model: nn.Module, folder: str | Path, name: str = "default", *, trainable: bool = False
) -> PeftModel:
    """Puts a saved adapter on its base model, beside those that it has already, and switches to it.

    Args:
        model: The base model, changed in place, or a PeftModel, which gets another adapter. Of several,
            `set_adapter(name)` of the result says which one counts.
        folder: Holds `adapter_config.json` and `adapter_model.safetensors`, of any PEFT method.
        name: That the adapter is given.
        trainable: Whether it trains on; if not, all weights are frozen.

    Raises:
        FileNotFoundError: The folder or one of its files is not there.
        ValueError: The adapter is of an unknown method, or was made for another base model; or a PeftModel
            has an adapter of that name. The model is then as it was.

    Warns:
        UserWarning: Layers and sizes match, but the base model had another name.
    """
    register()
    from peft import PeftModel

    place = checks.folder("folder", folder, "Give the folder that save_pretrained wrote.")
    for file in (CONFIG, WEIGHTS):
        if not (place / file).is_file():
            step = "Give the folder that save_pretrained wrote."
            raise FileNotFoundError(checks.message("folder", f"hold {file}", str(place), step))
    there = isinstance(model, PeftModel)
    if there and name in model.peft_config:
        step = f"The model has {', '.join(model.peft_config)}."
        raise ValueError(checks.message("name", "be new to the model", name, step))
    saved = _config(place)
    base: Any = model.get_base_model() if there else model
    made_for = saved.base_model_name_or_path or ""
    if differs := _difference(model, saved, place, name):
        step = f"Load {made_for}." if made_for else "Load the base model that it was made for."
        rule = f"hold an adapter of this {type(base).__name__}"
        raise ValueError(checks.message("folder", rule, f"{place}, {differs}", step))
    ours = getattr(base, "name_or_path", "") or ""
    if ours and made_for and ours != made_for:
        sizes = "the layers have equal sizes"
        told = f"The adapter in {place} was made for {made_for}, the model is {ours}; {sizes}."
        warnings.warn(told, stacklevel=2)
    with _reading():
        if there:
            model.load_adapter(str(place), name, is_trainable=trainable)
        else:
            model = PeftModel.from_pretrained(model, str(place), name, is_trainable=trainable)
        model.set_adapter(name)
    if not trainable:
        model.requires_grad_(False)
    return model


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """PEFT draws initial weights before it reads those in a file; nobody's generator moves for them."""
    from qnnkit.models.blocks import seeded

    with seeded(0), warnings.catch_warnings(action="ignore"):
        yield


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__


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


def _difference(model: nn.Module, saved: PeftConfig, folder: Path, name: str) -> str | None:
    """The first thing by which the weights in a folder do not fit the model; None if all do."""
    from peft import get_peft_model_state_dict
    from safetensors import SafetensorError, safe_open

    try:
        whole = on_skeleton(model, saved, name)
        expected = get_peft_model_state_dict(whole, adapter_name=name, save_embedding_layers=False)
    except Exception as error:  # PEFT has an error of its own for each way in which layers differ
        return f"which cannot be put on it ({_first_line(error)})"
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
    more = sorted(
        found.keys() - expected.keys() - whole.state_dict().keys()
    )  # embeddings may be saved beside
    return f"which has {more[0]} beside what this model takes" if more else None

"""Adding adapters to a model: choosing their size, counting, saving and loading them."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from qnnkit import checks, workspace
from qnnkit.adapters.sources import CIRCUIT, QUANTUM_PEFT, WEIGHTS, Circuits, QuantumPeftConfig, matched
from qnnkit.layers import count_parameters
from qnnkit.models.blocks import seeded

if TYPE_CHECKING:
    from peft import PeftModel

CONFIG = "adapter_config.json"


def adapt(model: nn.Module, name: str = "lora", *, seed: int = 0, **options: Any) -> PeftModel:
    """Freezes `model` and adds an adapter: a method of PEFT, or circuits that compute LoRA's weights.

    Args:
        model: A model without an adapter; changed in place.
        name: "quantum_peft", "lora", "vera" or another method of PEFT.
        seed: Fixes the initial weights, including circuits' angles and VeRA's projections; the caller's
            generators do not change.
        options: As in `config`: `n_weights`, `targets`, and settings of the method.

    Raises:
        ValueError: As in `config`; or the model has an adapter already, a target names no layer, or PEFT
            raises an error. The model is unchanged then.

    Example:
        >>> model = adapt(nn.Sequential(nn.Linear(8, 8)), "quantum_peft", targets=["0"])
        >>> count(model)
        {'weights': 34, 'angles': 30}
    """
    if hasattr(model, "peft_config"):
        step = "Merge it first, build the model again, or add a saved one with adapters.load."
        raise ValueError(checks.message("model", "have no adapter yet", type(model).__name__, step))
    chosen = config(model, name, **options)
    for key in ("seed", "projection_prng_key"):  # seeds of circuits and of VeRA, which use no generator
        if hasattr(chosen, key) and key not in options:
            setattr(chosen, key, seed)
    if chosen.task_type is None and callable(getattr(model, "generate", None)):
        chosen.task_type = "CAUSAL_LM"  # so that PEFT's own classes load it from its folder
    trial(model, chosen)
    return _put(model, chosen, seed=seed)


def load(
    model: nn.Module, folder: str | Path, name: str = "default", *, trainable: bool = False
) -> PeftModel:
    """Adds a saved adapter to its base model, next to those that it has already, and activates it.

    Args:
        model: The base model, changed in place, or a PeftModel, which gets another adapter. If there are
            several, `set_adapter(name)` of the result activates one.
        folder: Folder with `adapter_config.json` and `adapter_model.safetensors`, of any PEFT method.
        name: Name of the adapter in the model.
        trainable: Whether to continue training, with its circuits if the folder has `circuit.safetensors`. If
            not, all weights are frozen and circuits are not computed.

    Raises:
        FileNotFoundError: The folder or one of its files does not exist.
        ValueError: The adapter is of an unknown method, was made for another base model, or has other weights
            than its circuits; or the PeftModel has an adapter of that name. The model is unchanged then.

    Warns:
        UserWarning: Layers and sizes match, but the base model has a different name.
    """
    from peft import PeftConfig, PeftModel

    place = checks.folder("folder", folder, "Give the folder that save_pretrained wrote.")
    if not (place / WEIGHTS).is_file():
        step = "Give the folder that save_pretrained wrote."
        raise FileNotFoundError(checks.message("folder", f"hold {WEIGHTS}", str(place), step))
    extends = isinstance(model, PeftModel)
    if extends and name in model.peft_config:
        step = f"The model has {', '.join(model.peft_config)}."
        raise ValueError(checks.message("name", "be a new name in the model", name, step))
    base: Any = model.get_base_model() if extends else model
    with _refusing("folder", f"hold a readable {CONFIG}", str(place)):
        saved, made_for = PeftConfig.from_pretrained(str(place)), base_of(place)
    rule = f"hold an adapter of this {type(base).__name__}, and it was made for {made_for or 'another'}"
    with _refusing("folder", rule, str(place)), warnings.catch_warnings(action="ignore"):
        tried: Any = trial(model, saved, name)
        left = tried.load_adapter(str(place), name, torch_device="cpu", low_cpu_mem_usage=True)
        # PEFT 0.20 lists VeRA's shared matrices here although it has read them.
        unlike = [key for key in left.missing_keys + left.unexpected_keys if ".vera_" not in key]
        if unlike and not saved.is_prompt_learning:  # PEFT loads those in another way
            raise ValueError(f"only one of them has {unlike[0]}")
    with _refusing("folder", f"hold in {CIRCUIT} the circuits of its weights, or no such file", str(place)):
        circuits = Circuits.read(place) if trainable and (place / CIRCUIT).is_file() else None
    ours = getattr(base, "name_or_path", "") or ""
    if ours and made_for and Path(ours).resolve() != Path(made_for).resolve():
        warnings.warn(f"The adapter in {place} was made for {made_for}, the model is {ours}.", stacklevel=2)
    with seeded(0), warnings.catch_warnings(action="ignore"):  # PEFT draws weights before it loads them
        if extends:
            model.load_adapter(str(place), name, is_trainable=trainable)
        else:
            model = PeftModel.from_pretrained(model, str(place), name, is_trainable=trainable)
        model.set_adapter(name)
    if not trainable:
        model.requires_grad_(False)
    elif circuits:
        _connect(model, name, circuits)
    return model


def base_of(folder: Path) -> str:
    """Returns the name or folder of the base model of a saved adapter; "" if it is not recorded.

    A relative path is looked up in the folders around the adapter, and in the workspace.

    Args:
        folder: The adapter's folder, a `pathlib.Path`.
    """
    stored = (workspace.read_json(folder / CONFIG) or {}).get("base_model_name_or_path") or ""
    if not stored.startswith("."):
        return stored
    around = [folder, *folder.absolute().parents, workspace.home()]
    return next((str((each / stored).resolve()) for each in around if (each / stored).is_dir()), stored)


def config(
    model: nn.Module, name: str, *, n_weights: int | None = None, targets: Any = None, **options: Any
) -> Any:
    """Returns the configuration of an adapter with about `n_weights` trained weights.

    LoRA's alpha is twice its rank by default.

    Args:
        model: The base model, whose layers determine the count; it is not changed.
        name: As in `adapt`.
        n_weights: Number of trained weights, above 0; None uses `options` and the defaults.
        targets: PEFT's `target_modules`; None takes PEFT's default for models of this type.
        options: Other settings of the configuration, such as `r`; for "quantum_peft" those of
            `QuantumPeftConfig`.

    Returns:
        A PeftConfig, or a `QuantumPeftConfig`.

    Raises:
        ValueError: The name is unknown, or has no rank that could be chosen for `n_weights`; an option is not
            one of its settings, or `targets` match nothing.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        >>> config(model, "lora", n_weights=1000, targets=["0", "2"]).r
        4
    """
    cls = _known()[checks.choice("name", name, sorted(_known()))]
    targets = targets or options.get("target_modules")
    targets = targets or getattr(getattr(model, "config", None), "usual_targets", None)  # unknown to PEFT
    if targets:
        options["target_modules"] = wanted = targets if isinstance(targets, str) else list(targets)
        layers = {key: type(each).__name__ for key, each in model.named_modules()}
        for each in () if isinstance(wanted, str) else wanted:  # PEFT accepts targets if any matches
            if not any(f".{key}".endswith(f".{each}") for key in layers):
                linear = {key.rsplit(".")[-1] for key in layers if layers[key] in ("Linear", "Conv1D")}
                step = f"Its linear layers are called {', '.join(sorted(linear))}."
                raise ValueError(checks.message("target_modules", "name layers of the model", each, step))
    for option in options:
        checks.choice("options", option, sorted(field.name for field in fields(cls)))
    if n_weights is not None:
        options |= _matched(model, cls, n_weights, options)
    if name == "lora" and "lora_alpha" not in options:
        options["lora_alpha"] = 2 * options.get("r", cls().r)
    with _refusing("options", f"make a {cls.__name__}", options):
        return cls(**options)


def _matched(model: nn.Module, cls: Any, n_weights: int, options: dict[str, Any]) -> dict[str, int]:
    """Returns the settings with which a method trains about `n_weights` weights of a model.

    Among equally near combinations, it takes the most usual one. Circuits with `train_circuit=False` get the
    size of trained ones, so that they differ in nothing else.

    Args:
        model: The base model; it is not changed.
        cls: Configuration class of the method.
        n_weights: Number of trained weights, above 0.
        options: Other settings of the method; sizes that they set are kept.
    """
    checks.positive("n_weights", n_weights)
    if cls is QuantumPeftConfig:
        return matched(n_weights, _sizes(trial(model, cls(**options).lora())), options)
    if "r" in options or not hasattr(cls(), "r"):
        step = "Leave n_weights out, and give the settings that decide the size."
        raise ValueError(checks.message("name", "have a rank r to choose", cls.__name__, step))
    one, two = (count(trial(model, cls(**options, r=r)))["weights"] for r in (1, 2))  # linear in the rank
    return {"r": max(1, round(1 + (n_weights - one) / (two - one))) if two > one else 1}


def size(model: nn.Module, name: str, **options: Any) -> int:
    """Returns the number of weights that an adapter would train; arguments and errors are those of `config`.

    The model is not changed.
    """
    return count(trial(model, config(model, name, **options)))["weights"]


def names() -> list[str]:
    """Returns the names for `config` of all methods that adapt layers."""
    return sorted(name for name, cls in _known().items() if "target_modules" in cls.__dataclass_fields__)


def count(model: nn.Module) -> dict[str, int]:
    """Counts the trained (not frozen) `weights` of a model, and the `angles` of circuits among them."""
    numbers = count_parameters(model)
    return {"weights": numbers["quantum"] + numbers["classical"], "angles": numbers["quantum"]}


@contextlib.contextmanager
def once(model: nn.Module) -> Iterator[None]:
    """Computes circuits of adapters at most once inside the context, where angles must not change."""
    outer = [each for each in vars(model).get("circuits", {}).values() if each.cached is None]
    for circuits in outer:
        circuits.cached = {}
    try:
        yield
    finally:
        for circuits in outer:
            circuits.cached = None


# --- on the model ----------------------------------------------------------------------------------


class _WithCircuits:
    """Methods that a PeftModel overrides if circuits compute LoRA's weights."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with once(self):
            return super().forward(*args, **kwargs)  # type: ignore[misc]

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        with once(self):
            return super().generate(*args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self: Any, save_directory: str, **kwargs: Any) -> None:
        """Writes LoRA's weights in PEFT's own format, and the circuits next to them."""
        state = {key: each for key, each in self.state_dict().items() if ".parametrizations." not in key}
        present = {name: each for name, each in self.circuits.items() if name in self.peft_config}
        with once(self), torch.no_grad():
            for name, circuits in present.items():
                for each in circuits.sources:
                    state[f"base_model.model.{each.layer}.{each.side}.{name}.weight"] = each()
        super().save_pretrained(save_directory, **kwargs, state_dict=state)  # type: ignore[misc]
        for name, circuits in present.items():
            if name in (kwargs.get("selected_adapters") or present):
                circuits.save(Path(save_directory, "" if name == "default" else name) / CIRCUIT)


def _put(model: Any, chosen: Any, name: str = "default", *, seed: int = 0) -> PeftModel:
    """Adds an adapter to the model in place, and returns it as a PeftModel."""
    from peft import PeftModel, get_peft_model

    ours = isinstance(chosen, QuantumPeftConfig)
    peft_config: Any = chosen.lora() if ours else copy.deepcopy(chosen)
    with seeded(seed), warnings.catch_warnings(action="ignore"):  # PEFT warns of cases that it handles
        if isinstance(model, PeftModel):
            model.add_adapter(name, peft_config)
        else:
            model = get_peft_model(model, peft_config, name)
    if ours:
        sizes = _sizes(model, name)
        first: Any = model.get_submodule(f"base_model.model.{next(iter(sizes))}.lora_A.{name}")
        _connect(model, name, Circuits(chosen, sizes, first.weight))
    return model


def _connect(model: Any, name: str, circuits: Circuits) -> None:
    """Makes the circuits compute the weights of an adapter of the model."""
    for source in circuits.sources:
        linear = model.get_submodule(f"base_model.model.{source.layer}.{source.side}.{name}")
        source.to(linear.weight.device).requires_grad_(linear.weight.requires_grad)
        parametrize.register_parametrization(linear, "weight", source, unsafe=True)
    if "circuits" not in vars(model):
        model.circuits = {}
        model.__class__ = type(type(model).__name__, (_WithCircuits, type(model)), {})
    model.circuits[name] = circuits


def _sizes(model: Any, name: str = "default") -> dict[str, tuple[int, int]]:
    """Returns {name in the base model: (in_features, out_features)} for the layers of a LoRA adapter."""
    from peft.tuners.lora import LoraLayer

    sizes = {}
    for key, layer in model.get_base_model().named_modules():
        if isinstance(layer, LoraLayer) and name in layer.r:
            if name not in layer.lora_A or not isinstance(layer.lora_A[name], nn.Linear):
                step = "Leave it out."
                raise ValueError(checks.message("target_modules", "name linear layers", key, step))
            sizes[key] = layer.in_features, layer.out_features
    return sizes


def trial(model: nn.Module, chosen: Any, name: str = "default") -> PeftModel:
    """Returns a copy of the model with the adapter, whose weights take no memory; the model is not changed.

    Raises:
        ValueError: PEFT raises an error, or a target names no layer.
    """
    empty: dict[int, Any] = {}
    for weight in model.parameters():
        bare = empty[id(weight)] = nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)
        vars(bare).update(vars(weight))  # how 4-bit weights are stored, which PEFT reads
    with _refusing("name", "fit this model by its shapes", type(chosen).__name__), torch.device("meta"):
        return _put(copy.deepcopy(model, dict(empty)), chosen, name)


@contextlib.contextmanager
def _refusing(argument: str, rule: str, value: Any) -> Iterator[None]:
    """Turns PEFT's errors into a ValueError of one sentence."""
    try:
        yield
    except Exception as error:  # PEFT has many kinds, one for each way in which layers differ
        if isinstance(message := next(iter(error.args), None), checks.Message) and message.parts[0] != "name":
            raise
        step = f"Error: {' '.join(str(error).split()[:40]).rstrip('.')}."
        raise ValueError(checks.message(argument, rule, value, step)) from error


def _known() -> dict[str, Any]:
    """Returns {name: configuration class} for every method of PEFT and for `quantum_peft`."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as KNOWN

    classes = {str(getattr(kind, "value", kind)).lower(): cls for kind, cls in KNOWN.items()}
    return classes | {QUANTUM_PEFT: QuantumPeftConfig}

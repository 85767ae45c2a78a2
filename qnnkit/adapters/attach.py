"""Adapters on a model: sized, put on, counted, saved and loaded."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from qnnkit import checks, words
from qnnkit.adapters import files
from qnnkit.adapters.sources import SOURCES, CircuitConfig, Circuits
from qnnkit.models.blocks import seeded

if TYPE_CHECKING:
    from peft import PeftModel

CONFIG = "adapter_config.json"
LORA_TARGETS = ["q_proj", "v_proj"]
"""What LoRA adapts: its paper's best use of few weights; Hu et al. (2021), arXiv:2106.09685, table 5."""
SEEDS = ("seed", "projection_prng_key")
"""Settings from which circuits draw angles, and VeRA its projections."""
NEAR = 0.05
"""Counts within this share of what was asked for are taken to be as near."""


def adapt(
    model: nn.Module,
    name: str = "lora",
    *,
    n_weights: int | None = None,
    targets: Iterable[str] | str | None = None,
    seed: int = 0,
    **options: Any,
) -> PeftModel:
    """Puts a PEFT method, or circuits that give LoRA's weights, on `model`; its own weights are frozen.

    Args:
        model: One without an adapter; changed in place.
        name: "quantum_peft", "qpa", "lora", "vera" or another method that PEFT knows.
        n_weights: About how many weights train; None leaves that to `options` and the defaults.
        targets: As PEFT's `target_modules`; None for what PEFT adapts in models of this type.
        seed: Fixes initial weights, a circuit's angles and VeRA's projections among them; the caller's
            generators are left alone.
        options: Other settings of the method's configuration.

    Raises:
        ValueError: As of `config`; or there is an adapter already, a target names no layer, or PEFT refuses.
            The model is then as it was.

    Example:
        >>> model = adapt(nn.Sequential(nn.Linear(8, 8)), "quantum_peft", targets=["0"])
        >>> count(model)
        {'weights': 34, 'angles': 30}
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    if hasattr(model, "peft_config") or any(isinstance(each, BaseTunerLayer) for each in model.modules()):
        step = "Merge it first, build the model anew, or put a saved one beside it by adapters.load."
        raise ValueError(checks.message("model", "have no adapter yet", type(model).__name__, step))
    chosen = config(name, n_weights=n_weights, model=model, targets=targets, **options)
    for own in SEEDS:  # these methods draw from a number of their own, whatever the generators' state
        if hasattr(chosen, own) and own not in options:
            setattr(chosen, own, seed)
    if chosen.task_type is None and callable(getattr(model, "generate", None)):
        chosen.task_type = "CAUSAL_LM"  # so that PEFT's own classes load it by its folder alone
    tried(model, chosen)
    return _put(model, chosen, seed=seed)


def load(
    model: nn.Module, folder: str | Path, name: str = "default", *, trainable: bool = False
) -> PeftModel:
    """Puts a saved adapter on its base model, beside those that it has already, and switches to it.

    Args:
        model: The base model, changed in place, or a PeftModel, which gets another adapter. Of several,
            `set_adapter(name)` of the result says which one counts.
        folder: Holds `adapter_config.json` and `adapter_model.safetensors`, of any PEFT method.
        name: That the adapter is given.
        trainable: Whether it trains on, by its circuits where `circuit.safetensors` is beside; if not, all
            weights are frozen, and circuits are not computed.

    Raises:
        FileNotFoundError: The folder or one of its files is not there.
        ValueError: The adapter is of an unknown method, was made for another base model, or has other weights
            than its circuits give; or a PeftModel has an adapter of that name. The model is then as it was.

    Warns:
        UserWarning: Layers and sizes match, but the base model had another name.
    """
    from peft import PeftConfig, PeftModel

    place = checks.folder("folder", folder, "Give the folder that save_pretrained wrote.")
    for file in (CONFIG, files.WEIGHTS):
        if not (place / file).is_file():
            step = "Give the folder that save_pretrained wrote."
            raise FileNotFoundError(checks.message("folder", f"hold {file}", str(place), step))
    there = isinstance(model, PeftModel)
    if there and name in model.peft_config:
        step = f"The model has {', '.join(model.peft_config)}."
        raise ValueError(checks.message("name", "be new to the model", name, step))
    try:
        saved: Any = PeftConfig.from_pretrained(str(place))
    except Exception as error:  # it raises whatever it meets
        step = f"Copy the folder again. It says: {words.first_line(error)}."
        raise ValueError(checks.message("folder", f"hold a readable {CONFIG}", str(place), step)) from None
    base: Any = model.get_base_model() if there else model
    made_for = saved.base_model_name_or_path or ""
    if differs := _difference(model, saved, place, name):
        step = f"Load {made_for}." if made_for else "Load the base model that it was made for."
        rule = f"hold an adapter of this {type(base).__name__}"
        raise ValueError(checks.message("folder", rule, f"{place}, {differs}", step))
    circuits = files.read(place) if trainable and (place / files.CIRCUIT).is_file() else None
    ours = getattr(base, "name_or_path", "") or ""
    if ours and made_for and ours != made_for:
        told = f"The adapter in {place} was made for {made_for}, the model is {ours}; "
        warnings.warn(f"{told}the layers have equal sizes.", stacklevel=2)
    with seeded(0), warnings.catch_warnings(action="ignore"):  # PEFT draws before it reads
        if there:
            model.load_adapter(str(place), name, is_trainable=trainable)
        else:
            model = PeftModel.from_pretrained(model, str(place), name, is_trainable=trainable)
        model.set_adapter(name)
    if not trainable:
        model.requires_grad_(False)
    elif circuits:
        _connect(model, name, circuits)
    return model


def config(
    name: str,
    *,
    n_weights: int | None = None,
    model: nn.Module | None = None,
    targets: Iterable[str] | str | None = None,
    **options: Any,
) -> Any:
    """The configuration of an adapter, of about as many trained weights as asked for.

    What is given in `options` stays; of the rest the combination nearest to `n_weights` is taken, and of
    equally near ones that which is nearest to usual. Circuits with `train_circuit=False` are sized as if they
    trained: so they differ in nothing else. LoRA's alpha is twice its rank unless it is given.

    Args:
        name: As of `adapt`.
        n_weights: Number of trained weights; None leaves all to `options` and the defaults.
        model: The base model, needed with `n_weights`; it is left as it was.
        targets: As PEFT's `target_modules`; None for what PEFT adapts in models of this type.
        options: Other settings of the configuration.

    Returns:
        A PeftConfig, or a `CircuitConfig`.

    Raises:
        ValueError: The name is unknown, is given targets or a count but adapts no linear layers, or has no
            rank to choose; an option is none of its settings, `targets` match nothing, or `n_weights` comes
            without `model`.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        >>> config("lora", n_weights=1000, model=model, targets=["0", "2"]).r
        4
    """
    known = _known()
    checks.choice("name", name, sorted(known))
    cls = known[name]
    settings = {field.name for field in fields(cls)}
    for option in options:
        checks.choice("options", option, sorted(settings))
    if "target_modules" in settings:
        wanted = targets if targets is None or isinstance(targets, str) else list(targets)
        options = {"target_modules": wanted, **options}
    elif targets is not None or n_weights is not None:
        rule = "be a method that adapts linear layers, to have targets or n_weights"
        raise ValueError(checks.message("name", rule, name, "Choose lora, vera, quantum_peft or qpa."))
    if n_weights is not None:
        if model is None:
            step = "Give the base model, whose layers decide the count."
            raise ValueError(checks.message("model", "be given with n_weights", None, step))
        checks.positive("n_weights", n_weights)
        if issubclass(cls, CircuitConfig):
            fixed = {each: options[each] for each in cls.counts if each in options}
            sizes = _sizes(tried(model, cls(**options).lora()))
            near = cls.candidates(n_weights, sizes, fixed)
            options |= min(near, key=lambda each: (int(abs(each[0] / n_weights - 1) / NEAR), each[1]))[2]
        elif "r" not in settings or "r" in options:
            step = "Leave n_weights out, and give the settings that decide the size."
            raise ValueError(checks.message("name", "have a rank r to choose", name, step))
        else:  # the count is linear in the rank
            one, two = (count(tried(model, cls(**options, r=r)))["weights"] for r in (1, 2))
            options["r"] = max(1, round(1 + (n_weights - one) / (two - one))) if two > one else 1
    if name == "lora" and "lora_alpha" not in options:
        options["lora_alpha"] = 2 * options.get("r", cls().r)
    return cls(**options)


def size(
    model: nn.Module, name: str, *, n_weights: int | None = None, targets: Any = None, **options: Any
) -> int:
    """How many weights an adapter would train; the arguments are those of `config`."""
    chosen = config(name, n_weights=n_weights, model=model, targets=targets, **options)
    return count(tried(model, chosen))["weights"]


def names() -> list[str]:
    """The adapters of layers that `config` knows."""
    return sorted(name for name, cls in _known().items() if "target_modules" in cls.__dataclass_fields__)


def count(model: nn.Module) -> dict[str, int]:
    """Trained `weights` of a model, and how many of them are `angles` of circuits."""
    from qnnkit.layers import quantum_parameters

    trained = [weight.numel() for weight in model.parameters() if weight.requires_grad]
    angles = [weight.numel() for weight in quantum_parameters(model) if weight.requires_grad]
    return {"weights": sum(trained), "angles": sum(angles)}


@contextlib.contextmanager
def once(model: nn.Module) -> Iterator[None]:
    """Inside, circuits of adapters are computed at most once; their angles must not change there."""
    with contextlib.ExitStack() as stack:
        for circuits in vars(model).get("circuits", {}).values():
            stack.enter_context(circuits.once())
        yield


# --- on the model ----------------------------------------------------------------------------------


class _WithCircuits:
    """What a PeftModel does otherwise where circuits give LoRA's weights."""

    def save_pretrained(
        self: Any, save_directory: str, *given: Any, selected_adapters: Any = None, **named: Any
    ) -> None:
        """Writes LoRA's weights as plain PEFT reads them, and the circuits beside."""
        with once(self), torch.no_grad():
            named |= {"state_dict": files.plain(self), "selected_adapters": selected_adapters}
        super().save_pretrained(save_directory, *given, **named)  # type: ignore[misc]
        for name, circuits in self.circuits.items():
            if name in (selected_adapters or self.circuits) and named.get("is_main_process", True):
                files.save(circuits, Path(save_directory, "" if name == "default" else name) / files.CIRCUIT)

    def delete_adapter(self: Any, adapter_name: str) -> None:
        super().delete_adapter(adapter_name)  # type: ignore[misc]
        self.circuits.pop(adapter_name, None)


def _within_once(method: Any) -> Any:
    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        with once(self):
            return method(self, *given, **named)

    return call


def _put(model: Any, chosen: Any, name: str = "default", *, seed: int = 0) -> PeftModel:
    """The model with another adapter, on itself."""
    from peft import PeftModel, get_peft_model

    ours = isinstance(chosen, CircuitConfig)
    asked: Any = chosen.lora() if ours else copy.deepcopy(chosen)
    with seeded(seed), warnings.catch_warnings(action="ignore"):  # PEFT warns of what it then does right
        if isinstance(model, PeftModel):
            model.add_adapter(name, asked)
        else:
            model = get_peft_model(model, asked, name)
    if ours:
        sizes = _sizes(model, name)
        first: Any = model.get_submodule(f"base_model.model.{next(iter(sizes))}.lora_A.{name}")
        _connect(model, name, Circuits(chosen, sizes, first.weight))
    return model


def _connect(model: Any, name: str, circuits: Circuits) -> None:
    """Makes the circuits the source of the weights of an adapter that is on the model."""
    with circuits.once():
        for source in circuits.sources:
            linear = model.get_submodule(f"base_model.model.{source.layer}.{source.side}.{name}")
            source.to(linear.weight.device).requires_grad_(linear.weight.requires_grad)
            parametrize.register_parametrization(linear, "weight", source)
    if "circuits" not in vars(model):
        model.circuits, plain = {}, type(model)
        calls = {each: getattr(plain, each) for each in ("forward", "generate") if hasattr(plain, each)}
        calls = {each: _within_once(method) for each, method in calls.items()}
        model.__class__ = type(plain.__name__, (_WithCircuits, plain), calls)
    model.circuits[name] = circuits


def _sizes(model: Any, name: str = "default") -> dict[str, tuple[int, int]]:
    """(in_features, out_features) of the layers of a LoRA adapter by their names in the base model."""
    from peft.tuners.lora import LoraLayer

    found = {}
    for key, layer in model.get_base_model().named_modules():
        if isinstance(layer, LoraLayer) and name in layer.r:
            if name not in layer.lora_A or not isinstance(layer.lora_A[name], nn.Linear):
                told = f"{key} ({type(layer.get_base_layer()).__name__})"
                raise ValueError(
                    checks.message("target_modules", "name linear layers", told, "Leave it out.")
                )
            found[key] = layer.in_features, layer.out_features
    return found


def tried(model: nn.Module, chosen: Any, name: str = "default") -> PeftModel:
    """The adapter on a copy of the model whose weights take no memory; the model is left as it was.

    Where `chosen` has no targets and PEFT knows none for this method, it gets LoRA's.

    Raises:
        ValueError: PEFT refuses, or a target names no layer.
    """
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    bare: dict[int, Any] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        empty: Tensor = torch.empty_like(tensor.data, device="meta")
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, tensor.requires_grad)
            vars(empty).update(vars(tensor))  # of weights in 4 bits, how they are stored: PEFT asks for it
        bare[id(tensor)] = empty

    def put() -> PeftModel:
        try:
            with torch.device("meta"):
                return _put(copy.deepcopy(model, dict(bare)), chosen, name)
        except RuntimeError:  # some methods, such as BOFT and SHiRA, look at numbers
            return _put(copy.deepcopy(model), chosen, name)

    wanted = getattr(chosen, "target_modules", None)
    there = [f".{key}" for key, _ in model.named_modules()]
    for each in () if isinstance(wanted, str) else sorted(wanted or ()):
        if not any(key.endswith(f".{each}") for key in there):  # PEFT is content with one that does
            raise _no_target(model, each)
    try:
        try:
            whole = put()
        except (ValueError, AttributeError) as error:
            if wanted is not None or "target_module" not in str(error):
                raise
            kind = str(getattr(getattr(model, "config", None), "model_type", None))
            chosen.target_modules = USUAL.get(kind) or LORA_TARGETS
            whole = put()
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        if error.args and isinstance(error.args[0], checks.Message):
            raise
        if "target" in str(error).lower():
            raise _no_target(model, wanted) from None
        step = f"It says: {words.first_line(error)}."
        told = getattr(chosen, "peft_type", type(chosen).__name__)
        raise ValueError(checks.message("name", "be one that PEFT can build here", told, step)) from None
    return whole


def _no_target(model: nn.Module, wanted: Any) -> ValueError:
    linear = [name for name, each in model.named_modules() if type(each).__name__ in ("Linear", "Conv1D")]
    ends = dict.fromkeys(
        name if name.replace(".", "").isdigit() else name.rsplit(".", 1)[-1] for name in linear
    )
    step = f"Its linear layers are called {', '.join(ends)}." if ends else "The model has no linear layer."
    return ValueError(checks.message("target_modules", "name linear layers of the model", wanted, step))


def _known() -> dict[str, Any]:
    """Name -> class of its configuration, of every method that PEFT knows, and of circuits."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as KNOWN

    return {str(getattr(kind, "value", kind)).lower(): cls for kind, cls in KNOWN.items()} | SOURCES


def _difference(model: nn.Module, saved: Any, folder: Path, name: str) -> str | None:
    """The first thing by which the weights in a folder do not fit the model; None if all do."""
    from peft import get_peft_model_state_dict
    from safetensors import SafetensorError, safe_open

    try:
        whole = tried(model, saved, name)
        expected = get_peft_model_state_dict(whole, adapter_name=name, save_embedding_layers=False)
        with safe_open(folder / files.WEIGHTS, framework="pt") as file:
            found = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        return f"whose {files.WEIGHTS} is damaged ({error})"
    except Exception as error:  # PEFT has an error of its own for each way in which layers differ
        return f"which cannot be put on it ({words.first_line(error)})"
    shapes = {key: tuple(weight.shape) for key, weight in expected.items()}
    beside = whole.state_dict().keys() - shapes.keys()  # embeddings, where they are saved too
    for key in sorted((shapes.keys() | found.keys()) - beside):
        if shapes.get(key) != found.get(key):
            return f"where {key} has the shape {found.get(key)} and not {shapes.get(key)}"
    return None

"""The settings that all recipes share: training, data, comparison, placement and success criteria.

A recipe adds its settings in a class derived from `Settings`: flat and frozen, without unknown names.
`PLACEMENT` are the settings that say where and how a run computes; they may change when it is resumed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.functional_validators import BeforeValidator, WrapValidator, field_validator

from qnnkit import checks

SETTINGS = "All of them: qnnkit recipes NAME."
"""Next step of a message about a wrong setting."""
COLUMNS = ("run", "folder", "state", "error", "notes", "net", "event", "epoch", "data", "hours", "cost")
COLUMNS += ("n_train", "quantum", "classical", "frozen")
"""Columns of tables of runs, which no setting of a recipe may be named like."""
MAIN_NETS = ("hybrid", "reference")
"""Names of a run's main net, which is compared with the controls: with a circuit, or without any."""


def listed(text: str) -> list[str]:
    """Returns the words of a text such as "hybrid, classical".

    Example:
        >>> listed("(hybrid, classical)"), listed("()")
        (['hybrid', 'classical'], [])
    """
    return [word.strip(" '\"") for word in text.strip("()[] ").split(",") if word.strip()]


# A number, or the word "auto" until it is measured. Typed as a number, because a run replaces the word before
# other code reads its settings.
_or_auto = WrapValidator(lambda value, check: value if value == "auto" else check(value))
Count = Annotated[int, Field(ge=1), _or_auto]
AUTO: Any = "auto"
Split = BeforeValidator(lambda value: listed(value) if isinstance(value, str) else value)
Words = Annotated[tuple[str, ...], Split]
"""A list of words, which may be given as one text: "classical, no_quantum"."""
Place = Annotated[str, "place"]
"""A folder, file or address. A relative path is resolved from the workspace; it may change later."""
LATER = "later"
"""Marks a setting that says where and how a run computes, not what: it may change when a run is resumed."""
_UPDATE = "learning_rate|quantum_learning_rate|optimizer|weight_decay|schedule|warmup_epochs"
OfNet = Annotated[str, Field(pattern=rf"^[^.=]+\.({_UPDATE}|clip_norm|quantum_clip_norm)=.+$")]
"""A setting of the optimizer for a single net."""
Noise = Annotated[str, Field(pattern=r"^(depolarizing|readout)=(0?\.\d+|0|1)$")]


class Base(BaseModel):
    """Base class of all settings: of recipes, kinds of data, families of nets, and batches.

    They are frozen; an unknown name raises an error. `model_fields[NAME].description` is a setting's meaning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    def of_kit(self, name: str, default: Any = None) -> Any:
        """Returns a setting that a class of qnnkit declares; `default` if only a recipe declares the name.

        Example:
            >>> Settings().of_kit("epochs"), Settings().of_kit("circuit")
            (20, None)
        """
        declared = any(is_kits(kind, name) for kind in type(self).__mro__)
        return getattr(self, name, default) if declared else default

    def arguments(self, kind: type[Base]) -> dict[str, Any]:
        """Returns the settings that a class declares, by name, as arguments of a net."""
        return {name: getattr(self, name) for name in kind.model_fields}


class Settings(Base):
    """The settings of a training and of a run; recipes add theirs.

    `qnnkit recipes NAME` prints every setting of a recipe with its default and its meaning. In Python,
    `Settings.model_fields["epochs"].description` is the meaning of one.

    Raises:
        pydantic.ValidationError: A ValueError: a name is unknown, or a value breaks its rule. `of` and
            `override` say so in one sentence.

    Example:
        >>> Settings(epochs=2).batch_size
        64
    """

    # A folder may be named 123. The defaults of a recipe are validated, too.
    model_config = ConfigDict(coerce_numbers_to_str=True, validate_default=True)

    # --- the training ---
    epochs: int = Field(default=20, ge=1)
    """Passes over the training data."""
    batch_size: Count = 64
    """Samples of one update, on each process; "auto" measures it once, when a run begins."""
    micro_batch: Annotated[int | None, LATER] = Field(default=None, ge=1)
    """Samples of a batch computed at once, with accumulated gradients; None: all. May change later."""
    learning_rate: float = Field(default=1e-2, gt=0)
    """Peak learning rate of the classical parameters."""
    quantum_learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate of the circuit parameters; None: that of the classical parameters."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Optimizer; sgd has momentum 0.9."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the classical parameters; angles are periodic and never decay."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """How the learning rate decays to zero over the run; constant: it does not decay."""
    warmup_epochs: float = Field(default=0.0, ge=0)
    """Epochs over which the learning rate first rises from zero."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the classical gradient; None does not clip."""
    quantum_clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the circuit parameters' gradient; None does not clip."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the classical layers; circuits always compute in float32."""
    gradient_checkpointing: Annotated[bool, LATER] = False
    """Recompute activations in the backward pass to save memory. May change later."""
    patience: int = Field(default=0, ge=0)
    """Epochs without a better validation score before stopping early; 0 never stops."""
    save_every_steps: Annotated[int | None, LATER] = Field(default=None, ge=1)
    """Optimizer steps between checkpoints inside an epoch; None: only by minutes. May change later."""
    save_every_minutes: Annotated[float | None, LATER] = Field(default=5.0, gt=0)
    """Minutes between checkpoints inside an epoch; every epoch ends with one. May change later."""
    keep_checkpoints: Annotated[int, LATER] = Field(default=2, ge=1)
    """Number of newest checkpoints kept for each net, besides the best epoch's. May change later."""
    gradient_samples: Annotated[int, LATER] = Field(default=16, ge=0)
    """Updates of an epoch whose gradients go to gradients.jsonl; 0 records none. May change later."""

    # --- the data: which sample is in which split ---
    split_seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the data split; independent of the run's seed, so that all seeds share one test set."""
    vary_split: bool = False
    """Whether each seed has its own split (split_seed + seed), so that intervals cover splits too."""
    validation_fraction: float = Field(default=0.2, gt=0)
    """Validation samples: a share (approximate for files) or a number; of train/ if there is a test part."""
    test_fraction: float = Field(default=0.2, gt=0)
    """Test samples: a share (approximate for files) or a number; unused if the data have a test part."""
    train_fraction: float = Field(default=1.0, gt=0)
    """Share or number of training samples to use, class by class; does not affect validation and test."""

    # --- the comparison ---
    seed: int = Field(default=0, ge=0, lt=2**31)
    """First seed of the initial weights and the order of the data."""
    n_seeds: int = Field(default=1, ge=1, le=10_000)
    """Number of seeds (seed, seed + 1, ...) with which each net is trained, for the intervals."""
    controls: Words | Literal["all"] = "all"
    """Nets with the quantum part replaced: "all" for the five standard ones, or names; () for none."""
    net_settings: Annotated[tuple[OfNet, ...], Split] = ()
    """Training settings of single nets, as NET.SETTING=VALUE: hybrid.optimizer=sgd."""

    shots: int | None = Field(default=None, ge=1)
    """Measurements of each circuit, in training and test; None computes exactly."""
    noise: Annotated[tuple[Noise, ...], Split] = ()
    """Noise of the circuits, in training and test: depolarizing=P, readout=P; () for none."""

    min_difference: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Least difference that matters (points, nats); None: 1 point, or 1 % of a loss. May change later."""

    # --- where and how it is computed ---
    device: Annotated[str, LATER] = "auto"
    """Torch device: auto (measured), cpu, cuda, cuda:N, mps. May change later."""
    backend: Annotated[str, LATER] = "auto"
    """Backend of the circuits: auto, batched or a PennyLane device. May change later."""
    threads: Annotated[Count | None, LATER] = AUTO
    """CPU threads in training: auto (measured), a number, or None for torch's choice. May change later."""
    trackers: Annotated[Words, LATER] = ()
    """Trackers that also get the numbers: trackio, tensorboard, mlflow, wandb, ... May change later."""
    price_per_hour: Annotated[float | None, LATER] = Field(default=None, ge=0)
    """US dollars per hour of this machine, for plans and the cost of a run. May change later."""

    # --- success ---
    max_memory_gb: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Success: maximum memory of training on its device, in GB (1e9 bytes). May change later."""
    max_epoch_seconds: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Success: maximum of the median seconds per epoch, mean over seeds. May change later."""
    min_accuracy: Annotated[float | None, LATER] = Field(default=None, ge=0, le=1)
    """Success: minimum test accuracy, 0 to 1, mean over seeds; for images. May change later."""
    min_recall: Annotated[float | None, LATER] = Field(default=None, ge=0, le=1)
    """Success: minimum test recall@1, 0 to 1, mean over seeds; for captions. May change later."""
    max_loss: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Success: maximum test loss, nats / token, mean over seeds; for text and music. May change later."""

    source: ClassVar[Any] = None
    """The recipe of these settings, as `recipes.find` returned it; None for settings alone."""
    recorded: ClassVar[str] = ""
    """Name or file of the recipe, if it is not available."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        used = {*vars(Settings), *vars(Base), *COLUMNS} - {*Settings.model_fields}
        for name in used & {*cls.model_fields}:
            rule, step = "have a name that qnnkit does not use in code or tables", "Choose another."
            raise ValueError(checks.message("setting", rule, name, step))

    @field_validator("*", mode="before")
    @classmethod
    def _as_meant(cls, value: Any, info: Any) -> Any:
        """Rejects True for a number, as Python takes it for 1; splits text that is given for a list."""
        kind = str(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and "bool" not in kind and "Any" not in kind:
            raise ValueError("be a number or a text, not true or false")
        is_text = isinstance(value, str | int | float) and kind.startswith(("tuple[", "list["))
        return listed(str(value)) if is_text else value

    @field_validator("controls", "net_settings", "noise")
    @classmethod
    def _each_once(cls, value: Any, info: Any) -> Any:
        pairs = [text.partition("=") for text in value if value != "all"]
        if len({name for name, _, _ in pairs}) < len(pairs):
            raise ValueError("name each once")
        for name, _, given in pairs if info.field_name == "net_settings" else ():
            Settings.of({name.partition(".")[2]: given})  # checks the setting's own rule
        return value

    def of_net(self, net: str) -> Self:
        """Returns the settings with which a net trains: these, with its entries in `net_settings`.

        Example:
            >>> Settings(net_settings=("hybrid.learning_rate=0.5",)).of_net("hybrid").learning_rate
            0.5
        """
        texts = [text.removeprefix(f"{net}.") for text in self.net_settings if text.startswith(f"{net}.")]
        return self.override(**dict(text.split("=", 1) for text in texts)) if texts else self

    @property
    def recipe(self) -> str:
        """Name of the recipe, or its file."""
        return getattr(self.source, "reference", self.recorded)

    @property
    def title(self) -> str:
        """Name of the recipe in tables: that of a file without its folder."""
        return Path(self.recipe).stem

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Returns settings from plain values.

        Raises:
            ValueError: A name is unknown (the message suggests the nearest), or a value breaks its rule.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            loc, rule, value = first_fault(error)
        if not loc or rule.startswith("Argument `"):
            raise ValueError(rule if loc else f"Settings that do not go together: {rule}")
        name = checks.choice("setting", str(loc[0]), cls.model_fields, SETTINGS)
        meaning = (cls.model_fields[name].description or "").replace("\n", " ")
        raise ValueError(checks.message(name, rule, value, f"It means: {meaning}" if meaning else SETTINGS))

    def override(self, **values: Any) -> Self:
        """Returns a copy with some settings replaced.

        Raises:
            ValueError: As in `of`.

        Example:
            >>> Settings().override(epochs=2).epochs
            2
        """
        return type(self).of({**dict(self), **values})

    def flat(self) -> dict[str, Any]:
        """Returns every setting as a JSON value, and the recipe.

        Example:
            >>> Settings().flat()["batch_size"]
            64
        """
        values = self.model_dump(mode="json", exclude={*type(self).model_computed_fields}, warnings=False)
        sets = [name for name in values if isinstance(getattr(self, name), set | frozenset)]
        values |= {name: sorted(values[name], key=str) for name in sets}  # sets have no fixed order
        return {"recipe": self.recipe, **values}

    @classmethod
    def places(cls) -> list[str]:
        """Returns the names of the settings that are paths: `Place`, or annotated as a `pathlib.Path`."""
        fields = cls.model_fields.items()
        kinds = {name: (info.annotation, *get_args(info.annotation), *info.metadata) for name, info in fields}
        return [name for name in kinds if any(kind in kinds[name] for kind in ("place", Place, Path))]

    def with_paths(self, change: Callable[[str], str]) -> Self:
        """Returns a copy with its paths changed, such as by `workspace.portable` or `workspace.located`."""
        paths = {name: path for name in self.places() if (path := getattr(self, name)) is not None}
        for name, path in paths.items():  # `Path` drops the `./` of a path in the workspace
            inside = isinstance(path, Path) and not path.is_absolute()
            paths[name] = change(f"./{path}" if inside else str(path))
        return self.override(**paths)

    def chosen(self, *, without: Collection[str] = ()) -> dict[str, Any]:
        """Returns the settings that define the experiment and differ from the recipe's defaults."""
        changed = self.difference(type(self).model_construct())
        return {name: value for name, (value, _) in changed.items() if name not in without}

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of recipe and settings without placement: equal for equal experiments.

        Example:
            >>> Settings().digest() == Settings(device="cpu").digest()
            True
        """
        return digest_of({"recipe": getattr(self.source, "digest", None), **self.chosen()})

    def difference(self, other: Settings) -> dict[str, tuple[Any, Any]]:
        """Returns the settings that differ from `other`, without placement: name -> (here, there)."""
        here, there = self.flat(), other.flat()
        return {
            name: (here.get(name), there.get(name))
            for name in {**here, **there}
            if name not in (*PLACEMENT, "recipe") and here.get(name) != there.get(name)
        }


BOUNDS = ("max_memory_gb", "max_epoch_seconds", "min_accuracy", "min_recall", "max_loss")
"""Bounds of the success criteria."""
CRITERIA = (*BOUNDS, "min_difference")
"""Settings that judge a result. A finished run accepts them, and its report is then written again."""
PLACEMENT = tuple(name for name, field in Settings.model_fields.items() if LATER in field.metadata)
"""Settings that say where and how a run computes, not what (`LATER`), including the criteria."""
SPLITTING = ("split_seed", "validation_fraction", "test_fraction", "train_fraction")
"""Settings that determine which sample is in which split."""


class Recorded(Settings):
    """Settings from a run folder whose recipe is not available: they can be read, but no net can be built."""

    model_config = ConfigDict(extra="allow")

    def of_kit(self, name: str, default: Any = None) -> Any:
        """Returns the recorded value, since it is unknown which class declared it."""
        return getattr(self, name, default)


def is_kits(kind: type, name: str) -> bool:
    """Whether a class is part of qnnkit, but not of a recipe, and has a setting of this name."""
    shared = kind.__module__.startswith("qnnkit.") and not kind.__module__.startswith("qnnkit.recipes")
    return shared and name in getattr(kind, "model_fields", {})


def digest_of(values: Any) -> str:
    """Returns the SHA-256 (hex) of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def first_fault(error: ValidationError) -> tuple[tuple[Any, ...], str, Any]:
    """Returns the place of the first error, the rule that it breaks ("be ..."), and the value.

    The rule is a full sentence if a validator wrote one: "Argument ...", or one about all settings.
    """
    first = error.errors()[0]
    rules = {"missing": "be given", "extra_forbidden": "be a known name"}
    text = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    rule = rules.get(first["type"]) or text or "keep the rule of its own validator"
    if first["loc"] and not rule.startswith("Argument `"):
        rule = (rule[0].lower() + rule[1:]).removeprefix("input should ").split(" should ")[-1]
    return first["loc"], rule, None if first["type"] == "missing" else first["input"]

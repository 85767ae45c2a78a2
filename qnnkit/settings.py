"""The settings that every recipe has: how nets are trained, compared and judged, where they are computed.

A recipe adds its settings in a class derived from `Settings`: flat, frozen, unknown names refused.
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
"""Where a message sends those who look for a setting."""
MAIN_NETS = ("hybrid", "reference")
"""Name of the net that a run compares with its controls: with a circuit in it, or without any."""


def listed(text: str) -> list[str]:
    """The words of a text such as "hybrid, classical".

    Example:
        >>> listed("(hybrid, classical)"), listed("()")
        (['hybrid', 'classical'], [])
    """
    return [word.strip(" '\"") for word in text.strip("()[] ").split(",") if word.strip()]


# A number, or the word "auto" until it is measured. Typed as the number, which is what whoever computes with
# it sees: a run replaces the word before anything else reads its settings.
_or_auto = WrapValidator(lambda value, check: value if value == "auto" else check(value))
Count = Annotated[int, Field(ge=1), _or_auto]
AUTO: Any = "auto"
Split = BeforeValidator(lambda value: listed(value) if isinstance(value, str) else value)
Words = Annotated[tuple[str, ...], Split]
"""A list of words, which may be given as one text: "classical, no_quantum"."""
Place = Annotated[str, "place"]
"""A folder, file or address. A relative one is looked up in the workspace; it may change later."""
LATER = "later"
"""Marks a setting that says where and how a run computes, not what: it may differ when it is resumed."""
_UPDATE = "learning_rate|quantum_learning_rate|optimizer|weight_decay|schedule|warmup_epochs"
OfNet = Annotated[str, Field(pattern=rf"^[^.=]+\.({_UPDATE}|clip_norm|quantum_clip_norm)=.+$")]
"""A setting of the update for a single net."""
Noise = Annotated[str, Field(pattern=r"^(depolarizing|readout)=(0?\.\d+|0|1)$")]


class Base(BaseModel):
    """What settings have in common: a recipe's, a kind of data's, a family of nets', or a batch's."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    def of_kit(self, name: str, default: Any = None) -> Any:
        """The value of a setting that a class of the kit declares; a recipe's own of that name is another.

        Example:
            >>> Settings().of_kit("epochs"), Settings().of_kit("circuit")
            (20, None)
        """
        declared = any(is_kits(kind, name) for kind in type(self).__mro__)
        return getattr(self, name, default) if declared else default

    def arguments(self, kind: type[Base]) -> dict[str, Any]:
        """The settings that a class declares, by name: what a net takes as arguments."""
        return {name: getattr(self, name) for name in kind.model_fields}


class Settings(Base):
    """The settings of a training and of a run; recipes add theirs.

    Example:
        >>> Settings(epochs=2).batch_size
        64
    """

    # A folder may be called 123. A recipe's own defaults keep its rules, too.
    model_config = ConfigDict(coerce_numbers_to_str=True, validate_default=True)

    # --- the training ---
    epochs: int = Field(default=20, ge=1)
    """Passes over the training data."""
    batch_size: Count = 64
    """Samples that make one update, on each process; "auto" measures it once, when a run begins."""
    micro_batch: Annotated[int | None, LATER] = Field(default=None, ge=1)
    """Samples of a batch that are computed at once, their gradients added up; None: all. May differ later."""
    learning_rate: float = Field(default=1e-2, gt=0)
    """Learning rate of the classical weights at the top of the schedule."""
    quantum_learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of the circuit's weights; None takes that of the classical ones."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Update rule; sgd has momentum 0.9."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decay of the classical weights; angles are periodic and never decay."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """How the learning rate falls to zero over the run; constant: it does not fall."""
    warmup_epochs: float = Field(default=0.0, ge=0)
    """Epochs over which the learning rate first rises from zero."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the classical gradient; None does not clip."""
    quantum_clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the circuit's gradient; None does not clip."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the classical layers; circuits always compute in float32."""
    gradient_checkpointing: Annotated[bool, LATER] = False
    """Compute activations again on the way back in place of keeping them: less memory. May differ later."""
    patience: int = Field(default=0, ge=0)
    """Epochs without a better validation score before stopping early; 0 never stops."""
    save_every_steps: Annotated[int | None, LATER] = Field(default=None, ge=1)
    """Optimizer steps between checkpoints inside an epoch; None goes by minutes alone. May differ later."""
    save_every_minutes: Annotated[float | None, LATER] = Field(default=5.0, gt=0)
    """Minutes between checkpoints inside an epoch; every epoch ends in one anyway. May differ later."""
    keep_checkpoints: Annotated[int, LATER] = Field(default=2, ge=1)
    """Number of newest checkpoints kept for each net, besides the best epoch's. May differ later."""
    gradient_samples: Annotated[int, LATER] = Field(default=16, ge=0)
    """Updates of an epoch whose gradients go to gradients.jsonl; 0 records none. May differ later."""

    # --- the data: which samples are whose ---
    split_seed: int = Field(default=0, ge=0, lt=2**31)
    """Fixes which sample is in which split; not the run's seed, so that all seeds see one test set."""
    vary_split: bool = False
    """Whether every seed has a split of its own (number split_seed + seed), for intervals over splits too."""
    validation_fraction: float = Field(default=0.2, gt=0)
    """Share (about, of files) or number of samples that choose the epoch; of train/, with a test part."""
    test_fraction: float = Field(default=0.2, gt=0)
    """Share (about, of files) or number of samples for the test; unused if the data bring a test part."""
    train_fraction: float = Field(default=1.0, gt=0)
    """Share or number of the training samples to use, class by class; validation and test stay whole."""

    # --- the comparison ---
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Fixes initial weights and the order of the data."""
    n_seeds: int = Field(default=1, ge=1, le=10_000)
    """How many seeds (seed, seed + 1, ...) each net is trained with, for the intervals."""
    controls: Words | Literal["all"] = "all"
    """Nets with the quantum part exchanged: "all" for the five standard ones, or names; () for none."""
    net_settings: Annotated[tuple[OfNet, ...], Split] = ()
    """Training settings of single nets in place of the others': NET.SETTING=VALUE, hybrid.optimizer=sgd."""

    shots: int | None = Field(default=None, ge=1)
    """Measurements of each circuit, in training and in the test; None computes exactly."""
    noise: Annotated[tuple[Noise, ...], Split] = ()
    """Noise of the circuits, in training and in the test: depolarizing=P, readout=P; () for none."""

    min_difference: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """The least difference that matters (points, nats); None: 1 point, or 1 % of a loss. May differ later."""

    # --- where and how it is computed ---
    device: Annotated[str, LATER] = "auto"
    """Torch device: auto (measured), cpu, cuda, cuda:N, mps. Placement: may differ when a run is resumed."""
    backend: Annotated[str, LATER] = "auto"
    """What runs the circuits: auto, batched or a PennyLane device. Placement, as above."""
    threads: Annotated[Count | None, LATER] = AUTO
    """CPU threads that train: auto measures how many; None leaves torch's choice. Placement, as above."""
    trackers: Annotated[Words, LATER] = ()
    """Where numbers go besides metrics.jsonl: trackio, tensorboard, mlflow, wandb, ...; may differ later."""
    price_per_hour: Annotated[float | None, LATER] = Field(default=None, ge=0)
    """US dollars an hour of this machine, for plans and the cost in provenance.json. May differ later."""

    # --- success ---
    max_memory_gb: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Success: the most memory that training takes on its device, in GB (1e9 bytes). May differ later."""
    max_epoch_seconds: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Success: the most seconds of an epoch: the median of a training, as a mean over seeds. May differ."""
    min_accuracy: Annotated[float | None, LATER] = Field(default=None, ge=0, le=1)
    """Success: the least test accuracy, 0 to 1, as a mean over seeds; of images. May differ later."""
    min_recall: Annotated[float | None, LATER] = Field(default=None, ge=0, le=1)
    """Success: the least test recall@1, 0 to 1, as a mean over seeds; of captions. May differ later."""
    max_loss: Annotated[float | None, LATER] = Field(default=None, gt=0)
    """Success: the most test loss, nats / token, as a mean over seeds; text and music. May differ later."""

    source: ClassVar[Any] = None
    """The recipe whose settings these are, as `recipes.find` gave it; None for settings alone."""
    recorded: ClassVar[str] = ""
    """Its name, or its file, where it is not at hand."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        used = ({*vars(Settings), *vars(Base)} - {*Settings.model_fields}) & {*cls.model_fields}
        for name in used:
            rule, step = "have a name that qnnkit's own code does not use", "Choose another."
            raise ValueError(checks.message("setting", rule, name, step))

    @field_validator("*", mode="before")
    @classmethod
    def _as_meant(cls, value: Any, info: Any) -> Any:
        """Python would take True for 1; a list may be given as the text of its words, or as its only one."""
        kind = str(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and "bool" not in kind and "Any" not in kind:
            raise ValueError("be a number or a text, not true or false")
        is_text = isinstance(value, str | int | float) and kind.startswith(("tuple[", "list["))
        return listed(str(value)) if is_text else value

    @field_validator("controls", "net_settings", "noise")
    @classmethod
    def _each_once(cls, value: Any, info: Any) -> Any:
        pairs = [each.partition("=") for each in value if value != "all"]
        if len({name for name, _, _ in pairs}) < len(pairs):
            raise ValueError("name each once")
        for name, _, given in pairs if info.field_name == "net_settings" else ():
            Settings.of({name.partition(".")[2]: given})  # by the setting's own rule
        return value

    def of_net(self, net: str) -> Self:
        """The settings that a net trains with: these, but for what `net_settings` says of it.

        Example:
            >>> Settings(net_settings=("hybrid.learning_rate=0.5",)).of_net("hybrid").learning_rate
            0.5
        """
        own = [each.removeprefix(f"{net}.") for each in self.net_settings if each.startswith(f"{net}.")]
        return self.override(**dict(each.split("=", 1) for each in own)) if own else self

    @property
    def recipe(self) -> str:
        """Name of the recipe, or its file."""
        return getattr(self.source, "reference", self.recorded)

    @property
    def title(self) -> str:
        """Name of the recipe, in tables: of a file without its folder."""
        return Path(self.recipe).stem

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Settings from plain values.

        Raises:
            ValueError: One sentence on the first name that is unknown (the nearest is offered), or the first
                value that breaks its rule.
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
        """A copy with some settings exchanged.

        Raises:
            ValueError: As `of`.

        Example:
            >>> Settings().override(epochs=2).epochs
            2
        """
        return type(self).of({**dict(self), **values})

    def flat(self) -> dict[str, Any]:
        """Every setting as JSON has it, and the recipe.

        Example:
            >>> Settings().flat()["batch_size"]
            64
        """
        values = self.model_dump(mode="json", exclude={*type(self).model_computed_fields}, warnings=False)
        sets = [name for name in values if isinstance(getattr(self, name), set | frozenset)]
        values |= {name: sorted(values[name], key=str) for name in sets}  # Python has no order of them
        return {"recipe": self.recipe, **values}

    @classmethod
    def places(cls) -> list[str]:
        """Names of the settings that say where something lies: `Place`, or annotated as a `pathlib.Path`."""
        fields = cls.model_fields.items()
        kinds = {name: (each.annotation, *get_args(each.annotation), *each.metadata) for name, each in fields}
        return [name for name in kinds if any(kind in kinds[name] for kind in ("place", Place, Path))]

    def with_paths(self, change: Callable[[str], str]) -> Self:
        """A copy whose paths are changed, such as by `workspace.portable` or `workspace.located`."""
        paths = {name: path for name in self.places() if (path := getattr(self, name)) is not None}
        for name, path in paths.items():  # `Path` drops the `./` of what lies in the workspace
            inside = isinstance(path, Path) and not path.is_absolute()
            paths[name] = change(f"./{path}" if inside else str(path))
        return self.override(**paths)

    def chosen(self, *, without: Collection[str] = ()) -> dict[str, Any]:
        """The settings that make another experiment, where they differ from the recipe's own."""
        changed = self.difference(type(self).model_construct())
        return {name: value for name, (value, _) in changed.items() if name not in without}

    def digest(self) -> str:
        """SHA-256 (hex) of the recipe and every setting but placement: equal for runs of one experiment.

        Example:
            >>> Settings().digest() == Settings(device="cpu").digest()
            True
        """
        return digest_of({"recipe": getattr(self.source, "digest", None), **self.chosen()})

    def difference(self, other: Settings) -> dict[str, tuple[Any, Any]]:
        """Settings that make another experiment: name -> (here, there). Placement makes none."""
        here, there = self.flat(), other.flat()
        return {
            name: (here.get(name), there.get(name))
            for name in {**here, **there}
            if name not in (*PLACEMENT, "recipe") and here.get(name) != there.get(name)
        }


BOUNDS = ("max_memory_gb", "max_epoch_seconds", "min_accuracy", "min_recall", "max_loss")
"""Bounds of success."""
CRITERIA = (*BOUNDS, "min_difference")
"""How a result is judged: they may be given to a finished run, whose report is then written again."""
PLACEMENT = tuple(name for name, field in Settings.model_fields.items() if LATER in field.metadata)
"""Settings that say where and how a run computes, not what (`LATER`); the criteria are among them."""
SPLITTING = ("split_seed", "validation_fraction", "test_fraction", "train_fraction")
"""Settings that say which sample is whose."""


class Recorded(Settings):
    """Settings as a run folder has them, whose recipe is not at hand: they can be read, and nothing built."""

    model_config = ConfigDict(extra="allow")

    def of_kit(self, name: str, default: Any = None) -> Any:
        """As recorded: nobody can tell whose it was."""
        return getattr(self, name, default)


def is_kits(kind: type, name: str) -> bool:
    """Whether a class of the kit's, not of a recipe, has a setting of this name."""
    own = kind.__module__.startswith("qnnkit.") and not kind.__module__.startswith("qnnkit.recipes")
    return own and name in getattr(kind, "model_fields", {})


def digest_of(values: Any) -> str:
    """SHA-256 (hex) of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def first_fault(error: ValidationError) -> tuple[tuple[Any, ...], str, Any]:
    """Where the first thing is that is wrong, which rule it breaks ("be ..."), and its value.

    The rule is a whole sentence where a validator has written one: "Argument ...", or of all settings.
    """
    first = error.errors()[0]
    known = {"missing": "be given", "extra_forbidden": "be a known name"}
    said = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    rule = known.get(first["type"]) or said or "keep the rule of its own validator"
    if first["loc"] and not rule.startswith("Argument `"):
        rule = (rule[0].lower() + rule[1:]).removeprefix("input should ").split(" should ")[-1]
    return first["loc"], rule, None if first["type"] == "missing" else first["input"]

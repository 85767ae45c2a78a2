"""The settings of a run: frozen pydantic models that refuse unknown names and say what each means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)

from qnnkit import checks

FlatValue = int | float | bool | str | None
MAIN_NETS = ("hybrid", "reference")
"""What the net of a run is called that its controls stand beside: with a circuit in it, or without any."""


Control = Literal[
    "classical", "no_entanglement", "frozen_random", "no_quantum", "classical_trained", "lora", "vera"
]


def _or_auto(value: Any, judge: ValidatorFunctionWrapHandler) -> Any:
    if value == "auto":
        return value
    try:
        if isinstance(value, bool):  # which Python counts as 0 and 1
            raise ValueError('be a whole number of at least 1, or "auto"')
        return judge(value)
    except ValidationError:
        if isinstance(value, str):
            raise ValueError('be a whole number of at least 1, or "auto"') from None
        raise


# A number, or the word "auto" until it is measured. Typed as the number, which is what whoever computes with
# it sees: a run replaces the word before anything else reads its settings.
Count = Annotated[
    int, Field(ge=1), WrapValidator(_or_auto), PlainSerializer(lambda value: value, return_type=Any)
]
AUTO: Any = "auto"


QUANTUM_ADAPTERS = ("quantum_peft", "qpa", "quantum_token")
"""Adapters with a circuit in them, by PEFT's names."""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class DataConfig(Settings):
    dataset: str = "digits"
    """Name of an entry of DATASETS."""
    data_dir: str | None = None
    """Folder, archive or address of the images, for datasets that do not ship with a dependency."""
    image_size: int | None = Field(default=None, ge=2)
    """Side to which images are resized, in pixels; None keeps the most common size."""
    grey: bool | None = None
    """Convert to grey (True) or colour (False); None keeps grey where every image is grey."""
    split_seed: int = Field(default=0, ge=0)
    """Fixes which image is in which split; not the run's seed, so that all seeds see one test set."""
    validation_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of all images that chooses the epoch; of the training part where a dataset has its own test."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of all images that are looked at once, at the end; unused where a dataset brings its own."""
    train_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of the training images that is used, class by class; validation and test stay whole."""
    label_pattern: str | None = None
    """Regular expression whose first group is the label in a file's name; for the dataset flat_folder."""
    variant: str | None = None
    """Which part of EMNIST: balanced, letters, digits, ...; None takes the one whose files are there."""
    download: bool = False
    """Fetch a public dataset that is missing, and check it. May differ later."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Tokens of a block of text or music, or most tokens of a caption; None takes the dataset's own."""
    vocabulary: int | None = Field(default=None, ge=2)
    """Tokens that a tokenizer learns from the training text; None takes the dataset's own."""
    tokenizer: str | None = None
    """Folder, or name on the Hub, of a tokenizer; None trains one on the training split."""
    part: str | None = None
    """Regular expression: which documents of a text are used; for the dataset text."""
    composers: tuple[str, ...] | None = None
    """Whose pieces are used; None takes all. For the dataset music."""
    transpose: int | None = Field(default=None, ge=0)
    """Semitones up or down by which training pieces are moved, anew in every epoch; for music."""
    overlap: int | None = Field(default=None, ge=0)
    """Tokens that a training block of music shares with the one before; None takes a quarter of a block."""


class ModelConfig(Settings):
    model: str = "quanv"
    """Name of an entry of MODELS."""
    circuit: str = "data_reuploading"
    """Name of an ansatz in CIRCUITS."""
    embedding: str = "angle"
    """Name of an embedding in CIRCUITS, for an ansatz that does not embed its data itself."""
    n_layers: int = Field(default=2, ge=1)
    """Depth of the ansatz."""
    initialisation: Literal["uniform", "small", "gaussian", "identity_block"] = "uniform"
    """How a circuit's angles start; identity_block pairs each layer with its inverse, so n_layers is even."""
    n_qubits: int = Field(default=4, ge=1)
    """Wires of a circuit that reads reduced features; a quanvolution's follow from its patches."""
    kernel_size: int = Field(default=2, ge=1)
    """Side of a patch, in pixels."""
    stride: int = Field(default=2, ge=1)
    """Step between patches, in pixels."""
    filters: int = Field(default=1, ge=1)
    """Number of circuits, each with its own weights."""
    trainable: bool = True
    """Whether the circuit's weights are trained."""
    hidden: int = Field(default=16, ge=1)
    """Channels (quanv) or units (the others) of the classical layer that reads the circuit's values."""
    width: int = Field(default=64, ge=1)
    """Channels of a residual stem, or of a CNN's first layers; later ones have multiples of it."""
    blocks: int = Field(default=1, ge=1)
    """Residual blocks of a stem."""
    maps: int = Field(default=4, ge=1)
    """Channels that a stem hands to the quanvolution."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the values before the last layer that is dropped, in training only."""
    pretrained: str | None = None
    """Folder, or name on the Hugging Face Hub, of a net's weights; None starts from scratch."""
    stem_stride: Literal[1, 2, 4] = 2
    """How much the stem of a ResNet from scratch shrinks images: 4 for photographs, 1 or 2 for small ones."""
    size: str = "tiny"
    """How large a CLIP or language model is that starts from scratch: tiny, small, ..."""
    patch_size: int | None = Field(default=None, ge=1)
    """Side of the patches that a CLIP sees, in pixels; None takes the size's own."""
    head: Literal["full", "linear", "quantum"] = "quantum"
    """How a CLIP projects: one matrix, through n_qubits numbers, or through a circuit of n_qubits wires."""
    adapter: str | None = None
    """PEFT method that adapts a frozen language model: lora, vera, quantum_peft, qpa; None trains all."""
    adapter_weights: int | None = Field(default=None, ge=1)
    """About how many weights an adapter has; None leaves that to its rank."""
    rank: int | None = Field(default=None, ge=1)
    """Rank r of an adapter's updates; None takes that of adapter_weights, or the method's own."""
    alpha: float | None = Field(default=None, gt=0)
    """LoRA's updates are scaled by alpha / r; None takes twice the rank."""
    targets: tuple[str, ...] | None = None
    """Names of the layers that an adapter changes; None takes the query and value projections."""
    base_precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision in which an adapter's frozen base is kept; half of it for about half of the memory."""
    four_bit: bool = False
    """Whether an adapter's frozen base is kept in 4 bits (QLoRA) where CUDA and bitsandbytes allow it."""
    frozen_backbone: bool = False
    """Whether a ResNet's own weights stay as they are; what it makes of the images is then kept."""


class TrainingConfig(Settings):
    epochs: int = Field(default=20, ge=1)
    """Passes over the training data."""
    batch_size: Count = 64
    """Images per step on each process, before accumulation; "auto" measures it once, when a run begins."""
    learning_rate: float = Field(default=1e-2, gt=0)
    """Step size of the classical weights at the top of the schedule."""
    quantum_learning_rate: float | None = Field(default=None, gt=0)
    """Step size of the circuit's weights; None takes the classical one."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Update rule; sgd has momentum 0.9."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decay of the classical weights; angles are periodic and never decay."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """How the step size falls to zero over the run."""
    warmup_epochs: float = Field(default=0.0, ge=0)
    """Epochs over which the step size first rises from zero."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the classical gradient; None does not clip."""
    quantum_clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the circuit's gradient; None does not clip."""
    accumulation: int = Field(default=1, ge=1)
    """Batches that make one update together: its gradient is the mean over all their samples, or tokens."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the classical layers; circuits always compute in float32."""
    gradient_checkpointing: bool = False
    """Compute activations again on the way back in place of keeping them: less memory. May differ later."""
    on_oom: Literal["stop", "shrink"] = "stop"
    """Where memory runs out: stop, or shrink: compute it in smaller parts in turn. May differ later."""
    patience: int = Field(default=0, ge=0)
    """Epochs without a better validation score before stopping early; 0 never stops."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each label that is spread over all classes."""
    augmentation: Literal["none", "affine"] = "none"
    """Images anew in every epoch, in training only: affine turns, shifts, scales and shears them a little."""
    save_every_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps between checkpoints inside an epoch; None goes by minutes alone. May differ later."""
    save_every_minutes: float | None = Field(default=5.0, gt=0)
    """Minutes between checkpoints inside an epoch; every epoch ends in one anyway. May differ later."""
    chunk: int | None = Field(default=None, ge=1)
    """Pairs of a contrastive batch whose activations are held at once (cached gradients); None holds all."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints of each net that stay, the best epoch's beside them. May differ later."""
    gradient_samples: int = Field(default=16, ge=0)
    """Updates of an epoch whose gradients go to gradients.jsonl; 0 records none. May differ later."""


class CriteriaConfig(Settings):
    max_memory_gb: float | None = Field(default=None, gt=0)
    """Success: the most memory that training takes on its device, in GB (1e9 bytes). May differ later."""
    max_epoch_seconds: float | None = Field(default=None, gt=0)
    """Success: the most seconds of an epoch: the median of a training, as a mean over seeds. May differ."""
    min_accuracy: float | None = Field(default=None, ge=0, le=1)
    """Success: the least test accuracy, 0 to 1, as a mean over seeds; of images. May differ later."""
    min_recall: float | None = Field(default=None, ge=0, le=1)
    """Success: the least test recall@1, 0 to 1, as a mean over seeds; of captions. May differ later."""
    max_loss: float | None = Field(default=None, gt=0)
    """Success: the most test loss, nats / token, as a mean over seeds; text and music. May differ later."""


def require_batch_size(training: TrainingConfig) -> None:
    """
    Raises:
        ValueError: The size of batch is left to be measured, which only a run does.
    """
    if training.batch_size == "auto":
        step = "Only a run measures it, when it begins. Name a number, such as batch_size=32."
        raise ValueError(checks.message("batch_size", "be a number here", "auto", step))


class RunConfig(Settings):
    """Everything a run is made from; written to config.json in its folder."""

    recipe: str
    """Name of the entry of RECIPES that the run started from."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    criteria: CriteriaConfig = CriteriaConfig()
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Fixes initial weights and the order of the data."""
    n_seeds: int = Field(default=1, ge=1)
    """How many seeds (seed, seed + 1, ...) each net is trained with, for the intervals."""
    controls: tuple[Control, ...] = ("classical",)
    """Nets trained beside the hybrid one, with only the quantum part exchanged; () for a classical model."""
    device: str = "auto"
    """Torch device: auto (measured), cpu, cuda, cuda:N, mps. Placement: may differ when a run is resumed."""
    backend: str = "auto"
    """What runs the circuits: auto, batched or a PennyLane device. Placement, as above."""
    threads: Count | None = AUTO
    """CPU threads that train: auto measures how many; None leaves torch's choice. Placement, as above."""
    trackers: tuple[str, ...] = ()
    """Where numbers go beside metrics.jsonl: tensorboard, mlflow, wandb, trackio. May differ later."""
    price_per_hour: float | None = Field(default=None, ge=0)
    """What an hour of the machine costs, in any currency, for the estimate in provenance.json. May differ."""

    @field_validator("controls")
    @classmethod
    def _each_once(cls, controls: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(controls)) < len(controls):
            raise ValueError("name each net once")
        return controls

    def override(self, **values: FlatValue) -> RunConfig:
        """A copy with some settings exchanged, each named by its own name wherever it is nested.

        Raises:
            ValueError: A name is unknown (the nearest is offered), or a value breaks its rule.

        Example:
            >>> RunConfig(recipe="digits_quanv").override(epochs=2).training.epochs
            2
        """
        nested = self.model_dump()
        known = flat_names()
        for name, value in values.items():
            section = known[checks.choice("setting", name, known)]
            (nested[section] if section else nested)[name] = value
        return validate(nested)

    def flat(self) -> dict[str, Any]:
        """Every setting by its own name.

        Example:
            >>> RunConfig(recipe="digits_quanv").flat()["batch_size"]
            64
        """
        nested = self.model_dump(mode="json")
        return {
            name: nested[section][name] if section else nested[name] for name, section in flat_names().items()
        }

    def with_paths(self, change: Callable[[str], str]) -> RunConfig:
        """A copy whose paths are changed, such as by `workspace.portable` or `workspace.located`."""
        flat = self.flat()
        return self.override(**{name: change(flat[name]) for name in PATHS if flat[name] is not None})

    def digest(self) -> str:
        """SHA-256 (hex) over every setting but placement: equal for runs that would be the same experiment.

        Settings at their default do not count: one that a later version adds changes no digest.

        Example:
            >>> one, other = RunConfig(recipe="digits_quanv"), RunConfig(recipe="digits_quanv", device="cpu")
            >>> one.digest() == other.digest()
            True
        """
        usual = RunConfig(recipe=self.recipe).flat()
        chosen = {
            name: value
            for name, value in self.flat().items()
            if name not in PLACEMENT and (name == "recipe" or value != usual[name])
        }
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    def difference(self, other: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Settings that make another experiment: name -> (here, there). Placement makes none."""
        here, there = self.flat(), other.flat()
        return {
            name: (here[name], there[name])
            for name in here
            if name not in PLACEMENT and here[name] != there[name]
        }


PLACEMENT = (
    "device",
    "backend",
    "threads",
    "gradient_checkpointing",
    "on_oom",
    "download",
    "save_every_steps",
    "save_every_minutes",
    "keep_checkpoints",
    "gradient_samples",
    "trackers",
    "price_per_hour",
    *CriteriaConfig.model_fields,
)
"""Settings that say where and how a run computes, not what: they may differ when it is resumed."""
PATHS = ("data_dir", "pretrained", "tokenizer")
"""Settings that name a place; the last two, or a name on the Hub."""
_SECTIONS = {
    "data": DataConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "criteria": CriteriaConfig,
}


def flat_names() -> dict[str, str]:
    """Name of every setting -> the section that holds it ("" for the run itself).

    `model` is a section as well as the name of a setting in it; the setting is meant.
    """
    names = {name: "" for name in RunConfig.model_fields if name not in _SECTIONS}
    for section, kind in _SECTIONS.items():
        names |= dict.fromkeys(kind.model_fields, section)
    return names


def is_text(name: str) -> bool:
    """Whether a setting is a text, even where a value of it looks like a number."""
    section = flat_names().get(name)
    kind = None if section is None else _model_of(section).model_fields[name].annotation
    return kind is str or str in get_args(kind)


def _model_of(section: str) -> type[Settings]:
    return _SECTIONS[section] if section else RunConfig


def describe(name: str) -> str:
    """What a setting means, in one line."""
    section = flat_names()[checks.choice("setting", name, flat_names())]
    field = _model_of(section).model_fields[name]
    return (field.description or "").replace("\n", " ")


def validate(values: dict[str, Any]) -> RunConfig:
    """A RunConfig from plain values, as read from config.json.

    Raises:
        ValueError: One sentence on the first setting that breaks its rule.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = next((part for part in reversed(first["loc"]) if isinstance(part, str)), "settings")
        rule, value = first["msg"][0].lower() + first["msg"][1:], first["input"]
        rule = rule.removeprefix("input should ").removeprefix("value error, ")
        if first["type"] == "extra_forbidden":
            section = flat_names()[checks.choice("setting", name, flat_names())]
            rule = f"stand in {section or 'the top level'}"
        elif first["type"] == "missing":
            rule, value = "be given", None
        meaning = (
            f"It means: {describe(name)}"
            if name in flat_names()
            else "See qnnkit.config.RunConfig for every setting."
        )
        raise ValueError(checks.message(name, rule, value, meaning)) from None

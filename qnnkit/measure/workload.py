"""A training that has not begun: a net, its task, its batches and its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from qnnkit import checks, recipes, tasks, train, words
from qnnkit.data.batches import DictBatches
from qnnkit.data.splits import SPLITS
from qnnkit.data.tokens import IGNORED
from qnnkit.models import features
from qnnkit.settings import Settings

SOME = 64
"""Samples that stand for all, where only shapes count."""
USUAL = 1000
"""Samples of an epoch of a dataset that is not there."""
EARLY = "The frozen part is computed once, before the first epoch: not part of this time."
USUAL_LENGTH = 256
"""Tokens of a sample of a language model by default."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A training that has not begun.

    Example:
        >>> from qnnkit import tasks
        >>> samples = (torch.rand(64, 4), torch.arange(64) % 2)
        >>> own = Workload(
        ...     "mine", Settings(batch_size=32), 1000, lambda config, traced: nn.Linear(4, 2),
        ...     lambda config: samples, tasks.Classification(), example=samples[0],
        ... )
        >>> [tuple(part.shape) for part in own.batch(3)]
        [(3, 4), (3,)]
    """

    name: str
    training: Settings
    n_samples: int
    """In an epoch."""
    build: Callable[[Any, bool], nn.Module]
    """(Settings, whether it is only traced) -> a new net."""
    samples: Callable[[Any], Any]
    """Settings -> some samples, as the task takes a batch; their values do not matter."""
    task: Any
    groups: Callable[[nn.Module, Settings], Sequence[train.Group] | None] = lambda model, config: None
    """Parameters by step size."""
    example: Any = None
    """What the net takes: it runs once on this before it is traced, so that its circuits are known. None: the
    net is traced without ever holding memory of its own."""
    base_bytes: int = 4
    """Of a frozen weight that is not kept in 4 bits."""
    data_bytes: int = 0
    """RAM that the samples take in training."""
    loaded_bytes: int = 0
    """The part of `data_bytes` that this process holds already."""
    notes: tuple[str, ...] = ()
    """Sentences that belong to its predictions."""

    def change(self, **settings: Any) -> Workload:
        """A copy with some settings exchanged.

        Raises:
            ValueError: There is no such setting, or the value breaks its rule.
        """
        return replace(self, training=self.training.override(**settings))

    def of_samples(self, n: int) -> Workload:
        """A copy with `n` samples in an epoch, and data that take as much more or less RAM."""
        checks.positive("samples", n)
        return replace(self, n_samples=n, data_bytes=round(self.data_bytes * n / self.n_samples))

    def batch(self, n: int | None = None) -> Any:
        """`n` samples, as the task takes a batch; by default as many as an update has."""
        return take(self.samples(self.training), n or min(self.training.batch_size, self.n_samples))

    def loader(self, n_batches: int) -> DictBatches:
        """So many batches; no more samples than an epoch has."""
        size = self.training.batch_size
        rows = self.batch(min(n_batches * size, self.n_samples))
        return DictBatches(lambda epoch: rows, size, shuffle=True)

    def stepper(self, device: torch.device | str = "cpu", model: nn.Module | None = None) -> train.Stepper:
        """What takes its training steps: of `model`, or of a new net."""
        model = self.build(self.training, False) if model is None else model
        return train.Stepper(model, self.task, self.training, self.groups(model, self.training), device)


def take(samples: Any, n: int) -> Any:
    """A batch of the first `n` samples, from the front again where there are fewer.

    Example:
        >>> take((torch.arange(3), {"label": torch.zeros(3)}), 5)[0].tolist()
        [0, 1, 2, 0, 1]
    """
    if isinstance(samples, Tensor):
        return samples[torch.arange(n, device=samples.device) % len(samples)]
    if isinstance(samples, Mapping):
        return {name: take(part, n) for name, part in samples.items()}
    if isinstance(samples, list | tuple):
        return type(samples)(take(part, n) for part in samples)
    return samples


# --- recipes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """The first samples of a dataset, which stand for all: a net's time and memory depend on no more.

    It can be sent to another process, and has what a recipe's `build` reads of its data.
    """

    batch: Any
    """As the task takes it: (images, labels), or tensors by name."""
    sizes: dict[str, Any]
    """What a net must know of the data."""
    n_samples: int
    """In an epoch."""
    n_all: int
    """Samples of the whole dataset."""
    n_bytes: int = 0
    """That the dataset takes in RAM."""
    first: Any = None
    """What a net takes, of one sample."""

    @classmethod
    def of(cls, splits: Any, n_samples: int | None = None) -> Sample:
        """Of a dataset of any kind; `n_samples` are in an epoch, if not all that it has for training."""
        n, parts = len(splits.train), [splits.split(name) for name in SPLITS]
        batch = next(iter(splits.batches("train", min(SOME, n), shuffle=False)))
        tensors = [value for part in parts for value in vars(part).values() if isinstance(value, Tensor)]
        n_bytes = sum(tensor.nbytes for tensor in tensors)
        return cls(batch, splits.sizes, n_samples or n, sum(map(len, parts)), n_bytes, splits.example())

    @classmethod
    def dummy(cls, shape: str, n_samples: int | None = None) -> Sample:
        """Noise in place of a dataset of labelled images.

        Args:
            shape: Height, width, channels and classes, such as "32x32x1x28".
            n_samples: In an epoch; 1000 by default.

        Raises:
            ValueError: The shape is no such text.

        Example:
            >>> Sample.dummy("32x32x1x28").sizes
            {'channels': 1, 'image_size': (32, 32), 'n_classes': 28}
        """
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", shape):
            rule, step = "be height x width x channels x classes", "Use 32x32x1x28."
            raise ValueError(checks.message("dummy", rule, shape, step))
        height, width, channels, n_classes = map(int, shape.split("x"))
        generator, n = torch.Generator().manual_seed(0), n_samples or USUAL
        images = torch.randint(256, (SOME, channels, height, width), generator=generator, dtype=torch.uint8)
        sizes = {"channels": channels, "image_size": (height, width), "n_classes": n_classes}
        return cls((images, torch.arange(SOME) % n_classes), sizes, n, n, 0, images[:1])

    def example(self) -> Any:
        return self.first

    @property
    def noun(self) -> str:
        """What a sample is called."""
        return "pairs" if "tokenizer" in self.sizes else "blocks" if "length" in self.sizes else "samples"

    @property
    def n_tokens(self) -> float | None:
        """Tokens of a sample that are predicted, on average, where samples are sequences."""
        if self.noun != "blocks":
            return None
        return float((self.batch["labels"][:, 1:] != IGNORED).sum()) / len(self.batch["labels"])


def of_recipe(config: Settings, data: Any, *, cached: bool = True) -> Workload:
    """The net of a recipe on its own data, as `qnnkit run` trains it.

    A frozen part whose values are computed once before the first epoch is left out of the steps; the images
    that it reads stay in RAM beside its values.

    Args:
        config: Settings of the recipe.
        data: Its splits, of any kind, or a `Sample` of them.
        cached: Whether what is frozen is computed once, as training does.
    """

    def build(config: Settings, traced: bool) -> nn.Module:
        # PennyLane's devices need numbers; of a language model nothing is read but its configuration.
        own = config.model_copy(update={"backend": "batched"}) if traced else config
        return recipes.made(own, data, "", config.seed, bare="shapes" if traced else False)

    sample, notes = data if isinstance(data, Sample) else Sample.of(data), []
    net, some, data_bytes = build(config, True), sample.batch, sample.n_bytes
    bare = any(weight.is_meta for weight in net.parameters())
    if cached and not bare:
        some = features.training_batch(net, sample.batch, config, sample.n_all)
        if some is not sample.batch and some[0] is not sample.batch[0]:
            data_bytes += sample.n_all * some[0][0].nbytes
            notes.append(EARLY)
    if config.backend not in ("auto", "batched"):
        notes.append(f"Memory is that of the fused program, not of {config.backend}.")
    return Workload(
        name=config.title,
        training=config,
        n_samples=sample.n_samples,
        build=build,
        samples=lambda config: some,
        task=recipes.of(config).task(config),
        groups=recipes.parameter_groups,
        example=None if bare else sample.example(),
        base_bytes=4 if getattr(config, "base_precision", "float32") == "float32" else 2,
        data_bytes=data_bytes,
        loaded_bytes=sample.n_bytes,
        notes=tuple(notes),
    )


# --- transformers models, from their configuration alone ----------------------------------------------------


class ModelSettings(Settings):
    """Settings of a transformers model that is planned without a recipe."""

    batch_size: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0)
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    sequence_length: int | None = Field(default=None, ge=1)
    """Tokens of a sample; by default 256 for language models, CLIP's own otherwise."""
    lora_rank: int | None = Field(default=None, ge=1)
    """Rank of low-rank updates that are trained in place of the weights."""
    four_bit: bool = False
    """Frozen weights are kept in 4 bits where there is CUDA."""


def sizes() -> dict[str, Any]:
    """Kind of model -> its named sizes."""
    from qnnkit.models.causal_lm import LLAMA
    from qnnkit.models.clip import CLIP

    return {"llama": LLAMA, "clip": CLIP}


def of_transformer(kind: str, size: str, /, *, n_samples: int = USUAL, **settings: Any) -> Workload:
    """A transformers model trained on sequences of tokens, and on images with them for CLIP.

    Args:
        kind: "llama" or "clip".
        size: One of its named sizes, or a local folder with a `config.json`: of any causal language model,
            or of a CLIP. No weights are read.
        n_samples: Sequences, or pairs, in an epoch.
        settings: See `ModelSettings`.

    Raises:
        ValueError: The kind or size is unknown, the folder holds no such model, or a setting breaks its rule.
    """
    from transformers import AutoModelForCausalLM, CLIPModel

    from qnnkit import adapters
    from qnnkit.models.blocks import seeded

    checks.choice("model", kind, sizes())
    checks.positive("n_samples", n_samples)
    config, is_clip = _configuration(kind, size), kind == "clip"
    text = config.text_config if is_clip else config
    longest = getattr(text, "max_position_embeddings", None)  # some models have no such limit
    usual: Any = longest if is_clip else min(USUAL_LENGTH, longest or USUAL_LENGTH)
    training = ModelSettings.of({"sequence_length": usual, **settings})
    if training.four_bit and not training.lora_rank:
        step = "Add lora_rank=8."
        raise ValueError(checks.message("four_bit", "come with a lora_rank", True, step))
    length = training.sequence_length or usual
    if longest is not None and length > longest:
        rule = f"be at most {longest}, the positions that this model knows"
        raise ValueError(checks.message("sequence_length", rule, length, "Cut the samples shorter."))

    def build(training: ModelSettings, traced: bool) -> nn.Module:
        with seeded(0):
            model: Any = CLIPModel(config) if is_clip else AutoModelForCausalLM.from_config(config)
            return adapters.adapt(model, r=training.lora_rank) if training.lora_rank else model

    def samples(training: ModelSettings) -> dict[str, Tensor]:
        generator, shape = torch.Generator().manual_seed(0), (SOME, training.sequence_length or usual)
        tokens = torch.randint(0, int(text.vocab_size), shape, generator=generator)
        if not is_clip:
            return {"input_ids": tokens, "labels": tokens}
        vision = config.vision_config
        pixels = torch.zeros(SOME, vision.num_channels, vision.image_size, vision.image_size)
        return {"input_ids": tokens, "pixel_values": pixels}

    task = tasks.OwnLoss(together=is_clip)
    return Workload(f"{kind} {Path(size).name}", training, n_samples, build, samples, task)


def _configuration(kind: str, size: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    from qnnkit.models import clip
    from qnnkit.models.causal_lm import llama_config

    folder, named = Path(size).expanduser(), sizes()[kind]
    if size in named:
        config: Any = clip.configuration(size) if kind == "clip" else llama_config(size)
    elif not folder.is_dir():
        step = "Or name a local folder that holds a config.json."
        raise ValueError(checks.message("size", f"be one of {', '.join(named)}", size, step))
    else:
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            rule = "hold the config.json of a model that transformers knows"
            raise ValueError(checks.message("size", rule, size, f"{words.first_line(error)}.")) from None
        if (config.model_type == "clip") != (kind == "clip"):
            step = "Ask for --model clip, or llama for any causal language model."
            raise ValueError(checks.message("size", f"hold a model of kind {kind}", config.model_type, step))
        if kind == "llama" and type(config) not in AutoModelForCausalLM._model_mapping:
            rule = "hold a causal language model"
            raise ValueError(checks.message("size", rule, config.model_type, "Choose another folder."))
    if kind == "llama":
        config.use_cache = False  # as the task asks for
    return config

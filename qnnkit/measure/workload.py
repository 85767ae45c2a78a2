"""A training that has not begun: a net, its task, its batches and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from qnnkit import checks, recipes, tasks, train
from qnnkit.data.batches import DictBatches
from qnnkit.data.splits import SPLITS
from qnnkit.measure.placement import take
from qnnkit.models import features
from qnnkit.settings import Settings

SOME = 64
"""Samples that stand for all, where only shapes count."""
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

    def batch(self, n: int) -> Any:
        """`n` samples, as the task takes a batch."""
        return take(self.samples(self.training), n)

    def loader(self, n_batches: int) -> DictBatches:
        """So many batches; no more samples than an epoch has."""
        size = self.training.batch_size
        rows = self.batch(min(n_batches * size, self.n_samples))
        return DictBatches(lambda epoch: rows, size, shuffle=True)


def of_recipe(config: Settings, splits: Any) -> Workload:
    """The net of a recipe on its own data, as `qnnkit run` trains it.

    A frozen part whose values are computed once before the first epoch is left out of the steps; the images
    that it reads stay in RAM beside its values.

    Args:
        config: Settings of the recipe.
        splits: Its data, of any kind: they have `train`, `batches` and `example`.
    """

    def build(config: Settings, traced: bool) -> nn.Module:
        # PennyLane's devices need numbers; of a language model nothing is read but its configuration.
        own = config.model_copy(update={"backend": "batched"}) if traced else config
        return recipes.made(own, splits, "", config.seed, bare="shapes" if traced else False)

    net, notes = build(config, True), []
    bare = any(weight.is_meta for weight in net.parameters())
    some = next(iter(splits.batches("train", min(SOME, len(splits.train)), shuffle=False)))
    parts = [splits.split(name) for name in SPLITS]
    loaded = data_bytes = sum(_bytes(vars(part)) for part in parts)
    if not bare:
        n = sum(map(len, parts))
        seen = features.given(net, some, config, n)
        if seen is not some and seen[0] is not some[0]:
            data_bytes += n * seen[0][0].nbytes
            some = seen
            notes.append("The frozen part is computed once, before the first epoch: not part of this time.")
    if config.backend not in ("auto", "batched"):
        notes.append(f"Memory is that of the fused program, not of {config.backend}.")
    return Workload(
        name=config.title,
        training=config,
        n_samples=len(splits.train),
        build=build,
        samples=lambda config: some,
        task=recipes.of(config).task(config),
        groups=recipes.parameter_groups,
        example=None if bare else splits.example(),
        base_bytes=4 if getattr(config, "base_precision", "float32") == "float32" else 2,
        data_bytes=data_bytes,
        loaded_bytes=loaded,
        notes=tuple(notes),
    )


def _bytes(tensors: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in tensors.values() if isinstance(value, Tensor))


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


def of_transformer(kind: str, size: str, /, *, n_samples: int = 1000, **settings: Any) -> Workload:
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
            raise ValueError(checks.message("size", rule, size, str(error).split("\n")[0])) from None
        if (config.model_type == "clip") != (kind == "clip"):
            step = "Ask for --model clip, or llama for any causal language model."
            raise ValueError(checks.message("size", f"hold a model of kind {kind}", config.model_type, step))
        if kind == "llama" and type(config) not in AutoModelForCausalLM._model_mapping:
            rule = "hold a causal language model"
            raise ValueError(checks.message("size", rule, config.model_type, "Choose another folder."))
    if kind == "llama":
        config.use_cache = False  # as the task asks for
    return config

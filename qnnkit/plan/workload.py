"""What is to be planned: a net, its batches, its loss and its settings, be it a recipe's or any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from qnnkit import checks, gradients, layers, recipes
from qnnkit.data import ImageSplits, Splits, TensorSplits
from qnnkit.data.batches import Batches, DictBatches
from qnnkit.data.splits import SPLITS
from qnnkit.data.tokens import TokenSplits
from qnnkit.measure.placement import take
from qnnkit.models import features
from qnnkit.recipes import made, parameter_groups
from qnnkit.settings import Settings
from qnnkit.tasks import OwnLoss, Task
from qnnkit.train import Group, Observer

OF_MODELS = ("sequence_length", "lora_rank", "four_bit")
"""What only language models and CLIP have."""
SOME = 64
"""Samples that stand for all, over and over, where only shapes count."""
OTHER_BACKEND = "Memory is that of the fused program, not of {}."


@dataclass(frozen=True)
class Workload:
    """A training that has not begun."""

    name: str
    training: Settings
    n_samples: int
    """In an epoch."""
    build: Callable[[Workload, bool], nn.Module]
    """Makes the net anew, either to be traced or to be run."""
    batch: Callable[[Workload, int], Any]
    """As many samples as the task takes them; their values do not matter."""
    loader: Callable[[Workload, int], DataLoader]
    """So many batches, to train on for a moment; no more samples than an epoch has."""
    task: Task
    groups: Callable[[nn.Module, Settings], Sequence[Group] | None] = lambda model, config: None
    watch: Callable[[nn.Module, Sequence[Group] | None, int], Observer | None] = lambda model, groups, n: None
    """Looks at the gradients of so many updates of an epoch, as training does."""
    prepare: Callable[[nn.Module], None] | None = None
    """What a net that was built does on real numbers before it can be traced: circuits are read then. None
    where nothing is to be done: such a net is traced without ever having memory of its own."""
    sequence_length: int | None = None
    lora_rank: int | None = None
    four_bit: bool = False
    """Whether frozen weights are kept in 4 bits where there is CUDA; it is traced without."""
    base_bytes: int = 4
    """Of a frozen weight where it is not kept in 4 bits."""
    data_bytes: int = 0
    """RAM that the samples take in training."""
    loaded_bytes: int = 0
    """What of it this process holds already."""
    notes: tuple[str, ...] = field(default=())
    """What a reader of the prediction must know."""

    def change(self, **settings: Any) -> Workload:
        """A copy with some settings exchanged: of the training, `sequence_length`, `lora_rank`.

        Raises:
            ValueError: The workload has no such setting, or the value breaks its rule.
        """
        own = {name: settings.pop(name) for name in OF_MODELS if name in settings}
        for name, value in own.items():
            if self.sequence_length is None:
                step = "Only language models and CLIP have it."
                raise ValueError(checks.message(name, f"be left out for {self.name}", value, step))
            if value is not None:
                checks.positive(name, value)
        for name in settings:
            checks.choice("setting", name, type(self.training).model_fields)
        training = self.training.override(**settings)
        return replace(self, training=training, **own)

    def of_samples(self, n: int) -> Workload:
        """A copy with so many samples in an epoch, and data that take as much more or less RAM."""
        return replace(self, n_samples=n, data_bytes=round(self.data_bytes * n / self.n_samples))


def of_recipe(config: Settings, splits: Splits) -> Workload:
    """The net of a run on its own data, as `qnnkit run` trains it.

    A frozen part whose values are computed once, before the first epoch, is left out of the steps, as it is
    in training; the images that it reads stay in RAM with its values.

    Args:
        config: Settings of the run.
        splits: Its data.
    """
    if not isinstance(splits, ImageSplits | TensorSplits):
        return _of_dictionaries(config, splits)
    images, labels = tensors_of(splits.train)
    notes = []
    if config.backend not in ("auto", "batched"):
        notes.append(OTHER_BACKEND.format(config.backend))

    def build(workload: Workload, traced: bool) -> nn.Module:
        backend = "batched" if traced else config.backend  # PennyLane's devices need numbers
        return made(config.model_copy(update={"backend": backend}), splits, "", config.seed)

    def prepare(model: nn.Module) -> None:
        with layers.evaluating(model):
            model(images[:1])

    def samples(workload: Workload, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.arange(n) % len(labels)
        if width is None:
            return images[index], labels[index]
        return torch.zeros(n, *width), labels[index]

    def loader(workload: Workload, n_batches: int) -> DataLoader:
        size = workload.training.batch_size
        n = min(n_batches * size, workload.n_samples)
        return Batches(*samples(workload, n), size, shuffle=True)

    width = _computed_once(config, splits)
    parts = (splits.train, splits.validation, splits.test)
    data_bytes = loaded_bytes = sum(tensors_of(part)[0].nbytes for part in parts)
    if width is not None:
        data_bytes += sum(len(part) for part in parts) * 4 * torch.Size(width).numel()
        notes.append(
            "What is frozen is computed once, before the first epoch; that time is not in this plan."
        )
    return Workload(
        name=config.title,
        training=config,
        n_samples=len(splits.train),
        build=build,
        batch=samples,
        loader=loader,
        task=recipes.of(config).task(config),
        groups=parameter_groups,
        watch=_watch,
        prepare=prepare,
        data_bytes=data_bytes,
        loaded_bytes=loaded_bytes,
        notes=tuple(notes),
    )


def _of_dictionaries(config: Settings, splits: Splits) -> Workload:
    """As `of_recipe`, of captions, text and music: batches are dictionaries."""
    tokens = isinstance(splits, TokenSplits)
    notes = () if config.backend in ("auto", "batched") else (OTHER_BACKEND.format(config.backend),)

    # Of a language model shapes are all, of its adapter's circuits too: its weights, which may be many, are
    # not read.
    bare = tokens

    def build(workload: Workload, traced: bool) -> nn.Module:
        backend = "batched" if traced else config.backend
        own = config.model_copy(update={"backend": backend})
        return made(own, splits, "", config.seed, bare="shapes" if traced and bare else False)

    def prepare(model: nn.Module) -> None:
        with layers.evaluating(model):
            layers.called(model, splits.example())

    def samples(workload: Workload, n: int) -> dict[str, torch.Tensor]:
        return take(some, n)

    def loader(workload: Workload, n_batches: int) -> DataLoader:
        size = workload.training.batch_size
        n = min(n_batches * size, workload.n_samples)
        return DictBatches(lambda epoch: samples(workload, n), size, shuffle=True)

    some = next(iter(splits.batches("train", min(SOME, len(splits.train)), shuffle=False)))
    # Language counts the tokens that are predicted, which tensors without data cannot tell.
    task = OwnLoss() if tokens else recipes.of(config).task(config)
    held = sum(tensor.nbytes for name in SPLITS for tensor in tensors_of(splits.split(name)))
    return Workload(
        name=config.title,
        training=config,
        n_samples=len(splits.train),
        build=build,
        batch=samples,
        loader=loader,
        task=task,
        groups=parameter_groups,
        watch=_watch,
        prepare=None if bare else prepare,
        four_bit=getattr(config, "four_bit", False),
        base_bytes=4 if getattr(config, "base_precision", "float32") == "float32" else 2,
        data_bytes=held,
        loaded_bytes=held,
        notes=notes,
    )


def tensors_of(part: Any) -> list[torch.Tensor]:
    """What a split holds."""
    return [value for value in vars(part).values() if isinstance(value, torch.Tensor)]


def _watch(model: nn.Module, groups: Sequence[Group] | None, n: int) -> Observer | None:
    return gradients.Watch(model, groups, per_epoch=n) if groups and n else None


def _computed_once(config: Settings, splits: Splits) -> torch.Size | None:
    """Shape of what the net is given in place of an image, where its frozen part runs before training."""
    if getattr(config, "augmentation", "none") != "none" or not isinstance(splits, ImageSplits):
        return None
    net = made(config.model_copy(update={"backend": "batched"}), splits, "", config.seed)
    n_images = len(splits.train) + len(splits.validation) + len(splits.test)
    values = features.made(net, splits.train.images[:1], n_images)
    return values.shape[1:] if values.is_floating_point() else None

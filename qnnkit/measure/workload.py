"""A training that has not begun: a net, its task, its batches and its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from qnnkit import checks, recipes, train
from qnnkit.data.batches import DictBatches
from qnnkit.data.splits import SPLITS
from qnnkit.models import features
from qnnkit.settings import Settings

SOME = 64
"""Number of samples that stand for the whole dataset when only shapes count."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A training that has not begun: the input of placement, plans, strategies and the survey.

    Args:
        name: Name in plans and tables.
        training: Settings of the training.
        n_samples: Samples of an epoch.
        build: (Settings, whether it is only traced) -> a new net.
        samples: Settings -> some samples, as the task takes a batch; their values do not matter.
        task: Computes the loss: a `tasks.Task`, or any callable (model, batch) -> `tasks.Step`.
        groups: (Net, settings) -> its parameters by learning rate; None puts all into one group.
        example: Input on which the net runs once before it is traced, so that its circuits are known. If it
            is None, the net is built on the meta device and never holds memory of its own.
        base_bytes: Bytes of a frozen weight that is not stored in 4 bits.
        data_bytes: RAM that the samples take in training.
        loaded_bytes: The part of `data_bytes` that this process already holds.
        notes: Sentences to show with its predictions.

    Example:
        >>> from qnnkit import tasks
        >>> samples = (torch.rand(64, 4), torch.arange(64) % 2)
        >>> workload = Workload(
        ...     "mine", Settings(batch_size=32), 1000, lambda config, traced: nn.Linear(4, 2),
        ...     lambda config: samples, tasks.Classification(), example=samples[0],
        ... )
        >>> [tuple(part.shape) for part in workload.batch(3)]
        [(3, 4), (3,)]
        >>> workload.batch(67)[1][-3:]
        tensor([0, 1, 0])
    """

    name: str
    training: Settings
    n_samples: int
    build: Callable[[Any, bool], nn.Module]
    samples: Callable[[Any], Any]
    task: Any
    groups: Callable[[nn.Module, Settings], Sequence[train.Group] | None] = lambda model, config: None
    example: Any = None
    base_bytes: int = 4
    data_bytes: int = 0
    loaded_bytes: int = 0
    notes: tuple[str, ...] = ()

    def change(self, **settings: Any) -> Workload:
        """A copy with some settings changed.

        Raises:
            ValueError: There is no such setting, or the value breaks its rule.
        """
        return replace(self, training=self.training.override(**settings))

    def of_samples(self, n: int) -> Workload:
        """A copy with `n` samples in an epoch. The RAM of the data is scaled in proportion."""
        checks.positive("samples", n)
        return replace(self, n_samples=n, data_bytes=round(self.data_bytes * n / self.n_samples))

    def batch(self, n: int | None = None) -> Any:
        """A batch of `n` samples in the form that the task takes, repeated if there are fewer.

        Default: as many samples as an update has.
        """
        n = n or min(self.training.batch_size, self.n_samples)
        samples = self.samples(self.training)
        return tree_map_only(Tensor, lambda one: one[torch.arange(n, device=one.device) % len(one)], samples)

    def loader(self, n_batches: int) -> DictBatches:
        """A loader of `n_batches` batches, but of no more samples than an epoch has."""
        size = self.training.batch_size
        rows = self.batch(min(n_batches * size, self.n_samples))
        return DictBatches(lambda epoch: rows, size, shuffle=True)

    def stepper(self, device: torch.device | str = "cpu", model: nn.Module | None = None) -> train.Stepper:
        """A stepper that takes training steps of `model`, or of a new net."""
        model = self.build(self.training, False) if model is None else model
        return train.Stepper(model, self.task, self.training, self.groups(model, self.training), device)


def of_recipe(config: Settings, splits: Any) -> Workload:
    """Workload of a recipe's net on its own data, as `qnnkit run` trains it.

    A frozen part whose values are computed once before the first epoch is not part of the steps; the images
    that it reads stay in RAM next to its values.

    Args:
        config: Settings of the recipe.
        splits: Its data, of any kind. The first samples stand for all, as time and memory depend on no more.
    """

    def build(config: Settings, traced: bool) -> nn.Module:
        # PennyLane's devices need numbers; for a language model only the configuration is read.
        config = config.model_copy(update={"backend": "batched"}) if traced else config
        return recipes.made(config, splits, "", config.seed, bare=traced)

    net, parts, notes = build(config, True), [splits.split(name) for name in SPLITS], []
    tensors = [value for part in parts for value in vars(part).values() if isinstance(value, Tensor)]
    n_all, loaded_bytes = sum(map(len, parts)), sum(tensor.nbytes for tensor in tensors)
    batch = next(iter(splits.batches("train", min(SOME, len(splits.train)), shuffle=False)))
    bare = any(weight.is_meta for weight in net.parameters())
    some, data_bytes = features.training_batch(net, batch, config, n_all), loaded_bytes
    if some is not batch:
        data_bytes += n_all * some[0][0].nbytes
        notes.append("The frozen part is computed once before the first epoch, and is not part of this time.")
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
        base_bytes=4 if config.of_kit("base_precision", "float32") == "float32" else 2,
        data_bytes=data_bytes,
        loaded_bytes=loaded_bytes,
        notes=tuple(notes),
    )

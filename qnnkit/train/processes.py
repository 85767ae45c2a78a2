"""One process or several: an Accelerator for exactly this device, and each process's share of every batch.

n processes with batches of b samples take the same steps as one with batches of n b samples, to rounding.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from qnnkit import checks
from qnnkit.settings import Settings

PRECISIONS = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
"""Our names of precisions -> Accelerate's."""


@contextlib.contextmanager
def accelerated(model: nn.Module, device: torch.device, config: Settings) -> Iterator[Any]:
    """An Accelerator for exactly this device and precision; it leaves nothing behind, `model` included."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import patch_environment

    if config.precision == "float16" and device.type == "cpu":
        raise ValueError(
            checks.message("precision", "suit the device", "float16 on cpu", "Use bfloat16 or float32.")
        )

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    hung = ("forward", "_original_forward", "_is_accelerate_prepared")  # what `prepare` sets on a module
    before = {name: vars(model)[name] for name in hung if name in vars(model)}
    forget()
    # Accelerate shares the GPUs out among several processes; a single one computes where it is told.
    told = {} if n_processes() > 1 else {"ACCELERATE_TORCH_DEVICE": str(device)}
    try:
        with patch_environment(**told):
            accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=PRECISIONS[config.precision])
        if torch.zeros(0, device=device).device != torch.zeros(0, device=accelerator.device).device:
            rule = f"be the one that Accelerate gives this process ({accelerator.device})"
            step = "Choose another GPU by CUDA_VISIBLE_DEVICES."
            raise ValueError(checks.message("device", rule, str(device), step))
        yield accelerator
    finally:
        for name in hung:
            vars(model).pop(name, None)
        vars(model).update(before)
        forget()


def is_main() -> bool:
    """Whether this process writes: the first of those that `accelerate launch` started, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def n_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_all() -> None:
    """Returns when every process has come here; at once where there is one."""
    if n_processes() > 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


class Shares:
    """A loader's batches as one of several processes sees them."""

    def __init__(self, loader: DataLoader, accelerator: Any):
        """
        Raises:
            ValueError: There are several processes, and the loader has no fixed size of batch to share.
        """
        self.loader, self.rank, self.world = loader, accelerator.process_index, accelerator.num_processes
        self.accelerator, self.position = accelerator, 0
        if self.world > 1:
            if loader.batch_size is None or not hasattr(loader.dataset, "__len__"):
                step = "Give one with batch_size=... over a dataset that has a length."
                rule = "have a fixed batch_size where several processes share it"
                raise ValueError(checks.message("loaders", rule, type(loader).__name__, step))
            sampler = _Share(loader.batch_sampler, self.rank, self.world)  # type: ignore[arg-type]
            self.shared: Any = DataLoader(
                loader.dataset,
                batch_sampler=sampler,
                collate_fn=loader.collate_fn,
                num_workers=loader.num_workers,
                pin_memory=loader.pin_memory,
                worker_init_fn=loader.worker_init_fn,
                generator=loader.generator,
            )
        else:
            self.shared = loader

    def __len__(self) -> int:
        return math.ceil(len(self.loader) / self.world)

    def signature(self) -> list[int | None]:
        """Number of batches in an epoch, and samples in each, over all processes."""
        size = self.loader.batch_size
        return [len(self), None if size is None else size * self.world]

    def set_epoch(self, epoch: int) -> None:
        """Tells the dataset and the samplers that have an order for each epoch."""
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)  # type: ignore[attr-defined]
            return
        for part in (self.loader.dataset, self.loader.sampler, self.loader.batch_sampler):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)  # type: ignore

    def __iter__(self) -> Iterator[Any]:
        """Batches, on the device."""
        from accelerate.utils import send_to_device

        for batch in self.shared:
            yield send_to_device(batch, self.accelerator.device, non_blocking=True)

    def own_count(self, index: int, count: int) -> int:
        """How many of the `count` samples of batch `index` are this process's own.

        Where fewer samples are left than there are processes, one without any computes along on a sample that
        does not count.
        """
        if self.world == 1:
            return count
        together = self.world * self.loader.batch_size  # type: ignore[operator]
        left = len(self.loader.dataset) - index * together  # type: ignore[arg-type]
        return count if self.rank < left else 0


class _Share:
    """Batches of indices: of every `world` batches together, each process takes every `world`-th index."""

    def __init__(self, batches: Iterable[Sequence[int]], rank: int, world: int):
        self.batches, self.rank, self.world = batches, rank, world

    def __iter__(self) -> Iterator[list[int]]:
        together: list[int] = []
        waiting = 0
        for batch in self.batches:
            together, waiting = [*together, *batch], waiting + 1
            if waiting == self.world:
                yield self._own(together)
                together, waiting = [], 0
        if together:
            yield self._own(together)

    def _own(self, together: list[int]) -> list[int]:
        return together[self.rank :: self.world] or together[:1]

    def __len__(self) -> int:
        return math.ceil(len(self.batches) / self.world)  # type: ignore[arg-type]


def summed(accelerator: Any, values: Sequence[float]) -> list[float]:
    """Each value, added up over the processes."""
    if accelerator.num_processes == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    torch.distributed.all_reduce(tensor)
    return tensor.tolist()

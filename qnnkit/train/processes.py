"""The processes that train together: one, or those that `accelerate launch` or `notebook_launcher` started.

n processes with batches of b samples take the same steps as one with batches of n b samples, to rounding.
One process computes on any device and needs nothing of Accelerate, which gives each of several its own.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from qnnkit import checks

OPTIONS = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
OPTIONS += ("generator", "prefetch_factor")
"""What a loader is given next to its data and their order."""


def is_main() -> bool:
    """Whether this process writes: the first of several, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def n_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_all() -> None:
    """Returns when every process has come here; at once where there is one."""
    if n_processes() > 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


class Processes:
    """What the loop asks of the processes that train together.

    Args:
        device: Where to compute; of several, Accelerate decides which GPU each has.

    Raises:
        ValueError: Several processes, and Accelerate computes on another kind of device.
    """

    def __init__(self, device: torch.device):
        self.rank, self.world, self.device, self._accelerator = 0, n_processes(), device, None
        if self.world == 1:
            return
        from accelerate import Accelerator

        # The loop has its own mixed precision.
        self._accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="no")
        self.rank, self.device = self._accelerator.process_index, self._accelerator.device
        if self.device.type != device.type or device.index not in (None, self.device.index):
            rule = f"be the one that Accelerate gives this process ({self.device})"
            step = "Choose another GPU by CUDA_VISIBLE_DEVICES."
            raise ValueError(checks.message("device", rule, str(device), step))

    @property
    def main(self) -> bool:
        return self.rank == 0

    def spread(self, model: nn.Module) -> Any:
        """The model on the device, whose gradients are means over the processes."""
        return model.to(self.device) if self._accelerator is None else self._accelerator.prepare(model)

    def alone(self, model: Any) -> Any:
        """Surroundings in which gradients are added up in each process by itself."""
        return self._accelerator.no_sync(model) if self._accelerator else contextlib.nullcontext()

    def sums(self, *values: float) -> list[float]:
        """Each value, added up over the processes."""
        if self._accelerator is None:
            return list(values)
        here = torch.tensor(values, dtype=torch.float64).to(self.device)
        return self._accelerator.reduce(here, "sum").tolist()  # pyright: ignore[reportAttributeAccessIssue]

    def gathered(self, value: Any) -> list[Any]:
        """The plain value of every process."""
        if self._accelerator is None:
            return [value]
        from accelerate.utils import gather_object

        return gather_object([value])


class Share:
    """A loader's batches as one of the processes sees them; an epoch can begin at any of them.

    Raises:
        ValueError: There are several processes, and the loader has no fixed size of batch to share.
    """

    def __init__(self, loader: DataLoader, processes: Processes):
        self.loader, self.processes = loader, processes
        plain = type(loader).__iter__ is DataLoader.__iter__ and loader.batch_sampler is not None
        self.indexed = plain and not isinstance(loader.dataset, IterableDataset)
        if processes.world > 1 and (loader.batch_size is None or not self.indexed):
            step = "Give one with batch_size=... over a dataset that has a length."
            rule = "have a fixed batch_size where several processes share it"
            raise ValueError(checks.message("loaders", rule, type(loader).__name__, step))

    def __len__(self) -> int:
        return math.ceil(len(self.loader) / self.processes.world)

    def signature(self) -> list[int | None]:
        """Number of batches in an epoch, and samples in each, over all processes."""
        size = self.loader.batch_size
        return [len(self), None if size is None else size * self.processes.world]

    def set_epoch(self, epoch: int, seed: int) -> None:
        """Tells whatever has an order for each epoch which one it is; seeds the loader's generators."""
        inner = getattr(self.loader.batch_sampler, "sampler", None)
        for part in (self.loader, self.loader.sampler, inner):
            if isinstance(generator := getattr(part, "generator", None), torch.Generator):
                generator.manual_seed(seed)
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)  # type: ignore[attr-defined]
            return
        for part in (self.loader.dataset, self.loader.sampler, self.loader.batch_sampler):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)  # type: ignore

    def batches(self, first: int = 0, begin: Callable[[], None] = lambda: None) -> Iterator[tuple[Any, bool]]:
        """Batches on the device from the `first` on, and whether each counts in this process.

        Where fewer samples are left than there are processes, one without any computes along on a sample that
        does not count. What comes before `first` is not loaded, but where a loader has its own `__iter__`, or
        no indices.

        Args:
            first: How many batches to pass over.
            begin: Called when the order has been drawn, before anything is loaded that is given.
        """
        if not self.indexed:
            batches = iter(self.loader)
            for _ in range(first):
                next(batches)
            begin()
            yield from ((self._moved(batch), True) for batch in batches)
            return
        sampler: Any = self.loader.batch_sampler
        own: list[bool] = []

        def order() -> Iterator[list[int]]:
            batches = shares(list(sampler), self.processes.rank, self.processes.world)
            begin()
            for indices, counts in batches[first:]:
                own.append(counts)
                yield indices

        options = {name: getattr(self.loader, name) for name in OPTIONS}
        for index, batch in enumerate(DataLoader(self.loader.dataset, batch_sampler=order(), **options)):
            yield self._moved(batch), own[index]

    def _moved(self, batch: Any) -> Any:
        from accelerate.utils import send_to_device

        return send_to_device(batch, self.processes.device, non_blocking=True)


def shares(batches: list[list[int]], rank: int, world: int) -> list[tuple[list[int], bool]]:
    """Of every `world` batches together each process takes every `world`-th index.

    Where none is left for it, it takes one that does not count: the second value is then False.
    """
    rounds = [
        list(itertools.chain.from_iterable(batches[first : first + world]))
        for first in range(0, len(batches), world)
    ]
    return [(indices[rank::world] or indices[:1], rank < len(indices)) for indices in rounds]

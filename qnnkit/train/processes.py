"""The processes that train together: one, or those started by `accelerate launch` or `notebook_launcher`.

n processes with batches of b samples take the same steps as one with batches of n b samples, up to rounding.
A single process runs on any device without Accelerate; of several, Accelerate gives each its own device.
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
"""Options of a DataLoader besides its dataset and sampler."""


def is_main() -> bool:
    """Whether this process writes files: it is the first of several, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def n_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_all() -> None:
    """Waits until every process has reached this call; returns at once for a single process."""
    if n_processes() > 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


class Processes:
    """The operations of the training loop that involve all processes.

    Args:
        device: Where to compute; Accelerate assigns a GPU to each of several processes.

    Raises:
        ValueError: Accelerate gives one of several processes a different device.
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
            step = "Choose another GPU with CUDA_VISIBLE_DEVICES."
            raise ValueError(checks.message("device", rule, str(device), step))

    @property
    def main(self) -> bool:
        return self.rank == 0

    def spread(self, model: nn.Module) -> Any:
        """The model on the device; its gradients are means over the processes."""
        return model.to(self.device) if self._accelerator is None else self._accelerator.prepare(model)

    def alone(self, model: Any) -> Any:
        """A context in which each process accumulates gradients without synchronisation."""
        return self._accelerator.no_sync(model) if self._accelerator else contextlib.nullcontext()

    def sums(self, *values: float) -> list[float]:
        """Each value, summed over the processes."""
        if self._accelerator is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64).to(self.device)
        return self._accelerator.reduce(tensor, "sum").tolist()  # pyright: ignore[reportAttributeAccessIssue]

    def gathered(self, value: Any) -> list[Any]:
        """The value of each process, as a list."""
        if self._accelerator is None:
            return [value]
        from accelerate.utils import gather_object

        return gather_object([value])


class Share:
    """One process's share of a loader's batches; an epoch can begin at any batch.

    Raises:
        ValueError: There are several processes, and the loader has no fixed batch size.
    """

    def __init__(self, loader: DataLoader, processes: Processes):
        self.loader, self.processes = loader, processes
        plain = type(loader).__iter__ is DataLoader.__iter__ and loader.batch_sampler is not None
        self.indexed = plain and not isinstance(loader.dataset, IterableDataset)
        if processes.world > 1 and (loader.batch_size is None or not self.indexed):
            step = "Give one with batch_size=... over a dataset that has a length."
            rule = "have a fixed batch_size if several processes share it"
            raise ValueError(checks.message("loaders", rule, type(loader).__name__, step))

    def __len__(self) -> int:
        return math.ceil(len(self.loader) / self.processes.world)

    def signature(self) -> list[int | None]:
        """Number of batches in an epoch, and of samples in a batch over all processes."""
        size = self.loader.batch_size
        return [len(self), None if size is None else size * self.processes.world]

    def set_epoch(self, epoch: int, seed: int) -> None:
        """Passes the epoch to the objects that order the samples; seeds the loader's generators."""
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
        """Batches on the device from number `first` on, and whether each counts in this process.

        If fewer samples remain than there are processes, a process without one computes a sample that does
        not count. Batches before `first` are not loaded, unless the loader has its own `__iter__` or no
        indices.

        Args:
            first: Number of batches to skip.
            begin: Called after the order is drawn, before the first returned batch is loaded.
        """
        if not self.indexed:
            batches = iter(self.loader)
            for _ in range(first):
                next(batches)
            begin()
            yield from ((self._moved(batch), True) for batch in batches)
            return
        sampler: Any = self.loader.batch_sampler
        flags: list[bool] = []

        def order() -> Iterator[list[int]]:
            batches = shares(list(sampler), self.processes.rank, self.processes.world)
            begin()
            for indices, counts in batches[first:]:
                flags.append(counts)
                yield indices

        options = {name: getattr(self.loader, name) for name in OPTIONS}
        for index, batch in enumerate(DataLoader(self.loader.dataset, batch_sampler=order(), **options)):
            yield self._moved(batch), flags[index]

    def _moved(self, batch: Any) -> Any:
        from accelerate.utils import send_to_device

        return send_to_device(batch, self.processes.device, non_blocking=True)


def shares(batches: list[list[int]], rank: int, world: int) -> list[tuple[list[int], bool]]:
    """One process's indices: from every `world` consecutive batches, every `world`-th index.

    If none remains for the process, it gets an index that does not count; the second value is then False.
    """
    rounds = [
        list(itertools.chain.from_iterable(batches[first : first + world]))
        for first in range(0, len(batches), world)
    ]
    return [(indices[rank::world] or indices[:1], rank < len(indices)) for indices in rounds]

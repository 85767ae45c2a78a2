"""Batches of tensors, in an order given by seed and epoch; the samples may change from epoch to epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset


def keyed_generator(*key: object) -> torch.Generator:
    """Returns a generator seeded by a hash of `key`, so that similar keys give unrelated streams."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class DictBatches(DataLoader):
    """A DataLoader that indexes whole batches, without workers or draws from torch's global generator.

    Args:
        draw: Epoch -> samples of that epoch: tensors of equal length, in a dictionary or a tuple. Calls for
            the same epoch must return the same samples.
        batch_size: Samples in a batch; the last one may be smaller.
        shuffle: Whether to draw a new order in each epoch; if not, the order is that of `draw`.
        seed: Determines the order, together with the epoch.
    """

    def __init__(self, draw: Callable[[int], Any], batch_size: int, *, shuffle: bool, seed: int = 0) -> None:
        self.rows = _Rows(draw, seed if shuffle else None)
        generator = keyed_generator(seed)  # without it, each pass would draw a number from the global one
        super().__init__(self.rows, batch_size, collate_fn=lambda batch: batch, generator=generator)

    def set_epoch(self, epoch: int) -> None:
        """Chooses samples and order of the next pass. Accelerate's loaders have a method of the same name."""
        self.rows.set_epoch(epoch)


class _Rows(Dataset):
    """Samples in an order given by seed and epoch alone; the loader reads them from first to last.

    The order is stored here because Accelerate passes `set_epoch` to the dataset on any number of processes.
    Some versions do not reach a sampler inside a shard, or inside a loader that skips batches.
    """

    def __init__(self, draw: Callable[[int], Any], seed: int | None) -> None:
        self.draw, self.seed = draw, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.tensors = self.draw(epoch)
        self.order = torch.arange(len(self))
        if self.seed is not None:
            self.order = torch.randperm(len(self), generator=keyed_generator(self.seed, epoch))

    def __len__(self) -> int:
        return len(tree_leaves(self.tensors)[0])

    def __getitems__(self, indices: list[int]) -> Any:
        """Returns a batch by indexing once; a DataLoader prefers this method to `__getitem__`."""
        rows = self.order[indices]
        return tree_map(lambda tensor: tensor[rows], self.tensors)

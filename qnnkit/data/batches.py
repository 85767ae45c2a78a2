"""Batches of tensors in an order given by seed and epoch; samples may be others in every epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset


def keyed_generator(*key: object) -> torch.Generator:
    """A generator whose stream depends on `key` alone, and is unlike that of any neighbouring key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class DictBatches(DataLoader):
    """A DataLoader of whole batches: no workers, no draw from torch's global generator.

    Args:
        draw: Epoch -> tensors of one length, by name or in a tuple: the samples of that epoch, the same at
            each call.
        batch_size: Samples of a batch; the last one may be smaller.
        shuffle: Whether each epoch has an order of its own; else samples come as `draw` gives them.
        seed: With the epoch, all that the order depends on.
    """

    def __init__(self, draw: Callable[[int], Any], batch_size: int, *, shuffle: bool, seed: int = 0) -> None:
        self.rows = _Rows(draw, seed if shuffle else None)
        own = keyed_generator(seed)  # each pass draws one number, which would else move the global state
        super().__init__(self.rows, batch_size, collate_fn=lambda batch: batch, generator=own)

    def set_epoch(self, epoch: int) -> None:
        """Chooses samples and order of the next pass; the same name as on a loader of Accelerate."""
        self.rows.set_epoch(epoch)


class _Rows(Dataset):
    """Samples in an order given by seed and epoch alone; the loader reads them from first to last.

    The order is kept here because Accelerate hands `set_epoch` to the dataset on any number of processes;
    a sampler inside a shard, or inside a loader that skips batches, is out of its reach in some versions.
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
        """A whole batch by one indexing; a DataLoader prefers it to `__getitem__`."""
        rows = self.order[indices]
        return tree_map(lambda tensor: tensor[rows], self.tensors)

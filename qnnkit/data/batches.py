"""Batches of dictionaries, whose samples may be others in every epoch: captions drawn, music transposed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from qnnkit.data.sample import seeded


class DictBatches(DataLoader):
    """A DataLoader over dictionaries of tensors: whole batches, no workers, no draw from torch's generator.

    Args:
        draw: Epoch -> tensors of one length, by name: the samples of that epoch, the same at each call.
        batch_size: Samples of a batch; the last one may be smaller.
        shuffle: Whether the order is drawn anew for every epoch; else as `draw` gives them.
        seed: With the epoch, all that the order depends on.
    """

    def __init__(
        self,
        draw: Callable[[int], Mapping[str, Tensor]],
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
    ) -> None:
        self.rows = _Rows(draw, seed if shuffle else None)
        super().__init__(
            self.rows,
            batch_size,
            collate_fn=dict,  # what the rows give is a batch already
            generator=seeded(seed),  # each pass draws one number, which would otherwise move the global state
        )

    def set_epoch(self, epoch: int) -> None:
        """Chooses samples and order of the next pass."""
        self.rows.set_epoch(epoch)


class _Rows(Dataset):
    def __init__(self, draw: Callable[[int], Mapping[str, Tensor]], seed: int | None) -> None:
        self.draw, self.seed = draw, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.tensors = self.draw(epoch)
        n = len(self)
        shuffled = self.seed is not None
        self.order = torch.randperm(n, generator=seeded(self.seed, epoch)) if shuffled else torch.arange(n)

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """A whole batch by one indexing; a DataLoader prefers it to `__getitem__`."""
        rows = self.order[indices]
        return {name: tensor[rows] for name, tensor in self.tensors.items()}

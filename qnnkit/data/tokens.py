"""Sequences of tokens, split once and for all: what language models read, be it text or music."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.data.batches import DictBatches
from qnnkit.data.splits import SPLITS, share_of

IGNORED = -100
"""Label of a position that is not predicted, as torch's cross-entropy and transformers have it."""


@dataclass(frozen=True, eq=False)
class TokenSet:
    """The blocks of one split."""

    input_ids: Tensor  # int64, (n, length)
    labels: Tensor  # the same, or IGNORED where nothing is to be predicted; int64, (n, length)
    sources: tuple[str, ...]  # where each block begins: a document's or piece's name

    def __len__(self) -> int:
        return len(self.input_ids)

    def at(self, rows: Sequence[int]) -> TokenSet:
        """Some of the blocks, in this order."""
        chosen = list(rows)
        return TokenSet(self.input_ids[chosen], self.labels[chosen], tuple(self.sources[i] for i in chosen))

    @property
    def n_predicted(self) -> int:
        """Tokens that are predicted: a model sees nothing before the first of a block."""
        return int((self.labels[:, 1:] != IGNORED).sum())


def require_fractions(validation: float, test: float) -> None:
    """Raises ValueError unless both shares are above 0 and leave something for training."""
    if not (min(validation, test) > 0 and validation + test < 1):
        rule = "be above 0, as validation_fraction must, and leave some for training"
        step = f"With validation_fraction={validation} that is not so: use 0.1 for both."
        raise ValueError(checks.message("test_fraction", rule, test, step))


def drawn(
    n: int, generator: torch.Generator, validation: float, test: float, *, what: str, whole: object, step: str
) -> list[str]:
    """The split of each of `n` documents or pieces (`what`): these shares of them, one at least.

    Raises:
        ValueError: None is left for training; `whole` is what there is too little of, `step` what to do.
    """
    n_validation, n_test = (max(1, round(share * n)) for share in (validation, test))
    if n_validation + n_test >= n:
        rule = f"hold enough {what} for train, validation and test"
        raise ValueError(checks.message("root", rule, whole, step))
    sides = ["train"] * n
    for place, row in enumerate(torch.randperm(n, generator=generator).tolist()[: n_test + n_validation]):
        sides[row] = "test" if place < n_test else "validation"
    return sides


@dataclass(frozen=True, eq=False)
class TokenSplits:
    """A dataset of token blocks, split by document into train, validation and test.

    A batch is {"input_ids", "labels"}, both int64 of shape (batch, length), as transformers' causal language
    models take them: they shift the labels themselves.
    """

    name: str
    train: TokenSet
    validation: TokenSet
    test: TokenSet
    tokenizer: Any
    """Has `encode(text_or_events) -> list[int]`, `decode(ids)`, `len()` and `save_pretrained(folder)`."""
    notes: tuple[str, ...] = ()
    """Sentences to show once: what was left out, cut or joined."""
    augment: Callable[[TokenSet, int], TokenSet] | None = None
    """(Training blocks, epoch) -> those of that epoch, as music in other keys."""

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        return len(self.tokenizer)

    @property
    def length(self) -> int:
        """Tokens of a block."""
        return self.train.input_ids.shape[1]

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net must know of the tokens, as `models.build` takes it."""
        return {"vocabulary": self.vocabulary, "length": self.length}

    def example(self, n: int = 1) -> dict[str, Tensor]:
        """What a net takes, of the first `n` training blocks."""
        return {"input_ids": self.train.input_ids[:n]}

    def keep(self, train_fraction: float, seed: int = 0) -> TokenSplits:
        """The same dataset with a share of its training blocks; a smaller share lies inside a larger one."""
        rows = share_of(len(self.train), train_fraction, seed)
        if rows is None:
            return self
        return replace(self, train=self.train.at(rows.tolist()))

    def split(self, name: str) -> TokenSet:
        """The split called "train", "validation" or "test"."""
        return getattr(self, checks.choice("split", name, SPLITS))

    def fingerprint(self) -> str:
        """SHA-256 (hex) over tokens, labels and which block is in which split."""
        digest = hashlib.sha256()
        for name in SPLITS:
            part = self.split(name)
            digest.update(f"{name} {tuple(part.input_ids.shape)}\n".encode())
            for tensor in (part.input_ids, part.labels):
                digest.update(tensor.numpy().astype("<i8").tobytes())
        return digest.hexdigest()

    def batches(self, split: str, batch_size: int, *, shuffle: bool, seed: int = 0) -> DictBatches:
        """Batches of a split; the order is a function of `seed` and of the epoch given to `set_epoch`."""
        checks.positive("batch_size", batch_size)
        part, change = self.split(split), self.augment if split == "train" else None

        def draw(epoch: int) -> dict[str, Tensor]:
            blocks = change(part, epoch) if change else part
            return {"input_ids": blocks.input_ids, "labels": blocks.labels}

        return DictBatches(draw, batch_size, shuffle=shuffle, seed=seed)

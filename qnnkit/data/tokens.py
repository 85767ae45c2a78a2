"""Token sequences of text or music with fixed splits, for language models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from qnnkit.data.midi_events import MidiEvents
from qnnkit.data.splits import Part, Splits

IGNORED = -100
"""Label of a position that is not predicted, as in torch's cross-entropy and transformers."""


@dataclass(frozen=True, eq=False)
class TokenSet(Part):
    """The blocks of one split."""

    hashed = "input_ids", "labels"
    input_ids: Tensor  # int64, (n, length)
    labels: Tensor  # the same, or IGNORED for tokens that are not predicted; int64, (n, length)
    sources: tuple[str, ...]  # name of the document or piece in which each block starts

    @property
    def n_predicted(self) -> int:
        """Number of predicted tokens; the first token of a block is never predicted."""
        return int((self.labels[:, 1:] != IGNORED).sum())


@dataclass(frozen=True, eq=False)
class TokenSplits(Splits[TokenSet]):
    """A dataset of token blocks, split by document into train, validation and test.

    A batch is {"input_ids", "labels"}, both int64 of shape (batch, length), as transformers' causal language
    models expect them: the labels are not shifted.
    """

    tokenizer: Any
    """Has `encode(text_or_events) -> list[int]`, `decode(ids)`, `len()` and `save_pretrained(folder)`."""
    augment: Callable[[TokenSet, int], TokenSet] | None = None
    """(Training blocks, epoch) -> augmented blocks, such as transposed music."""

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        return len(self.tokenizer)

    @property
    def length(self) -> int:
        """Number of tokens in a block."""
        return self.train.input_ids.shape[1]

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net needs to know about the tokens, named as the arguments of `causal_lm`."""
        events = {"events": self.tokenizer.version} if isinstance(self.tokenizer, MidiEvents) else {}
        return {"vocabulary": self.vocabulary, "length": self.length, **events}

    def example(self, n: int = 1) -> dict[str, Tensor]:
        """Returns the first `n` training blocks, as a net takes them."""
        return {"input_ids": self.train.input_ids[:n]}

    def _samples(self, split: str, seed: int) -> Callable[[int], dict[str, Tensor]]:
        part, change = self.split(split), self.augment if split == "train" else None

        def draw(epoch: int) -> dict[str, Tensor]:
            blocks = change(part, epoch) if change else part
            return {"input_ids": blocks.input_ids, "labels": blocks.labels}

        return draw

"""What each adapter is worth on each composer's music."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qnnkit import checks
from qnnkit.data.tokens import IGNORED, TokenSplits
from qnnkit.music.adapters import BASE, adapter_names, using_adapter


@dataclass(frozen=True)
class LossMatrix:
    """Nats per token of each adapter (row) on each composer's music (column); lower is better.

    Columns are not comparable with each other: some music is harder to foretell than other.

    Example:
        >>> matrix = LossMatrix(("base", "bach"), ("bach", "mozart"), ((0.9, 1.0), (0.7, 1.2)), (100, 80))
        >>> matrix.is_diagonal
        True
        >>> print(matrix.sentence)
        On validation, each adapter is the best on its own composer: bach 0.7000 (next: base 0.9000).
    """

    adapters: tuple[str, ...]
    composers: tuple[str, ...]
    nats: tuple[tuple[float, ...], ...]
    """Of shape (adapters, composers)."""
    n_tokens: tuple[int, ...]
    """Predicted tokens of each composer, over which the means are."""
    split: str = "validation"

    @property
    def own(self) -> tuple[str, ...]:
        """The adapters that bear a composer's name."""
        return tuple(name for name in self.adapters if name in self.composers)

    @property
    def is_diagonal(self) -> bool:
        """Whether each adapter with a composer's name is better there than all others, base included."""
        return bool(self.own) and all(self._ranked(name)[0][1] == name for name in self.own)

    @property
    def sentence(self) -> str:
        """Whether each adapter is the best on its own composer."""
        if not self.own:
            return "No adapter bears the name of a composer, so none has music of its own."
        right, wrong = [], []
        for name in self.own:
            (best, who), *others = self._ranked(name)
            if who == name:
                then = f" (next: {others[0][1]} {others[0][0]:.4f})" if others else ""
                right.append(f"{name} {best:.4f}{then}")
            else:
                mine = self.nats[self.adapters.index(name)][self.composers.index(name)]
                wrong.append(f"{name} has {mine:.4f} on its own composer, {who} {best:.4f}")
        if wrong:
            rest = f" Best on its own composer: {', '.join(right)}." if right else ""
            return f"On {self.split}, not every adapter specialised: {'; '.join(wrong)}.{rest}"
        return f"On {self.split}, each adapter is the best on its own composer: {', '.join(right)}."

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per adapter and composer, for a file or a table."""
        return [
            {
                "adapter": adapter,
                "composer": composer,
                "split": self.split,
                "nats_per_token": value,
                "tokens": n,
            }
            for adapter, values in zip(self.adapters, self.nats, strict=True)
            for composer, value, n in zip(self.composers, values, self.n_tokens, strict=True)
        ]

    def _ranked(self, composer: str) -> list[tuple[float, str]]:
        column = self.composers.index(composer)
        return sorted((values[column], name) for values, name in zip(self.nats, self.adapters, strict=True))


def loss_matrix(
    model: nn.Module | Mapping[str, nn.Module | Callable[[], nn.Module]],
    splits: Mapping[str, TokenSplits],
    *,
    adapters: Sequence[str] | None = None,
    split: str = "validation",
    batch_size: int = 8,
    device: torch.device | str | None = None,
) -> LossMatrix:
    """The loss of each adapter on each composer's music.

    Args:
        model: A PEFT model with adapters; or nets by name, or what makes them, where adapters are of kinds
            that one PEFT model cannot hold together (each is made when its turn comes).
        splits: Composer -> blocks, as `data.music.by_composer` gives them.
        adapters: Rows, in order; by default "base" (no adapter) and all adapters, or all nets.
        split: Of the music: validation, or test for the last word.
        batch_size: Blocks at once.
        device: Where to compute; where the net is, by default.

    Raises:
        ValueError: There is no music, or no such adapter.
    """
    if not splits:
        raise ValueError(checks.message("splits", "hold a composer's music", {}, "Use by_composer(splits)."))
    known = tuple(model) if isinstance(model, Mapping) else (BASE, *adapter_names(model))
    names = known if adapters is None else tuple(adapters)
    nats = []
    for name in names:
        checks.choice("adapters", name, known)
        if isinstance(model, Mapping):
            chosen = model[name]
            net, adapter = chosen if isinstance(chosen, nn.Module) else chosen(), None
        else:
            net, adapter = model, name
        with using_adapter(net, adapter):
            nats.append(
                tuple(mean_nats(net, each, split, batch_size, device=device) for each in splits.values())
            )
    n_tokens = tuple(each.split(split).n_predicted for each in splits.values())
    return LossMatrix(names, tuple(splits), tuple(nats), n_tokens, split)


def mean_nats(
    model: nn.Module,
    splits: TokenSplits,
    split: str = "validation",
    batch_size: int = 8,
    *,
    device: torch.device | str | None = None,
) -> float:
    """Mean of -ln p(token) over all predicted tokens of a split, each counted once, in nats.

    Not the mean of the blocks' means, which weighs a token more where its block is padded.
    """
    if device is not None:
        model.to(device)
    place = next(model.parameters()).device
    training, total = model.training, 0.0
    model.eval()
    try:
        with torch.no_grad():
            for batch in splits.batches(split, batch_size, shuffle=False):
                logits = model(input_ids=batch["input_ids"].to(place)).logits[
                    :, :-1
                ]  # (batch, length - 1, n)
                labels = batch["labels"][:, 1:].to(place)
                total += float(
                    nn.functional.cross_entropy(
                        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
                    )
                )
    finally:
        model.train(training)
    return total / splits.split(split).n_predicted

"""The next token: the loss of causal language models, per token that is predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from qnnkit.data.tokens import IGNORED
from qnnkit.stats import LOSS, Score
from qnnkit.tasks.step import Step


@dataclass(frozen=True)
class Language:
    """Cross-entropy of the next token, in nats; reports `loss` and `minus_loss`, means over tokens.

    A batch is {"input_ids", "labels"}, both int64 of shape (batch, length), as TokenSplits give it; a label
    that is IGNORED is not predicted, and neither is the first of a block. The model is one of transformers,
    with an adapter of PEFT or without: it gives `.logits` of shape (batch, length, vocabulary).

    What a step counts are predicted tokens, not blocks, so that means and updates are over tokens also where
    blocks have different numbers of them.
    """

    monitor: str = "minus_loss"
    score: ClassVar[Score] = LOSS

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Step:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        targets = shifted(batch["labels"])
        count = int((targets != IGNORED).sum())  # asked first, while the device has nothing to do
        logits = model(**inputs, use_cache=False).logits
        total = summed_loss(logits, targets)
        return Step(total / max(1, count), {"loss": total.detach(), "minus_loss": -total.detach()}, count)

    def judge(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """What logits, of shape (n, length, vocabulary), are worth beside the labels, of shape (n, length).

        Returns:
            `loss` (nats per token), `perplexity` (its exponential) and `tokens`, the number predicted.
        """
        targets = shifted(labels)
        tokens = int((targets != IGNORED).sum())
        loss = summed_loss(logits.double(), targets).item() / max(1, tokens)
        return {"loss": loss, "perplexity": perplexity(loss), "tokens": tokens}


def shifted(labels: Tensor) -> Tensor:
    """What each position is to predict: the label after it; the last one has none."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in float32, or better, summed over the positions whose target is not IGNORED.

    Args:
        logits: Of shape (batch, length, vocabulary). Positions before the targets', as a prompt that is
            learnt has them, are passed over.
        targets: Tokens of shape (batch, length).
    """
    logits = logits[:, -targets.shape[1] :].to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def perplexity(loss: float) -> float:
    """The exponential of a loss in nats per token; infinite where no number is that large.

    Example:
        >>> round(perplexity(math.log(50)), 9), perplexity(1000.0)
        (50.0, inf)
    """
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf

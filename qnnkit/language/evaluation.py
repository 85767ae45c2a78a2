"""What a language model makes of text that was held out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from qnnkit import checks
from qnnkit.data.tokens import TokenSplits
from qnnkit.tasks import Language, perplexity


def evaluate(
    model: nn.Module,
    splits: TokenSplits,
    split: str = "validation",
    *,
    batch_size: int = 8,
    device: torch.device | str | None = None,
) -> dict[str, float]:
    """Loss and perplexity on a split, without gradients and without dropout.

    Args:
        model: A causal language model, with an adapter or without; left as it was, but on `device`.
        splits: The text.
        split: "train", "validation" or "test".
        batch_size: Blocks at once.
        device: Where to compute; None leaves the model where it is.

    Returns:
        `loss` in nats per token, `perplexity`, `tokens` (predicted ones) and `tokens_per_second`.

    Raises:
        ValueError: The split is unknown, or its tokens are more than the model knows.
    """
    require_vocabulary(model, splits)
    if device is not None:
        model.to(device)
    place, task = next(model.parameters()).device, Language()
    total, tokens, start = torch.zeros((), dtype=torch.float64), 0, time.perf_counter()
    with torch.no_grad(), evaluating(model):
        for batch in splits.batches(split, batch_size, shuffle=False):
            step = task(model, {name: tensor.to(place) for name, tensor in batch.items()})
            total += step.sums["loss"].cpu()
            tokens += step.count
    loss, seconds = float(total) / tokens, time.perf_counter() - start
    return {
        "loss": loss,
        "perplexity": perplexity(loss),
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
    }


def require_vocabulary(model: Any, splits: TokenSplits) -> None:
    """
    Raises:
        ValueError: The text has tokens that the model does not know.
    """
    known = model.config.vocab_size
    if splits.vocabulary > known:
        rule = f"have at most {known:,} tokens, as the model has"
        step = "Make the data with the tokenizer of the model's folder."
        raise ValueError(checks.message("tokenizer", rule, splits.vocabulary, step))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, a model is in evaluation mode; afterwards every part of it is as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def without_adapter(model: Any) -> Any:
    """A context in which a model with an adapter is the base model that it was put on.

    Raises:
        ValueError: It has none.
    """
    if not hasattr(model, "disable_adapter"):
        step = "Give the base model itself as `base`."
        raise ValueError(checks.message("model", "have an adapter", type(model).__name__, step))
    return model.disable_adapter()

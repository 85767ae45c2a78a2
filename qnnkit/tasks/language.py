"""The next token: the loss of causal language models, per token that is predicted, and their text."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from qnnkit import checks, words
from qnnkit.adapters import once
from qnnkit.data.tokens import IGNORED, TokenSplits
from qnnkit.layers import evaluating
from qnnkit.stats import LOSS, Score
from qnnkit.tasks.saving import adapted, merge
from qnnkit.tasks.step import Shown, Step, counts

if TYPE_CHECKING:
    import pandas as pd

SHOWN, CHARACTERS = 5, 300
"""Blocks whose beginnings a preview shows, and how much of each."""
WORDS, READ = 60, 16
"""Tokens that are read and then written of a text that is shown, and read of one that is timed."""
NEW_TOKENS = 80
"""Written behind a prompt."""
LONGEST = 2048
"""Tokens that a model sees at once where its configuration names no number."""
MOST_TOKENS = 8192
"""Of the test split, read for the losses of single documents: a large model takes minutes for more."""


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
    counted: ClassVar[str] = "tokens"

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Step:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        targets = shifted(batch["labels"])
        count = int((targets != IGNORED).sum())  # asked first, while the device has nothing to do
        total = cross_entropy(model(**inputs, use_cache=False).logits, targets, "sum")
        return Step(total / max(1, count), {"loss": total.detach(), "minus_loss": -total.detach()}, count)

    def judge(self, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity of a split from its mean loss."""
        return {"perplexity": perplexity(means["loss"])}

    def preview(self, splits: TokenSplits) -> list[Shown]:
        """The beginnings of some training blocks, with where they are from, and how many tokens there are."""
        import pandas as pd

        train, decode = splits.train, splits.tokenizer.decode
        predicted = (shifted(train.labels) != IGNORED).sum(1).tolist()
        some = _spread(len(train), SHOWN)
        begins = [decode(train.input_ids[i].tolist())[:CHARACTERS] for i in some]
        told = {"from": [train.sources[i] for i in some], "tokens": [predicted[i] for i in some]}
        table = pd.DataFrame({**told, "begins": begins})
        return [Shown(table, "01_beginnings", "Beginnings of some blocks"), token_counts(splits)]

    def mistakes(self, net: Any, splits: TokenSplits, n: int = 3, seed: int = 0) -> list[Shown]:
        """What the net writes behind beginnings of test blocks, and the documents of the largest loss."""
        import pandas as pd

        tokenizer, rows, drawn = splits.tokenizer, [], {"seed": seed, "raw": True}
        for i in _spread(len(splits.test), min(n, 3) if hasattr(net, "generate") else 0):
            prompt = tokenizer.decode(splits.test.input_ids[i, :WORDS].tolist())
            told = {"given": prompt}
            if adapted(net):
                with net.disable_adapter():
                    told["the base writes"] = generate(net, tokenizer, prompt, WORDS, **drawn)
            rows.append({**told, "the net writes": generate(net, tokenizer, prompt, WORDS, **drawn)})
        return [
            Shown(pd.DataFrame(rows), "05_written", "What the net writes"),
            Shown(by_source(net, splits)[:n], "05_losses", "Test documents of the largest loss"),
        ]

    def predict(
        self, net: Any, inputs: Sequence[Any], about: Any, raw: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yields the text that the net writes behind each prompt; see `generate` for `raw`."""
        for each in inputs:
            text = generate(net, about.tokenizer, str(each), NEW_TOKENS, raw=raw)
            yield {"input": str(each), "text": text}

    def beside_base(self, net: Any, splits: TokenSplits, after: float) -> dict[str, Any] | None:
        """An adapter beside its base: loss on the test split before and `after`, and speed of writing.

        Uses the model up: no second copy of it is made.

        Returns:
            `loss` and `perplexity`, `before` and `after`; tokens per second, `adapted` and `merged` (None of
            an adapter that cannot be merged). None of a model without an adapter.
        """
        if not adapted(net):
            return None
        with net.disable_adapter():
            before = evaluate(net, splits, "test")["loss"]
        ids = splits.test.input_ids[0, :READ].tolist()
        speeds = {"adapted": speed(net, ids), "merged": None}
        with contextlib.suppress(NotImplementedError):
            speeds["merged"] = speed(merge(net, in_place=True), ids)
        return {
            "loss": {"before": before, "after": after},
            "perplexity": {"before": perplexity(before), "after": perplexity(after)},
            "tokens_per_second": speeds,
        }


def continuation(
    model: Any,
    ids: Sequence[int],
    n: int,
    *,
    end: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    allowed: Callable[[Tensor, Tensor], Tensor] = lambda ids, scores: scores,
    border: Callable[[int], bool] = lambda token: True,
    enough: Callable[[list[int]], bool] = lambda tokens: False,
    **options: Any,
) -> list[int]:
    """The tokens that follow `ids`: `n` of them, or up to and with `end`, or until there are `enough`.

    They are drawn by transformers' `generate`. The model never sees more tokens than it has positions: a full
    window goes on with its last half, from the first `border` in it, so what is written may be longer.

    Args:
        model: One of transformers, with an adapter of PEFT or without; it computes where it is.
        ids: One token at least.
        n: Most tokens to write.
        end: Token at which the model stops; None never stops.
        temperature: Above 1 flatter, below 1 sharper than the model's own distribution; 0 takes the most
            likely token.
        seed: All that the draws depend on; the caller's generators are left alone.
        allowed: Logits processor of transformers, (ids, scores) -> scores.
        border: Whether a window may begin at a token.
        enough: Whether the tokens written so far are enough.
        options: What else `generate` takes, such as `top_p` and `top_k`, which leave none out by default.

    Raises:
        ValueError: A setting is out of range, as transformers says it.
        FloatingPointError: The model gives numbers that are not finite.
    """
    options |= {"eos_token_id": end, "pad_token_id": end or 0, "do_sample": temperature != 0}
    if temperature:
        options = {"top_p": 1.0, "top_k": 0, "temperature": temperature} | options
    place, peft = next(model.parameters()).device, getattr(model, "active_peft_config", None)
    window = getattr(model.config, "max_position_embeddings", None) or LONGEST
    if getattr(peft, "is_prompt_learning", False):
        window -= getattr(peft, "num_virtual_tokens", 0)
    new, context = [], []

    def stop(seen: Tensor, scores: Any) -> Tensor:
        return torch.tensor([enough(new + seen[0, len(context) :].tolist())], device=place)

    forked = torch.random.fork_rng([] if place.type == "cpu" else [place], device_type=place.type)
    with evaluating(model), once(model), forked, warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.filterwarnings("ignore", "Position ids are not supported")  # PEFT's, of a learnt prompt
        while len(new) < n and new[-1:] != [end] and not enough(new):
            context = [*ids, *new]
            if len(context) >= window:
                half = context[len(context) - max(1, window // 2) :]
                context = half[next((i for i, token in enumerate(half) if border(token)), 0) :]
            given, room = torch.tensor([context], device=place), min(n - len(new), window - len(context))
            options |= {"attention_mask": torch.ones_like(given), "max_new_tokens": room}
            options |= {"logits_processor": [_finite, allowed], "stopping_criteria": [stop]}
            new += model.generate(input_ids=given, **options)[0, len(context) :].tolist()
    return new


def _finite(ids: Tensor, scores: Tensor) -> Tensor:
    if not (scores < math.inf).all():
        raise FloatingPointError("The model's logits are not finite. Train it with a lower learning rate.")
    return scores


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[dict[str, str]] = "",
    max_new_tokens: int = 100,
    temperature: float = 0.8,
    raw: bool = False,
    **settings: Any,
) -> str:
    """The text that a language model writes after a prompt, until it ends or has `max_new_tokens`.

    Args:
        model: A causal language model, with an adapter or without.
        tokenizer: The one that it was trained with.
        prompt: Text, or the messages of a chat ({"role", "content"}), which the tokenizer's template writes.
            Where the tokenizer has a template, a text is a user's message. An empty one begins a document.
        max_new_tokens: Most tokens to write.
        temperature: As `continuation` takes it.
        raw: Whether a text goes to the model as it is, whatever the tokenizer has.
        settings: What else `continuation` takes: `top_k`, `top_p`, `seed`.

    Raises:
        ValueError: A number is out of its range, or a chat cannot be written.
    """
    checks.positive("max_new_tokens", max_new_tokens)
    end = tokenizer.eos_token_id
    if isinstance(prompt, str) and prompt and not raw and getattr(tokenizer, "chat_template", None):
        prompt = [{"role": "user", "content": prompt}]
    ids = _encoded(tokenizer, prompt) or [end]
    tokens = continuation(model, ids, max_new_tokens, end=end, temperature=temperature, **settings)
    return tokenizer.decode(tokens, skip_special_tokens=True)


def speed(model: Any, ids: Sequence[int], n: int = 64) -> float:
    """Tokens per second that a model writes after `ids`; four come first, to warm up."""
    continuation(model, ids, 4, temperature=0)
    start = time.perf_counter()
    continuation(model, ids, n, temperature=0)
    return n / (time.perf_counter() - start)


def _encoded(tokenizer: Any, prompt: str | Sequence[dict[str, str]]) -> list[int]:
    if isinstance(prompt, str):
        ids = tokenizer(prompt, verbose=False)["input_ids"]
        return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
    try:
        text = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates refuse by errors of their own
        told = words.first_line(error)
        rule, step = "be a chat that the tokenizer's template takes", f"The template says: {told}."
        raise ValueError(checks.message("prompt", rule, list(prompt), step)) from None
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def token_counts(splits: TokenSplits) -> Shown:
    """A table of the blocks and tokens of each split."""
    tokens = {"tokens": lambda part: part.input_ids.numel(), "predicted": lambda part: part.n_predicted}
    return counts(splits, "Blocks and tokens of each split", blocks=len, **tokens)


def evaluate(
    model: Any, splits: TokenSplits, split: str = "validation", *, batch_size: int = 8
) -> dict[str, float]:
    """Loss and perplexity on a split, without gradients and without dropout, where the model is.

    Args:
        model: A causal language model, with an adapter or without.
        splits: The text, or music.
        split: "train", "validation" or "test".
        batch_size: Blocks at once.

    Returns:
        `loss` in nats per token (each token counts once, however its block is padded), `perplexity`,
        `tokens` (predicted ones) and `tokens_per_second`.

    Raises:
        ValueError: The split is unknown, or its tokens are more than the model knows.
    """
    start = time.perf_counter()
    totals, n_tokens = block_losses(model, splits, split, batch_size)
    tokens, seconds = int(n_tokens.sum()), time.perf_counter() - start
    loss = float(totals.sum()) / tokens
    found = {"loss": loss, "perplexity": perplexity(loss), "tokens": tokens}
    return found | {"tokens_per_second": tokens / seconds}


def block_losses(
    model: Any, splits: TokenSplits, split: str = "test", batch_size: int = 8
) -> tuple[Tensor, Tensor]:
    """Summed loss, in nats, and predicted tokens of each block of a split; both of shape (n,)."""
    known = getattr(getattr(model, "config", None), "vocab_size", splits.vocabulary)
    if splits.vocabulary > known:
        rule = f"have at most {known:,} tokens, as the model has"
        step = "Make the data with the tokenizer of the model's folder."
        raise ValueError(checks.message("tokenizer", rule, splits.vocabulary, step))
    place, totals, n_tokens = next(model.parameters()).device, [], []
    with evaluating(model):
        for batch in splits.batches(split, batch_size, shuffle=False):
            targets = shifted(batch["labels"]).to(place)
            logits = model(input_ids=batch["input_ids"].to(place), use_cache=False).logits
            each = cross_entropy(logits, targets, "none").view_as(targets)
            totals.append(each.sum(1).cpu().double())
            n_tokens.append((targets != IGNORED).sum(1).cpu())
    return torch.cat(totals), torch.cat(n_tokens)


def by_source(model: Any, splits: TokenSplits, split: str = "test") -> pd.DataFrame:
    """The loss of each document or piece, the largest first; of MOST_TOKENS tokens, spread over the split."""
    import pandas as pd

    some = fewer(splits, split, max(4, MOST_TOKENS // splits.length))
    totals, n_tokens = (each.numpy() for each in block_losses(model, some, split, batch_size=1))
    rows = {"document": some.split(split).sources, "tokens": n_tokens, "nats per token": totals}
    table: Any = pd.DataFrame(rows).groupby("document", sort=False).sum()
    table["nats per token"] /= table["tokens"]
    return table.sort_values("nats per token", ascending=False, kind="stable")


def fewer(splits: TokenSplits, split: str, n: int) -> TokenSplits:
    """The same with at most `n` blocks of a split, spread evenly over it."""
    part = splits.split(split)
    return replace(splits, **{split: part.at(_spread(len(part), n))})


def shifted(labels: Tensor) -> Tensor:
    """What each position is to predict: the label after it; the last one has none."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    """In float32, or better: summed over the positions, or of each of them; 0 where a target is IGNORED.

    Args:
        logits: Of shape (batch, length, vocabulary). Positions before the targets', as a prompt that is
            learnt has them, are passed over.
        targets: Tokens of shape (batch, length).
        reduction: "sum", or "none" for a tensor of shape (batch * length,).
    """
    logits = logits[:, -targets.shape[1] :].to(torch.promote_types(logits.dtype, torch.float32))
    flat = logits.flatten(0, 1), targets.flatten()
    return nn.functional.cross_entropy(*flat, ignore_index=IGNORED, reduction=reduction)


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


def _spread(n: int, most: int) -> list[int]:
    """At most so many of n rows, evenly spread."""
    return [i * n // most for i in range(most)] if most < n else list(range(n))

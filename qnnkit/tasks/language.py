"""Language modelling: the next-token loss of causal language models, and generated text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.adapters import once
from qnnkit.checkpoint import weights
from qnnkit.data.tokens import IGNORED, TokenSplits
from qnnkit.layers import evaluating
from qnnkit.stats import LOSS, Score
from qnnkit.tasks.saving import adapted
from qnnkit.tasks.step import Shown, Step, counts

SHOWN, CHARACTERS = 5, 300
"""Number of blocks in a preview, and characters shown of each."""
NEW_TOKENS = 80
"""Default number of tokens that continue a text."""
LONGEST = 2048
"""Number of positions if a model's configuration does not state it."""
BATCH = 8


@dataclass(frozen=True)
class Language:
    """Cross-entropy of the next token, in nats; reports `loss` and `minus_loss`, means over tokens.

    A batch is {"input_ids", "labels"}, both int64 of shape (batch, length), as from `data.text`; labels of
    -100 are not predicted, nor is the first token of a block. The model is one of transformers, with or
    without a PEFT adapter: it returns `.logits` of shape (batch, length, vocabulary).

    A step counts predicted tokens, not blocks, so that means and updates are over tokens even if blocks have
    different numbers of them.

    Args:
        monitor: The reported number that chooses the best epoch on the validation split.
    """

    monitor: str = "minus_loss"
    score: ClassVar[Score] = LOSS
    counted: ClassVar[str] = "tokens"
    _of_base: dict[Any, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Step:
        """Returns the step of a batch, whose loss is the mean over its predicted tokens, in nats."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        targets = shifted(batch["labels"])
        count = int((targets != IGNORED).sum())  # read first, while the device is idle
        total = cross_entropy(model(**inputs, use_cache=False).logits, targets)
        return Step(total / max(1, count), {"loss": total.detach(), "minus_loss": -total.detach()}, count)

    def judge(self, net: nn.Module, splits: TokenSplits, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the `perplexity` of the test split from its mean loss, and for an adapter `base_loss`."""
        metrics = {"perplexity": perplexity(means["loss"])}
        return metrics | ({"base_loss": self.base_loss(net, splits)} if adapted(net) else {})

    def loss(self, net: nn.Module, splits: TokenSplits, split: str = "test") -> float:
        """Returns the loss on a split, in nats per token, without dropout or gradients."""
        place = next(net.parameters()).device
        with evaluating(net):
            batches = splits.batches(split, BATCH, shuffle=False)
            steps = [self(net, {name: ids.to(place) for name, ids in batch.items()}) for batch in batches]
        return sum(float(step.sums["loss"]) for step in steps) / sum(step.count for step in steps)

    def base_loss(self, net: Any, splits: TokenSplits) -> float:
        """Returns the test loss of an adapter's base model, computed once for each base."""
        base = weights.saved_state(net).get(weights.FROZEN, torch.empty(0))
        if (key := (splits, *base.tolist())) not in self._of_base:
            with net.disable_adapter():
                self._of_base[key] = self.loss(net, splits)
        return self._of_base[key]

    def preview(self, splits: TokenSplits) -> list[Shown]:
        """Shows the beginnings and sources of some training blocks, and the numbers of blocks and tokens."""
        import pandas as pd

        train = splits.train
        rows = spread(range(len(train)), SHOWN)
        begins = [splits.tokenizer.decode(train.input_ids[row].tolist())[:CHARACTERS] for row in rows]
        table = pd.DataFrame({"from": [train.sources[row] for row in rows], "begins": begins})
        return [Shown(table, "01_beginnings", "Beginnings of some blocks"), self.counts(splits)]

    def counts(self, splits: TokenSplits) -> Shown:
        """Returns a table of the number of blocks and predicted tokens in each split."""
        return counts(splits, "Blocks and tokens of each split", blocks=len, tokens=lambda x: x.n_predicted)

    def mistakes(self, net: Any, splits: TokenSplits, n: int = 3, seed: int = 0) -> list[Shown]:
        """Shows how the net, and the base of an adapter, continue up to 3 beginnings of test blocks."""
        import pandas as pd

        ids, tokenizer, rows = splits.test.input_ids, splits.tokenizer, []
        for row in spread(range(len(ids)), min(n, 3)):
            prompt = tokenizer.decode(ids[row, : splits.length // 2].tolist())
            texts = {"given": prompt}
            if adapted(net):
                with net.disable_adapter():
                    texts["the base writes"] = generate(net, tokenizer, prompt, raw=True, seed=seed)
            rows.append({**texts, "the net writes": generate(net, tokenizer, prompt, raw=True, seed=seed)})
        return [Shown(pd.DataFrame(rows), "05_written", "What the net writes")]

    def predict(self, net: Any, inputs: Sequence[Any], about: Any) -> Iterator[dict[str, Any]]:
        """Yields the net's continuation of each prompt; see `generate`."""
        for each in inputs:
            yield {"input": str(each), "text": generate(net, about.tokenizer, str(each))}


def continuation(
    model: Any,
    ids: Sequence[int],
    n: int,
    *,
    end: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    width: int = 1,
    **options: Any,
) -> list[int]:
    """Samples `n` tokens that follow `ids`, or fewer up to and including `end`, by transformers' `generate`.

    The context is cut to the last tokens that leave room for `n` among the model's positions.

    Args:
        model: A model of transformers, with or without a PEFT adapter; it stays on its device.
        ids: Context of at least one token.
        n: Most tokens to write, fewer than the model has positions.
        end: Token at which the model stops; None never stops.
        temperature: Above 1 flattens, below 1 sharpens the model's distribution; 0 takes the likeliest token.
        seed: Determines the sample; the caller's generators do not change.
        width: Number of tokens that are never separated, such as those of an event.
        options: Other arguments of `generate`, such as `logits_processor`, `top_p` or `top_k`; the last two
            exclude nothing by default.

    Raises:
        ValueError: A setting is out of range.
    """
    window = positions(model)
    if n not in range(1, window - width + 1):
        rule = f"lie in 1..{window - width}, as the model has {window:,} positions"
        raise ValueError(checks.message("n", rule, n, "Leave it out for a number that fits."))
    checks.share("top_p", options.get("top_p", 1), "Use 1 for all tokens.")
    context = [*ids][-((window - n) // width * width) :]
    options |= {"eos_token_id": end, "pad_token_id": end or 0, "do_sample": temperature != 0}
    if temperature:
        options = {"top_p": 1.0, "top_k": 0, "temperature": temperature} | options
    place = next(model.parameters()).device
    prompt = torch.tensor([context], device=place)
    options |= {"attention_mask": torch.ones_like(prompt), "max_new_tokens": n}
    forked = torch.random.fork_rng([] if place.type == "cpu" else [place], device_type=place.type)
    with evaluating(model), once(model), forked:
        torch.manual_seed(seed)
        return model.generate(input_ids=prompt, **options)[0, len(context) :].tolist()


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str = "",
    n: int | None = None,
    temperature: float = 0.8,
    raw: bool = False,
    **settings: Any,
) -> str:
    """Returns the text that a language model writes after a prompt, up to its end or to `n` tokens.

    Args:
        model: A causal language model, with or without an adapter.
        tokenizer: The tokenizer that it was trained with.
        prompt: Text; a user's message if the tokenizer has a chat template. "" starts a new document.
        n: Most tokens to write; None writes 80, or half of the model's positions if that is less.
        temperature: Above 1 flattens, below 1 sharpens the model's distribution; 0 takes the likeliest token.
        raw: Whether to pass the text without the chat template.
        settings: `top_k` (likeliest tokens) and `top_p` (share of the probability) to choose from, all by
            default; `seed` (default: 0), which determines the sample without changing your generators.

    Raises:
        ValueError: A setting is out of range.
    """
    end = tokenizer.eos_token_id
    if prompt and not raw and getattr(tokenizer, "chat_template", None):
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    else:
        ids = tokenizer(prompt, verbose=False)["input_ids"]
        ids = ids[:-1] if len(ids) > 1 and ids[-1] == end else ids
    n = min(NEW_TOKENS, positions(model) // 2) if n is None else n
    tokens = continuation(model, ids or [end], n, end=end, temperature=temperature, **settings)
    return tokenizer.decode(tokens, skip_special_tokens=True)


def positions(model: Any) -> int:
    """Returns the length of a model's context, in tokens."""
    return getattr(model.config, "max_position_embeddings", None) or LONGEST


def shifted(labels: Tensor) -> Tensor:
    """Returns the target of each position: the next label; the last position has none."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross-entropy in float32 or higher, summed over the targets that are not IGNORED.

    Args:
        logits: Of shape (batch, length, vocabulary). Extra positions in front, as of a learned prompt, are
            skipped.
        targets: Tokens of shape (batch, length).
    """
    logits = logits[:, -targets.shape[1] :].to(torch.promote_types(logits.dtype, torch.float32))
    flat = logits.flatten(0, 1), targets.flatten()
    return nn.functional.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")


def perplexity(loss: float) -> float:
    """Returns the exponential of a loss in nats per token; inf if it overflows.

    Example:
        >>> import math
        >>> round(perplexity(math.log(50)), 9), perplexity(1000.0)
        (50.0, inf)
    """
    return float(torch.tensor(loss, dtype=torch.float64).exp())


def spread(rows: Sequence[int], most: int) -> list[int]:
    """Returns at most `most` of the rows, evenly spread."""
    checks.positive("n", most, "Use 3, or 0 for none.", above=-1)
    return [rows[i * len(rows) // most] for i in range(most)] if most < len(rows) else list(rows)

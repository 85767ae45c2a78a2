"""The next token: the loss of causal language models, per token that is predicted, and their text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.adapters import once
from qnnkit.data.tokens import IGNORED, TokenSplits
from qnnkit.layers import evaluating
from qnnkit.stats import LOSS, Score
from qnnkit.tasks.saving import adapted
from qnnkit.tasks.step import Shown, Step, counts

SHOWN, CHARACTERS = 5, 300
"""Blocks whose beginnings a preview shows, and how much of each."""
NEW_TOKENS = 80
"""Written behind a text."""
LONGEST = 2048
"""Positions of a model whose configuration names no number."""
BATCH = 8


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
    _of_base: dict[TokenSplits, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Step:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        targets = shifted(batch["labels"])
        count = int((targets != IGNORED).sum())  # asked first, while the device has nothing to do
        total = cross_entropy(model(**inputs, use_cache=False).logits, targets)
        return Step(total / max(1, count), {"loss": total.detach(), "minus_loss": -total.detach()}, count)

    def judge(self, net: nn.Module, splits: TokenSplits, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity of the test split from its mean loss; of an adapter also `base_loss`."""
        found = {"perplexity": perplexity(means["loss"])}
        return found | ({"base_loss": self.base_loss(net, splits)} if adapted(net) else {})

    def loss(self, net: nn.Module, splits: TokenSplits, split: str = "test") -> float:
        """Nats per token of a split, without gradients and dropout, where the net is."""
        place = next(net.parameters()).device
        with evaluating(net):
            batches = splits.batches(split, BATCH, shuffle=False)
            steps = [self(net, {name: ids.to(place) for name, ids in batch.items()}) for batch in batches]
        return sum(float(step.sums["loss"]) for step in steps) / sum(step.count for step in steps)

    def base_loss(self, net: Any, splits: TokenSplits) -> float:
        """The loss of an adapter's base on the test split, computed once: nets of a run share their base."""
        if splits not in self._of_base:
            with net.disable_adapter():
                self._of_base[splits] = self.loss(net, splits)
        return self._of_base[splits]

    def preview(self, splits: TokenSplits) -> list[Shown]:
        """The beginnings of some training blocks, with where they are from, and how many tokens there are."""
        import pandas as pd

        train = splits.train
        rows = spread(range(len(train)), SHOWN)
        begins = [splits.tokenizer.decode(train.input_ids[row].tolist())[:CHARACTERS] for row in rows]
        table = pd.DataFrame({"from": [train.sources[row] for row in rows], "begins": begins})
        return [Shown(table, "01_beginnings", "Beginnings of some blocks"), self.counts(splits)]

    def counts(self, splits: TokenSplits) -> Shown:
        """A table of the blocks of each split and of what is predicted in them."""
        return counts(splits, "Blocks and tokens of each split", blocks=len, tokens=lambda x: x.n_predicted)

    def mistakes(self, net: Any, splits: TokenSplits, n: int = 3, seed: int = 0) -> list[Shown]:
        """A table of what the net writes behind beginnings of test blocks, and an adapter's base too."""
        import pandas as pd

        ids, tokenizer, rows = splits.test.input_ids, splits.tokenizer, []
        for row in spread(range(len(ids)), min(n, 3)):
            prompt = tokenizer.decode(ids[row, : splits.length // 2].tolist())
            told = {"given": prompt}
            if adapted(net):
                with net.disable_adapter():
                    told["the base writes"] = generate(net, tokenizer, prompt, raw=True, seed=seed)
            rows.append({**told, "the net writes": generate(net, tokenizer, prompt, raw=True, seed=seed)})
        return [Shown(pd.DataFrame(rows), "05_written", "What the net writes")]

    def predict(self, net: Any, inputs: Sequence[Any], about: Any) -> Iterator[dict[str, Any]]:
        """Yields the text that the net writes behind each prompt; see `generate`."""
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
    allowed: Callable[[Tensor, Tensor], Tensor] | None = None,
    width: int = 1,
    **options: Any,
) -> list[int]:
    """The tokens that follow `ids`, drawn by transformers' `generate`: `n` of them, or up to and with `end`.

    The model sees as many of the last tokens as leave room for `n` among its positions.

    Args:
        model: One of transformers, with an adapter of PEFT or without; it computes where it is.
        ids: One token at least.
        n: Most tokens to write, fewer than the model has positions.
        end: Token at which the model stops; None never stops.
        temperature: Above 1 flatter, below 1 sharper than the model's own distribution; 0 takes the most
            likely token.
        seed: All that the draws depend on; the caller's generators are left alone.
        allowed: Logits processor of transformers, (ids, scores) -> scores.
        width: Tokens that are never cut apart, as those of an event.
        options: What else `generate` takes, such as `top_p` and `top_k`, which leave none out by default.

    Raises:
        ValueError: A setting is out of range.
    """
    window = positions(model)
    if not 0 < n <= window - width:
        rule = f"lie in 1..{window - width}, as the model has {window:,} positions"
        raise ValueError(checks.message("n", rule, n, "Leave it out for what fits."))
    context = [*ids][-((window - n) // width * width) :]
    options |= {"eos_token_id": end, "pad_token_id": end or 0, "do_sample": temperature != 0}
    if temperature:
        options = {"top_p": 1.0, "top_k": 0, "temperature": temperature} | options
    place = next(model.parameters()).device
    given = torch.tensor([context], device=place)
    options |= {"attention_mask": torch.ones_like(given), "max_new_tokens": n}
    options |= {"logits_processor": [allowed] if allowed else None}
    forked = torch.random.fork_rng([] if place.type == "cpu" else [place], device_type=place.type)
    with evaluating(model), once(model), forked:
        torch.manual_seed(seed)
        return model.generate(input_ids=given, **options)[0, len(context) :].tolist()


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str = "",
    n: int | None = None,
    temperature: float = 0.8,
    raw: bool = False,
    **settings: Any,
) -> str:
    """The text that a language model writes after a prompt, until it ends or has `n` tokens.

    Args:
        model: A causal language model, with an adapter or without.
        tokenizer: The one that it was trained with.
        prompt: Text; a user's message if the tokenizer has a chat template. An empty one begins a document.
        n: As `continuation` takes it; None writes 80, or half of the model's positions if these are fewer.
        temperature: As `continuation` takes it.
        raw: Whether the text goes to the model as it is, whatever the tokenizer has.
        settings: What else `continuation` takes: `top_k`, `top_p`, `seed`.

    Raises:
        ValueError: A number is out of its range.
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
    """Tokens that a model sees at once."""
    return getattr(model.config, "max_position_embeddings", None) or LONGEST


def shifted(labels: Tensor) -> Tensor:
    """What each position is to predict: the label after it; the last one has none."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """In float32, or better: summed over the positions whose target is not IGNORED.

    Args:
        logits: Of shape (batch, length, vocabulary). Positions before the targets', as a prompt that is
            learnt has them, are passed over.
        targets: Tokens of shape (batch, length).
    """
    logits = logits[:, -targets.shape[1] :].to(torch.promote_types(logits.dtype, torch.float32))
    flat = logits.flatten(0, 1), targets.flatten()
    return nn.functional.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")


def perplexity(loss: float) -> float:
    """The exponential of a loss in nats per token; infinite where no number is that large.

    Example:
        >>> import math
        >>> round(perplexity(math.log(50)), 9), perplexity(1000.0)
        (50.0, inf)
    """
    return float(torch.tensor(loss, dtype=torch.float64).exp())


def spread(rows: Sequence[int], most: int) -> list[int]:
    """At most so many of the rows, evenly spread."""
    return [rows[i * len(rows) // most] for i in range(most)] if most < len(rows) else list(rows)

"""Tokens that a causal language model writes, one after the other: of text, or events of music."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checks, words
from qnnkit.adapters import once
from qnnkit.data.batches import keyed_generator
from qnnkit.layers import evaluating

SHORTEST, LONGEST = 32, 2048
"""Tokens of a window at least where it is asked for, and those of a model that states none."""


def sample(
    model: nn.Module,
    ids: Sequence[int],
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    window: int | None = None,
    allowed: Callable[[], Tensor] | None = None,
    border: Callable[[int], bool] | None = None,
) -> Iterator[int]:
    """Yields the tokens that follow `ids`, without end.

    A full window keeps its last half, from the first `border` in it, and the model reads that anew: the
    sequence may be longer than what the model sees at once. Keys and values are kept between tokens where the
    model is one of transformers'. Call it in `layers.evaluating(model)`.

    Args:
        model: `model(input_ids=...).logits`, with an adapter of PEFT or without; it computes where it is.
        ids: One token at least.
        temperature: Above 1 flatter, below 1 sharper than the model's own distribution; 0 takes the most
            likely token.
        top_p: Draws among the most likely tokens that have this probability together.
        top_k: Draws among so many of the most likely tokens.
        seed: All that the draws depend on; the caller's generators are left alone.
        window: Tokens that the model sees at once; by default as many as it is made for.
        allowed: Gives whether each token may come next, bool, of shape (vocabulary,); None allows all.
        border: Whether a window may begin at a token; None allows all.

    Raises:
        ValueError: A setting is out of range, or the model has fewer tokens than `allowed`.
        FloatingPointError: The model gives numbers that are not finite.

    Reference:
        Holtzman et al. 2019, arXiv:1904.09751, section 3.1 (top_p).
    """
    window = _window(model, window)
    for name, value, fits, rule, step in (
        ("temperature", temperature, temperature >= 0, "be 0 or more", "1.0, or 0 for the most likely token"),
        ("top_p", top_p, 0 < top_p <= 1, "lie above 0 and up to 1", "1.0 for all"),
        ("top_k", top_k, top_k is None or top_k > 0, "be 1 or more", "None for all"),
    ):
        if not fits:
            raise ValueError(checks.message(name, rule, value, f"Use {step}."))
    place = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    # PEFT puts a learnt prompt before the tokens of every call, so these are read anew each time.
    peft: Any = getattr(model, "active_peft_config", None)
    keeps = hasattr(model, "config") and not getattr(peft, "is_prompt_learning", False)
    ids, begin, cache, generator = list(ids), 0, None, keyed_generator("continue", seed)
    while True:
        if len(ids) - begin >= window:
            half = len(ids) - max(1, window // 2)
            begin = next((i for i in range(half, len(ids)) if border is None or border(ids[i])), half)
            cache = None
        tokens = torch.tensor([ids[begin:] if cache is None else ids[-1:]], device=place)
        with torch.no_grad():
            out = model(input_ids=tokens, **({"past_key_values": cache, "use_cache": True} if keeps else {}))
        cache = getattr(out, "past_key_values", None) if keeps else None
        mask = None if allowed is None else allowed()
        ids.append(_draw(out.logits[0, -1], mask, temperature, top_p, top_k, generator))
        yield ids[-1]


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[dict[str, str]] = "",
    max_new_tokens: int = 100,
    temperature: float = 0.8,
    **settings: Any,
) -> str:
    """The text that a language model writes after a prompt, until it ends or has `max_new_tokens`.

    Args:
        model: A causal language model, with an adapter or without.
        tokenizer: The one that it was trained with.
        prompt: Text, or the messages of a chat ({"role", "content"}), which the tokenizer's template writes.
            An empty one begins a document.
        max_new_tokens: Most tokens to write.
        temperature: As `sample` takes it.
        settings: What else `sample` takes: `top_k`, `top_p`, `seed`.

    Raises:
        ValueError: A number is out of its range, or a chat cannot be written.
    """
    checks.positive("max_new_tokens", max_new_tokens)
    end, written = tokenizer.eos_token_id, []
    with evaluating(model), once(model):
        ids = _encoded(tokenizer, prompt) or [end]
        for token in islice(sample(model, ids, temperature=temperature, **settings), max_new_tokens):
            if token == end:
                break
            written.append(token)
    return tokenizer.decode(written, skip_special_tokens=True)


def speed(model: Any, ids: Sequence[int], n: int = 64) -> float:
    """Tokens per second that a model writes after `ids`; four come first, to warm up."""
    seconds = math.inf
    with evaluating(model), once(model):
        for length in (4, n):
            start = time.perf_counter()
            list(islice(sample(model, ids, temperature=0), length))
            seconds = time.perf_counter() - start
    return n / seconds


def _draw(
    logits: Tensor,
    allowed: Tensor | None,
    temperature: float,
    top_p: float,
    top_k: int | None,
    generator: torch.Generator,
) -> int:
    """One of the allowed tokens."""
    scores = logits.cpu().double()
    if allowed is not None:
        if len(logits) < len(allowed):
            rule = f"give logits of the tokenizer's {len(allowed)} tokens"
            step = "Make it with vocab_size=len(tokenizer)."
            raise ValueError(checks.message("model", rule, len(logits), step))
        scores = scores[: len(allowed)]
    if not (scores < math.inf).all():
        raise FloatingPointError("The model's logits are not finite. Train it with a lower learning rate.")
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    if temperature == 0:
        return int(scores.argmax())
    probs, order = (scores / temperature).softmax(0).sort(descending=True, stable=True)
    if top_k is not None:
        probs[top_k:] = 0
    probs[probs.cumsum(0) - probs >= top_p] = 0  # the one that passes top_p is still in
    return int(order[torch.multinomial(probs, 1, generator=generator)])


def _window(model: nn.Module, window: int | None) -> int:
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if window is None:
        return most or LONGEST
    if window < SHORTEST or (most and window > most):
        rule = f"lie in {SHORTEST}..{most}, the model's positions" if most else f"be {SHORTEST} or more"
        raise ValueError(checks.message("window", rule, window, "Leave it out for the most."))
    return window


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

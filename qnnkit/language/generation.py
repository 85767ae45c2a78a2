"""Text from a language model, token by token."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qnnkit import checks
from qnnkit.checkpoint import own_generators, seed_all
from qnnkit.language.evaluation import evaluating

QUIET: dict[str, Any] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
"""As transformers has them where nothing is drawn; others would be warned of."""


@dataclass(frozen=True)
class Generated:
    """What a model wrote."""

    text: str
    """What comes after the prompt."""
    tokens: int
    """How many were drawn, the one that ends a text among them."""
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[dict[str, str]] = "",
    max_new_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> Generated:
    """Goes on with a prompt until the text ends or `max_new_tokens` are written.

    Where the model's context is full, the last half of it is kept and read anew, and the text goes on: so it
    may be longer than what the model sees at once, at the cost of one pass over half a context for every half
    written.

    Args:
        model: A causal language model, with an adapter or without; it computes where it is.
        tokenizer: The one that it was trained with.
        prompt: Text, or the messages of a chat ({"role", "content"}), which the tokenizer's template writes.
            An empty one begins a document.
        max_new_tokens: Most tokens to write.
        temperature: Above 1 flatter, below 1 sharper than the model's own distribution; 0 always takes the
            most likely token.
        top_k: Draws only among that many of the most likely tokens; None among all.
        seed: All that the draws depend on; the caller's generators are left alone.

    Raises:
        ValueError: A number is out of its range, or a chat cannot be written.
    """
    checks.positive("max_new_tokens", max_new_tokens)
    if temperature < 0:
        raise ValueError(checks.message("temperature", "be 0 or more", temperature, "Use 0.8, or 0."))
    if top_k is not None:
        checks.positive("top_k", top_k)
    from transformers import GenerationConfig

    end = tokenizer.eos_token_id
    known = _encoded(tokenizer, prompt) or [end]
    context = getattr(model.config, "max_position_embeddings", None)
    # All that a published model brings along is said anew, or it would have its way (Llama's top_p is 0.9).
    shape = {"temperature": float(temperature), "top_k": top_k or 0, "top_p": 1.0} if temperature else QUIET
    written: list[int] = []
    start = time.perf_counter()
    with torch.no_grad(), evaluating(model), own_generators():
        seed_all("generate", seed)
        while len(written) < max_new_tokens and (not written or written[-1] != end):
            seen = known + written
            if context is not None and len(seen) >= context:
                seen = seen[-max(1, context // 2) :]
            left = max_new_tokens - len(written)
            settings = GenerationConfig(
                max_new_tokens=left if context is None else min(left, context - len(seen)),
                do_sample=bool(temperature),
                eos_token_id=end,
                pad_token_id=end,
                **shape,
            )
            ids = torch.tensor([seen], device=next(model.parameters()).device)
            found = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings
            )
            written += found[0, len(seen) :].tolist()
    seconds = time.perf_counter() - start
    return Generated(tokenizer.decode(written, skip_special_tokens=True), len(written), seconds)


def speed(model: Any, ids: torch.Tensor, n: int = 64) -> float:
    """Tokens per second that a model writes after `ids`, the most likely ones, to no end.

    Args:
        model: As for `generate`.
        ids: What it reads first, of shape (1, length).
        n: Tokens that are written, fewer where the context ends before; four more come first, to warm up.
    """
    from transformers import GenerationConfig

    context = getattr(model.config, "max_position_embeddings", None)
    n = n if context is None else max(1, min(n, context - ids.shape[1]))
    ids = ids.to(next(model.parameters()).device)
    seconds = 0.0
    with torch.no_grad(), evaluating(model):
        for length in (min(4, n), n):
            exactly = {"max_new_tokens": length, "min_new_tokens": length}
            settings = GenerationConfig(**exactly, **QUIET, do_sample=False, pad_token_id=0)
            start = time.perf_counter()
            model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings
            ).tolist()  # waits for the device
            seconds = time.perf_counter() - start
    return n / seconds


def _encoded(tokenizer: Any, prompt: str | Sequence[dict[str, str]]) -> list[int]:
    if isinstance(prompt, str):
        ids = tokenizer(prompt, verbose=False)["input_ids"]
        return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
    try:
        text = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates refuse by errors of their own
        told = str(error).strip().split("\n")[0].rstrip(".")
        step = f"The template says: {told}."
        raise ValueError(
            checks.message("prompt", "be a chat that the tokenizer's template takes", list(prompt), step)
        ) from None
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

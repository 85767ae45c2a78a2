"""A model of events goes on with a piece, in any of its adapters' styles."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.adapters import once
from qnnkit.data.batches import seeded
from qnnkit.data.music_events import DURATION, TIME, MusicTokenizer, Note, Piece
from qnnkit.music.adapters import BASE, adapter_names, using_adapter
from qnnkit.music.grammar import Grammar

SHORTEST = 32
"""Tokens of a window, at least."""


@dataclass(frozen=True)
class Continuation:
    """A piece of which the first part was given and the rest was sampled."""

    piece: Piece
    n_given: int
    """Steps that were given."""
    n_tokens: int
    """Events that were sampled."""
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Speed of the sampling."""
        return self.n_tokens / self.seconds if self.seconds else float("inf")

    @property
    def parts(self) -> dict[str, tuple[Note, ...]]:
        """The notes that begin in what was given, and the sampled ones: as `piano_roll` wants them."""
        notes = self.piece.notes()
        return {
            "given": tuple(note for note in notes if note.start < self.n_given),
            "generated": tuple(note for note in notes if note.start >= self.n_given),
        }


def continue_piece(
    model: nn.Module,
    tokenizer: MusicTokenizer,
    prompt: Piece,
    n_steps: int,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    window: int | None = None,
    adapter: str | None = None,
    device: torch.device | str | None = None,
) -> Continuation:
    """Goes on with a piece by sampling event after event; only those that make music can be drawn.

    Once the context is full, its last half stays, from where a step begins, and the model reads that anew:
    so music of any length flows from one window into the next. Notes that sound across are not lost; a note
    knows its length from its beginning.

    Args:
        model: A causal language model over the tokenizer's events: `model(input_ids=...).logits`. Keys and
            values are kept between events where it is one of transformers'.
        tokenizer: The events.
        prompt: What is gone on with; a piece without steps to begin from nothing.
        n_steps: 16ths to add; the continuation has exactly so many.
        temperature: Of the sampling; 0 takes the likeliest event always.
        top_p: Draws among the likeliest events that have this probability together.
        top_k: Draws among so many of the likeliest.
        seed: Fixes what is drawn.
        window: Tokens of context at most; by default as many as the model is made for, or 512.
        adapter: Which of a PEFT model's adapters plays, "base" for none; None takes the active one.
        device: Where to compute; where the model is, by default.

    Raises:
        ValueError: A setting is out of range, or the model has another vocabulary or no such adapter.
        FloatingPointError: The model gives numbers that are not finite.

    Reference:
        Holtzman et al. 2019, arXiv:1904.09751, section 3.1 (top_p).
    """
    window = _window(model, window)
    _require(n_steps, temperature, top_p, top_k)
    if device is not None:
        model.to(device)
    place = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    ids = [tokenizer.bos_token_id, *tokenizer.encode(prompt, marks=False)]
    grammar = Grammar()
    for token in ids:
        grammar.read(token)
    n_given, first = grammar.steps, len(ids)
    generator, training = seeded("continue", seed), model.training
    begin, cache = _begin(ids, 0, window), None
    began = time.perf_counter()
    model.eval()
    try:
        with torch.no_grad(), using_adapter(model, adapter), once(model):
            while grammar.steps < n_given + n_steps:
                if len(ids) - begin >= window:
                    begin, cache = _begin(ids, begin, window), None
                tokens = ids[begin:] if cache is None else ids[-1:]
                logits, cache = _next(model, torch.tensor([tokens], device=place), cache)
                token = _draw(logits, grammar.allowed(), temperature, top_p, top_k, generator)
                grammar.read(token)
                ids.append(token)
    finally:
        model.train(training)
    seconds = time.perf_counter() - began
    added = tokenizer.decode(ids[first:]).notes()
    shifted = [Note(note.start + n_given, note.pitch, note.duration) for note in added]
    whole = Piece.of_notes(prompt.name, [*prompt.notes(), *shifted], n_given + n_steps, prompt.composer)
    return Continuation(whole, n_given, len(ids) - first, seconds)


def for_each_adapter(
    model: nn.Module,
    tokenizer: MusicTokenizer,
    prompt: Piece,
    n_steps: int,
    *,
    adapters: Sequence[str] | None = None,
    **settings: Any,
) -> dict[str, Continuation]:
    """The same prompt and seed gone on with by each adapter of a PEFT model, and by its base without any.

    Args:
        model: As in `continue_piece`, as are the other arguments.
        tokenizer: The events.
        prompt: What is gone on with.
        n_steps: 16ths to add.
        adapters: Which, all and "base" by default.
        settings: What else `continue_piece` takes.
    """
    names = (BASE, *adapter_names(model)) if adapters is None else adapters
    found = {}
    for name in names:
        played = continue_piece(model, tokenizer, prompt, n_steps, adapter=name, **settings)
        found[name] = replace(played, piece=replace(played.piece, name=f"{prompt.name} ({name})"))
    return found


def _begin(ids: Sequence[int], begin: int, window: int) -> int:
    """Where the context begins: as before while there is room, then at the first `time` of its last half."""
    if len(ids) - begin < window:
        return begin
    half = len(ids) - window // 2
    return next((i for i in range(half, len(ids)) if TIME <= ids[i] < DURATION), half)


def _next(model: nn.Module, input_ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
    """Logits of the next event, of shape (tokens,), and the cache; None where the model keeps none."""
    if not hasattr(model, "config"):
        return model(input_ids=input_ids).logits[0, -1], None
    out = model(input_ids=input_ids, past_key_values=cache, use_cache=True)
    return out.logits[0, -1], getattr(out, "past_key_values", None)


def _draw(
    logits: Tensor,
    allowed: Tensor,
    temperature: float,
    top_p: float,
    top_k: int | None,
    generator: torch.Generator,
) -> int:
    """One of the allowed tokens."""
    if len(logits) < len(allowed):
        rule = f"give logits of the tokenizer's {len(allowed)} events"
        step = "Make it with vocab_size=len(tokenizer)."
        raise ValueError(checks.message("model", rule, len(logits), step))
    scores = logits[: len(allowed)].double().cpu()
    if not torch.isfinite(scores).all():
        raise FloatingPointError("The model's logits are not finite. Train it with a lower learning rate.")
    scores = scores.masked_fill(~allowed, -torch.inf)
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
        return most or 512
    if window < SHORTEST or (most and window > most):
        rule = f"lie in {SHORTEST}..{most}, the model's positions" if most else f"be {SHORTEST} or more"
        raise ValueError(checks.message("window", rule, window, "Leave it out for the most."))
    return window


def _require(n_steps: int, temperature: float, top_p: float, top_k: int | None) -> None:
    checks.positive("n_steps", n_steps, "16 is a bar of four quarters.")
    if temperature < 0:
        step = "Use 1.0, or 0 for the likeliest."
        raise ValueError(checks.message("temperature", "be 0 or more", temperature, step))
    if not 0 < top_p <= 1:
        raise ValueError(checks.message("top_p", "lie above 0 and up to 1", top_p, "Use 1.0 for all."))
    if top_k is not None and top_k < 1:
        raise ValueError(checks.message("top_k", "be 1 or more", top_k, "Use None for all."))

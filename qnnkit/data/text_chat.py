"""Chats as tokens, of which only the answers are predicted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.data.text_files import Document
from qnnkit.data.tokens import IGNORED


def encoded(document: Document, tokenizer: Any) -> tuple[Tensor, Tensor] | None:
    """Tokens of a document and their labels, both int64 of shape (n,); None for a chat without an answer.

    Plain text is predicted everywhere, of a chat the answers of the assistant alone, each with what the
    tokenizer's template writes after it. A question and its answer are encoded apart, as they are when a
    model is asked. Either ends in the tokenizer's end of text.
    """
    if document.messages:
        pieces = answers(document, tokenizer)
        if pieces is None:
            return None
        tokens = [
            (tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], predicted)
            for text, predicted in pieces
        ]
    else:
        tokens = [(tokenizer(document.text, verbose=False)["input_ids"], True)]
    last = tokens[-1][0] if document.messages else tokens[-1][0][-1:]
    if tokenizer.eos_token_id not in last:  # templates may write a line's end after it
        tokens.append(([tokenizer.eos_token_id], True))
    input_ids = torch.tensor([token for ids, _ in tokens for token in ids], dtype=torch.int64)
    shown = torch.tensor([predicted for ids, predicted in tokens for _ in ids])
    return input_ids, input_ids.where(shown, torch.tensor(IGNORED))


def answers(document: Document, tokenizer: Any) -> list[tuple[str, bool]] | None:
    """What the tokenizer's template makes of a chat, in pieces, and which of them are answers.

    Messages after the last answer are left out.

    Raises:
        ValueError: The template refuses the chat, or writes earlier messages otherwise once later ones come.
    """
    messages, done = list(document.messages), ""
    pieces: list[tuple[str, bool]] = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked = _written(document, messages[:index], tokenizer, True)
        whole = _written(document, messages[: index + 1], tokenizer, False)
        if not (asked.startswith(done) and whole.startswith(asked)):
            rule = "have a chat template that only adds to what it wrote before"
            step = "Use another tokenizer, or cut chats after their first answer."
            raise ValueError(checks.message("tokenizer", rule, document.name, step))
        pieces += [(asked[len(done) :], False), (whole[len(asked) :], True)]
        done = whole
    return pieces or None


def _written(document: Document, messages: list[dict[str, str]], tokenizer: Any, asks: bool) -> str:
    if not messages:  # an answer stands first
        return ""
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)
    except Exception as error:  # templates refuse by errors of their own
        told = str(error).strip().split("\n")[0].rstrip(".")
        rule = "hold chats that the tokenizer's template takes"
        step = f"The template says: {told}."
        raise ValueError(checks.message("root", rule, document.name, step)) from None

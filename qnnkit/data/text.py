"""Text as blocks of tokens, split by document: what causal language models are trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qnnkit import checks, words
from qnnkit.data import chats, duplicates, text_files, tokenizers
from qnnkit.data.chats import Message
from qnnkit.data.duplicates import Content
from qnnkit.data.places import refusal
from qnnkit.data.splits import SPLITS, split_names
from qnnkit.data.text_files import Document
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits


def text(
    root: str | Path | None = None,
    *,
    sequence_length: int = 256,
    split_seed: int = 0,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    tokenizer: str | Path | None = None,
    vocabulary: int = 1024,
    part: str | None = None,
) -> TokenSplits:
    """Text in blocks of equal length, split by document.

    `root` is a text file (.txt, .md), a file of records (.json, .jsonl, .csv, .tsv, .parquet, .arrow), or a
    folder, archive or address of such. A record, or a text of 4,000 characters at most, is a document; a
    longer text is cut at blank lines into several. A record is {"text"}, or a chat or an instruction in any
    form of `chats.conversation`. Of these only the answers are predicted, and what is written around them is
    the tokenizer's chat template, or `User: ...` and `Assistant: ...` where it has none.

    The documents of a split are joined, each with an end-of-text token, and cut into blocks. Each document is
    placed by `split_seed` and a hash, of a file's path or else of its text: one more or less moves no other.
    `part` changes nothing: what an adapter to one speaker is tested on was not seen by a base that was
    trained on all of the same text, with the same seed and shares.

    Args:
        root: Where the text lies.
        sequence_length: Tokens of a block.
        split_seed: Chooses which documents are held out.
        validation_fraction: Share of the documents that choose the epoch, about; one at least.
        test_fraction: Share of the documents that are looked at once, at the end; likewise.
        tokenizer: Folder or hub name of a model whose tokenizer to take, as an adapter to a model needs it;
            None trains a byte-level BPE on the training documents.
        vocabulary: Tokens of the one that is trained; 257, the fewest, reads letter by letter.
        part: Keeps only documents (of a single file: speeches) in whose heading this regular expression is
            found: a file's path, a speech's first line, a record's "source" or first line. "ROMEO|JULIET"
            keeps what they say; with a leading "!" all but that is kept.

    Raises:
        ValueError: A split has no whole block, a file is no text, a record is of no known form, no chat has
            an answer, `part` keeps nothing, or the tokenizer cannot be read or takes no such sequences.
        OSError: Nothing is there.
    """
    if sequence_length < 2:
        step = "Use 128 or 256."
        raise ValueError(checks.message("sequence_length", "be 2 tokens or more", sequence_length, step))
    documents, notes = text_files.documents(root, part)
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    keys = list(dict.fromkeys(document.key for document in documents))
    placed = split_names(keys, what="documents", split_seed=split_seed, **shares)
    side = dict(zip(keys, placed, strict=True))
    parts: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for document in documents:
        if document.text:
            parts[side[document.key]].append(document)
    if tokenizer is None:
        made = tokenizers.trained((document.text for document in parts["train"]), vocabulary)
        notes.append(f"A byte-level BPE of {len(made):,} tokens was trained on the training documents.")
    else:
        made = tokenizers.loaded(tokenizer)
        if sequence_length > made.model_max_length:
            rule = f"be at most {made.model_max_length:,}, the longest that this tokenizer's model takes"
            raise ValueError(checks.message("sequence_length", rule, sequence_length, "Use fewer tokens."))
    if any(document.messages for part in parts.values() for document in part):
        notes += tokenizers.with_chat_template(made)
    texts = {name: [Content(each.text.encode(), each.name) for each in parts[name]] for name in SPLITS}
    notes += duplicates.notes(texts, "documents", "letter for letter")
    packed = {name: _packed(parts[name], made, sequence_length) for name in SPLITS}
    ends = {name: f"{lost['tokens']:,} in {name}" for name, (_, lost) in packed.items()}
    if short := [ends[name] for name, (blocks, _) in packed.items() if not len(blocks)]:
        step = "Lower sequence_length, hold more out, try another split_seed, or add text."
        raise refusal(f"hold {sequence_length} tokens for every split", ", ".join(short), step)
    lost = sum((lost for _, lost in packed.values()), Counter[str]())
    if n := lost["chats"]:
        notes.append(f"Chats left out, without an answer to predict: {n:,}.")
    if lost["tokens"]:
        told = f"Tokens at a split's end that fill no block of {sequence_length} are left out"
        notes.append(f"{told}: {', '.join(ends.values())}.")
    if n := lost["blocks"]:
        notes.append(f"Blocks left out, in which nothing is to be predicted: {n:,}.")
    blocks = (blocks for blocks, _ in packed.values())
    return TokenSplits("text", *blocks, tokenizer=made, notes=tuple(notes))


def _packed(documents: Sequence[Document], tokenizer: Any, length: int) -> tuple[TokenSet, Counter[str]]:
    """The blocks of a split; and how many chats, tokens at its end and silent blocks are not in them."""
    streams = [(document.name, encoded(document, tokenizer)) for document in documents]
    answered = [(name, stream) for name, stream in streams if stream is not None]
    none = torch.zeros(0, dtype=torch.int64)
    tokens, labels = (torch.cat([none, *(stream[i] for _, stream in answered)]) for i in (0, 1))
    n, rest = divmod(len(tokens), length)
    tokens, labels = (each[: n * length].view(n, length) for each in (tokens, labels))
    rows = (labels[:, 1:] != IGNORED).any(dim=1).nonzero().flatten()
    ends = torch.tensor([len(ids) for _, (ids, _) in answered], dtype=torch.int64).cumsum(0)
    begins = torch.searchsorted(ends, rows * length, right=True)  # the document that each block begins in
    lost = Counter(chats=len(streams) - len(answered), tokens=rest, blocks=n - len(rows))
    return TokenSet(tokens[rows], labels[rows], tuple(answered[i][0] for i in begins.tolist())), lost


def encoded(document: Document, tokenizer: Any) -> tuple[Tensor, Tensor] | None:
    """Tokens of a document and their labels, both int64 of shape (n,); None for a chat without an answer.

    Plain text is predicted everywhere, of a chat the answers of the assistant alone, each with what the
    tokenizer's template writes after it. A question and its answer are encoded apart, as they are when a
    model is asked. Either ends in the tokenizer's end of text.
    """
    pieces = answers(document, tokenizer) if document.messages else [(document.text, True)]
    if pieces is None:
        return None
    kind = {"add_special_tokens": not document.messages, "verbose": False}
    tokens = [(tokenizer(text, **kind)["input_ids"], predicted) for text, predicted in pieces]
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
        if not chats.is_answer(message):
            continue
        asked = _written(document, messages[:index], tokenizer, True)
        whole = _written(document, messages[: index + 1], tokenizer, False)
        if not (asked.startswith(done) and whole.startswith(asked)):
            rule = "have a chat template that only adds to what it wrote before"
            step = "Use another tokenizer, or cut chats after their first answer."
            raise ValueError(checks.message("tokenizer", rule, document.name, step))
        names = [(call.get("function") or call).get("name", "") for call in message.get("tool_calls", ())]
        if lost := [name for name in names if name not in whole[len(asked) :]]:
            rule, value = "have a chat template that writes tool calls", f"{document.name} with {lost[0]}"
            step = "Use another tokenizer, or write the calls into the content."
            raise ValueError(checks.message("tokenizer", rule, value, step))
        pieces += [(asked[len(done) :], False), (whole[len(asked) :], True)]
        done = whole
    return pieces or None


def _written(document: Document, messages: list[Message], tokenizer: Any, asks: bool) -> str:
    if not messages:  # an answer stands first
        return ""
    messages = [{key: each[key] for key in each if key != "weight"} for each in messages]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)
    except Exception as error:  # templates refuse by errors of their own
        reason = words.first_line(error)
        step = f"The template says: {reason}."
        raise refusal("hold chats that the tokenizer's template takes", document.name, step) from None

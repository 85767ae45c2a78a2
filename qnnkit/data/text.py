"""Text as blocks of tokens, split by document, for training causal language models."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit import checks, words
from qnnkit.data import places, records, tokenizers
from qnnkit.data.places import around, first, left_out, open_place, refusal
from qnnkit.data.records import Reader, side_of, take
from qnnkit.data.splits import SPLITS, duplicates, split_rows
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits

TEXT = (".txt", ".md", ".txt.gz")
SUFFIXES = (*TEXT, *records.SUFFIXES)
"""Suffixes of files that are read; other files are left out."""
ABOUT = re.compile(r"(?i)(.*/)?(readme|licen[cs]e)[^/]*\.(md|txt)")
"""Files about the data, which are left out next to files of records."""
CHARACTERS = 2000
"""Most characters of a document that is cut from a longer text."""
PAGE = re.compile(rf"(?s).{{1,{CHARACTERS}}}\Z|.{{0,{CHARACTERS - 1}}}\n|.{{{CHARACTERS}}}")
"""Pattern of a page: as many lines as fit, or part of a longer line."""
BLANK = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
"""Pattern of one or more blank lines."""


@dataclass(frozen=True)
class Document:
    """A unit of text that is never divided between splits."""

    name: str
    """Where it comes from: a file, a record of it, or the paragraph of a file at which it starts."""
    pieces: tuple[str, ...]
    """Its speeches; or all of a file, or of a record (messages as `User: ...`)."""
    key: str
    """Key whose hash chooses its split: a file's path, a record's text, or the first of its speeches."""
    source: str
    """A file's path, or the "source" of a record."""
    messages: tuple[records.Message, ...] = ()
    """The messages of a chat, of which only answers are predicted; () for plain text."""

    @property
    def text(self) -> str:
        """The whole text."""
        return "\n\n".join(self.pieces)

    @property
    def is_silent(self) -> bool:
        """Whether it is a chat without an answer to predict."""
        return bool(self.messages) and not any(map(records.is_answer, self.messages))


def documents(root: str | Path | None, part: str | None = None) -> tuple[list[Document], list[str]]:
    """Returns the documents at `root`, in natural order, and notes on what was left out.

    A document is a record, or a text of at most 4,000 characters; longer texts are divided by `_cut`. If
    `part` removes all pieces of a document, the empty document stays, so that the splits do not change.

    Args:
        root: A file, a folder or archive of files, or the address of one.
        part: Regular expression that is searched for in the path of a file, the "source" of a record and the
            first line of a speech (or a page, file or record), without its colon. With a leading "!", pieces
            that match are removed instead of kept.

    Raises:
        ValueError: A file cannot be read, a record has an unknown format, no chat has an answer, or `part`
            keeps nothing.
        OSError: Nothing is at `root`.
    """
    place = open_place(root, single=SUFFIXES)
    files = [each.name for each in place.members if each.base.lower().endswith(SUFFIXES)]
    top, reader = around(each.name for each in place.members), Reader(place)
    are_tables = any(name.lower().endswith(records.SUFFIXES) for name in files)
    about = [name for name in files if are_tables and ABOUT.fullmatch(name)]
    every = [each for name in files if name not in about for each in _of_file(reader, name, top)]
    empty = [each.name for each in every if not each.text.strip()]
    silent = [each.name for each in every if each.is_silent]
    usable = [each for each in every if each.text.strip() and not each.is_silent]
    lacks = {"files about the data": about, "empty documents": empty, "chats without an answer": silent}
    notes = [*place.notes(SUFFIXES, "text"), *reader.notes, *left_out(lacks)]
    if not usable:
        step = f"Put {', '.join(SUFFIXES)} files there; in chats, give answers the role assistant."
        raise refusal("hold text, or chats with an answer", " ".join([str(root), *notes]), step)
    if held_out := [name for name in files if side_of(name) in ("validation", "test")]:
        notes.append(f"Split names are not used; splits are drawn from all files: {first(held_out)}.")
    return (usable, notes) if part is None else _selected(usable, part, notes)


def _selected(usable: list[Document], part: str, notes: list[str]) -> tuple[list[Document], list[str]]:
    """Returns the documents with only the pieces that match the pattern, or that do not match after "!"."""
    search, excludes = places.pattern("part", part.removeprefix("!")).search, part.startswith("!")

    def is_wanted(source: str, piece: str) -> bool:
        lines = source, piece.strip().partition("\n")[0].rstrip(":")
        return any(map(search, lines)) != excludes

    selected = [replace(x, pieces=tuple(y for y in x.pieces if is_wanted(x.source, y))) for x in usable]
    counts = [sum(len(document.pieces) for document in some) for some in (selected, usable)]
    if not counts[0]:
        step = f"The first documents are {first([document.name for document in usable])}."
        raise ValueError(checks.message("part", "be found in a path, source or first line", part, step))
    return selected, [*notes, f"part={part!r} keeps {counts[0]:,} of {counts[1]:,} documents or speeches."]


def _of_file(reader: Reader, name: str, top: str) -> Iterator[Document]:
    path = name.removeprefix(top)
    if not name.lower().endswith(TEXT):
        parsed = [as_document(*each, reader.unused) for each in reader.records(name)]
        yield from parsed or [Document(name, ("",), path, path)]
    elif len(text := reader.text(name)) <= 2 * CHARACTERS:
        yield Document(name, (text.strip(),), path, path)
    else:
        yield from _cut(name, text, path)


def _cut(name: str, text: str, path: str) -> Iterator[Document]:
    """Cuts a long text at blank lines into documents of about 2,000 characters at most.

    A paragraph, such as a speech of a play, stays whole; one of over 4,000 characters is cut into pages at
    line ends. A document starts where the hash of a paragraph decides so, about every 4,000 characters, or
    where the previous document is full. So an edit changes only nearby documents, and no other file's.
    """
    groups: list[list[tuple[int, str]]] = []  # pages of each document, with the number of their paragraph
    for number, speech in enumerate(BLANK.split(text.strip("\n")), start=1):
        for page in [speech] if len(speech) <= 2 * CHARACTERS else PAGE.findall(speech):
            page = page.rstrip("\n")
            share = int.from_bytes(hashlib.sha256(page.encode()).digest()[:8], "big") / 2**64
            full = not groups or sum(len(each) + 2 for _, each in groups[-1]) + len(page) > CHARACTERS
            if full or share < len(page) / (2 * CHARACTERS):
                groups.append([])
            groups[-1].append((number, page))
    for group in groups:
        pieces = tuple(page for _, page in group)
        yield Document(f"{name}, paragraph {group[0][0]}", pieces, pieces[0], path)


def as_document(where: str, record: records.Record, unused: set[str]) -> Document:
    """Returns a record as a document: a chat, or plain text under "text".

    Raises:
        ValueError: Its format is unknown; the message contains `where`.
    """
    record = dict(record)
    source, messages = take(record, "source"), tuple(records.conversation(record, where, unused))
    lines = [f"{each['role'].capitalize()}: {each['content']}" for each in messages]
    text = "\n".join(lines) if messages else take(record, "text")
    if not isinstance(text, str):
        step = f"Its keys are {first([repr(key) for key in record], 8)}: rename the key of the text."
        raise refusal("hold text, messages, or a prompt and its completion in every record", where, step)
    unused.update(record)
    return Document(where, (text,), text, str(source or ""), messages)


def text(
    root: str | Path | None = None,
    *,
    sequence_length: int = 256,
    split_seed: int = 0,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    tokenizer: str | Path | None = None,
    vocabulary: int | None = None,
    part: str | None = None,
) -> TokenSplits:
    """Text in blocks of equal length, split by document: a record, a file, or about 2,000 characters of it.

    In chats and instructions, only the answers are predicted. Chats are written with the tokenizer's chat
    template, or as `User: ...` and `Assistant: ...` if it has none. The documents of a split are joined, each
    with an end-of-text token. A document is placed by `split_seed` and the hash of a file's path or of its
    text, so adding or removing one moves no other. `part` does not affect the splits: a base model trained on
    all of the text has not seen the test documents of an adapter to one speaker.

    Args:
        root: A file, a folder or archive of files, or an address; `docs/formats.md` lists every format.
        sequence_length: Tokens in a block.
        split_seed: Chooses which documents are held out.
        validation_fraction, test_fraction: Approximate shares of the documents; at least one document.
        tokenizer: Folder or hub name of a model whose tokenizer to use, as an adapter to that model needs it;
            None trains a byte-level BPE on the training documents.
        vocabulary: Size of a trained tokenizer, 1,024 by default; 257 is one token per byte.
        part: Regular expression for a file's path, a record's "source" or a speech's first line:
            "ROMEO|JULIET" keeps their speeches, "!ROMEO|JULIET" all others. None keeps all.

    Raises:
        ValueError: A split has no complete block, a file or the tokenizer cannot be read, a setting is out of
            range, or `part` is invalid or keeps nothing.
        OSError: Nothing is at `root`.
    """
    selected, notes = documents(root, part)
    keys = list(dict.fromkeys(document.key for document in selected))
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    rows = split_rows(0 * np.arange(len(keys)), names=keys, what="documents", split_seed=split_seed, **shares)
    sides = {keys[row]: name for name, of in zip(SPLITS, rows, strict=True) for row in of}
    parts = {name: [each for each in selected if each.text and sides[each.key] == name] for name in SPLITS}
    if tokenizer is None:
        size = 1024 if vocabulary is None else vocabulary
        chosen = tokenizers.trained((document.text for document in parts["train"]), size)
        notes.append(f"A byte-level BPE of {len(chosen):,} tokens was trained on the training documents.")
    else:
        chosen = tokenizers.loaded(tokenizer)
        if vocabulary is not None:
            notes.append(f"Ignored vocabulary={vocabulary}: the tokenizer is read from {tokenizer}.")
    checks.positive("sequence_length", sequence_length, "Use 128 or 256.")
    notes += tokenizers.with_chat_template(chosen, selected)
    texts = [[(each.text.encode(), each.name) for each in parts[name]] for name in SPLITS]
    notes += duplicates(texts, "documents", "letter for letter")
    sets, lost = zip(*(packed(parts[name], chosen, sequence_length) for name in SPLITS), strict=True)
    if not all(map(len, sets)):
        step = "Lower sequence_length, raise the fractions, try another split_seed, or add text."
        raise refusal(f"hold blocks of {sequence_length} tokens for every split", [*map(len, sets)], step)
    if sum(lost):
        notes.append(f"Left out {sum(lost):,} tokens: ends of splits, and blocks with nothing to predict.")
    return TokenSplits("text", *sets, tokenizer=chosen, notes=tuple(notes))


def packed(
    documents: Sequence[Document], tokenizer: Any, length: int, pads: bool = False
) -> tuple[TokenSet, int]:
    """Returns documents in blocks of `length` tokens, and the number of tokens that are left out.

    Blocks with nothing to predict are left out, and so is an incomplete last block, unless `pads` is set.
    """
    streams = [encoded(document, tokenizer) for document in documents]
    missing = -sum(len(ids) for ids, _ in streams) % length if pads else 0
    filling = tuple(torch.full((missing,), token) for token in (tokenizer.eos_token_id, IGNORED))
    tokens, labels = map(torch.cat, zip(*streams, filling, strict=True))
    n = len(tokens) // length
    input_ids, labels = (each[: n * length].view(n, length) for each in (tokens, labels))
    rows = (labels[:, 1:] != IGNORED).any(dim=1).nonzero().flatten()
    ends = torch.tensor([len(ids) for ids, _ in streams], dtype=torch.int64).cumsum(0)
    begins = torch.searchsorted(ends, rows * length, right=True)  # the document that each block begins in
    sources = tuple(documents[i].name for i in begins.tolist())
    return TokenSet(input_ids[rows], labels[rows], sources), len(tokens) - length * len(rows)


def encoded(document: Document, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Returns the tokens of a document and their labels, both int64 of shape (n,).

    Plain text is predicted everywhere. In a chat, only the assistant's answers are predicted, each with the
    text that the template writes after it. A question and its answer are encoded separately, as in inference.
    All documents end with the tokenizer's end of text.
    """
    pieces = answers(document, tokenizer) if document.messages else [(document.text, True)]
    kind = {"add_special_tokens": not document.messages, "verbose": False}
    tokens = [(tokenizer(text, **kind)["input_ids"], predicted) for text, predicted in pieces]
    if tokens and tokenizer.eos_token_id not in tokens[-1][0][-2:]:  # templates may add a newline
        tokens.append(([tokenizer.eos_token_id], True))
    input_ids = torch.tensor([token for ids, _ in tokens for token in ids], dtype=torch.int64)
    shown = torch.tensor([predicted for ids, predicted in tokens for _ in ids], dtype=torch.bool)
    return input_ids, input_ids.masked_fill(~shown, IGNORED)


def answers(document: Document, tokenizer: Any) -> list[tuple[str, bool]]:
    """Returns the text of a chat, by the tokenizer's template, in pieces, and which of them are answers.

    Messages after the last answer are left out.

    Raises:
        ValueError: The template rejects the chat, changes earlier messages when later ones are added, or
            drops tool calls.
    """
    messages, before, pieces = list(document.messages), "", []
    write = functools.partial(tokenizer.apply_chat_template, tokenize=False)
    rows = [row for row, message in enumerate(messages) if records.is_answer(message)]
    try:
        for row, asks in itertools.product(rows, (True, False)):  # up to an answer, and with it
            so_far = messages[: row if asks else row + 1]
            text = write(so_far, add_generation_prompt=asks) if so_far else ""
            calls = () if asks else messages[row].get("tool_calls", ())
            names = [(call.get("function") or call).get("name", "") for call in calls]
            if not text.startswith(before) or any(name not in text for name in names):
                raise ValueError("it drops tool calls, or changes earlier messages")
            pieces.append((text[len(before) :], not asks))
            before = text
    except Exception as error:  # templates raise errors of their own
        rule = "have a chat template that accepts these chats and never changes earlier messages"
        step = f"Error: {words.first_line(error)}. Use another tokenizer, or shorten the chats."
        raise ValueError(checks.message("tokenizer", rule, document.name, step)) from None
    return pieces

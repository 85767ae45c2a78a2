"""Text as blocks of tokens, split by document: what causal language models are trained on."""

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
"""What is read; other files are left out."""
ABOUT = re.compile(r"(?i)(.*/)?(readme|licen[cs]e)[^/]*\.(md|txt)")
"""What files of records have next to them."""
CHARACTERS = 2000
"""Most that a document has which is cut out of a longer text."""
PAGE = re.compile(rf"(?s).{{1,{CHARACTERS}}}\Z|.{{0,{CHARACTERS - 1}}}\n|.{{{CHARACTERS}}}")
"""As many lines as fit, or a piece of one that is longer."""
BLANK = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
"""Blank lines, one or more."""


@dataclass(frozen=True)
class Document:
    """What goes into one split as a whole."""

    name: str
    """Where it comes from: a file, a line of it, or where in it a piece begins."""
    pieces: tuple[str, ...]
    """Its speeches; or all of a file, or of a record (messages as `User: ...`)."""
    key: str
    """What its split is drawn by: a file's path, a record's text, or the first speech of several."""
    source: str
    """A file's path, or what a record says."""
    messages: tuple[records.Message, ...] = ()
    """What it is made of where only answers are predicted; () for plain text."""

    @property
    def text(self) -> str:
        """All of it."""
        return "\n\n".join(self.pieces)

    @property
    def is_silent(self) -> bool:
        """Whether it is a chat without an answer to predict."""
        return bool(self.messages) and not any(map(records.is_answer, self.messages))


def documents(root: str | Path | None, part: str | None = None) -> tuple[list[Document], list[str]]:
    """The documents at `root`, in natural order, and sentences on what was left out.

    A document of which `part` keeps nothing has no pieces, so that it does not change which split others are
    in. A record is a document, and so is a text of 4,000 characters at most; for a longer one see `_cut`.

    Args:
        root: A file, a folder or archive of files, or the address of one.
        part: Regular expression that is searched for in the path of a file, the "source" of a record and the
            first line of a speech (or a page, file or record), without its colon. A leading "!" keeps the
            others.

    Raises:
        ValueError: A file cannot be read, a record is of no known form, no chat has an answer, or `part`
            keeps nothing.
        OSError: Nothing is there.
    """
    place = open_place(root, single=SUFFIXES)
    files = [each.name for each in place.members if each.base.lower().endswith(SUFFIXES)]
    top, reader = around(each.name for each in place.members), Reader(place)
    are_tables = any(name.lower().endswith(records.SUFFIXES) for name in files)
    about = [name for name in files if are_tables and ABOUT.fullmatch(name)]
    every = [each for name in files if name not in about for each in _of_file(reader, name, top)]
    empty = [each.name for each in every if not each.text.strip()]
    silent = [each.name for each in every if each.is_silent]
    whole = [each for each in every if each.text.strip() and not each.is_silent]
    lacks = {"files about the data": about, "empty documents": empty}
    lacks["chats without an answer to predict"] = silent
    notes = [*place.notes(SUFFIXES, "text"), *reader.notes, *left_out(lacks)]
    if not whole:
        step = f"Put {', '.join(SUFFIXES)} files there; in chats, call the one who answers assistant."
        raise refusal("hold text, or chats with an answer", " ".join([str(root), *notes]), step)
    if held_out := [name for name in files if side_of(name) in ("validation", "test")]:
        notes.append(f"Names of splits are not used, splits are drawn from all files: {first(held_out)}.")
    return (whole, notes) if part is None else _selected(whole, part, notes)


def _selected(whole: list[Document], part: str, notes: list[str]) -> tuple[list[Document], list[str]]:
    """The documents with those pieces alone that the pattern fits, or else does not."""
    found, others = places.pattern("part", part.removeprefix("!")).search, part.startswith("!")

    def is_wanted(source: str, piece: str) -> bool:
        lines = source, piece.strip().partition("\n")[0].rstrip(":")
        return any(map(found, lines)) != others

    kept = [replace(x, pieces=tuple(y for y in x.pieces if is_wanted(x.source, y))) for x in whole]
    counts = [sum(len(document.pieces) for document in some) for some in (kept, whole)]
    if not counts[0]:
        step = f"The first documents are {first([document.name for document in whole])}."
        raise ValueError(checks.message("part", "be found in a path, source or first line", part, step))
    return kept, [*notes, f"part={part!r} keeps {counts[0]:,} of {counts[1]:,} documents or speeches."]


def _of_file(reader: Reader, name: str, top: str) -> Iterator[Document]:
    path = name.removeprefix(top)
    if not name.lower().endswith(TEXT):
        found = [as_document(*each, reader.unused) for each in reader.records(name)]
        yield from found or [Document(name, ("",), path, path)]
    elif len(text := reader.text(name)) <= 2 * CHARACTERS:
        yield Document(name, (text.strip(),), path, path)
    else:
        yield from _cut(name, text, path)


def _cut(name: str, text: str, path: str) -> Iterator[Document]:
    """A long text as documents of 2,000 characters at most, cut at blank lines.

    What is between two blank lines, such as a speech of a play, stays whole, unless it is a page long itself,
    which is cut at line ends. A document begins where the hash of a speech says so, about every 4,000
    characters, and else where the one before is full. So an edit changes only the documents near it, and
    another file changes none.
    """
    groups: list[list[tuple[int, str]]] = []  # of pages, with the number of the speech that each is from
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
    """A record as a document: a chat, or plain text under "text".

    Raises:
        ValueError: It is of no known form; `where` tells which it is.
    """
    record = dict(record)
    source, messages = take(record, "source"), tuple(records.conversation(record, where, unused))
    said = [f"{each['role'].capitalize()}: {each['content']}" for each in messages]
    text = "\n".join(said) if messages else take(record, "text")
    if not isinstance(text, str):
        step = f"Its keys are {first([repr(key) for key in record], 8)}: rename those of texts."
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
    """Text in blocks of equal length, split by document; `documents` says what a document is.

    Of chats and instructions only the answers are predicted, and what is written around them is the
    tokenizer's chat template, or `User: ...` and `Assistant: ...` where it has none. The documents of a split
    are joined, each with an end-of-text token. Each is placed by `split_seed` and a hash, of a file's path or
    else of its text, so one more or less moves no other. `part` does not affect the split: a base trained on
    all of the text has not seen what an adapter to one speaker is tested on.

    Args:
        root: A file, a folder or archive of files, or an address; `docs/formats.md` has every form.
        sequence_length: Tokens of a block.
        split_seed: Chooses which documents are held out.
        validation_fraction: Share of the documents that choose the epoch, about; one at least.
        test_fraction: Likewise, of those that are read at the end.
        tokenizer: Folder or hub name of a model whose tokenizer to take, as an adapter to a model needs it;
            None trains a byte-level BPE on the training documents.
        vocabulary: Tokens of the one that is trained, 1,024 by default; 257 reads letter by letter.
        part: As of `documents`: "ROMEO|JULIET" keeps what they say, "!ROMEO|JULIET" all but that.

    Raises:
        ValueError: A split has no whole block, or something cannot be read.
        OSError: Nothing is there.
    """
    found, notes = documents(root, part)
    keys = list(dict.fromkeys(document.key for document in found))
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    rows = split_rows(0 * np.arange(len(keys)), names=keys, what="documents", split_seed=split_seed, **shares)
    sides = {keys[row]: name for name, of in zip(SPLITS, rows, strict=True) for row in of}
    parts = {name: [each for each in found if each.text and sides[each.key] == name] for name in SPLITS}
    if tokenizer is None:
        made = tokenizers.trained((document.text for document in parts["train"]), vocabulary or 1024)
        notes.append(f"A byte-level BPE of {len(made):,} tokens was trained on the training documents.")
    else:
        made = tokenizers.loaded(tokenizer)
        if vocabulary is not None:
            notes.append(f"Not used: vocabulary={vocabulary}, as the tokenizer of {tokenizer} is read.")
    checks.positive("sequence_length", sequence_length, "Use 128 or 256.")
    notes += tokenizers.with_chat_template(made, found)
    texts = [[(each.text.encode(), each.name) for each in parts[name]] for name in SPLITS]
    notes += duplicates(texts, "documents", "letter for letter")
    sets, lost = zip(*(packed(parts[name], made, sequence_length) for name in SPLITS), strict=True)
    if not all(map(len, sets)):
        step = "Lower sequence_length, hold more out, try another split_seed, or add text."
        raise refusal(f"hold blocks of {sequence_length} tokens for every split", [*map(len, sets)], step)
    if sum(lost):
        notes.append(f"Left out {sum(lost):,} tokens: ends of splits, and blocks with nothing to predict.")
    return TokenSplits("text", *sets, tokenizer=made, notes=tuple(notes))


def packed(
    documents: Sequence[Document], tokenizer: Any, length: int, pads: bool = False
) -> tuple[TokenSet, int]:
    """Documents in blocks of so many tokens; and how many tokens are left out.

    These are in blocks with nothing to predict, and behind the last whole block; with `pads` that is filled
    up.
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
    """Tokens of a document and their labels, both int64 of shape (n,).

    Plain text is predicted everywhere, of a chat the answers of the assistant alone, each with what the
    tokenizer's template writes after it. A question and its answer are encoded apart, as they are when a
    model is asked. Either ends in the tokenizer's end of text.
    """
    pieces = answers(document, tokenizer) if document.messages else [(document.text, True)]
    kind = {"add_special_tokens": not document.messages, "verbose": False}
    tokens = [(tokenizer(text, **kind)["input_ids"], predicted) for text, predicted in pieces]
    if tokens and tokenizer.eos_token_id not in tokens[-1][0][-2:]:  # templates may write a line's end after
        tokens.append(([tokenizer.eos_token_id], True))
    input_ids = torch.tensor([token for ids, _ in tokens for token in ids], dtype=torch.int64)
    shown = torch.tensor([predicted for ids, predicted in tokens for _ in ids], dtype=torch.bool)
    return input_ids, input_ids.masked_fill(~shown, IGNORED)


def answers(document: Document, tokenizer: Any) -> list[tuple[str, bool]]:
    """What the tokenizer's template makes of a chat, in pieces, and which of them are answers.

    Messages after the last answer are left out.

    Raises:
        ValueError: The template refuses the chat, changes earlier messages when later ones come, or drops
            tool calls.
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
                raise ValueError("tool calls, or what was written before, are not in it")
            pieces.append((text[len(before) :], not asks))
            before = text
    except Exception as error:  # templates refuse by errors of their own
        rule = "have a chat template that takes these chats, and only adds to what it wrote before"
        step = f"It says: {words.first_line(error)}. Use another tokenizer, or cut the chats."
        raise ValueError(checks.message("tokenizer", rule, document.name, step)) from None
    return pieces

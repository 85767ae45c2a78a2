"""Text as blocks of tokens, split by document: what causal language models are trained on."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from qnnkit import checks, words
from qnnkit.data import chats, places, records, tokenizers
from qnnkit.data.chats import Message
from qnnkit.data.places import around, first, open_place, refusal
from qnnkit.data.records import ABOUT, Reader
from qnnkit.data.splits import SPLITS, duplicates, split_names
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits

# --- documents ------------------------------------------------------------------------------------------

TEXT = (".txt", ".md")
SUFFIXES = (*TEXT, *records.SUFFIXES)
"""What is read; other files are left out."""
CHARACTERS = 2000
"""Most that a document has which is cut out of a longer text."""
PAGE = re.compile(rf"(?s).{{1,{CHARACTERS}}}\Z|.{{0,{CHARACTERS - 1}}}\n|.{{{CHARACTERS}}}")
"""As many lines as fit, or a piece of one that is longer."""


@dataclass(frozen=True)
class Document:
    """What goes into one split as a whole."""

    name: str
    """Where it comes from: a file, a line of it, or where in it a piece begins."""
    heading: str
    """What a selection by `part` looks at: a file's path, a speech's first line, a record's source."""
    text: str
    """All of it, messages as `User: ...`."""
    messages: tuple[Message, ...] = ()
    """What it is made of where only answers are predicted; () for plain text."""
    key: str = ""
    """What its split is drawn by: a file's path, a record's text, or the first speech of several."""


def documents(root: str | Path | None, part: str | None = None) -> tuple[list[Document], list[str]]:
    """The documents at `root`, in natural order, and sentences on what was left out.

    A document of which `part` keeps nothing has the text "", so that it does not change which split others
    are in.

    A record is a document, and so is a text of 4,000 characters at most. A longer text is cut at blank lines
    into several of 2,000 characters at most: what stands between two blank lines, such as a speech of a play,
    stays whole, unless it is a page long itself, which is cut at line ends. Where a document begins depends
    on the speeches near it alone, so that an edit changes only the documents near it, and another file
    changes none.

    Args:
        root: A file, a folder or archive of files, or the address of one.
        part: Regular expression that is searched for in headings: a file's path from `root`, the first line
            of a speech (without its colon), a record's "source" or else its first line. A leading "!" keeps
            the others.

    Raises:
        ValueError: A file cannot be read, a record is of no known form, no chat has an answer, or `part`
            keeps nothing.
        OSError: Nothing is there.
    """
    keeps, place = _chosen_by(part), open_place(root, single=SUFFIXES)
    files = [each for each in place.members if each.base.lower().endswith(SUFFIXES)]
    files = [each for each in files if each.base.lower() not in ABOUT]
    if (n_bytes := sum(member.size for member in files)) > places.MAX_BYTES:
        raise refusal("hold 4 GiB of text at most", f"{n_bytes:,} bytes", "Pass a part of it.")
    top, reader = around(each.name for each in place.members), Reader(place)
    groups = [group for each in files for group in _of_file(reader, each.name, top, len(files) == 1)]
    notes = [*place.notes(SUFFIXES, "text"), *reader.notes]
    held_out = [each.name for each in files if records.side_of_file(each) in ("validation", "test")]
    if 0 < len(held_out) < len(files):
        told = "Names of splits are not used, and the documents of all files are drawn"
        notes.append(f"{told}: {first(held_out)}.")
    whole = [group for group in groups if any(each.text.strip() for each in group)]
    if len(whole) < len(groups):
        notes.append(f"Empty documents left out: {len(groups) - len(whole):,}.")
    if not whole:
        raise refusal("hold text", str(root), f"Put {', '.join(SUFFIXES)} files there.")
    said = [group[0].messages for group in whole]
    if all(messages and not any(map(chats.is_answer, messages)) for messages in said):
        roles = sorted({message["role"] for messages in said for message in messages})
        step = f"Its speakers are {', '.join(roles)}: call the one who answers assistant."
        raise refusal("hold chats with an answer to predict", str(root), step)
    headings = [document.heading for group in whole for document in group]
    if not (kept := sum(map(keeps, headings))):
        step = f"Headings there: {first(list(dict.fromkeys(headings)))}."
        raise ValueError(checks.message("part", "be found in a heading", part, step))
    if part is not None:
        notes.append(f"part={part!r} keeps {kept:,} of {len(headings):,} documents or speeches.")
    return [_joined(group, keeps) for group in whole], notes


def _of_file(reader: Reader, name: str, top: str, alone: bool) -> Iterator[list[Document]]:
    """The documents of a file, each as its speeches: one of a record, or of a text that is short."""
    path, seen = name.removeprefix(top), Counter[str]()
    if not name.lower().endswith(TEXT):
        groups = ([as_document(where, record, reader.unused)] for where, record in reader.records(name))
    elif len(text := reader.text(name)) <= 2 * CHARACTERS:
        groups = iter([[Document(name, name, text.strip(), key=path)]])
    else:
        groups = _grouped(_speeches(name, text, "" if alone else f"{path}\n"))
    for group in groups:  # equal ones of a file have keys of their own, which no other file changes
        seen[key := group[0].key] += 1
        if seen[key] > 1:
            group[0] = replace(group[0], key=f"{key}/{seen[key] - 1}")
        yield group


def _speeches(name: str, text: str, above: str) -> Iterator[Document]:
    """What stands between blank lines, each with its first line as heading (and the file `above` it).

    One that is much longer than a document should be is cut, at line ends where it has any.
    """
    for number, speech in enumerate(re.split(r"\n[ \t]*(?:\n[ \t]*)+", text.strip("\n")), start=1):
        heading = above + speech.partition("\n")[0].strip().rstrip(":")
        for page in [speech] if len(speech) <= 2 * CHARACTERS else PAGE.findall(speech):
            if page.strip():
                page = page.rstrip("\n")
                yield Document(f"{name}, paragraph {number}", heading, page, key=page)


def _grouped(speeches: Iterable[Document]) -> Iterator[list[Document]]:
    """Speeches that follow each other and make a document.

    One begins where the hash of a speech says so, about every 4,000 characters, and else where the one before
    is full. So after a speech that was added or taken out, the documents are soon those of before.
    """
    group: list[Document] = []
    size = 0
    for speech in speeches:
        number = int.from_bytes(hashlib.sha256(speech.text.encode()).digest()[:8], "big") / 2**64
        begins = number < len(speech.text) / (2 * CHARACTERS)
        if group and (begins or size + len(speech.text) > CHARACTERS):
            yield group
            group, size = [], 0
        group.append(speech)
        size += len(speech.text) + 2
    if group:
        yield group


def _joined(group: list[Document], keeps: Callable[[str], bool]) -> Document:
    """The speeches of a document that are kept, with blank lines between them; its key is of all of them."""
    kept = [speech for speech in group if keeps(speech.heading)]
    text = "\n\n".join(speech.text for speech in kept)
    return replace((kept or group)[0], text=text, key=group[0].key)


def as_document(where: str, record: Any, unused: Callable[[Any], None]) -> Document:
    """A record as a document: a chat, or plain text under "text".

    Raises:
        ValueError: It is of no known form; `where` tells which it is.
    """
    if not isinstance(record, dict):
        raise refusal("hold an object with keys in every record", where, f"Known keys are {chats.KNOWN}.")
    given, record = record, {}
    for key, value in given.items():
        name = key.strip().lower()
        if name in record:  # keys that differ in case alone
            unused([key])
        else:
            record[name] = value
    messages = tuple(chats.conversation(record, where, unused))
    source, text = record.get("source"), record.get("text")
    if messages:
        text = "\n".join(f"{each['role'].capitalize()}: {each['content']}" for each in messages)
    elif isinstance(text, str):
        unused(key for key in record if key not in ("text", "source"))
    else:
        keys = ", ".join(f"{key!r}" for key in list(record)[:8]) or "none"
        step = f"Its keys are {keys}: rename those of texts."
        raise refusal(f"hold records with texts under known keys ({chats.KNOWN})", where, step)
    heading = text.strip().partition("\n")[0] if source is None else str(source)
    return Document(where, heading, text, messages, key=text)


def _chosen_by(part: str | None) -> Callable[[str], bool]:
    """Whether a heading is kept."""
    if part is None:
        return lambda heading: True
    others = part.startswith("!")
    pattern = re.compile(places.pattern("part", part.removeprefix("!")).pattern, re.MULTILINE)
    return lambda heading: (pattern.search(heading) is None) == others


# --- blocks ------------------------------------------------------------------------------------------


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
        vocabulary: Tokens of the one that is trained, 1,024 by default; 257, the fewest, reads letter by
            letter.
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
    found, notes = documents(root, part)
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    keys = list(dict.fromkeys(document.key for document in found))
    placed = split_names(keys, what="documents", split_seed=split_seed, **shares)
    side = dict(zip(keys, placed, strict=True))
    parts: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for document in found:
        if document.text:
            parts[side[document.key]].append(document)
    if tokenizer is None:
        made = tokenizers.trained((document.text for document in parts["train"]), vocabulary or 1024)
        notes.append(f"A byte-level BPE of {len(made):,} tokens was trained on the training documents.")
    else:
        made = tokenizers.loaded(tokenizer)
        if vocabulary is not None:
            notes.append(f"Not used: vocabulary={vocabulary}, as the tokenizer of {tokenizer} is read.")
        if sequence_length > made.model_max_length:
            rule = f"be at most {made.model_max_length:,}, the longest that this tokenizer's model takes"
            raise ValueError(checks.message("sequence_length", rule, sequence_length, "Use fewer tokens."))
    notes += tokenizers.with_chat_template(made, found)
    texts = {name: [(each.text.encode(), each.name, 0) for each in parts[name]] for name in SPLITS}
    notes += duplicates(texts, "documents", "letter for letter")
    sets, lost = {}, Counter[str]()
    for name in SPLITS:
        sets[name], of_part = packed(parts[name], made, sequence_length)
        lost += Counter({name: of_part.pop("tokens")}) + of_part
    ends = ", ".join(f"{lost[name]:,} in {name}" for name in SPLITS)
    if not all(map(len, sets.values())):
        step = "Lower sequence_length, hold more out, try another split_seed, or add text."
        raise refusal(f"hold {sequence_length} tokens for every split", ends, step)
    if any(lost[name] for name in SPLITS):
        told = f"Tokens at a split's end that fill no block of {sequence_length} are left out"
        notes.append(f"{told}: {ends}.")
    return TokenSplits("text", **sets, tokenizer=made, notes=(*notes, *not_packed(lost)))


def packed(
    documents: Sequence[Document], tokenizer: Any, length: int, pads: bool = False
) -> tuple[TokenSet, Counter[str]]:
    """Documents in blocks of so many tokens; and how many chats, silent blocks and last tokens are lost.

    With `pads` the last block is filled up, and no token is lost.
    """
    streams = [(document.name, encoded(document, tokenizer)) for document in documents]
    answered = [(name, stream) for name, stream in streams if stream is not None]
    none = torch.zeros(0, dtype=torch.int64)
    tokens, labels = (torch.cat([none, *(stream[i] for _, stream in answered)]) for i in (0, 1))
    if pads:
        missing = (0, -len(tokens) % length)
        tokens, labels = (
            pad(tokens, missing, value=tokenizer.eos_token_id),
            pad(labels, missing, value=IGNORED),
        )
    n, rest = divmod(len(tokens), length)
    tokens, labels = (each[: n * length].view(n, length) for each in (tokens, labels))
    rows = (labels[:, 1:] != IGNORED).any(dim=1).nonzero().flatten()
    ends = torch.tensor([len(ids) for _, (ids, _) in answered], dtype=torch.int64).cumsum(0)
    begins = torch.searchsorted(ends, rows * length, right=True)  # the document that each block begins in
    lost = Counter(chats=len(streams) - len(answered), tokens=rest, blocks=n - len(rows))
    return TokenSet(tokens[rows], labels[rows], tuple(answered[i][0] for i in begins.tolist())), lost


def not_packed(lost: Counter[str]) -> list[str]:
    """Sentences on chats and blocks that `packed` leaves out."""
    why = {
        "chats": "Chats left out, without an answer to predict",
        "blocks": "Blocks left out, in which nothing is to be predicted",
    }
    return [f"{told}: {lost[what]:,}." for what, told in why.items() if lost[what]]


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

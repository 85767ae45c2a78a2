"""Documents out of files of text and of records, in folders and archives: what a text dataset is split by."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import chats, fetch, places, records
from qnnkit.data.folders import outermost
from qnnkit.data.places import first, open_place, refusal

TEXT = (".txt", ".md")
SUFFIXES = (*TEXT, *records.SUFFIXES)
"""What is read; other files are left out."""
CHARACTERS = 2000
"""Most that a document has which is cut out of a longer file."""


@dataclass(frozen=True)
class Document:
    """What goes into one split as a whole."""

    name: str
    """Where it comes from: a file, a line of it, or where in it a piece begins."""
    heading: str
    """What a selection by `part` looks at: a file's path, a speech's first line, a record's source."""
    text: str
    """All of it, messages as `User: ...`."""
    messages: tuple[chats.Message, ...] = ()
    """What it is made of where only answers are predicted; () for plain text."""
    key: str = ""
    """What its split is drawn by: a file's path, a record's text, or the first speech of several."""


def documents(root: str | Path | None, part: str | None = None) -> tuple[list[Document], list[str]]:
    """The documents at `root`, in natural order, and sentences on what was left out.

    A document of which `part` keeps nothing has the text "", so that it does not change which split others
    are in.

    A file (.txt, .md) is a document, and so is a record (.json, .jsonl, .csv, .parquet, ...). A file of text
    of more than 4,000 characters is cut into documents at blank lines, of 2,000 characters at most: what
    stands between two blank lines, such as a speech of a play, stays whole, unless it is a page long itself,
    which is cut at line ends. Where a document begins depends on the speeches near it alone, so that an edit
    changes only the documents near it, and another file changes none.

    Args:
        root: A file, a folder or archive of files, or the address of one.
        part: Regular expression that is searched for in headings: a file's path from `root`, the first line
            of a speech (without its colon), a record's "source" or else its first line. A leading "!" keeps
            the others.

    Raises:
        ValueError: A file is no text, a record is damaged or none has a known form, no chat has an answer, or
            `part` keeps nothing.
        OSError: Nothing is there.
    """
    keeps = _chosen_by(part)
    with open_place(fetch.local(root), single=SUFFIXES) as place:
        files = [member for member in place.members if member.base.lower().endswith(SUFFIXES)]
        if (n_bytes := sum(member.size for member in files)) > places.MAX_BYTES:
            raise refusal("hold 4 GiB of text at most", f"{n_bytes:,} bytes", "Pass a part of it.")
        top = outermost(place, lambda outer, _: not outer.files)
        notes = place.notes(SUFFIXES, "text")
        groups, unknown, unused = [], [], records.Unused()
        for member in files:
            if member.base.lower().endswith(TEXT):
                groups += _of_text(records.text(place, member.name, notes), member.name, top)
                continue
            rows = records.rows(place, member.name, notes)
            if rows and len(files) > 1 and not is_known(rows[0][1]):
                unknown.append(member.name)
                continue
            groups += [[as_document(where, record, unused)] for where, record in rows]
    notes += places.left_out({"files whose records have no known keys": unknown}) + unused.note()
    found = [[each for each in group if each.text.strip()] for group in groups]
    if empty := sum(map(len, groups)) - sum(map(len, found)):
        notes.append(f"Empty documents left out: {empty:,}.")
    groups = [group for group in found if group]
    found = [document for group in groups for document in group]
    if not found:
        step = f"Put {', '.join((*TEXT, *records.SUFFIXES))} files there; records have {chats.KNOWN}."
        raise refusal("hold text", str(root), step)
    if all(each.messages for each in found) and not any(map(_is_answered, found)):
        step = "Answers have the role assistant (gpt, model), or stand under output, response or answer."
        raise refusal("hold a chat with an answer", f"{len(found):,} chats without one", step)
    kept = sum(keeps(document.heading) for document in found)
    if not kept:
        some = first(list(dict.fromkeys(document.heading for document in found)))
        raise ValueError(checks.message("part", "be found in a heading", part, f"Headings there: {some}."))
    if part is not None:
        notes.append(f"part={part!r} keeps {kept:,} of {len(found):,} documents or speeches.")
    return [_joined(group, keeps) for group in groups], notes


def _of_text(text: str, name: str, top: str) -> list[list[Document]]:
    """The documents of a text, each as its speeches."""
    if len(text) > 2 * CHARACTERS:
        return list(_grouped(list(_speeches(name, text))))
    return [[Document(name, name, text.strip(), key=name.removeprefix(top))]]


def is_known(record: Any) -> bool:
    """Whether a record has the keys of a text, a chat or an instruction."""
    if not isinstance(record, dict):
        return False
    asked, answered = (any(key in record for key in keys) for keys in (chats.ASKED, chats.ANSWERED))
    return "text" in record or any(key in record for key in chats.TURNS) or (asked and answered)


def _is_answered(document: Document) -> bool:
    return any(each["role"] == "assistant" and each.get("weight", 1) for each in document.messages)


def _speeches(name: str, text: str) -> Iterator[Document]:
    """What stands between blank lines, each with its first line as heading."""
    for number, speech in enumerate(re.split(r"\n[ \t]*(?:\n[ \t]*)+", text.strip("\n")), start=1):
        heading = speech.partition("\n")[0].strip().rstrip(":")
        for piece in _pages(speech):
            yield Document(f"{name}, paragraph {number}", heading, piece, key=piece)


def _pages(speech: str) -> Iterator[str]:
    """A speech, cut at line ends only where it is much longer than a document should be."""
    if len(speech) <= 2 * CHARACTERS:
        yield speech
        return
    page = ""
    for line in speech.splitlines(keepends=True):
        for start in range(0, len(line), CHARACTERS):
            bit = line[start : start + CHARACTERS]
            if page and len(page) + len(bit) > CHARACTERS:
                yield page.rstrip("\n")
                page = ""
            page += bit
    yield page.rstrip("\n")


def _grouped(speeches: list[Document]) -> Iterator[list[Document]]:
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
    yield group


def _joined(group: list[Document], keeps: Callable[[str], bool]) -> Document:
    """The speeches of a document that are kept, with blank lines between them; its key is of all of them."""
    kept = [speech for speech in group if keeps(speech.heading)]
    text = "\n\n".join(speech.text for speech in kept)
    return replace((kept or group)[0], text=text, key=group[0].key)


def as_document(where: str, record: Any, unused: records.Unused) -> Document:
    """A record as a document: plain text, a chat, or an instruction, which is a chat.

    Raises:
        ValueError: It is of no known form; `where` tells which it is.
    """
    if not isinstance(record, dict):
        raise refusal("hold records with keys", where, f"Known keys are {chats.KNOWN}.")
    messages, used = chats.messages(where, record)
    text = "\n".join(f"{each['role'].capitalize()}: {each['content']}" for each in messages)
    if not used:
        if not isinstance(record.get("text"), str):
            keys = ", ".join(map(repr, list(record)[:8])) or "none"
            step = f"Its keys are {keys}: rename them, or write a text."
            raise refusal(f"hold records with known keys ({chats.KNOWN})", where, step)
        text, used = record["text"], {"text"}
    source = record.get("source")
    heading = source if isinstance(source, str) else text.strip().partition("\n")[0]
    unused.keys.update(record.keys() - used - ({"source"} if isinstance(source, str) else set()))
    return Document(where, heading, text, messages, key=text)


def _chosen_by(part: str | None) -> Callable[[str], bool]:
    """Whether a heading is kept."""
    if part is None:
        return lambda heading: True
    others = part.startswith("!")
    pattern = places.pattern("part", part.removeprefix("!"))
    return lambda heading: (pattern.search(heading) is None) == others

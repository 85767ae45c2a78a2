"""Documents out of text files, chats and tables, in folders and archives: what a text dataset is split by."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import chats, fetch, places, records
from qnnkit.data.chats import Message
from qnnkit.data.folders import outermost
from qnnkit.data.places import first, open_place, refusal
from qnnkit.data.records import ABOUT, Reader

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
    keeps = _chosen_by(part)
    with open_place(fetch.local(root), single=SUFFIXES) as place:
        files = [each for each in place.members if each.base.lower().endswith(SUFFIXES)]
        files = [each for each in files if each.base.lower() not in ABOUT]
        if (n_bytes := sum(member.size for member in files)) > places.MAX_BYTES:
            raise refusal("hold 4 GiB of text at most", f"{n_bytes:,} bytes", "Pass a part of it.")
        top, reader = outermost(place, lambda outer, _: not outer.files), Reader(place)
        groups = [group for each in files for group in _of_file(reader, each.name, top, len(files) == 1)]
        notes = [*place.notes(SUFFIXES, "text"), *reader.notes]
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
    found = [document for group in whole for document in group]
    kept = sum(keeps(document.heading) for document in found)
    if not kept:
        some = first(list(dict.fromkeys(document.heading for document in found)))
        raise ValueError(checks.message("part", "be found in a heading", part, f"Headings there: {some}."))
    if part is not None:
        notes.append(f"part={part!r} keeps {kept:,} of {len(found):,} documents or speeches.")
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
    record = {key.strip().lower() if isinstance(key, str) else key: record[key] for key in record}
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
    heading = source if isinstance(source, str) else text.strip().partition("\n")[0]
    return Document(where, heading, text, messages, key=text)


def _chosen_by(part: str | None) -> Callable[[str], bool]:
    """Whether a heading is kept."""
    if part is None:
        return lambda heading: True
    others = part.startswith("!")
    pattern = re.compile(places.pattern("part", part.removeprefix("!")).pattern, re.MULTILINE)
    return lambda heading: (pattern.search(heading) is None) == others

"""Documents out of text files, folders, archives and JSON lines: what a text dataset is split by."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import fetch, places
from qnnkit.data.folders import outermost
from qnnkit.data.places import Place, first, open_place, records, refusal

TEXT, RECORDS = (".txt", ".md"), (".jsonl", ".ndjson")
SUFFIXES = (*TEXT, *RECORDS)
"""What is read; other files are left out."""
CHARACTERS = 2000
"""Most that a document has which is cut out of a single file."""
ASKED, ANSWERED = ("instruction", "prompt"), ("output", "response", "completion")
"""Keys of an instruction record; `input` may stand beside them."""
KNOWN = (
    f'"text"; "messages"; "{ASKED[0]}" or "{ASKED[1]}" with '
    f'"{ANSWERED[0]}", "{ANSWERED[1]}" or "{ANSWERED[2]}"'
)

Message = dict[str, str]
"""`role` and `content` of what was said in a chat."""


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

    A file (.txt, .md) is a document, and so is a record of JSON lines (.jsonl, .ndjson). A single text file
    is cut into several at blank lines, of 2,000 characters at most: what stands between two blank lines, such
    as a speech of a play, stays whole, unless it is a page long itself, which is cut at line ends. Where a
    document begins depends on the speeches near it alone, so that an edit changes only the documents near it.

    Args:
        root: A file, a folder or archive of files, or the address of one.
        part: Regular expression that is searched for in headings: a file's path from `root`, the first line
            of a speech (without its colon), a record's "source" or else its first line. A leading "!" keeps
            the others.

    Raises:
        ValueError: A file is not UTF-8, a line is no JSON or of no known form, or `part` keeps nothing.
        OSError: Nothing is there.
    """
    keeps = _chosen_by(part)
    with open_place(fetch.local(root), single=SUFFIXES) as place:
        files = [member for member in place.members if member.base.lower().endswith(SUFFIXES)]
        if (n_bytes := sum(member.size for member in files)) > places.MAX_BYTES:
            raise refusal("hold 4 GiB of text at most", f"{n_bytes:,} bytes", "Pass a part of it.")
        cut = len(files) == 1 and files[0].base.lower().endswith(TEXT)
        top = outermost(place, lambda outer, _: not outer.files)
        read = [document for member in files for document in _of_file(place, member.name, cut, top)]
        notes = place.notes(SUFFIXES, "text")
    found = [document for document in read if document.text.strip()]
    if len(found) < len(read):
        notes.append(f"Empty documents left out: {len(read) - len(found):,}.")
    if not found:
        raise refusal("hold text", str(root), f"Put {', '.join(SUFFIXES)} files there.")
    kept = sum(keeps(document.heading) for document in found)
    if not kept:
        some = first(list(dict.fromkeys(document.heading for document in found)))
        raise ValueError(checks.message("part", "be found in a heading", part, f"Headings there: {some}."))
    if part is not None:
        notes.append(f"part={part!r} keeps {kept:,} of {len(found):,} documents or speeches.")
    groups = _grouped(found) if cut else ([document] for document in found)
    return [_joined(group, keeps) for group in groups], notes


def _of_file(place: Place, name: str, cut: bool, top: str) -> Iterable[Document]:
    """The documents of a file: its records, its speeches if it is to be cut, or else all of it."""
    text = place.text(name)
    if name.lower().endswith(RECORDS):
        return [as_document(where, record) for where, record in records(text, name)]
    if cut:
        return _speeches(name, text)
    return [Document(name, name, text.strip(), key=name.removeprefix(top))]


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


def as_document(where: str, record: Any) -> Document:
    """A record as a document: plain text, a chat, or an instruction, which is a chat of two messages.

    Raises:
        ValueError: It is of no known form; `where` tells which it is.
    """

    def words(holder: Any, key: str) -> str:
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            return holder[key]
        value = holder.get(key) if isinstance(holder, dict) else holder
        raise refusal(f"hold a text under {key!r}", where, f"There is {value!r}: write a text.")

    if not isinstance(record, dict):
        raise refusal("hold an object with keys in every line", where, f"Known keys are {KNOWN}.")
    messages: tuple[Message, ...] = ()
    asked = next((key for key in ASKED if key in record), None)
    answered = next((key for key in ANSWERED if key in record), None)
    if isinstance(record.get("messages"), list):
        messages = tuple(
            {key: words(each, key) for key in ("role", "content")} for each in record["messages"]
        )
    elif asked and answered:
        question = [words(record, key) for key in (asked, "input") if record.get(key) or key == asked]
        answer = {"role": "assistant", "content": words(record, answered)}
        messages = ({"role": "user", "content": "\n\n".join(filter(None, question))}, answer)
    elif "text" not in record:
        found = ", ".join(map(repr, list(record)[:8])) or "none"
        raise refusal(f"hold records with known keys ({KNOWN})", where, f"Its keys are {found}: rename them.")
    text = _as_text(messages) if messages or "text" not in record else words(record, "text")
    source = record.get("source")
    heading = source if isinstance(source, str) else text.strip().partition("\n")[0]
    return Document(where, heading, text, messages, key=text)


def _as_text(messages: tuple[Message, ...]) -> str:
    return "\n".join(f"{each['role'].capitalize()}: {each['content']}" for each in messages)


def _chosen_by(part: str | None) -> Callable[[str], bool]:
    """Whether a heading is kept."""
    if part is None:
        return lambda heading: True
    others = part.startswith("!")
    pattern = places.pattern("part", part.removeprefix("!"))
    return lambda heading: (pattern.search(heading) is None) == others

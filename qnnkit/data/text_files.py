"""Documents out of text files, folders, archives and JSON lines: what a text dataset is split by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import fetch, places

TEXT, RECORDS = (".txt", ".md"), (".jsonl", ".ndjson")
SUFFIXES = (*TEXT, *RECORDS)
"""What is read; other files are left out."""
CHARACTERS = 2000
"""About how many a document has that is cut out of a single file."""
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


def documents(root: str | Path, part: str | None = None) -> tuple[list[Document | None], list[str]]:
    """The documents at `root`, in natural order, and sentences on what was left out.

    Of which `part` keeps nothing stands as None, so that it does not change which split others are in.

    A file (.txt, .md) is a document, and so is a record of JSON lines (.jsonl, .ndjson). A single text file
    is cut into several at blank lines, at about 2,000 characters: what stands between two blank lines, such
    as a speech of a play, stays whole, unless it is a page long itself, which is cut at line ends.

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
    files, left_out = _contents(fetch.local(root))
    texts = [name for name, _ in files if _is(name, TEXT)]
    cut = len(texts) == 1 == len(files)
    found: list[Document] = []
    n_empty = 0
    for name, content in files:
        offered: Iterable[Document]
        if _is(name, RECORDS):
            offered = _records(name, content)
        elif cut:
            offered = _speeches(name, _decoded(name, content))
        else:
            offered = [Document(name, name, _decoded(name, content).strip())]
        for document in offered:
            if not document.text.strip():
                n_empty += 1
                continue
            found.append(document)
    notes = [f"Files left out, no text ({', '.join(SUFFIXES)}): {left_out:,}."] if left_out else []
    if n_empty:
        notes.append(f"Empty documents left out: {n_empty:,}.")
    if not found:
        step = f"Put {', '.join(SUFFIXES)} files there."
        raise ValueError(checks.message("root", "hold text", str(root), step))
    kept = sum(keeps(document.heading) for document in found)
    if not kept:
        some = places.first(list(dict.fromkeys(document.heading for document in found)))
        step = f"Headings there: {some}."
        raise ValueError(checks.message("part", "be found in a heading", part, step))
    if part is not None:
        notes.append(f"part={part!r} keeps {kept:,} of {len(found):,} documents or speeches.")
    groups = _grouped(found) if cut else ([document] for document in found)
    return [_joined([each for each in group if keeps(each.heading)]) for group in groups], notes


def _contents(path: Path) -> tuple[list[tuple[str, bytes]], int]:
    """Name and content of each text file, and how many other files there are."""
    if path.is_file() and _is(path.name, SUFFIXES):
        if path.stat().st_size > places.MAX_BYTES:
            step = "Cut it into several."
            raise ValueError(checks.message("root", "hold files of 4 GiB at most", str(path), step))
        return [(path.name, path.read_bytes())], 0
    if not path.is_dir() and not _is(path.name, places.ARCHIVES):
        error = ValueError if path.exists() else FileNotFoundError
        rule = f"be a text file ({', '.join(SUFFIXES)}), a folder or an archive of such"
        step = "Check the path; on Colab, mount Drive first."
        raise error(checks.message("root", rule, str(path), step))
    with places.open_place(path) as place:
        members = [member for member in place.members if _is(member.base, SUFFIXES)]
        return [(member.name, _read(place, member.name)) for member in members], (
            len(place.members) - len(members)
        )


def _read(place: places.Place, name: str) -> bytes:
    try:
        return place.read(name)
    except (ValueError, OSError) as error:
        told = (error.strerror if isinstance(error, OSError) else None) or str(error)
        step = f"{told[:1].upper()}{told[1:]}: copy or download it anew, or take it away."
        raise ValueError(checks.message("root", "hold files that can be read", name, step)) from None


def _decoded(name: str, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        rule = "hold text in UTF-8"
        raise ValueError(checks.message("root", rule, f"{name}, line {line}", "Save it as UTF-8.")) from None
    return text.replace("\r\n", "\n")


def _speeches(name: str, text: str) -> Iterator[Document]:
    """What stands between blank lines, each with its first line as heading."""
    for number, speech in enumerate(re.split(r"\n[ \t]*(?:\n[ \t]*)+", text.strip("\n")), start=1):
        heading = speech.partition("\n")[0].strip().rstrip(":")
        for piece in _pages(speech):
            yield Document(f"{name}, paragraph {number}", heading, piece)


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
    """Speeches that follow each other and make a document of about CHARACTERS together."""
    group: list[Document] = []
    size = 0
    for speech in speeches:
        if group and size + len(speech.text) > CHARACTERS:
            yield group
            group, size = [], 0
        group.append(speech)
        size += len(speech.text) + 2
    yield group


def _joined(group: list[Document]) -> Document | None:
    """Speeches as one document, with blank lines between them."""
    if len(group) < 2:
        return group[0] if group else None
    return Document(group[0].name, group[0].heading, "\n\n".join(speech.text for speech in group))


def _records(name: str, content: bytes) -> Iterator[Document]:
    for number, line in enumerate(_decoded(name, content).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            told = getattr(error, "msg", None) or str(error)
            step = f"Write one record a line ({told})."
            raise ValueError(checks.message("root", "hold JSON in every line", where, step)) from None
        yield _record(where, record)


def _record(where: str, record: Any) -> Document:
    """A record as a document: plain text, a chat, or an instruction, which is a chat of two messages."""
    if not isinstance(record, dict):
        rule = "hold an object with keys in every line"
        raise ValueError(checks.message("root", rule, where, f"Known keys are {KNOWN}."))
    messages: tuple[Message, ...] = ()
    asked = next((key for key in ASKED if key in record), None)
    answered = next((key for key in ANSWERED if key in record), None)
    if isinstance(record.get("messages"), list):
        messages = tuple(_message(where, each) for each in record["messages"])
        text = _as_text(messages)
    elif asked and answered:
        given = _words(where, record, "input") if record.get("input") else ""
        question = "\n\n".join(filter(None, [_words(where, record, asked), given]))
        answer = {"role": "assistant", "content": _words(where, record, answered)}
        messages = ({"role": "user", "content": question}, answer)
        text = _as_text(messages)
    elif "text" in record:
        text = _words(where, record, "text")
    else:
        found = ", ".join(map(repr, list(record)[:8])) or "none"
        rule = f"hold records with known keys ({KNOWN})"
        raise ValueError(checks.message("root", rule, where, f"Its keys are {found}: rename them."))
    source = record.get("source")
    heading = source if isinstance(source, str) else text.strip().partition("\n")[0]
    return Document(where, heading, text, messages)


def _words(where: str, record: dict[str, Any], key: str) -> str:
    if isinstance(record[key], str):
        return record[key]
    rule = f"hold a text under {key!r}"
    raise ValueError(checks.message("root", rule, where, f"There is {record[key]!r}: write a text."))


def _message(where: str, message: Any) -> Message:
    if isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content")):
        return {"role": message["role"], "content": message["content"]}
    rule = 'hold messages with the texts "role" and "content"'
    raise ValueError(checks.message("root", rule, where, "Write them so, or leave the record out."))


def _as_text(messages: tuple[Message, ...]) -> str:
    return "\n".join(f"{each['role'].capitalize()}: {each['content']}" for each in messages)


def _is(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes)


def _chosen_by(part: str | None) -> Any:
    """Whether a heading is kept."""
    if part is None:
        return lambda heading: True
    others = part.startswith("!")
    try:
        pattern = re.compile(part.removeprefix("!"))
    except re.error as error:
        step = f"Python says: {error}."
        raise ValueError(checks.message("part", "be a regular expression", part, step)) from None
    return lambda heading: (pattern.search(heading) is None) == others

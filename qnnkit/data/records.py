"""Records from files: JSON, tables, parquet and arrow, in any encoding; meanings of keys; and chats."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from qnnkit import words
from qnnkit.data.folders import SIDES
from qnnkit.data.places import Place, first, refusal

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
SUFFIXES += tuple(f"{suffix}.gz" for suffix in SUFFIXES[:5])
"""Suffixes of files of records; a table may also end in .txt."""
NAMES = {
    "image": "image file_name filename image_name image_path image_file file filepath path img img_path",
    "caption": "captions caption text texts sentences sentence raw prompt description comment title",
    "turns": "messages conversations conversation chat turns contents",
    "text": "text content document",
    "question": "instruction prompt question query input inputs",
    "answer": "output response completion answer target targets",
    "passage": "input context",
    "system": "system system_prompt systeminstruction system_instruction",
    "role": "role from",
    "content": "content value parts text",
    "weight": "weight train loss",
    "tool_calls": "tool_calls function_call",
}
"""Meaning -> names of keys and columns, likeliest first, in any case; a number may follow a name."""
OF_RECORDS = ("image", "text", "turns", "question")
"""Meanings that make a JSON object a record itself, even if it contains lists."""

Record = dict[str, Any]


@functools.lru_cache
def keys_of(keys: tuple[str, ...], what: str) -> list[str]:
    """Returns the keys with the first name of `NAMES[what]` that occurs; `what` may also be a name itself.

    Example:
        >>> keys_of(("Text", "id", "caption_1", "caption_2"), "caption")
        ['caption_1', 'caption_2']
    """
    plain = {key: re.sub(r"[ _#-]?\d+$", "", key.strip().lower()) for key in keys}
    name = next((each for each in NAMES.get(what, what).split() if each in plain.values()), None)
    return [key for key in keys if plain[key] == name]


def take(record: Record, what: str) -> Any:
    """Removes and returns the value of the first key that `keys_of` finds; None if there is none."""
    keys = keys_of(tuple(record), what)
    return record.pop(keys[0]) if keys else None


@functools.lru_cache
def side_of(path: str) -> str | None:
    """Returns the split that is named in a path, by the last such word; None if there is none.

    Example:
        >>> side_of("val/metadata.csv"), side_of("captions_train2017.json"), side_of("my test/a.csv")
        ('validation', 'train', None)
    """
    parts = re.split(r"[/_.\d-]+", path.strip().lower())
    return next((SIDES[part] for part in reversed(parts) if part in SIDES), None)


class Reader:
    """Reads files of a place, and collects guessed encodings and unused keys for notes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._guessed: list[str] = []
        self.unused: set[str] = set()
        """Keys and columns that were not used."""

    @property
    def notes(self) -> list[str]:
        """Notes on guessed encodings and unused keys."""
        guessed, keys = "Not UTF-8, so the encoding is guessed", "Keys or columns that are not used"
        items = {guessed: self._guessed, keys: [key or "one without a name" for key in sorted(self.unused)]}
        return [f"{what}: {first(names, 20)}." for what, names in items.items() if names]

    def text(self, name: str) -> str:
        """Returns the text of a file, with `\\n` as line ends: UTF-8, or else the likeliest encoding.

        Raises:
            ValueError: It cannot be read, or is not text.
        """
        with readable(name):
            content = self._place.read(name)
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError:
                encoding = _likeliest(content)
                text = content.decode(encoding, errors="replace")
                self._guessed.append(f"{name} ({encoding})")
            if "\0" in text:
                raise ValueError("it has NUL characters: save it as UTF-8, or remove it")
            return text.replace("\r\n", "\n").replace("\r", "\n")

    def records(self, name: str) -> Iterator[tuple[str, Record]]:
        """Yields the location of each record of a file, for messages, and the record without null values.

        Args:
            name: Name of a file with one of SUFFIXES, or of a table with another suffix.

        Raises:
            ValueError: It cannot be read, or is not of the format that its suffix says.
        """
        suffix = name.lower().removesuffix(".gz").rpartition(".")[2]
        text = None if suffix in ("parquet", "arrow") else self.text(name)
        with readable(name):
            read = self._json if suffix in ("json", "jsonl", "ndjson") else _table
            rows = _columns(self._place.read(name), suffix == "parquet") if text is None else read(text)
            is_escaped = text and re.search(r"\\u[dD]", text)
            for number, row in enumerate(rows, start=1):
                if not isinstance(row, dict):
                    raise ValueError(f"record {number} is {row!r:.60} and not an object with keys")
                if is_escaped and re.search("[\ud800-\udfff]", json.dumps(row, ensure_ascii=False)):
                    raise ValueError(f"record {number} holds half of a character")
                values = {key: value for key, value in row.items() if value is not None}
                yield f"{name}, record {number}", values

    def _json(self, text: str) -> Iterator[Any]:
        """Yields the records in JSON: of a list, of the only list of objects in an object, or of JSON lines.

        An object with a key that records have, or with several such lists, is a record itself.
        """
        # Python writes NaN for a missing value.
        decoder = json.JSONDecoder(object_pairs_hook=without_duplicates, parse_constant=lambda name: None)
        text, place = text.strip(), 0
        while (begin := place) < len(text):
            value, place = decoder.raw_decode(text, begin)
            while text[place : place + 1].isspace():
                place += 1
            yield from [value] if begin or place < len(text) else self._listed(value)

    def _listed(self, content: Any) -> list[Any]:
        if isinstance(content, dict) and not any(keys_of(tuple(content), what) for what in OF_RECORDS):
            lists = [key for key, value in content.items() if isinstance(value, list) and value]
            lists = [key for key in lists if isinstance(content[key][0], dict)]
            if len(lists) == 1:
                self.unused.update(content.keys() - {*lists})
                content = content[lists[0]]
        return content if isinstance(content, list) else [content]


@contextlib.contextmanager
def readable(where: str) -> Iterator[None]:
    """Turns the errors of reading a damaged or unexpected file into one sentence about `where`."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: nested too deep
        step = f"Reading says: {words.first_line(error)}. Correct it there, or copy or download it again."
        raise refusal("hold readable files of the format that their suffix says", where, step) from None


def without_duplicates(pairs: list[tuple[str, Any]]) -> Record:
    """Returns a JSON object from its pairs; ValueError if a key repeats, as Python would keep the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} occurs twice")
    return content


def _likeliest(content: bytes) -> str:
    """Returns the likeliest encoding of bytes; Western if several encodings give the same text.

    If most characters beyond ASCII decode as UTF-8, it is UTF-8 with a truncated or damaged character.
    """
    import charset_normalizer

    text = content.decode(errors="replace")
    if 2 * text.count("\ufffd") < len(text) - len(text.encode("ascii", "ignore")):
        return "utf-8-sig"
    best = charset_normalizer.from_bytes(content).best()
    return "cp1252" if best is None or "cp1252" in best.could_be_from_charset else best.encoding


def separated(text: str) -> tuple[str, str]:
    """Returns a table without Excel's separator line, and the separator: the commonest in its header."""
    text = re.sub(r"\Asep=.\n", "", text)
    header = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    return text, max(",;\t|", key=header.count)


def _table(text: str) -> Iterator[Record]:
    """Yields the rows of a table, with the commonest separator of its header.

    Python's `csv` reads it, because pandas fills up rows that are too short. If the two columns are an image
    and its caption, unquoted separators belong to the caption.
    """
    text, mark = separated(text)
    csv.field_size_limit(2**31 - 1)  # Python's own limit is 131,072 characters
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    try:
        rows.fieldnames = keys = [key.strip() for key in rows.fieldnames or ()]
        twice = any(keys.count(key) > 1 for key in keys if key)  # Excel adds columns without a name
        for row in rows:
            if None in row and len(keys) == 2 and keys_of(tuple(keys[:1]), "image"):
                row[keys[1]] = mark.join([row[keys[1]], *row.pop(None)])
            if None in row or None in row.values() or twice:
                raise csv.Error(f"not {len(keys)} columns, each with a name")
            yield row
    except csv.Error as error:
        step = f'put texts with "{mark}" in quotation marks, and double each " in them'
        raise ValueError(f"line {rows.line_num}: {error}; {step}") from None


def _columns(content: bytes, is_parquet: bool) -> Iterator[Record]:
    """Yields the rows of parquet or arrow, the latter as a stream (as `datasets` saves it) or a file."""
    import pyarrow
    from pyarrow import ipc, parquet

    buffer = pyarrow.BufferReader(content)
    read = ipc.open_file if content.startswith(b"ARROW1") else ipc.open_stream
    table = parquet.read_table(buffer) if is_parquet else read(buffer).read_all()
    yield from table.to_pylist()


# --- chats -------------------------------------------------------------------------------------------------

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}
"""Name of a speaker, in lower case -> role in chat templates."""

Message = dict[str, Any]
"""`role` and `content` (strings); `tool_calls` if there are any; `weight` 0 if it is not learned."""


def is_answer(message: Message) -> bool:
    """Returns whether a model learns it: text or tool calls of an assistant, unless their weight is 0."""
    is_empty = not message["content"].strip() and not message.get("tool_calls")
    return message["role"] == "assistant" and message.get("weight") != 0 and not is_empty


def conversation(record: Record, where: str, unused: set[str]) -> list[Message]:
    """Returns the messages of a record and removes their keys from it; [] if it is not a chat.

    Formats: OpenAI's messages, ShareGPT's conversations, Alpaca (with `system` and `history`), Dolly, prompt
    and completion (as texts or messages), question and answer.

    Args:
        record: The record; changed in place.
        where: Location of the record, for error messages.
        unused: Set to which unused keys of messages are added.

    Raises:
        ValueError: A message has no known speaker or no text.
    """
    keys = tuple(record)
    if keys_of(keys, "turns"):
        turns = take(record, "turns") or [{"role": "user", "content": ""}]  # an empty chat
    elif keys_of(keys, "question") and keys_of(keys, "answer"):
        turns = _answered(record, where)
    else:
        return []
    system = _said("system", take(record, "system") or [])
    tags = [key for key in ("label", "kto_tag") if str(record.get(key)).lower() in ("true", "false")]
    weight = {"weight": 0} if "false" in [str(record.pop(key)).lower() for key in tags] else {}
    return [_message(turn, where, unused) | weight for turn in (*system, *_said("", turns))]


def _answered(record: Record, where: str) -> list[Any]:
    """Returns the turns of the history, the instruction, and its answer."""
    question, answer = take(record, "question"), take(record, "answer")
    if passage := take(record, "passage"):
        question = f"{_text(question, where)}\n\n{_text(passage, where)}".strip()
    turns = []
    for pair in [*_said("", take(record, "history") or []), [question, answer]]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise refusal("hold pairs under 'history'", where, "Write [question, answer] for each.")
        turns += [*_said("user", pair[0]), *_said("assistant", pair[1])]
    return turns


def _said(role: str, value: Any) -> list[Any]:
    """Returns a list of turns: a list as it is, an object or a text as a single turn."""
    turn = value if isinstance(value, dict) and keys_of(tuple(value), "content") else {"content": value}
    return value if isinstance(value, list) else [{"role": role, **turn}]


def _message(turn: Any, where: str, unused: set[str]) -> Message:
    fields = {key: x for key, x in turn.items() if x is not None} if isinstance(turn, dict) else {}
    speaker, weight, calls = (take(fields, key) for key in ("role", "weight", "tool_calls"))
    calls = [{"type": "function", "function": calls}] if isinstance(calls, dict) else calls  # older format
    are_calls = isinstance(calls or [], list) and all(isinstance(each, dict) for each in calls or ())
    content = take(fields, "content")
    unused.update(f"{key} of messages" for key in fields)
    role = ROLES.get(str(speaker).lower())
    if role is None or weight not in (None, 0, 1) or not are_calls:
        step = f"Known roles are {', '.join(ROLES)}; a weight is 0 (not learned) or 1, a tool call an object."
        raise refusal("hold messages of a known format", f"{where} with {turn!r:.80}", step)
    message: Message = {"role": role, "content": "" if calls and content is None else _text(content, where)}
    if calls:
        message["tool_calls"] = [_call(each) for each in calls]
    return message | ({"weight": 0} if weight == 0 else {})


def _text(content: Any, where: str) -> str:
    """Returns the text of a message, which may be given in parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise refusal("hold a text in every message", where, f"There is {content!r:.60}: write a text.")
    return "".join(texts)


def _call(call: Any) -> Any:
    """Returns a tool call with its arguments as an object, which templates need; OpenAI writes JSON."""
    with contextlib.suppress(ValueError, TypeError, LookupError):  # other arguments stay as they are
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    return call

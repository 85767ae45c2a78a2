"""Records out of files: JSON, JSON lines, tables, parquet and arrow, in any encoding; and what keys mean."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from qnnkit import words
from qnnkit.data.folders import SIDES
from qnnkit.data.places import Place, first, refusal

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
"""Files of records; a table may be called .txt as well."""
ABOUT = ("sample.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""Files about a dataset, which hold no records of it."""
SPLIT_NAMES = SIDES | {"restval": "train"}
"""What names a split; Karpathy's "restval" is of COCO's validation part and trained on."""
NAMES = {
    "image": "image file_name filename image_name image_path image_file file filepath path img img_path",
    "caption": "captions caption text texts sentences sentence raw prompt description comment title",
    "turns": "messages conversations conversation chat turns",
    "question": "instruction prompt question query",
    "answer": "output response completion answer",
    "passage": "input context",
    "system": "system system_prompt",
    "role": "role from",
    "content": "content value",
}
"""What keys and columns may be called, the likeliest first, in any letters; a number may follow."""

Record = dict[str, Any]


@functools.lru_cache
def keys_of(keys: tuple[str, ...], what: str) -> list[str]:
    """Which keys have the first of the names in `NAMES[what]` that occurs (or the name `what` itself).

    Example:
        >>> keys_of(("Text", "id", "caption_1", "caption_2"), "caption")
        ['caption_1', 'caption_2']
    """
    plain = {key: re.sub(r"[ _#-]?\d+$", "", key.strip().lower()) for key in keys}
    names = NAMES.get(what, what).split()
    name = next((name for name in names if name in plain.values()), None)
    return [key for key in keys if plain[key] == name]


def take(record: Record, what: str) -> Any:
    """Removes what is under the first key that `keys_of` finds; None where it finds none."""
    keys = keys_of(tuple(record), what)
    return record.pop(keys[0]) if keys else None


@functools.lru_cache
def side_of(path: str) -> str | None:
    """The split that a folder of a path says, the innermost first, or a word of its name.

    Example:
        >>> side_of("val/metadata.csv"), side_of("captions_train2017.json"), side_of("my test/a.csv")
        ('validation', 'train', None)
    """
    *folders, base = path.strip().lower().split("/")
    names = [each.rstrip("0123456789_-") for each in reversed(folders)]
    names += re.findall("[a-z]+", stem(base))
    return next((SPLIT_NAMES[name] for name in names if name in SPLIT_NAMES), None)


def stem(name: str) -> str:
    """A path without its suffix."""
    return re.sub(r"\.[^./]+$", "", name)


class Reader:
    """Reads files of a place, and collects what its user must know: guessed encodings, unused keys."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._guessed: list[str] = []
        self.unused: set[str] = set()
        """Keys and columns of which nothing was made."""

    @property
    def notes(self) -> list[str]:
        """Sentences on guessed encodings and unused keys."""
        guessed, keys = "Not UTF-8, so the encoding is guessed", "Keys or columns that are not used"
        told = {guessed: self._guessed, keys: sorted(self.unused)}
        return [f"{what}: {first(names, 20)}." for what, names in told.items() if names]

    def text(self, name: str) -> str:
        """The text of a file, with plain line ends: UTF-8 or UTF-16, else in the likeliest encoding.

        Raises:
            ValueError: It cannot be read, or is no text.
        """
        content = self._content(name)
        encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            encoding = _guessed(content)
            text = content.decode(encoding, errors="replace")
            self._guessed.append(f"{name} ({encoding})")
        if "\0" in text:
            raise refusal("hold text", name, "It has NUL characters: save it as UTF-8, or remove it.")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def records(self, name: str) -> Iterator[tuple[str, Record]]:
        """Where each record of a file is, for refusals, and the record.

        Of a JSON object with a single list of records these are read; any other object is a record itself.

        Args:
            name: One of SUFFIXES, or a table under another suffix.

        Raises:
            ValueError: It cannot be read or is not what its suffix says.
        """
        suffix = name[name.rfind(".") :].lower()
        if suffix in (".parquet", ".arrow"):
            rows = _columns(self._content(name), name)
        elif suffix in (".json", ".jsonl", ".ndjson"):
            rows = self._json(self.text(name), name, is_lines=suffix != ".json")
        else:
            rows = _table(self.text(name), name)
        for number, row in enumerate(rows, start=1):
            where = f"{name}, record {number}"
            if not isinstance(row, dict):
                step = 'Write such as {"text": "..."} or {"image": "cat.jpg", "caption": "a cat"}.'
                raise refusal("hold an object with keys in every record", f"{where} with {row!r:.60}", step)
            yield where, row

    def _json(self, text: str, name: str, is_lines: bool) -> Iterable[Any]:
        if is_lines or (text.startswith("{") and "}\n{" in text):
            lines = ((f"{name}, line {n}", line) for n, line in enumerate(text.split("\n"), start=1))
            return (parsed(line, where) for where, line in lines if line.strip())
        content = parsed(text, name)
        if isinstance(content, dict):
            lists = [key for key in content if isinstance(content[key], list) and content[key]]
            lists = [key for key in lists if isinstance(content[key][0], dict)]
            if len(lists) == 1:
                self.unused.update(content.keys() - {*lists})
                content = content[lists[0]]
        return content if isinstance(content, list) else [content]

    def _content(self, name: str) -> bytes:
        try:
            return self._place.read(name)
        except (ValueError, OSError) as error:
            step = f"Reading says: {words.first_line(error)}. Copy or download it again, or remove it."
            raise refusal("hold files that can be read", name, step) from None


def parsed(text: str, where: str) -> Any:
    """What a JSON text holds; ValueError, with `where` it is, if that is no JSON or has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise refusal("hold valid JSON", where, f"Python says: {error}.") from None


def without_duplicates(pairs: list[tuple[str, Any]]) -> Record:
    """A JSON object from its pairs; ValueError if a key is there twice, as Python keeps the last alone."""
    content = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"the key {key!r} is there twice")
        content[key] = value
    return content


def _guessed(content: bytes) -> str:
    """The likeliest encoding of bytes; Western where the text is the same in several."""
    import charset_normalizer

    best = charset_normalizer.from_bytes(content).best()
    return "cp1252" if best is None or "cp1252" in best.could_be_from_charset else best.encoding


def _table(text: str, name: str) -> Iterator[Record]:
    """The rows of a table with the separator that its header has most of.

    By Python's `csv`, as pandas fills a row that is too short. A caption with unquoted separators after the
    name of an image is taken whole.
    """
    header = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    mark = max(",;\t|", key=header.count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    try:
        rows.fieldnames = keys = [key.strip() for key in rows.fieldnames or ()]
        for row in rows:
            if None in row and len(keys) == 2 and keys_of(tuple(keys[:1]), "image"):
                row[keys[1]] = mark.join([row[keys[1]], *row.pop(None)])
            if None in row or None in row.values() or len({*keys}) < len(keys):
                raise csv.Error(f"not {len(keys)} columns, each with a name")
            yield row
    except csv.Error as error:
        where, step = f"{name}, line {rows.line_num}", f'Put texts with "{mark}" between quotation marks'
        raise refusal("hold a table", where, f'{step}, and write each " in them twice: {error}.') from None


def _columns(content: bytes, name: str) -> Iterator[Record]:
    """The rows of parquet, or of arrow as `datasets` saves it; values that are null count as missing."""
    import pyarrow
    from pyarrow import ipc, parquet

    is_parquet = name.lower().endswith(".parquet")
    try:
        buffer = pyarrow.BufferReader(content)
        table = parquet.read_table(buffer) if is_parquet else ipc.open_stream(buffer).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        step = f"Arrow says: {words.first_line(error)}. Download it again."
        raise refusal("hold whole tables", name, step) from None
    for row in table.to_pylist():
        yield {key: value for key, value in row.items() if value is not None}

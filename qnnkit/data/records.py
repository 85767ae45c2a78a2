"""Text and records out of files: any encoding, JSON, JSON lines, tables, parquet and arrow."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from qnnkit.data import places
from qnnkit.data.folders import SIDES
from qnnkit.data.places import Member, Place, first, refusal

LINES, COLUMNS = (".jsonl", ".ndjson"), (".parquet", ".arrow")
SUFFIXES = (".json", *LINES, ".csv", ".tsv", *COLUMNS)
"""Files of records; a table may be called .txt as well."""
ABOUT = ("sample.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""Files about a dataset, which hold no records of it."""
SPLIT_NAMES = SIDES | {"restval": "train"}
"""What names a split; Karpathy's "restval" is of COCO's validation part and trained on."""
FLICKR = re.compile(r"[^\t]+#\d+\t")
"""How a line of Flickr's tables without a header begins."""

Record = tuple[str, Any]
"""Where a record stands (for refusals and names), and what it holds."""


class Reader:
    """Reads files of a place, and collects what its user must know: guessed encodings, unused keys."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._guessed: dict[str, list[str]] = {}
        self._unused = Counter[str]()

    def content(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            ValueError: It cannot be read; the message is a whole sentence.
        """
        try:
            return self._place.read(name)
        except (ValueError, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            step = f"{reason[:1].upper()}{reason[1:]}: copy or download it again, or remove it."
            raise refusal("hold files that can be read", name, step) from None

    def text(self, name: str) -> str:
        """The text of a file, with plain line ends: UTF-8 or UTF-16, else in the likeliest encoding.

        Raises:
            ValueError: It cannot be read, or is no text.
        """
        content = self.content(name)
        encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            text, encoding = _guessed(content, name)
            self._guessed.setdefault(encoding, []).append(name)
        if "\0" in text:
            raise refusal("hold text", name, "It has NUL characters: save it as UTF-8, or remove it.")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def records(self, name: str, listed: Callable[[Any, Reader], Any] | None = None) -> Iterator[Record]:
        """The records of a file, each with where it stands.

        Args:
            name: One of SUFFIXES, or a table under another suffix.
            listed: What makes a list of a JSON object; by default, `single_list`.

        Raises:
            ValueError: It cannot be read or is not what its suffix says.
        """
        suffix = name[name.rfind(".") :].lower()
        if suffix in COLUMNS:
            return _columns(self.content(name), name)
        text = self.text(name)
        if suffix in LINES:
            return _lines(text, name)
        if suffix != ".json":
            return _table(text, name)
        if text.startswith("{") and "}\n{" in text:  # JSON lines by another name
            return _lines(text, name)
        content = (listed or single_list)(parsed(text, name), self)
        if not isinstance(content, list):
            raise refusal("hold a list of records", f"{name} with {text.strip()[:40]}", "Write [{...}, ...].")
        return ((f"{name}, record {number}", each) for number, each in enumerate(content, start=1))

    def unused(self, keys: Iterable[str]) -> None:
        """Remembers keys or columns of which nothing was made."""
        for key in keys:
            self._unused[str(key)] += 1

    @property
    def notes(self) -> list[str]:
        """Sentences on guessed encodings and unused keys."""
        notes = [f"Not UTF-8, read as {name}: {first(files)}." for name, files in self._guessed.items()]
        if keys := [f"{key!r} ({n:,})" for key, n in self._unused.most_common()]:
            notes.append(
                f"Keys or columns that are not used, with how often they are there: {first(keys, 20)}."
            )
        return notes


def parsed(text: str, where: str) -> Any:
    """What a JSON text holds; `where` it stands, for the refusal."""
    try:
        return json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise refusal("hold valid JSON", where, f"Python says: {error}.") from None


def side_of(*names: str) -> str:
    """The side that the first of these names, in any letters, or "any"; a number may follow: val2017."""
    sides = (SPLIT_NAMES.get(re.sub(r"[\d_-]+$", "", name.lower())) for name in names)
    return next(filter(None, sides), "any")


@functools.lru_cache
def side_of_file(file: Member) -> str:
    """The side that a file's folder or name says: val/metadata.csv, captions_val2017.json."""
    above = file.name[: -len(file.base)].rstrip("/").rpartition("/")[2]
    return side_of(above, *re.split("[^a-z]+", stem(file.base).lower()))


def stem(name: str) -> str:
    """A path without its suffix."""
    return re.sub(r"\.[^./]+$", "", name)


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its pairs; ValueError if a key is there twice, as Python keeps the last alone."""
    content = dict(pairs)
    if len(content) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} is there twice")
    return content


def single_list(content: Any, reader: Reader) -> Any:
    """The list of records in a JSON object that has one; another object is a record itself."""
    if isinstance(content, dict):
        lists = [key for key, value in content.items() if isinstance(value, list) and len(value) > 0]
        if len(lists) == 1 and all(isinstance(each, dict) for each in content[lists[0]]):
            reader.unused(key for key in content if key != lists[0])
            return content[lists[0]]
        return [content]
    return content


def _guessed(content: bytes, name: str) -> tuple[str, str]:
    """The text of bytes in an old encoding, and its name; Western where the text is the same in several."""
    import charset_normalizer

    wide = [] if b"\0" in content else ["utf_16_le", "utf_16_be", "utf_32_le", "utf_32_be"]
    found = charset_normalizer.from_bytes(content, cp_exclusion=wide).best()
    if found is None:
        raise refusal("hold text", name, "No encoding fits its bytes: save it as UTF-8, or remove it.")
    western = "cp1252" in found.could_be_from_charset
    encoding = "cp1252" if western else found.encoding
    return content.decode(encoding), encoding


def _lines(text: str, name: str) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield (where := f"{name}, line {number}"), parsed(line, where)


def _table(text: str, name: str) -> Iterator[Record]:
    """The rows of a table with the separator that its header has most of.

    By Python's `csv`, as pandas cannot tell a row that is too short. A caption with unquoted separators after
    the name of an image is taken whole.
    """
    header = text.partition("\n")[0]
    flickr = FLICKR.match(header)
    mark = "\t" if flickr else max(",;\t|", key=re.sub(r'"[^"]*"', "", header).count)
    quoting = csv.QUOTE_NONE if flickr else csv.QUOTE_MINIMAL
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True, quoting=quoting)
    try:
        keys = ["image", "caption"] if flickr else [key.strip() for key in next(rows, [])]
        keys = [f"{key} {n}" if key in keys[:n] else key for n, key in enumerate(keys)]  # none is lost
        for row in rows:
            if len(row) > len(keys) == 2 and row[0].strip().lower().endswith(places.SUFFIXES):
                row = [row[0], mark.join(row[1:])]
            if row and len(row) != len(keys):
                value = f"{name} with {len(row)} of {len(keys)} in line {rows.line_num}"
                step = f'Put texts that contain "{mark}" between quotation marks.'
                raise refusal("hold as many columns in every line as in the first", value, step)
            if row:
                yield f"{name}, line {rows.line_num}", dict(zip(keys, row, strict=True))
    except csv.Error as error:
        step = f'Python says: {error}. Write each " inside of quotation marks twice.'
        raise refusal("hold a table", f"{name}, line {rows.line_num}", step) from None


def _columns(content: bytes, name: str) -> Iterator[Record]:
    """The rows of parquet or arrow; values that are null count as missing."""
    import pyarrow
    from pyarrow import ipc, parquet

    buffer = pyarrow.BufferReader(content)
    try:
        if name.lower().endswith(".parquet"):
            table = parquet.read_table(buffer)
        else:
            is_file = content.startswith(b"ARROW1")  # else a stream, as `datasets` saves it
            table = (ipc.open_file if is_file else ipc.open_stream)(buffer).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        step = f"Arrow says: {str(error).partition('.')[0]}. Download it again."
        raise refusal("hold whole tables", name, step) from None
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{name}, row {number}", {key: value for key, value in row.items() if value is not None}

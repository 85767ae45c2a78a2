"""Text, tables and records out of files: JSON, JSON lines, parquet, arrow, CSV; in any encoding."""

from __future__ import annotations

import codecs
import io
import json
from collections import Counter
from typing import Any

from qnnkit.data.places import Place, first, refusal

LINES, TABLES, BINARY = (".jsonl", ".ndjson"), (".csv", ".tsv"), (".parquet", ".arrow")
SUFFIXES = (".json", *LINES, *TABLES, *BINARY)
"""What `rows` reads."""
SEPARATORS = ",;\t|"
_ORDERS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}


def text(place: Place, name: str, notes: list[str]) -> str:
    """All of a file of text, with plain line ends; another encoding than UTF-8 is named in `notes`.

    Raises:
        ValueError: It cannot be read, or is no text.
    """
    content = content_of(place, name)
    encoding = next((each for mark, each in _ORDERS.items() if content.startswith(mark)), "utf-8")
    try:
        decoded = content.decode(encoding)
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes

        best = from_bytes(content).best()
        if best is None or b"\0" in content:
            raise refusal("hold text", name, "Save it as UTF-8.") from None
        encoding, decoded = best.encoding, str(best)
    if encoding not in ("utf-8", "utf-8-sig"):
        notes.append(f"Read {name} as {encoding}, which it seems to be written in.")
    return decoded.replace("\r\n", "\n").replace("\r", "\n")


def content_of(place: Place, name: str) -> bytes:
    """All of a file.

    Raises:
        ValueError: It cannot be read; the message is a whole sentence.
    """
    try:
        return place.read(name)
    except (ValueError, OSError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        step = f"{reason[:1].upper()}{reason[1:]}: copy or download it anew, or take it away."
        raise refusal("hold files that can be read", name, step) from None


def rows(place: Place, name: str, notes: list[str]) -> list[tuple[str, Any]]:
    """The records of a file by its suffix, each with where it stands, for messages.

    A JSON file may hold a list, or a dictionary with one list in it; another dictionary is one record.

    Raises:
        ValueError: It is damaged, or a line of a table has more columns than the first.
    """
    suffix = f".{name.rpartition('.')[2].lower()}"
    if suffix in BINARY:
        return _numbered(name, _binary(place, name), "record")
    content = text(place, name, notes)
    if suffix in LINES:
        lines = enumerate(content.split("\n"), start=1)
        placed = [(f"{name}, line {number}", line) for number, line in lines if line.strip()]
        return [(where, parsed(line, where)) for where, line in placed]
    if suffix == ".json":
        whole = parsed(content, name)
        if isinstance(whole, dict):
            lists = [value for value in whole.values() if isinstance(value, list) and value]
            whole = lists[0] if len(lists) == 1 and isinstance(lists[0][0], dict) else [whole]
        return _numbered(name, whole if isinstance(whole, list) else [whole], "record")
    return table(content, name)


def table(content: str, name: str) -> list[tuple[str, dict[str, str]]]:
    """The rows of a table, each with its line, as column -> text.

    Columns are separated by what of `,` `;` tab `|` the first line has most of. In a table of two columns a
    line ends the first at its first separator: captions need no quotation marks.

    Raises:
        ValueError: A line has more or fewer columns than the first one.
    """
    import pandas as pd

    head = next((line for line in content.split("\n") if line.strip()), "")
    separator = max(SEPARATORS, key=head.count)
    quoted = f'{separator}"' in content or f'"{separator}' in content
    if head.count(separator) == 1 and not quoted:
        names, *lines = [line.partition(separator)[::2] for line in content.split("\n") if line.strip()]
        return [
            (f"{name}, line {n}", dict(zip(map(str.strip, names), line, strict=True)))
            for n, line in enumerate(lines, start=2)
        ]
    form: dict[str, Any] = {"sep": separator, "dtype": str, "keep_default_na": False, "index_col": False}
    try:
        frame = pd.read_csv(io.StringIO(content), header=None, names=None, engine="python", **form)
    except (ValueError, pd.errors.ParserError) as error:
        step = f"Put values with such signs between quotation marks. pandas says: {error}."
        raise refusal(f"be a table with as many {separator!r} in every line", name, step) from None
    short = frame.isna().any(axis=1)
    if short.any():
        value = f"{name} with {', '.join(map(str, frame.index[short][:5] + 1))} as shorter lines"
        raise refusal("have as many columns in every line", value, "Write an empty value as two separators.")
    names = [str(each).strip() for each in frame.iloc[0]]
    return [
        (f"{name}, line {n}", dict(zip(names, row, strict=True)))
        for n, row in enumerate(frame.iloc[1:].itertuples(index=False), start=2)
    ]


class Unused:
    """Counts keys of records that nothing reads, to name each once."""

    def __init__(self) -> None:
        self.keys: Counter[str] = Counter()

    def note(self) -> list[str]:
        """A sentence on all of them; none where every key is used."""
        ordered = sorted(self.keys.items(), key=lambda pair: (-pair[1], pair[0]))
        told = [f"{key!r} ({n:,})" for key, n in ordered]
        return [
            f"Keys or columns that are not used, with how many records have them: {first(told, 12)}."
        ] * bool(told)


def parsed(content: str, where: str) -> Any:
    """What a JSON text holds; `where` it stands, for the refusal."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise refusal("hold valid JSON", where, f"Python says: {error}.") from None


def _binary(place: Place, name: str) -> list[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    content = io.BytesIO(content_of(place, name))
    try:
        if name.lower().endswith(".parquet"):
            return parquet.read_table(content).to_pylist()
        with pa.ipc.open_stream(content) as stream:
            return stream.read_all().to_pylist()
    except (pa.ArrowException, OSError) as error:
        step = f"Write it anew. Arrow says: {str(error).splitlines()[0]}"
        raise refusal("be a whole file of parquet or arrow", name, step) from None


def _numbered(name: str, records: list[Any], what: str) -> list[tuple[str, Any]]:
    return [(f"{name}, {what} {number}", record) for number, record in enumerate(records, start=1)]

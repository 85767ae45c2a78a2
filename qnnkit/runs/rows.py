"""The rows of a run, and its other files: read, mended and followed here, wherever the run is."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qnnkit import workspace


def work(folder: Path) -> Path:
    """Where a run is worked on: its folder, or the copy of it on fast local disk."""
    try:
        local = workspace.run_folder(folder)
    except (OSError, ValueError):
        return folder
    return local if (local / "config.json").exists() else folder


def content(folder: Path, name: str) -> bytes | None:
    """A file of a run; None if it is missing.

    Raises:
        OSError: It cannot be read.
    """
    for place in dict.fromkeys((work(folder), folder)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return (place / name).read_bytes()
    return None


def facts(folder: Path, name: str) -> dict[str, Any]:
    """What a JSON file of a run holds; nothing where it is missing, damaged or cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        values = json.loads(content(folder, name) or b"{}")
        return values if isinstance(values, dict) else {}
    return {}


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, oldest first; none where the file cannot be read."""
    with contextlib.suppress(OSError):
        return whole(workspace.parse_lines(content(folder, "metrics.jsonl") or b"")[0])
    return []


def whole(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the rows that say what happened, and to which net and seed; others are damaged."""
    return [row for row in rows if {"event", "net", "seed"} <= row.keys()]


class Followed:
    """metrics.jsonl of a run that is being written: a look reads only what has been added since the last one.

    Args:
        folder: Of the run.

    Example:
        >>> Followed(Path("no/such/run")).look()
        []
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._start()

    def _start(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.end, self.last, self.inode = 0, b"", None

    def look(self) -> list[dict[str, Any]]:
        """The rows that are new; all are in `rows`. A file that was replaced is read from its beginning."""
        try:
            with (work(self.folder) / "metrics.jsonl").open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self.end - len(self.last))
                added = file.read()
                if inode != self.inode or not added.startswith(self.last):
                    self._start()
                    file.seek(0)
                    added, self.inode = file.read(), inode
        except OSError:
            return []
        added = added[len(self.last) : added.rfind(b"\n") + 1]
        if not added:
            return []
        self.end += len(added)
        self.last = added.splitlines(keepends=True)[-1]
        new = whole(workspace.parse_lines(added)[0])
        self.rows += new
        return new


@functools.lru_cache(maxsize=256)
def followed(folder: Path) -> Followed:
    """The same `Followed` for every look of this process at a run."""
    return Followed(folder)


def number(row: Mapping[str, Any], name: str) -> Any:
    """A finite number of a row; None where it has none."""
    value: Any = row.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def trainings(rows: Iterable[Mapping[str, Any]], event: str, epochs: int | None) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl of one kind, each once: a kill may have left one of them twice.

    Args:
        rows: Oldest first.
        event: "epoch", "validation" between, or "test" of those trainings that have ended.
        epochs: Of the run: tests after fewer, before it was extended, are left out.
    """
    found = {}
    for row in rows:
        if row.get("event") == event and (event != "test" or row.get("epochs", epochs) == epochs):
            found[row.get("net"), row.get("seed"), row.get("epoch"), row.get("step")] = dict(row)
    return list(found.values())

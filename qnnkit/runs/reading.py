"""What the folders of runs hold, wherever they are: worked on here, or stored on Drive by another machine."""

from __future__ import annotations

import contextlib
import json
import math
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


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; none where they cannot be read."""
    with contextlib.suppress(OSError):
        return workspace.parse_lines(content(folder, "metrics.jsonl") or b"")[0]
    return []


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

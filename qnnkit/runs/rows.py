"""Reads the files of runs: rows of metrics.jsonl, a tidy table of many runs, and hashes."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, workspace
from qnnkit.settings import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = {"epoch": ("epoch",), "step": ("time", "updates", "epoch", "epochs", "step", "steps")}
NUMBERS |= {"test": ("quantum", "classical", "frozen")}
"""Numbers that a row of metrics.jsonl must have, by event."""
FACTS: dict[str, Any] = dict.fromkeys(("nets", "given"), list | None)
FACTS |= dict.fromkeys(("score", "samples"), dict | None)
FACTS |= {"trained": dict, "models": dict, "data": str | None, "commit": str | None}
KINDS: dict[str, Any] = {
    "config.json": dict.fromkeys(("seed", "n_seeds", "epochs"), int), "provenance.json": FACTS,
    "result.json": {"nets": object}, "batch.json": {"runs": list}, "failed.json": {"state": str},
    "about.json": {"settings": dict, "data": dict, "seed": int},
}  # fmt: skip
"""Types of the values in a run's JSON files that qnnkit relies on, by file."""
SUMS = "SHA256SUMS"
"""File with the hashes of a finished run's other files, in the format of `sha256sum --check`."""


def work(folder: Path) -> Path:
    """Returns the folder in which a run is worked on: the given one, or its copy on local disk."""
    try:
        local = workspace.run_folder(folder)
    except (OSError, ValueError):
        return folder
    return local if (local / "config.json").exists() else folder


def content(folder: Path, name: str, read: Callable[[Path], Any] = Path.read_bytes) -> Any:
    """Returns the content of a run's file (default: bytes), cached until the file changes; None if missing.

    Raises:
        OSError: The file cannot be read.
    """
    path = work(folder) / name
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = path.stat()
        return _read(read, path, (status.st_ino, status.st_mtime_ns, status.st_size))
    return None


@functools.lru_cache(maxsize=16)
def _read(read: Callable[[Path], Any], path: Path, state: tuple[int, ...]) -> Any:
    return read(path)


def facts(folder: Path, name: str) -> dict[str, Any]:
    """Returns the content of a run's JSON file; empty if it is missing, damaged or unreadable."""
    with contextlib.suppress(OSError, ValueError):
        return dict(content(folder, name, read_facts) or {})
    return {}


def read_facts(path: Path) -> dict[str, Any] | None:
    """Reads a JSON file of a run with `workspace.read_json`, which checks the types in `KINDS`."""
    return workspace.read_json(path, KINDS[path.name])


def read(folder: Path, kind: str = "metrics") -> list[dict[str, Any]]:
    """Returns the undamaged rows of `<kind>.jsonl` (see `is_whole`), oldest first; none if it is unreadable.

    If the file has grown since the last call, only its new lines are parsed.
    """
    cached = _cached(work(folder) / f"{kind}.jsonl")
    with contextlib.suppress(OSError), _READING:
        lines = content(folder, f"{kind}.jsonl") or b""
        lines = lines[: lines.rfind(b"\n") + 1]
        if not lines.startswith(cached[0]):  # the file was changed or replaced
            cached[:] = b"", []
        if added := lines[len(cached[0]) :]:
            rows, damaged = workspace.parse_lines(added)
            if damaged:
                sentence = f"File `{folder / kind}.jsonl` has {damaged} damaged lines, which are skipped."
                warnings.warn(sentence, stacklevel=2)
            undamaged = [row for row in rows if "event" in row and (kind != "metrics" or is_whole(row))]
            cached[:] = lines, cached[1] + undamaged
        return [*cached[1]]
    return []


_READING = threading.Lock()
_cached: Callable[[Path], list[Any]] = functools.lru_cache(maxsize=256)(lambda path: [b"", []])
"""Path of a file -> its lines, and their rows."""


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether a row of metrics.jsonl has a net, a seed, and the numbers that its event needs."""
    named = isinstance(row.get("net"), str) and isinstance(row.get("seed"), int)
    return named and all(number(row, name) is not None for name in NUMBERS.get(str(row["event"]), ()))


def number(row: Mapping[str, Any], name: str) -> Any:
    """Returns a finite number of a row; None if it has none of this name."""
    value: Any = row.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def trainings(rows: Iterable[Mapping[str, Any]], event: str, epochs: int | None) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl of one event without duplicates, which a kill may leave.

    Args:
        rows: All rows, oldest first.
        event: "epoch", or "test" for trainings that have ended.
        epochs: Epochs of the run. Tests after another number, before it was extended, are omitted.
    """
    latest = {}
    for row in rows:
        if row.get("event") == event and (event != "test" or row.get("epochs", epochs) == epochs):
            latest[row.get("net"), row.get("seed"), row.get("epoch")] = dict(row)
    return list(latest.values())


def frame(runs: Any, event: str = "test", settings: Iterable[str] = ()) -> pd.DataFrame:
    """Returns the trainings of one or many runs as one tidy table, for pandas and seaborn.

    Args:
        runs: A run or its folder, or several; relative folders are resolved from the workspace. A run without
            rows adds none.
        event: "test" gives a row for each trained net and seed, "epoch" one for each of their epochs.
        settings: Names of settings that become columns, in addition to those that any of the runs was given.

    Returns:
        Columns: `folder` as given, `run` (its name), `recipe`, the current settings of the runs, the columns
        of metrics.jsonl (net, seed, scores, numbers of weights, ...) and `data`, the fingerprint. Test rows
        also have `hours`, the time of their epochs, and `cost`, from the setting `price_per_hour`.

    Raises:
        FileNotFoundError: Only one folder is given, and it does not exist.
        ValueError: `event` is neither of the two.

    Example:
        >>> frame([]).empty
        True
    """
    import pandas as pd

    checks.choice("event", event, ("test", "epoch"))
    if isinstance(runs, str | Path) or hasattr(runs, "folder"):
        runs = [runs]
    places = [workspace.place(getattr(run, "folder", run)) for run in runs]
    if len(places) == 1:
        checks.folder("runs", places[0], "Give the folder of a run.")
    files = [(facts(place, "config.json"), facts(place, "provenance.json")) for place in places]
    given = [name for _, provenance in files for name in provenance.get("given") or ()]
    names = [name for name in dict.fromkeys([*given, *settings]) if name not in COLUMNS]
    table: list[dict[str, Any]] = []
    for run, place, (config, provenance) in zip(runs, places, files, strict=True):
        config = run.config.flat() if hasattr(run, "config") else config
        about = {"folder": str(getattr(run, "folder", run)), "run": place.name}
        about |= {name: config[name] for name in ("recipe", *names) if name in config}
        rows, hours, price = read(place), defaultdict[Any, float](float), number(config, "price_per_hour")
        for row in trainings(rows, "epoch", None):
            hours[row["net"], row["seed"]] += (number(row, "seconds") or 0) / 3600
        for row in trainings(rows, event, config.get("epochs")):
            row.setdefault("data", provenance.get("data"))
            if event == "test":
                row["hours"] = hours.get((row["net"], row["seed"]), math.nan)
                row["cost"] = row["hours"] * (math.nan if price is None else price)
            table.append({**about, **row})
    return pd.DataFrame(table)


def write_hashes(folder: Path, hashes: Mapping[str, str]) -> None:
    """Writes SHA256SUMS from the hash of each file, by its path relative to `folder`."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    workspace.write_bytes(folder / SUMS, lines.encode())


def read_hashes(folder: Path) -> dict[str, str]:
    """Returns the hash (hex) of each file that SHA256SUMS lists; empty without that file."""
    lines = (content(folder, SUMS) or b"").decode(errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}

"""The files of a run, read wherever it is: rows of metrics.jsonl, one tidy table of many runs, hashes."""

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

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = {"epoch": ("epoch",), "step": ("time", "updates", "epoch", "epochs", "step", "steps")}
NUMBERS |= {"test": ("quantum", "classical", "frozen")}
"""Numbers without which a row of metrics.jsonl of that event is damaged."""
FACTS: dict[str, Any] = dict.fromkeys(("nets", "given"), list | None)
FACTS |= dict.fromkeys(("score", "samples"), dict | None)
FACTS |= {"trained": dict, "data": str | None, "commit": str | None}
KINDS: dict[str, Any] = {
    "config.json": dict.fromkeys(("seed", "n_seeds", "epochs"), int), "provenance.json": FACTS,
    "result.json": {"nets": object}, "batch.json": {"runs": list}, "failed.json": {"state": str},
    "about.json": {"settings": dict, "data": dict, "seed": int},
}  # fmt: skip
"""Of what kind a value of a run's file is that others rely on."""
SUMS = "SHA256SUMS"
"""The file of a finished run with the hash of each other one, as `sha256sum --check` reads it."""


def work(folder: Path) -> Path:
    """Where a run is worked on: its folder, or the copy of it on fast local disk."""
    try:
        local = workspace.run_folder(folder)
    except (OSError, ValueError):
        return folder
    return local if (local / "config.json").exists() else folder


def content(folder: Path, name: str, read: Callable[[Path], Any] = Path.read_bytes) -> Any:
    """A file of a run, by default its bytes, read once for each of its states; None if it is missing.

    Raises:
        OSError: It cannot be read.
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
    """What a JSON file of a run holds; nothing where it is missing, damaged or cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return dict(content(folder, name, read_facts) or {})
    return {}


def read_facts(path: Path) -> dict[str, Any] | None:
    """A JSON file of a run as `workspace.read_json` gives it, if its values are of their kind."""
    return workspace.read_json(path, KINDS[path.name])


def read(folder: Path, kind: str = "metrics") -> list[dict[str, Any]]:
    """The rows of `<kind>.jsonl`, oldest first, but for those that are damaged (see `is_whole`).

    Of a file that cannot be read there are none; of one that has grown, what is new is parsed.
    """
    kept = _kept(work(folder) / f"{kind}.jsonl")
    with contextlib.suppress(OSError), _LOOKING:
        lines = content(folder, f"{kind}.jsonl") or b""
        lines = lines[: lines.rfind(b"\n") + 1]
        if not lines.startswith(kept[0]):  # it was changed or replaced
            kept[:] = b"", []
        if added := lines[len(kept[0]) :]:
            rows, damaged = workspace.parse_lines(added)
            if damaged:
                sentence = f"File `{folder / kind}.jsonl` has {damaged} damaged lines, which are left out."
                warnings.warn(sentence, stacklevel=2)
            whole = [row for row in rows if "event" in row and (kind != "metrics" or is_whole(row))]
            kept[:] = lines, kept[1] + whole
        return [*kept[1]]
    return []


_LOOKING = threading.Lock()
_kept: Callable[[Path], list[Any]] = functools.lru_cache(maxsize=256)(lambda path: [b"", []])
"""Of a file: its lines, and their rows."""


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether a row of metrics.jsonl has what every row has, and the numbers of its event."""
    named = isinstance(row.get("net"), str) and isinstance(row.get("seed"), int)
    return named and all(number(row, name) is not None for name in NUMBERS.get(str(row["event"]), ()))


def number(row: Mapping[str, Any], name: str) -> Any:
    """A finite number of a row; None where it has none."""
    value: Any = row.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def trainings(rows: Iterable[Mapping[str, Any]], event: str, epochs: int | None) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl of one kind, each once: a kill may have left one of them twice.

    Args:
        rows: Oldest first.
        event: "epoch", or "test" of those trainings that have ended.
        epochs: Of the run: tests after fewer, before it was extended, are left out.
    """
    found = {}
    for row in rows:
        if row.get("event") == event and (event != "test" or row.get("epochs", epochs) == epochs):
            found[row.get("net"), row.get("seed"), row.get("epoch")] = dict(row)
    return list(found.values())


def frame(runs: Any, event: str = "test", settings: Iterable[str] = ()) -> pd.DataFrame:
    """Trainings of one or many runs as one tidy table, for pandas and seaborn.

    Args:
        runs: A run or its folder, or several; relative folders are meant from the workspace. One without rows
            adds none.
        event: "test" gives a row for each net and seed that is trained, "epoch" one for each of their epochs.
        settings: Names of settings that become columns, besides those that any of the runs was given.

    Returns:
        Columns: `folder` as it was given, `run`, its name, `recipe`, the settings as the runs have them now,
        what metrics.jsonl has (net, seed, scores, numbers of weights, ...) and `data`, the fingerprint. A row
        of a test also has `hours`, the time of its epochs, and `cost`, by the setting `price_per_hour`.

    Raises:
        ValueError: `event` is none of them.

    Example:
        >>> frame([]).empty
        True
    """
    import pandas as pd

    checks.choice("event", event, ("test", "epoch"))
    if isinstance(runs, str | Path) or hasattr(runs, "folder"):
        runs = [runs]
    places = [workspace.place(getattr(each, "folder", each)) for each in runs]
    known = [(facts(place, "config.json"), facts(place, "provenance.json")) for place in places]
    names = dict.fromkeys(name for _, provenance in known for name in provenance.get("given") or ())
    names |= dict.fromkeys(settings)
    names = [name for name in names if name not in ("folder", "run", "n_train")]  # columns of another meaning
    table: list[dict[str, Any]] = []
    for each, place, (config, provenance) in zip(runs, places, known, strict=True):
        config = each.config.flat() if hasattr(each, "config") else config
        about = {"folder": str(getattr(each, "folder", each)), "run": place.name}
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
    """Writes SHA256SUMS: the hash of each file, by its name relative to `folder`."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    workspace.write_bytes(folder / SUMS, lines.encode())


def read_hashes(folder: Path) -> dict[str, str]:
    """Hash (hex) of each file that SHA256SUMS lists; none without it."""
    lines = (content(folder, SUMS) or b"").decode(errors="replace").splitlines()
    pairs = (line.split("  ", 1) for line in lines if "  " in line)
    return {name: digest for digest, name in pairs}

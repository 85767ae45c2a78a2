"""Whether a finished run's folder is what it was when the run finished, in the words of `sha256sum`."""

from __future__ import annotations

from pathlib import Path

from qnnkit import workspace
from qnnkit.runs import Run, rows

_LATER = ("result.json", rows.SUMS, "failed.json", "notebooks/04_analyze.ipynb")
"""Written after the hashes are taken, or not by the run itself."""
_BENCHMARK = ("benchmark.jsonl", "figures/benchmark_", "machine.json", "logs/")
"""What 05_benchmark, `qnnkit measure` and trackers leave in a run's folder, whenever they are asked to."""
_PASSING = (".running.ipynb", ".failed.ipynb", ".log")


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 (hex) of every file of a finished run, by its path relative to `folder`, with `/`.

    Omitted is what is written last or while something runs: result.json, SHA256SUMS itself, 04_analyze's
    executed copy, what 05_benchmark and `qnnkit measure` found, running and failed notebooks, logs and hidden
    files.

    Raises:
        OSError: A file cannot be read.
    """
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {
        name: rows.hash_of(folder / name)
        for name in sorted(names)
        if not any(part.startswith(".") for part in name.split("/"))
        if name not in _LATER and not name.startswith(_BENCHMARK) and not name.endswith(_PASSING)
    }


def verify(run: Run) -> dict[str, str]:
    """Compares the files of a finished run with SHA256SUMS, and its data with their fingerprint.

    Args:
        run: The run; it need not be able to run on this machine.

    Returns:
        A file's name, or "data" -> "OK", "FAILED" and why, or "not checked" and why. Files that are as they
        were are counted under one name.

    Raises:
        ValueError: The run is not finished, or has no SHA256SUMS.
    """
    kept = rows.read_hashes(run.folder)
    if run.result is None or not kept:
        what, step = (
            ("result.json", "qnnkit run --run-dir") if run.result is None else (rows.SUMS, "qnnkit report")
        )
        raise ValueError(
            f"Run `{run.folder}` must be finished to be verified, but has no {what}. "
            f"Finish it: {step} {run.folder}."
        )
    now = hashes(run.folder)
    found = {
        name: "FAILED: missing"
        if name not in now
        else "FAILED: new"
        if name not in kept
        else "FAILED: changed"
        for name in sorted({*kept, *now})
        if now.get(name) != kept.get(name)
    }
    same = sum(now.get(name) == digest for name, digest in kept.items())
    return {**found, f"{same} of {len(kept)} files": "OK", "data": _data(run)}


def _data(run: Run) -> str:
    place = getattr(run.config, "data_dir", None)
    if place is not None and not workspace.is_url(place) and not Path(place).exists():
        return f"not checked: {place} is not on this machine"
    if run.config.source is None:
        return "not checked: the recipe that loads them is a user's; name it by --recipe"
    try:
        if run.provenance.get("data") is None:
            return "not checked: provenance.json has no fingerprint of them"
        run.own_data(cached=False)
    except (ValueError, OSError) as error:
        return f"FAILED: {error}"
    return "OK"

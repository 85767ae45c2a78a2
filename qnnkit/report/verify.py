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
    for file, command in (("result.json", "qnnkit run --run-dir"), (rows.SUMS, "qnnkit report")):
        if not (run.folder / file).exists():
            step = f"Finish it: {command} {run.folder}."
            raise ValueError(f"Run `{run.folder}` must be finished to be verified, but has no {file}. {step}")
    now = hashes(run.folder)
    states = {name: _state(kept.get(name), now.get(name)) for name in sorted({*kept, *now})}
    found = {name: state for name, state in states.items() if state != "OK"}
    same = sum(states[name] == "OK" for name in kept)
    return {**found, f"{same} of {len(kept)} files": "OK", "data": _data(run)}


def _state(kept: str | None, now: str | None) -> str:
    if kept == now:
        return "OK"
    return f"FAILED: {'missing' if now is None else 'new' if kept is None else 'changed'}"


def _data(run: Run) -> str:
    place = getattr(run.config, "data_dir", None)
    if place is not None and not workspace.is_url(place) and not Path(place).exists():
        return f"not checked: {place} is not on this machine"
    if run.config.source is None:
        return "not checked: the recipe that loads them is a user's; name it by --recipe"
    try:
        if run.provenance.get("data") is None:
            return "not checked: provenance.json has no fingerprint of them"
        Run(run.folder, run.config).splits  # noqa: B018  they are compared as they are read
    except (ValueError, OSError) as error:
        return f"FAILED: {error}"
    return "OK"

"""Whether a finished run's folder still is what it was when the run finished."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnkit import workspace
from qnnkit.checkpoint.file import NAME as CHECKPOINT
from qnnkit.runs import Run, sums

_LATER = (
    "result.json",
    sums.FILE,
    "failed.json",
    "notebooks/04_analyze.ipynb",
)
"""Written after the hashes are taken, or not by the run itself."""
_BENCHMARK = ("benchmark.jsonl", "figures/benchmark_", "machine.json")
"""What 05_benchmark and `qnnkit measure` leave beside a run, whenever they are asked to."""
_PASSING = (".running.ipynb", ".failed.ipynb", ".log")
_REMEDY = "Restore the folder from a copy, or run the experiment again in a new run_dir."


@dataclass(frozen=True)
class Finding:
    """One thing that was compared."""

    name: str
    """A file, relative to the run folder; or "settings", "data", "hashes", "result.json"."""
    ok: bool | None
    """None where it could not be checked."""
    sentence: str


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 (hex) of every file of a finished run, by its path relative to `folder`, with `/`.

    Left out is what is written last or while something runs: result.json, SHA256SUMS itself, 04_analyze's
    executed copy, what 05_benchmark and `qnnkit measure` found, running and failed notebooks, logs and hidden
    files.

    Raises:
        OSError: A file cannot be read.
    """
    return {name: sums.of(folder / name) for name in _files(folder)}


def verify(run: Run) -> list[Finding]:
    """Compares a finished run's folder with what SHA256SUMS, result.json and provenance.json say.

    Files are hashed anew, settings digested, data loaded and fingerprinted, and every checkpoint held against
    its own name. Nothing is changed.

    Args:
        run: The run; it need not be able to run on this machine.

    Returns:
        What was found, troubles first; `ok` is None for what cannot be checked here.

    Raises:
        ValueError: The run is not finished.
    """
    try:
        result = run.result
    except (OSError, ValueError) as error:
        told = f"result.json cannot be read ({type(error).__name__}: {error}). {_REMEDY}"
        return [Finding("result.json", False, told)]
    if result is None:
        raise ValueError(
            f"Run `{run.folder}` must be finished to be verified, but has no result.json. Finish it: "
            f"qnnkit run --run-dir {run.folder}."
        )
    if not isinstance(result, dict):
        return [Finding("result.json", False, f"result.json is damaged. {_REMEDY}")]
    findings = [
        *_check_files(run),
        *_check_checkpoints(run),
        _check_settings(run, result),
        _check_data(run),
    ]
    return sorted(findings, key=lambda finding: {False: 0, None: 1, True: 2}[finding.ok])


def _files(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if _counts(name))


def _counts(name: str) -> bool:
    parts = name.split("/")
    hidden = any(part.startswith(".") for part in parts)
    beside = name in _LATER or name.startswith(_BENCHMARK)
    return not (hidden or beside or name.endswith(_PASSING) or parts[0] == "logs")


def _check_files(run: Run) -> list[Finding]:
    kept = sums.read(run.folder)
    if kept is None:
        told = (
            f"There is no {sums.FILE}, so the files cannot be compared with what they were when the run "
            "finished. `qnnkit report` on it writes them as they are now."
        )
        return [Finding("hashes", None, told)]
    findings, same = [], 0
    there = set(_files(run.folder))
    for name in sorted(there | set(kept)):
        if name not in kept:
            told = f"{name} is new: it was not there when the run finished. Move it out of the run folder."
            findings.append(Finding(name, False, told))
            continue
        if name not in there:
            findings.append(Finding(name, False, f"{name} is missing. {_REMEDY}"))
            continue
        try:
            unchanged = sums.of(run.folder / name) == kept[name]
        except OSError as error:
            findings.append(Finding(name, False, f"{name} cannot be read ({error.strerror}). {_REMEDY}"))
            continue
        same += unchanged
        if not unchanged:
            findings.append(Finding(name, False, f"{name} has changed since the run finished. {_REMEDY}"))
    told = f"{same} of {len(kept)} files are byte for byte what they were when the run finished."
    return [*findings, Finding("hashes", None if findings else True, told)]


def _check_checkpoints(run: Run) -> list[Finding]:
    """Each against its own name, which says its hash: so a run without kept hashes is checked too."""
    paths = [path for path in sorted(run.folder.rglob("checkpoint-*")) if CHECKPOINT.fullmatch(path.name)]
    findings = []
    for path in paths:
        name, said = path.relative_to(run.folder).as_posix(), CHECKPOINT.fullmatch(path.name)
        try:
            whole = said is not None and sums.of(path).startswith(said[2])
        except OSError:
            whole = False
        if not whole:
            told = f"Checkpoint {name} is not what its name says: it is damaged or another. {_REMEDY}"
            findings.append(Finding(name, False, told))
    if paths and not findings:
        findings.append(Finding("checkpoints", True, f"{len(paths)} checkpoints are what their names say."))
    return findings


def _check_settings(run: Run, result: dict[str, Any]) -> Finding:
    kept = result.get("config_digest")
    if kept is None:
        told = "result.json holds no digest of the settings: the run finished before qnnkit kept one."
        return Finding("settings", None, told)
    if run.config.source is None:
        told = "The settings were not checked: the recipe is a user's. Name it by --recipe."
        return Finding("settings", None, told)
    if run.asked.digest() == kept:
        return Finding("settings", True, "The settings in config.json are those that the run finished with.")
    told = f"The settings in config.json are not those that the run finished with. {_REMEDY}"
    return Finding("settings", False, told)


def _check_data(run: Run) -> Finding:
    try:
        kept = run.provenance.get("data")
    except (OSError, ValueError):
        told = f"provenance.json cannot be read, nor the data checked. {_REMEDY}"
        return Finding("data", False, told)
    place = getattr(run.config, "data_dir", None)
    if kept is None:
        told = "provenance.json holds no fingerprint of the data, so they were not checked."
        return Finding("data", None, told)
    if place is not None and not workspace.is_url(place) and not Path(place).exists():
        told = f"The data were not checked: {place} is not on this machine."
        return Finding("data", None, told)
    if run.config.source is None:
        told = "The data were not checked: the recipe that loads them is a user's. Name it by --recipe."
        return Finding("data", None, told)
    try:
        same = run.load_data(cached=False).fingerprint() == kept
    except (ValueError, OSError) as error:
        return Finding("data", False, f"The data are not those that the run was trained on: {error}")
    told = "The data are, pixel by pixel and split by split, those that the run was trained on."
    if not same:
        told = (
            f"The data are not those that the run was trained on: {place or 'the library'} has changed since."
        )
    return Finding("data", same, told)

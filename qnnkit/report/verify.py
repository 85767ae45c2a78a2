"""Whether a finished run's folder still is what it was when the run finished."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnkit import workspace
from qnnkit.runs import Run, sums

_LATER = ("result.json", sums.FILE, "failed.json", "notebooks/04_analyze.ipynb")
"""Written after the hashes are taken, or not by the run itself."""
_BENCHMARK = ("benchmark.jsonl", "figures/benchmark_", "machine.json", "logs/")
"""What 05_benchmark, `qnnkit measure` and trackers leave in a run's folder, whenever they are asked to."""
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
    return {name: sums.of(folder / name) for name in _names(folder)}


def verify(run: Run) -> list[Finding]:
    """Compares a finished run's folder with what SHA256SUMS, result.json and provenance.json say.

    Files are hashed anew, settings digested, data loaded and fingerprinted. Nothing is changed.

    Args:
        run: The run; it need not be able to run on this machine.

    Returns:
        The findings, troubles first; `ok` is None for what cannot be checked here.

    Raises:
        ValueError: The run is not finished.
    """
    try:
        result = run.result
    except (OSError, ValueError) as error:
        said = f"result.json cannot be read ({type(error).__name__}: {error}). {_REMEDY}"
        return [Finding("result.json", False, said)]
    if result is None:
        raise ValueError(
            f"Run `{run.folder}` must be finished to be verified, but has no result.json. Finish it: "
            f"qnnkit run --run-dir {run.folder}."
        )
    if not isinstance(result, dict):
        return [Finding("result.json", False, f"result.json is damaged. {_REMEDY}")]
    findings = [*_files(run), _settings(run, result), _data(run)]
    return sorted(findings, key=lambda finding: {False: 0, None: 1, True: 2}[finding.ok])


def _names(folder: Path) -> list[str]:
    """The files that count."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(
        name
        for name in names
        if not any(part.startswith(".") for part in name.split("/"))
        if name not in _LATER and not name.startswith(_BENCHMARK) and not name.endswith(_PASSING)
    )


def _files(run: Run) -> list[Finding]:
    kept, there = sums.read(run.folder), _names(run.folder)
    if kept is None:
        said = (
            f"There is no {sums.FILE}, so the files cannot be compared with what they were when the run "
            "finished. `qnnkit report` on it writes them as they are now."
        )
        return [Finding("hashes", None, said)]
    wrong = {
        name: "is new: it was not there when the run finished. Move it out of the run folder."
        for name in set(there) - set(kept)
    }
    wrong |= {name: f"is missing. {_REMEDY}" for name in set(kept) - set(there)}
    for name in set(kept) & set(there):
        try:
            if sums.of(run.folder / name) != kept[name]:
                wrong[name] = f"has changed since the run finished. {_REMEDY}"
        except OSError as error:
            wrong[name] = f"cannot be read ({error.strerror}). {_REMEDY}"
    same = len(set(kept) - set(wrong))
    said = f"{same} of {len(kept)} files are byte for byte what they were when the run finished."
    findings = [Finding(name, False, f"{name} {why}") for name, why in sorted(wrong.items())]
    return [*findings, Finding("hashes", None if wrong else True, said)]


def _settings(run: Run, result: dict[str, Any]) -> Finding:
    if run.config.source is None:
        said = "The settings were not checked: the recipe is a user's. Name it by --recipe."
        return Finding("settings", None, said)
    if run.asked.digest() == result.get("config_digest"):
        return Finding("settings", True, "The settings in config.json are those that the run finished with.")
    said = f"The settings in config.json are not those that the run finished with. {_REMEDY}"
    return Finding("settings", False, said)


def _data(run: Run) -> Finding:
    try:
        kept = run.provenance.get("data")
    except (OSError, ValueError):
        return Finding("data", False, f"provenance.json cannot be read, nor the data checked. {_REMEDY}")
    place, why = getattr(run.config, "data_dir", None), None
    if kept is None:
        why = "provenance.json holds no fingerprint of them"
    elif place is not None and not workspace.is_url(place) and not Path(place).exists():
        why = f"{place} is not on this machine"
    elif run.config.source is None:
        why = "the recipe that loads them is a user's. Name it by --recipe"
    if why:
        return Finding("data", None, f"The data were not checked: {why}.")
    try:
        run.own_data(cached=False)
    except (ValueError, OSError) as error:
        return Finding("data", False, f"The data are not those that the run was trained on: {error}")
    said = "The data are, sample by sample and split by split, those that the run was trained on."
    return Finding("data", True, said)

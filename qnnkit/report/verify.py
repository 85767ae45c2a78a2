"""The hashes of a finished run's files, as `sha256sum` writes and checks them."""

from __future__ import annotations

from pathlib import Path

from qnnkit import checks
from qnnkit.checkpoint.file import hash_of
from qnnkit.checkpoint.mirror import visible
from qnnkit.runs import Run, rows

_LATER = ("result.json", rows.SUMS, "failed.json", "notebooks/04_analyze.ipynb")
"""Files that are written after the hashes are taken, or not by the run itself."""
_BENCHMARK = ("benchmark.jsonl", "figures/benchmark_", "machine.json", "logs/")
"""Files that 05_benchmark, `qnnkit measure` and trackers write into a run's folder, at any time."""
_PASSING = (".failed.ipynb", ".log")


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 (hex) of every file of a finished run, by its path relative to `folder`, with `/`.

    Files that are written last or while something runs are omitted: result.json, SHA256SUMS itself, the
    executed 04_analyze, files of 05_benchmark and `qnnkit measure`, running and failed notebooks, logs,
    hidden files and links.

    Raises:
        OSError: A file cannot be read.
    """
    names = (name for name in sorted(visible(folder)) if not name.startswith(_BENCHMARK))
    names = (name for name in names if name not in _LATER and not name.endswith(_PASSING))
    return {name: hash_of(folder / name) for name in names}


def verify(run: Run) -> dict[str, str]:
    """Checks a finished run like `sha256sum --check SHA256SUMS`: "OK" or "FAILED" by file name.

    Raises:
        ValueError: The run has no SHA256SUMS.
    """
    recorded, now = rows.read_hashes(run.folder), hashes(run.folder)
    if not recorded:
        step = f"Write it: qnnkit report {run.folder}."
        raise ValueError(checks.message("run_dir", f"hold {rows.SUMS}", str(run.folder), step))
    return {name: "OK" if now.get(name) == digest else "FAILED" for name, digest in sorted(recorded.items())}

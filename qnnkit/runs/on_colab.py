"""A run that a laptop hands to Colab: a script, which Google's command-line tool `colab` starts there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from qnnkit import checks, workspace


def write(run_dir: Path, files: Sequence[str], words: Sequence[str]) -> Path:
    """Writes the script into the current folder.

    Args:
        run_dir: Of the run, relative to the workspace.
        files: What the command reads from here, a recipe or settings; names of shipped recipes are none.
        words: What is typed after `qnnkit run`, without `--on`.

    Returns:
        The script: `colab_job.py` with this run in it. It clones the branch that is checked out here.

    Raises:
        ValueError: The run's folder is no relative path, a file is not committed, or there is no address.
    """
    if run_dir.is_absolute() or ".." in run_dir.parts:
        step = "Colab has another workspace: give a path inside it, such as runs/mine."
        raise ValueError(checks.message("run_dir", "be relative to the workspace", str(run_dir), step))
    address = re.sub(r"(?<=//)[^@/]+@", "", _git("remote", "get-url", "origin"))  # without a password
    if not address:
        step = "Run this in a checkout that was pushed: Colab clones it from there."
        raise ValueError(checks.message("--on", "have a git remote `origin` to fetch from", "colab", step))
    for file in files:
        if Path(file).is_file() and not _git("ls-files", "--", file):
            step = "Commit and push it: Colab clones the repository."
            raise ValueError(checks.message("file", "be in the repository", file, step))
    job = {"address": address, "branch": _git("branch", "--show-current") or "main"}
    job |= {"words": ["run", *words], "run_dir": run_dir.as_posix()}
    script = Path(__file__).with_name("colab_job.py").read_text(encoding="utf-8")
    script = script.replace('JOB = json.loads("{}")', f"JOB = json.loads({json.dumps(job)!r})", 1)
    path = Path(f"{run_dir.name}_on_colab.py")
    workspace.write_bytes(path.absolute(), script.encode())
    return path


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

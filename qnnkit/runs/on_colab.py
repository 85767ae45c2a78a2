"""A run that a laptop hands to Colab: a script, which Google's command-line tool `colab` starts there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from qnnkit import checks, workspace

SCRIPT = '''# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""Runs qnnkit on a Colab machine: colab run --gpu T4 FILE. Written by `qnnkit run --on colab`."""
import os, select, shutil, subprocess, sys
from importlib import metadata
from pathlib import Path

ADDRESS, BRANCH, WORDS, RUN_DIR = {job}
CONTENT = Path(os.environ.get("QNNKIT_CONTENT", "/content"))
CHECKOUT, DRIVE = CONTENT / "qnnkit", CONTENT / "drive" / "MyDrive"

def run(*command, cwd=CHECKOUT, **variables):
    print("$", *command, flush=True)
    pipe = subprocess.Popen(command, cwd=cwd, env=os.environ | variables, stdout=-1, stderr=-2)
    text = b"."
    while text:
        silent = not select.select([pipe.stdout], [], [], 20)[0]  # the tool ends what is silent for 30 s
        text = b"... still running\\n" if silent else os.read(pipe.stdout.fileno(), 65536)
        print(text.decode(errors="replace"), end="", flush=True)
    if pipe.wait():
        sys.exit(f"{{command[0]}} stopped: the lines above say why. Start the script again, it goes on.")

if not CHECKOUT.is_dir():
    clone = "clone", "--quiet", "--depth", "1", "--branch", BRANCH, ADDRESS, str(CHECKOUT)
    run("git", *clone, cwd=CONTENT, GIT_TERMINAL_PROMPT="0")
held = CONTENT / "qnnkit-constraints.txt"
held.write_text("".join(f"{{name}}=={{metadata.version(name)}}\\n" for name in ("torch", "numpy")))
files = "-c", str(held), "-r", "requirements-colab.txt"
run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *files)
home = DRIVE / "qnnkit" if DRIVE.is_dir() else CONTENT / "workspace"
home.mkdir(parents=True, exist_ok=True)
local = {{"QNNKIT_LOCAL": f"{{CHECKOUT}}-local"}} if DRIVE.is_dir() else {{}}
if not local:
    print("Drive is not mounted (`colab drivemount` mounts it): the run is on this machine alone.")
run(sys.executable, "-m", "qnnkit", *WORDS, QNNKIT_HOME=str(home), PYTHONUNBUFFERED="1", **local)
packed = shutil.make_archive(str(CONTENT / RUN_DIR.replace("/", "_")), "zip", home, RUN_DIR)
print(f"The run folder is packed. Fetch it by: colab download {{packed}} .")
'''


def write(run_dir: Path, files: Sequence[str], words: Sequence[str]) -> Path:
    """Writes the script into the current folder.

    Args:
        run_dir: Of the run, relative to the workspace.
        files: What the command reads from here, a recipe or settings; names of shipped recipes are none.
        words: What is typed after `qnnkit run`, without `--on`.

    Returns:
        The script, which clones the branch that is checked out here.

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
    job = address, _git("branch", "--show-current") or "main", ["run", *words], run_dir.as_posix()
    path = Path(f"{run_dir.name}_on_colab.py")
    workspace.write_bytes(path.absolute(), SCRIPT.format(job=job).encode())
    return path


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

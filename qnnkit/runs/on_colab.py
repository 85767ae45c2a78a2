"""A run that a laptop hands to Colab: a plain script, which Google's command-line tool `colab` starts there.

The script uses the standard library alone until it has installed qnnkit on the machine. It was run on the stand-in
for a Colab machine in tests, not on Colab.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from qnnkit import checks, workspace

SCRIPT = r'''# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""Runs qnnkit on a Colab machine. From your own:  colab run --gpu T4 {name}"""
import json, os, pathlib, shutil, subprocess, sys, threading, time

ADDRESS, BRANCH, COMMAND, RUN_DIR = json.loads({told!r})
CONTENT = pathlib.Path(os.environ.get("QNNKIT_CONTENT", "/content"))
CHECKOUT, DRIVE = CONTENT / "qnnkit", CONTENT / "drive"
last = [time.monotonic()]


def say(*words):
    last[0] = time.monotonic()
    print(*words, flush=True)


def beat():  # the tool ends a script that prints nothing for 30 seconds
    while True:
        time.sleep(5)
        if time.monotonic() - last[0] > 20:
            say("... still running")


def run(*command, **variables):
    say("$", *command)
    process = subprocess.Popen(
        command, cwd=CONTENT, env={{**os.environ, **variables}}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    for line in process.stdout:
        say(line.rstrip())
    if process.wait() != 0:
        sys.exit(f"It stopped: the lines above say why. Start the script again, it goes on ({{command[0]}}).")


threading.Thread(target=beat, daemon=True).start()
if not CHECKOUT.is_dir():
    run("git", "clone", "--quiet", "--depth", "1", "--branch", BRANCH, ADDRESS, str(CHECKOUT), GIT_TERMINAL_PROMPT="0")
held = CONTENT / "qnnkit-constraints.txt"
versions = "import importlib.metadata as m; print(*(f'{{n}}=={{m.version(n)}}' for n in ('torch', 'numpy')), sep='\\n')"
held.write_text(subprocess.run([sys.executable, "-c", versions], capture_output=True, text=True).stdout)
pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
run(*pip, "-c", str(held), "-r", str(CHECKOUT / "requirements-colab.txt"))
on_drive = (DRIVE / "MyDrive").is_dir()
home = DRIVE / "MyDrive" / "qnnkit" if on_drive else CONTENT / "workspace"
home.mkdir(parents=True, exist_ok=True)
places = {{"QNNKIT_HOME": str(home), "PYTHONUNBUFFERED": "1"}}
if on_drive:
    places["QNNKIT_LOCAL"] = str(CONTENT / "qnnkit-local")
else:
    say("Drive is not mounted (colab drivemount mounts it), so the run is on this machine alone.")
run(sys.executable, "-m", "qnnkit", *COMMAND, **places)
packed = shutil.make_archive(str(CONTENT / RUN_DIR.replace("/", "_")), "zip", home, RUN_DIR)
say(f"The run folder is packed: colab download {{packed}} . && unzip {{pathlib.Path(packed).name}}")
'''


def write(run_dir: Path, words: Sequence[str], branch: str | None = None) -> Path:
    """Writes the script into the current folder.

    Args:
        run_dir: Of the run, relative to the workspace.
        words: What to type after `qnnkit run`, without `--on`.
        branch: None takes the one that is checked out.

    Raises:
        ValueError: The run's folder is no relative path, or the checkout has no address.
    """
    if run_dir.is_absolute() or ".." in run_dir.parts:
        step = "Colab has another workspace: give a path inside it, such as runs/mine."
        raise ValueError(checks.message("run_dir", "be relative to the workspace", str(run_dir), step))
    address = re.sub(r"(?<=//)[^@/]+@", "", _git("remote", "get-url", "origin"))
    if not address:
        step = "Run this in a checkout that was pushed: Colab clones it from there."
        raise ValueError(checks.message("--on", "have a git remote `origin` to fetch from", "colab", step))
    branch = branch or _git("branch", "--show-current") or "main"
    path = Path(f"{run_dir.name}_on_colab.py")
    told = json.dumps([address, branch, ["run", *words], run_dir.as_posix()])
    workspace.write_bytes(path.absolute(), SCRIPT.format(name=path.name, told=told).encode())
    return path


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

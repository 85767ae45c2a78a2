# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""Runs qnnkit on a Colab machine: colab run --gpu T4 FILE. Written by `qnnkit run --on colab`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

JOB = json.loads("{}")
"""Where the code comes from (address, branch), what to type after `qnnkit` (words), and the run's folder."""
CONTENT = Path(os.environ.get("QNNKIT_CONTENT", "/content"))
SILENCE = 20.0
"""Seconds after which a line is printed in any case: the tool ends what is silent for 30."""
_last = [time.monotonic()]


def main() -> None:
    threading.Thread(target=beat, daemon=True).start()
    checkout, drive = CONTENT / "qnnkit", CONTENT / "drive" / "MyDrive"
    if not checkout.is_dir():
        clone = "git", "clone", "--quiet", "--depth", "1", "--branch", JOB["branch"]
        run(*clone, JOB["address"], str(checkout), GIT_TERMINAL_PROMPT="0")
    held = CONTENT / "qnnkit-constraints.txt"
    held.write_text("".join(f"{name}=={metadata.version(name)}\n" for name in ("torch", "numpy")))
    pip = sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"
    run(*pip, "-c", str(held), "-r", str(checkout / "requirements-colab.txt"))
    home = drive / "qnnkit" if drive.is_dir() else CONTENT / "workspace"
    home.mkdir(parents=True, exist_ok=True)
    places = {"QNNKIT_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    if drive.is_dir():
        places["QNNKIT_LOCAL"] = f"{checkout}-local"
    else:
        say("Drive is not mounted (`colab drivemount` mounts it): the run is on this machine alone.")
    run(sys.executable, "-m", "qnnkit", *JOB["words"], **places)
    packed = shutil.make_archive(str(CONTENT / JOB["run_dir"].replace("/", "_")), "zip", home, JOB["run_dir"])
    say(f"The run folder is packed. Fetch it by: colab download {packed} .")


def run(*command: str, **variables: str) -> None:
    """Runs a command in the checkout, once there is one, and prints its lines as they come."""
    say("$", *command)
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    place = CONTENT / "qnnkit"
    options |= {"cwd": place if place.is_dir() else CONTENT, "env": {**os.environ, **variables}}
    with subprocess.Popen(command, **options) as process:
        for line in process.stdout or ():
            say(line.rstrip())
    if process.returncode != 0:
        sys.exit(f"{command[0]} stopped: the lines above say why. Start the script again, it goes on.")


def say(*words: str) -> None:
    _last[0] = time.monotonic()
    print(*words, flush=True)


def beat() -> None:
    """Prints a line wherever there was none for long."""
    while True:
        time.sleep(SILENCE / 4)
        if time.monotonic() - _last[0] > SILENCE:
            say("... still running")


if __name__ == "__main__":
    main()

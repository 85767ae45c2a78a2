"""On what a run began: code, packages, machine, time. Nothing of it names a person or a host."""

from __future__ import annotations

import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import qnnkit
from qnnkit.device import accelerators, machine

COMPUTING = ("torch", "pennylane", "pennylane-lightning", "accelerate", "numpy", "scikit-learn", "papermill")
"""What to look for where qnnkit's own list is not there: in a checkout that is not installed."""
SECONDS = 10  # that git has; a checkout on a slow drive is no reason to wait longer


def origin() -> dict[str, Any]:
    """What to keep in provenance.json when a run begins; None for what cannot be found out."""
    changed = _git("status", "--porcelain", "--", str(_package())) if _tracked() else None
    commit = _git("rev-parse", "HEAD") if _tracked() else None
    return {
        "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "qnnkit": qnnkit.__version__,
        "commit": commit.decode().strip() if commit else None,
        "commit_changed": None if changed is None else bool(changed.strip()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": _machine(),
        "packages": packages(),
    }


def packages() -> dict[str, str | None]:
    """Installed version of every package that qnnkit computes with; None: not installed."""
    try:
        required = metadata.requires("qnnkit") or []
    except metadata.PackageNotFoundError:
        required = list(COMPUTING)
    computing = (line for line in required if not re.search(r"extra == .(dev|lab|bench)\b", line))
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in computing} - {"qnnkit"}
    return {name: machine.version(name) for name in sorted(names, key=str.lower)}


def _machine() -> dict[str, Any]:
    """Kind of machine, in words that no host name is among."""
    return {
        "processor": machine.processor(),
        "cores": machine.cores(),
        "memory_gb": round(machine.memory()[0] / 1e9, 1),
        "gpus": [f"{name}, driver {driver}" for name, driver in accelerators.nvidia_smi()],
        "colab": machine.on_colab(),
    }


def _package() -> Path:
    return Path(qnnkit.__file__).parent


def _tracked() -> bool:
    """Whether the package is in the checkout around it: an environment may lie in another project's."""
    return _git("ls-files", "--error-unmatch", "--", str(_package() / "__init__.py")) is not None


def _git(*words: str) -> bytes | None:
    """What git says of the checkout that qnnkit was imported from."""
    # Without locks: a git that is cut short would leave one behind, and the checkout could not be written to.
    command = ["git", "--no-optional-locks", "-C", str(_package()), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

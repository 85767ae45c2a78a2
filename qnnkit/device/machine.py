"""The machine around this process: platform, processor, cores, memory, installed packages."""

from __future__ import annotations

import math
import os
import platform
import re
import signal
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # inside a container (version 2) this is the container's own group


def on_colab() -> bool:
    """Whether this is Colab, whose kernels have its own package, also if papermill starts them."""
    try:
        return util.find_spec("google.colab") is not None
    except (ImportError, ValueError):
        return False


def launch_environment(system: str | None = None) -> dict[str, str]:
    """Environment variables to set before torch is imported. On macOS, the CPU then runs what MPS lacks.

    Args:
        system: "Darwin", "Linux" or "Windows"; None takes that of this machine.

    Example:
        >>> launch_environment("Darwin")
        {'PYTORCH_ENABLE_MPS_FALLBACK': '1'}
    """
    return {"PYTORCH_ENABLE_MPS_FALLBACK": "1"} if (system or platform.system()) == "Darwin" else {}


def processor() -> str:
    """The processor as the system names it, such as "Apple M3 Pro" ("VirtualApple" under Rosetta)."""
    if platform.system() == "Darwin":
        return output("sysctl", "-n", "machdep.cpu.brand_string")
    model = re.search(r"^model name\s*:\s*(.+)$", read(Path("/proc/cpuinfo")), re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def cores() -> int:
    """Logical cores that affinity and a container's quota leave to this process."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(usable, _granted("cpu.max")))


def memory() -> tuple[int, int]:
    """RAM that this process may use, in bytes: total and available."""
    import psutil

    seen, limit = psutil.virtual_memory(), _granted("memory.max")
    used = re.search(r"^anon (\d+)", read(CGROUP / "memory.stat"), re.MULTILINE)
    left = limit - int(used[1]) if used else limit
    return int(min(seen.total, limit)), int(min(seen.available, left))


def _granted(file: str) -> float:
    """Limit of the container in `file`: cores in "cpu.max", bytes in "memory.max"; otherwise infinity."""
    amount, _, period = read(CGROUP / file).partition(" ")
    return int(amount) / int(period or 1) if amount.isdigit() else math.inf


def apart(
    code: str, *arguments: str, timeout: float, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Runs Python code in a new process with the same import path, so that a crash ends only that process.

    Raises:
        subprocess.TimeoutExpired: The process took longer than `timeout` seconds and was stopped.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(
        command, env=environment, input=given, capture_output=True, timeout=timeout, check=False
    )


def ending(done: subprocess.CompletedProcess[bytes]) -> tuple[str, str]:
    """How a process ended, such as "SIGKILL" or "exit code 1", and the last line of its errors."""
    code, errors = done.returncode, done.stderr.decode(errors="replace").strip()
    return signal.Signals(-code).name if code < 0 else f"exit code {code}", errors.rpartition("\n")[2]


def version(package: str) -> str | None:
    """The installed version of `package`, or None."""
    return next((each.version for each in metadata.distributions(name=package)), None)


def read(path: Path) -> str:
    """The text of a small system file, or "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def output(*command: str) -> str:
    """The output of `command`, or "" if it is missing, fails or takes over ten seconds."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""

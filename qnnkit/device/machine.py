"""The machine around this process: platform, processor, memory, installed packages."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def on_colab() -> bool:
    """Whether Colab's own package is here; its kernels have it, also those that papermill starts."""
    try:
        return util.find_spec("google.colab") is not None
    except (ImportError, ValueError):
        return False


def platform_name() -> str:
    """One of "colab", "mac", "windows" and "linux"; any other Unix counts as linux."""
    if on_colab():
        return "colab"
    return {"Darwin": "mac", "Windows": "windows"}.get(platform.system(), "linux")


def launch_environment(system: str | None = None) -> dict[str, str]:
    """Environment variables that launch code sets before torch is imported.

    Args:
        system: As `platform.system()` names it; this machine's if None.

    Returns:
        On macOS the variable that lets operations unknown to MPS run on the CPU; elsewhere nothing.

    Example:
        >>> launch_environment("Darwin")
        {'PYTORCH_ENABLE_MPS_FALLBACK': '1'}
    """
    return {"PYTORCH_ENABLE_MPS_FALLBACK": "1"} if (system or platform.system()) == "Darwin" else {}


def mac_chip() -> tuple[str | None, bool]:
    """The chip of a Mac, such as "Apple M3 Pro" (None elsewhere), and whether it is Apple silicon."""
    if platform.system() != "Darwin":
        return None, False
    chip = output("sysctl", "-n", "machdep.cpu.brand_string") or None
    # An x86 Python under Rosetta sees another chip name and machine, but the kernel's flag stays.
    return chip, platform.machine() == "arm64" or output("sysctl", "-n", "hw.optional.arm64") == "1"


def cpu_name() -> str:
    """The processor, as the system names it."""
    found = re.search(r"^model name\s*:\s*(.+)$", read(Path("/proc/cpuinfo")), re.MULTILINE)
    return mac_chip()[0] or (found[1] if found else platform.processor() or platform.machine())


def cores() -> tuple[int, int]:
    """Physical and logical cores that affinity and the container's quota leave to this process."""
    import psutil

    process = psutil.Process()
    usable = process.cpu_affinity() if hasattr(process, "cpu_affinity") else None  # macOS has no affinity
    logical = len(usable) if usable else os.cpu_count() or 1
    topology = Path("/sys/devices/system/cpu")
    siblings = {read(topology / f"cpu{core}" / "topology" / "thread_siblings_list") for core in usable or ()}
    physical = len(siblings) if siblings - {""} else psutil.cpu_count(logical=False) or logical
    quota = core_quota()
    if quota is not None:
        logical = max(1, min(logical, math.ceil(quota)))
    return min(physical, logical), logical


def memory() -> tuple[int, int]:
    """RAM that this process may use, in bytes: total and available."""
    import psutil

    seen = psutil.virtual_memory()
    total, available = memory_limit() or (seen.total, seen.available)
    return min(seen.total, total), max(0, min(seen.available, available))


def core_quota(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> float | None:
    """Cores that the container's quota grants this process, or None without a quota."""
    quotas = []
    for group in _groups("cpu", cgroup, membership):
        bandwidth = read(group / "cpu.max").split() or [
            read(group / "cpu.cfs_quota_us"),
            read(group / "cpu.cfs_period_us"),
        ]
        if len(bandwidth) == 2 and all(number.isdigit() for number in bandwidth):
            quotas.append(int(bandwidth[0]) / int(bandwidth[1]))
    return min(quotas, default=None)


def memory_limit(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> tuple[int, int] | None:
    """Bytes that the container grants and bytes left of them, or None without a limit."""
    limits = []
    for group in _groups("memory", cgroup, membership):
        limit = read(group / "memory.max") or read(group / "memory.limit_in_bytes")
        used = read(group / "memory.current") or read(group / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            # The file cache counts as used, yet the kernel gives it back on demand.
            stat = read(group / "memory.stat")
            cached = re.search(r"^total_inactive_file (\d+)", stat, re.MULTILINE) or re.search(
                r"^inactive_file (\d+)", stat, re.MULTILINE
            )
            limits.append((int(limit), int(limit) - int(used) + (int(cached[1]) if cached else 0)))
    if not limits:
        return None
    return min(limit for limit, _ in limits), min(left for _, left in limits)


def _groups(controller: str, cgroup: Path, membership: Path) -> Iterator[Path]:
    """Control groups around this process, innermost first: one tree (version 2), or one a controller."""
    for line in read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = cgroup / controller if controllers else cgroup
        inner = top / path.lstrip("/")
        yield from (group for group in (inner, *inner.parents) if group.is_relative_to(top))


def declared() -> dict[str, str]:
    """The packages that qnnkit needs: name -> requirement, such as "pennylane<0.46,>=0.45"."""
    try:
        lines = [line for line in metadata.requires("qnnkit") or () if ";" not in line]
    except metadata.PackageNotFoundError:  # a clone on sys.path, not installed
        lines = ["torch", "pennylane", "pennylane-lightning"]
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0]: line for line in lines}


def version(package: str) -> str | None:
    """The installed version of `package`, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def pip_install(requirement: str, *options: str, colab: bool | None = None) -> str:
    """The command that installs `requirement`, as typed in a Colab cell or in a shell.

    Example:
        >>> pip_install("pennylane<0.46,>=0.45", colab=False)
        'pip install "pennylane<0.46,>=0.45"'
    """
    pip = "%pip" if (on_colab() if colab is None else colab) else "pip"
    quoted = f'"{requirement}"' if set("<>!;[") & set(requirement) else requirement
    return " ".join([pip, "install", *options, quoted])


def read(path: Path) -> str:
    """The text of a small system file, or nothing where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def output(*command: str) -> str:
    """What `command` prints, or nothing when it is absent, fails or takes over ten seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def first_line(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__

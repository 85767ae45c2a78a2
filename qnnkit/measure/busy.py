"""How busy the machine is with other work: what makes a measured time too long."""

from __future__ import annotations

import re
import time

from qnnkit.device import machine

QUIET = 0.1
"""Share of the cores that other programs may use before it is said: a browser and a desktop at rest."""


def load(seconds: float = 0.3) -> float:
    """Cores' worth of work that other programs do on the cores of this process, while this one waits.

    What has cores of its own to run on does not count: where a container is granted 2 cores of 64, others may
    use 62. Children of this process are others.

    Args:
        seconds: For how long to look.
    """
    import psutil

    this = psutil.Process()
    cores = this.cpu_affinity() if hasattr(this, "cpu_affinity") else list(range(psutil.cpu_count() or 1))
    granted = min(machine.cores(), len(cores))
    begin, idle, used, own = time.perf_counter(), _idle(cores), _used(), sum(this.cpu_times()[:2])
    time.sleep(seconds)
    wall, own = time.perf_counter() - begin, sum(this.cpu_times()[:2]) - own
    elsewhere = len(cores) - (_idle(cores) - idle + own) / wall
    taken = elsewhere - (len(cores) - granted)
    if granted < len(cores):  # a quota is also used up by what else runs in this container
        taken = max(taken, (_used() - used - own) / wall)
    return min(max(taken, 0.0), float(granted))


def note(load: float) -> str | None:
    """What a load means for times that are taken beside it, in a sentence; None where it means little.

    Args:
        load: As `load` gives it.

    Example:
        >>> note(0.0) is None
        True
    """
    cores = machine.cores()
    if load < QUIET * cores:
        return None
    return (
        f"The machine is busy: other programs use {load:.1f} of its {cores} cores, so times come out up to "
        f"{1 + load / cores:.1f} times too long, and longer still on several threads. Close them and measure "
        "again."
    )


def _idle(cores: list[int]) -> float:
    """Seconds for which these cores have had nothing to do, added up."""
    import psutil

    times = psutil.cpu_times(percpu=True)
    return sum(one.idle + getattr(one, "iowait", 0.0) for i, one in enumerate(times) if i in cores)


def _used() -> float:
    """Seconds of work that this container has done on all its cores; 0 where the system does not tell."""
    found = re.search(r"^usage_usec (\d+)", machine.read(machine.CGROUP / "cpu.stat"), re.MULTILINE)
    return int(found[1]) / 1e6 if found else 0.0

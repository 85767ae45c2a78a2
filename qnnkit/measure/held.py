"""Measured memory: what this process holds now, and the most that it has held."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

import torch

from qnnkit.device import machine

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Bytes of RAM that this process holds now."""
    import psutil

    return psutil.Process().memory_info().rss


def free(device: torch.device) -> int:
    """Bytes that are still free in the memory that `device` computes in."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else machine.memory()[1]


def reset_peak(device: torch.device) -> None:
    """Resets the peak that `peak` and `peak_on` report, on Linux and on a CUDA GPU.

    On other systems, the peak remains that of the whole process.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):  # the kernel may forbid it, and other systems have no such file
        CLEAR.write_text("5")  # proc(5): "reset the peak resident set size"


def peak() -> int:
    """The most RAM, in bytes, that this process has held since `reset_peak`, or since it began."""
    with contextlib.suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024  # ru_maxrss is in bytes there, elsewhere in KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peak_on(device: torch.device) -> int:
    """The most bytes held since `reset_peak` in the memory that `device` computes in.

    On a CUDA GPU, this is what torch has reserved, without the driver's own share. MPS keeps no peak: there
    it is what the driver holds for this process now, of which it gives little back. On the CPU, it is RAM.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return peak()

"""Speed of a device: memory bandwidth, matrix products and launches of operations."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from qnnkit.measure.clock import repeated, threads
from qnnkit.measure.held import free

LAUNCHES = 100
ARRAY = 2**28
"""Bytes of each of three arrays: more than most processors and GPUs keep in their caches."""
LONG_ENOUGH, LARGEST = 1e-2, 8192
"""Shortest matrix product, in seconds, whose throughput counts, and the largest size that is tried."""


def figures(
    device: torch.device,
    precisions: Sequence[str] = ("float32",),
    number: int | None = None,
    seconds: float = 1.0,
) -> dict[str, Any]:
    """Measures the speed of a device of this machine, as needed for an estimate of time.

    Args:
        device: Device to measure, a `torch.device`.
        precisions: Precisions of the matrix products, as names of torch's dtypes.
        number: CPU threads; None leaves torch's own number.
        seconds: About how long all of it takes.

    Returns:
        A dictionary of `device`; `bandwidth_gb_s`, in 10^9 bytes per second; `overhead_us`, the microseconds
        that launching a small operation takes; and `tflops`, 10^12 operations per second by precision. A
        precision in which the device does not compute is omitted.
    """
    share, tflops = seconds / (2 + len(precisions)), dict[str, float]()
    with threads(number):
        bandwidth = 1e-9 * _bandwidth(device, share)
        for precision in precisions:
            with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):
                tflops[precision] = 1e-12 * _flops(device, share, precision)
        ones = torch.ones(64, device=device)
        launches = repeated(lambda: [torch.add(ones, ones) for _ in range(LAUNCHES)], device, share)
    overhead = 1e6 * launches / LAUNCHES
    return {"device": str(device), "bandwidth_gb_s": bandwidth, "tflops": tflops, "overhead_us": overhead}


def _bandwidth(device: torch.device, share: float) -> float:
    """Bytes per second of STREAM's triad, which reads two arrays and writes a third one."""
    n = min(ARRAY, free(device) // 16) // 4
    a, b = torch.ones(n, device=device), torch.ones(n, device=device)
    c = torch.empty_like(a)
    return 3 * a.nbytes / repeated(lambda: torch.add(a, b, alpha=2.0, out=c), device, share)


def _flops(device: torch.device, share: float, precision: str) -> float:
    """Operations per second of a matrix product: the smallest power of two that takes long enough."""
    dtype, generator = getattr(torch, precision), torch.Generator().manual_seed(0)

    def product(size: int, seconds: float = 0.0) -> float:
        a, b = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
        return repeated(partial(torch.mm, a, b), device, seconds)

    size = 256
    while size < LARGEST and product(size) < LONG_ENOUGH:
        size *= 2
    return 2 * size**3 / product(size, share)

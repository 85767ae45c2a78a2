"""Time as measured: warm-up, synchronise, median and spread."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Spread:
    """Times of equal calls, in seconds."""

    least: float
    median: float
    most: float
    rounds: int

    @classmethod
    def of(cls, times: list[float]) -> Spread:
        return cls(min(times), statistics.median(times), max(times), len(times))


def seconds(run: Callable[[], Any], device: torch.device, *, rounds: int = 5) -> float:
    """Median time of one call, in seconds, after one that warms up.

    Args:
        run: What is timed.
        device: Where it computes; waited for before each reading of the clock.
        rounds: Number of timed calls.
    """
    run()
    times = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextlib.contextmanager
def threads(number: int | str | None) -> Iterator[None]:
    """As many CPU threads inside, and what there were afterwards; None and "auto" change nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(number if isinstance(number, int) else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

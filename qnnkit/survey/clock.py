"""Times of equal calls, within a share of the survey's time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from qnnkit import measure
from qnnkit.survey.form import Times

UNSTABLE = 2.0
"""The slowest round over the median, from which on a measurement is called unstable."""


def spread(
    run: Callable[[], Any],
    device: torch.device,
    *,
    seconds: float,
    rounds: int = 3,
    most: int = 50,
    least: float = 2e-3,
) -> Times:
    """Seconds of one call, after two that warm up.

    Args:
        run: What is timed.
        device: Where it computes; waited for before each reading of the clock.
        seconds: For how long, about.
        rounds: At least that many, however long they take.
        most: And no more.
        least: Seconds of a round; shorter calls are repeated within one.
    """
    run()
    first = _elapsed(run, device, 1)
    repeats = max(1, min(1000, round(least / max(first, 1e-7))))
    times, begin = [], time.perf_counter()
    while len(times) < rounds or (len(times) < most and time.perf_counter() - begin < seconds):
        times.append(_elapsed(run, device, repeats) / repeats)
    return times_of(times)


def times_of(seconds: list[float]) -> Times:
    """Times as plain values."""
    return Times(**asdict(measure.Spread.of(seconds)))


def scaled(times: Times, factor: float) -> Times:
    """The times of `factor` as much work."""
    return {
        "least": factor * times["least"],
        "median": factor * times["median"],
        "most": factor * times["most"],
        "rounds": times["rounds"],
    }


def is_unstable(times: Times) -> bool:
    return times["most"] > UNSTABLE * times["median"]


class Budget:
    """A share of the survey's time, and what is left of it.

    Args:
        seconds: The share, from now on.
    """

    def __init__(self, seconds: float):
        self.seconds, self.begin = seconds, time.perf_counter()

    @property
    def left(self) -> float:
        """Seconds; negative once it is overdrawn."""
        return self.seconds - (time.perf_counter() - self.begin)


def _elapsed(run: Callable[[], Any], device: torch.device, repeats: int) -> float:
    measure.synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    measure.synchronize(device)
    return time.perf_counter() - start

"""The process of one peer on one workload, and the functions that run in it."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from benchmarks import peers, workloads
from qnnkit.device import machine

SHORTEST_ROUND = 0.25
"""Shortest round in seconds; it repeats the evaluation and takes the median."""
LONGEST = 300.0
"""Seconds after which a peer that does not answer is stopped."""
PEER: Any = None
"""The peer of this process."""


LOST = ("absent", "stopped", "failed")
"""Reasons for a missing answer."""


class Worker:
    """A process that answers requests until one fails."""

    def __init__(self, folder: str):
        # Files of an earlier run, such as a compiler's cache, would hide the cost of the first result.
        home, self.lost = tempfile.mkdtemp(dir=folder), False
        fresh = {"TORCHINDUCTOR_CACHE_DIR": f"{home}/compiler", "QNNKIT_HOME": home}
        environment, spawned = fresh | machine.launch_environment(), multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(1, spawned, initializer=_begin, initargs=(environment,))

    def ask(self, do: Callable[..., dict[str, Any]], *what: Any) -> dict[str, Any]:
        """The result of a function of this module there, or else the reason, by a kind of `LOST`."""
        try:
            reply = self.pool.submit(_answered, do, *what).result(timeout=LONGEST)
        except TimeoutError:
            reply = {"stopped": f"stopped after {LONGEST:.0f} s without an answer"}
        except BrokenProcessPool:
            reply = {"failed": "its process was killed, as happens where memory runs out"}
        self.lost = not reply.keys().isdisjoint(LOST)
        return reply


def _begin(environment: Mapping[str, str]) -> None:
    os.dup2(2, 1)  # libraries may print
    os.environ |= environment


def _answered(do: Callable[..., dict[str, Any]], *what: Any) -> dict[str, Any]:
    try:
        return do(*what)
    except peers.Absent as reason:
        return {"absent": str(reason)}
    except Exception as error:
        trace = traceback.format_exc()
        if "InvalidCxxCompiler" in trace:  # Inductor needs a compiler, which some machines lack
            return {"absent": "is left out: torch.compile finds no C++ compiler"}
        print(trace, file=sys.stderr, flush=True)
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def set_up(name: str, key: str, quick: bool, device: str) -> dict[str, Any]:
    """Builds the peer and evaluates once: the first result, with the seconds it took."""
    global PEER
    import psutil

    workload = workloads.find(key, quick=quick)
    peers.libraries(name)
    workload.data()  # its libraries are also loaded before the clock starts
    before, start = psutil.Process().memory_info().rss, time.perf_counter()
    PEER = peers.make(name, workload, device)
    PEER.first()
    reply = {"first_s": time.perf_counter() - start, "before_mb": before / 1e6}
    PEER.plan()
    return reply | {"samples": PEER.samples, "total": PEER.total, "device": PEER.place()}


def timed_round() -> dict[str, Any]:
    """Seconds for the whole workload, scaled from the samples that the peer evaluates."""
    seconds: list[float] = []
    while sum(seconds) < SHORTEST_ROUND:
        start = time.perf_counter()
        PEER.run()
        seconds.append(time.perf_counter() - start)
    scaled = statistics.median(seconds) * PEER.total / PEER.samples
    return {"seconds": scaled, "spent": sum(seconds)}


def peak() -> dict[str, Any]:
    """The peak memory of the process, in MB of 10**6 bytes."""
    import torch

    from qnnkit.measure import held

    reply = {"peak_mb": held.peak() / 1e6}
    if PEER.device.type == "cuda":
        reply["peak_gpu_mb"] = torch.cuda.max_memory_allocated(PEER.device) / 1e6
    return reply


def answer() -> dict[str, Any]:
    """The numbers to check, and their type."""
    numbers = PEER.answer()
    return {"dtype": PEER.dtype, "numbers": numbers}


def reference(key: str, quick: bool, control: bool) -> dict[str, Any]:
    """The same numbers in float64."""
    return {"numbers": peers.reference(workloads.find(key, quick=quick), control=control)}

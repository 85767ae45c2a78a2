"""A process that holds one peer on one workload and does what its parent asks, function by function."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import peers, workloads

SHORTEST_ROUND = 0.25
"""Seconds that a round lasts at least, by evaluating again; its time is then their median."""


def serve(name: str, connection: Connection, log: str, environment: Mapping[str, str]) -> None:
    """Answers with what was found, or says why there is nothing, until it is killed."""
    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 1)  # libraries may print
        os.dup2(file.fileno(), 2)
    os.environ |= environment
    with contextlib.suppress(peers.Absent):
        peers.libraries(name)  # while others load theirs, and before any clock starts
    held: dict[str, Any] = {"name": name}
    while True:
        do, what = connection.recv()
        try:
            reply = DO[do](held, **what)
        except peers.Absent as reason:
            reply = {"absent": str(reason)}
        except Exception as error:
            if _lacks_compiler(error):
                reply = {"absent": "is left out: torch.compile finds no C++ compiler"}
            else:
                import traceback

                traceback.print_exc()
                reply = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        connection.send(reply)


def set_up(held: dict[str, Any], key: str, quick: bool, device: str) -> dict[str, Any]:
    """Builds the peer and evaluates once: the first result, with the seconds it took."""
    import psutil

    workload = workloads.find(key, quick=quick)
    peers.libraries(held["name"])
    workload.data()  # its libraries too are loaded before the clock starts
    before, start = psutil.Process().memory_info().rss, time.perf_counter()
    peer = held["peer"] = peers.make(held["name"], workload, device)
    peer.first()
    reply = {"first_s": time.perf_counter() - start, "before_mb": before / 1e6}
    if hasattr(peer, "plan"):
        peer.plan()
    return reply | {"samples": peer.samples, "total": peer.total, "device": peer.place()}


def timed_round(held: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the whole workload, scaled from the samples that the peer evaluates."""
    peer, seconds = held["peer"], []
    while sum(seconds) < SHORTEST_ROUND:
        start = time.perf_counter()
        peer.run()
        seconds.append(time.perf_counter() - start)
    reply = {"seconds": statistics.median(seconds) * peer.total / peer.samples, "spent": sum(seconds)}
    return reply | ({"share": peer.share} if hasattr(peer, "share") else {})


def peak(held: dict[str, Any]) -> dict[str, Any]:
    """The most memory that the process has held, in MB of 10**6 bytes."""
    from qnnkit.measure import held as memory

    peer = held["peer"]
    reply = {"peak_mb": memory.peak() / 1e6}
    if hasattr(peer, "device") and peer.device.type == "cuda":
        reply["peak_gpu_mb"] = peer.torch.cuda.max_memory_allocated(peer.device) / 1e6
    return reply


def answer(held: dict[str, Any]) -> dict[str, Any]:
    """The numbers to check, and the type they came in."""
    numbers = held["peer"].answer()
    return {"dtype": held["peer"].dtype, "numbers": numbers}


def reference(held: dict[str, Any], key: str, quick: bool, control: bool) -> dict[str, Any]:
    """The same numbers in float64."""
    return {"numbers": peers.reference(workloads.find(key, quick=quick), control=control)}


DO = {"set up": set_up, "round": timed_round, "peak": peak, "answer": answer, "reference": reference}


def _lacks_compiler(error: BaseException | None) -> bool:
    """Whether the reason is that Inductor found no C++ compiler, which not every machine has."""
    while error is not None:
        if "InvalidCxxCompiler" in f"{type(error).__name__} {error}":
            return True
        error = error.__cause__ or error.__context__
    return False

"""A process that holds one peer on one workload and does what its parent asks, in lines of JSON.

Asked `{"do": ...}`, it answers with one line on standard output: `set up`, `round`, `peak`, `answer`, or for
the float64 numbers `reference`. Whatever else is printed goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import peers, workloads

SHORTEST_ROUND = 0.25
"""Seconds that a round lasts at least, by evaluating again; its time is then their median."""


def serve(do: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answers until there are no more lines; each kind of work is a function of what is held, and more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print, and only answers belong there
    held: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            reply = do[asked.pop("do")](held, **asked)
        except peers.Absent as reason:
            reply = {"absent": str(reason)}
        except Exception as error:
            if _lacks_compiler(error):
                reply = {"absent": "is left out: torch.compile finds no C++ compiler"}
            else:
                import traceback

                traceback.print_exc()
                reply = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        print(json.dumps(reply), file=answers, flush=True)


def set_up(held: dict[str, Any], key: str, quick: bool, device: str) -> dict[str, Any]:
    """Builds the peer and evaluates once: the first result, with the seconds it took."""
    workload = workloads.find(key, quick=quick)
    peers.libraries(sys.argv[1])
    workload.data()  # its libraries too are loaded before the clock starts
    before = _resident()
    start = time.perf_counter()
    peer = peers.make(sys.argv[1], workload, device)
    peer.first()
    seconds = time.perf_counter() - start
    if hasattr(peer, "plan"):
        peer.plan()
    held["peer"] = peer
    return {
        "first_s": seconds,
        "before_mb": before / 1e6,
        "samples": peer.samples,
        "total": peer.total,
        "device": _device(peer),
    }


def timed_round(held: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the whole workload, scaled from the samples that the peer evaluates."""
    peer, seconds, spent = held["peer"], [], 0.0
    while spent < SHORTEST_ROUND:
        start = time.perf_counter()
        peer.run()
        seconds.append(time.perf_counter() - start)
        spent += seconds[-1]
    reply = {"seconds": statistics.median(seconds) * peer.total / peer.samples, "spent": spent}
    return reply | ({"share": peer.share} if hasattr(peer, "share") else {})


def peak(held: dict[str, Any]) -> dict[str, Any]:
    """The most memory that the process has held, in MB of 10**6 bytes."""
    peer = held["peer"]
    reply = {"peak_mb": _most_resident() / 1e6}
    if hasattr(peer, "device") and peer.device.type == "cuda":
        reply["peak_gpu_mb"] = peer.torch.cuda.max_memory_allocated(peer.device) / 1e6
    return reply


def answer(held: dict[str, Any]) -> dict[str, Any]:
    """The numbers to check, and the type they came in."""
    numbers = held["peer"].answer()
    return {"dtype": held["peer"].dtype, "numbers": {name: part.tolist() for name, part in numbers.items()}}


def reference(held: dict[str, Any], key: str, quick: bool, control: bool) -> dict[str, Any]:
    """The same numbers in float64."""
    numbers = peers.reference(workloads.find(key, quick=quick), control=control)
    return {"numbers": {name: part.tolist() for name, part in numbers.items()}}


DO = {
    "set up": set_up,
    "round": timed_round,
    "peak": peak,
    "answer": answer,
    "reference": reference,
}


def _device(peer: Any) -> str:
    if not hasattr(peer, "device"):
        return peer.jax.default_backend()
    return peer.torch.cuda.get_device_name(peer.device) if peer.device.type == "cuda" else str(peer.device)


def _resident() -> int:
    import psutil

    return psutil.Process().memory_info().rss


def _most_resident() -> int:
    """In bytes. Linux starts `ru_maxrss` of a new program at its parent's peak, but not VmHWM."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _lacks_compiler(error: BaseException | None) -> bool:
    """Whether the reason is that Inductor found no C++ compiler, which not every machine has."""
    while error is not None:
        if type(error).__name__ == "InvalidCxxCompiler" or "InvalidCxxCompiler" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    with contextlib.suppress(peers.Absent):
        peers.libraries(sys.argv[1])  # while others load theirs, and before any clock starts
    serve(DO)

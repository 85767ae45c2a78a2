"""Whether `auto` is fast, beside fixed choices of device, backend and number of threads.

    python -m benchmarks.placing

Forward, backward and optimizer of two circuits (W1, W3, see `workloads.py`), and one training epoch of two
recipes. A fresh process per choice, and they take turns, so that a slow minute of the machine hits all alike;
medians over rounds. Whether OpenMP inside PennyLane's lightning follows torch's number of threads or what
OMP_NUM_THREADS was when the process started depends on the platform: a process with a fixed number has both,
one on `auto` starts without the variable, as people's do. Exit status 1 if `auto` is slower than the slowest
fixed choice, or more than 10 % slower than the fastest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.run import Worker, names_of

KEYS = ("W1", "W3-64", "W3-256", "digits_quanv", "ahcd_ten_epochs")
BACKENDS = ("batched", "default.qubit", "lightning.qubit")
NEAR = 1.1
"""Times the fastest fixed choice that `auto` may take."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def choices(devices: Sequence[str], backends: Sequence[str], threads: Sequence[int]) -> list[dict[str, Any]]:
    """What is compared: `auto` first, then every fixed choice."""
    fixed = [
        {"device": device, "backend": backend, "threads": number}
        for device in devices
        for backend in backends
        for number in (threads if device == "cpu" else threads[-1:])
    ]
    return [{"device": "auto", "backend": "auto", "threads": "auto"}, *fixed]


def name_of(place: dict[str, Any]) -> str:
    """Such as "batched on cpu, 2 threads"."""
    if place["backend"] == "auto":
        return "auto"
    return f"{place['backend']} on {place['device']}, {place['threads']} thread{'s' * (place['threads'] > 1)}"


def environment(place: dict[str, Any]) -> dict[str, str]:
    """In which the process of a choice starts."""
    found = {name: value for name, value in os.environ.items() if name not in THREADS}
    if place["threads"] != "auto":
        found |= dict.fromkeys(THREADS, str(place["threads"]))
    return found


def compare(key: str, places: Sequence[dict[str, Any]], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per choice."""
    with tempfile.TemporaryDirectory(prefix="qnnkit-placing-") as folder:
        workers = [
            Worker(name_of(place), Path(folder), "benchmarks.placing_worker", environment(place))
            for place in places
        ]
        try:
            for worker, place in zip(workers, places, strict=True):
                worker.row = {"workload": key, "choice": worker.name, "rounds": [], "spent": 0.0}
                given = {**place, "seconds": asked.seconds}
                _note(worker, worker.ask("set up", key=key, quick=asked.quick, place=given))
            for number in range(asked.rounds):
                for worker in workers[number % len(workers) :] + workers[: number % len(workers)]:
                    if "failed" not in worker.row and worker.row["spent"] < asked.budget:
                        _note(worker, worker.ask("round"))
        finally:
            for worker in workers:
                worker.close()
    return [worker.row for worker in workers]


def _note(worker: Worker, reply: dict[str, Any]) -> None:
    for kind in ("failed", "stopped", "absent"):
        if kind in reply:
            worker.row["failed"] = reply[kind]
            print(f"{worker.name}: {reply[kind]}", *worker.last_words(), sep="\n", file=sys.stderr)
            return
    if "seconds" in reply:
        worker.row["rounds"].append(reply["seconds"])
        worker.row["spent"] += reply["spent"]
    else:
        worker.row |= reply


def complete(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one workload with median and spread, and the time over that of the fastest fixed choice."""
    for row in rows:
        if row["rounds"]:
            row["median"], row["least"], row["most"] = (
                told(row["rounds"]) for told in (statistics.median, min, max)
            )
    fixed = [row["median"] for row in rows if "median" in row and row["choice"] != "auto"]
    for row in rows:
        if "median" in row and fixed:
            row["ratio"] = row["median"] / min(fixed)
    return list(rows)


def problems(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each workload on which `auto` does not keep its promise, or was not measured."""
    found = []
    for key in dict.fromkeys(row["workload"] for row in rows):
        here = [row for row in rows if row["workload"] == key]
        auto = next(row for row in here if row["choice"] == "auto")
        fixed = {row["choice"]: row["median"] for row in here if "median" in row and row is not auto}
        if "median" not in auto or not fixed:
            found.append(f"{key}: there is nothing to compare, as {auto.get('failed', 'nothing was timed')}.")
            continue
        best, worst = min(fixed, key=fixed.__getitem__), max(fixed, key=fixed.__getitem__)
        if auto["median"] > NEAR * fixed[best]:
            found.append(f"{key}: auto takes {auto['median'] / fixed[best]:.2f} times as long as {best}.")
        if auto["median"] > fixed[worst]:
            found.append(f"{key}: auto is slower than {worst}, the slowest.")
    return found


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the table has it: milliseconds of a training step (W1, W3) or an epoch of a recipe."""
    times = {f"{name}_ms": 1e3 * row[name] for name in ("median", "least", "most") if name in row}
    kept = {name: row[name] for name in ("workload", "choice", "ratio", "share", "failed") if name in row}
    return {**kept, **times, "rounds": len(row["rounds"])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_of, default=list(KEYS), help=f"of {','.join(KEYS)}")
    parser.add_argument("--backends", type=names_of, default=list(BACKENDS), help="fixed ones")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of rounds per choice")
    parser.add_argument("--seconds", type=float, default=10.0, help="that auto may measure, about")
    parser.add_argument("--quick", action="store_true", help="sizes of a test")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    asked = parser.parse_args()
    unknown = [key for key in asked.only if key not in KEYS]
    if unknown or asked.rounds < 1:
        parser.error(f"--only must name {','.join(KEYS)}, and --rounds be at least 1")
    for variable in THREADS:  # before torch is imported: every number of threads is to be compared
        os.environ.pop(variable, None)
    from qnnkit import measure
    from qnnkit.measure import placement

    if busy := measure.note(measure.load(1.0)):
        print(busy)
    places = choices(placement.devices("auto"), asked.backends, placement.thread_counts())
    rows: list[dict[str, Any]] = []
    for key in asked.only:
        begin = time.perf_counter()
        rows += complete(compare(key, places, asked))
        print(f"{key} measured in {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    record.keep("placing", map(flat, rows), asked.out)
    for row in rows:
        if row["choice"] == "auto" and "place" in row:
            print(f"{row['workload']}: {row['place']['sentence']}")
    if found := problems(rows):
        raise SystemExit("\n".join(found))
    print(
        f"auto is within {NEAR - 1:.0%} of the fastest fixed choice, and not slower than the slowest, on all."
    )


if __name__ == "__main__":
    main()

"""Whether `auto` is fast, beside fixed choices of device, backend and number of threads.

    python -m benchmarks.placing

Forward, backward and optimizer of two circuits (W1, W3, see `workloads.py`), and one training epoch of two
recipes; some ten minutes, and docs/results/placing.csv. A fresh process per choice, and they take turns, so
that a slow minute of the machine hits all alike; medians over rounds. Whether OpenMP inside PennyLane's
lightning follows torch's number of threads or what OMP_NUM_THREADS was when the process started depends on
the platform: a process with a fixed number has both, one on `auto` starts without the variable, as people's
do. Exit status 1 if `auto` is slower than the slowest fixed choice, or over 10 % slower than the fastest.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks import record
from benchmarks.run import Worker, in_turns, names_of
from qnnkit.device import machine
from qnnkit.measure import placement

KEYS = ("W1", "W3-64", "W3-256", "digits_quanv", "ahcd_ten_epochs")
BACKENDS = ("batched", "default.qubit", "lightning.qubit")
NEAR = 1.1
"""Times the fastest fixed choice that `auto` may take."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def choices(
    devices: Sequence[str], backends: Sequence[str], threads: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """What is compared, by name: `auto` first, then every fixed choice."""
    found = {"auto": {"device": "auto", "backend": "auto", "threads": "auto"}}
    for device in devices:
        for backend in backends:
            for n in threads if device == "cpu" else threads[-1:]:
                name = f"{backend} on {device}, {n} thread{'s' * (n > 1)}"
                found[name] = {"device": device, "backend": backend, "threads": n}
    return found


def environment(place: Mapping[str, Any]) -> dict[str, str]:
    """In which the process of a choice starts."""
    found = {name: value for name, value in os.environ.items() if name not in THREADS}
    if place["threads"] != "auto":
        found |= dict.fromkeys(THREADS, str(place["threads"]))
    return found


def compare(key: str, places: Mapping[str, Any], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per choice."""
    with tempfile.TemporaryDirectory(prefix="qnnkit-placing-") as folder:
        workers = [
            Worker(name, Path(folder), "benchmarks.placing_worker", environment(place))
            for name, place in places.items()
        ]
        try:
            for worker in workers:
                worker.row = {"workload": key, "choice": worker.name, "chosen": ""}
                place = {**places[worker.name], "seconds": asked.seconds}
                worker.note("set up", key=key, quick=asked.quick, place=place)
            in_turns(workers, asked.rounds, asked.budget)
        finally:
            for worker in workers:
                worker.close()
    return [worker.row | worker.times() for worker in workers]


def beside_auto(table: pd.DataFrame) -> Iterator[tuple[Any, pd.Series, pd.Series]]:
    """Each workload, its row of `auto`, and the milliseconds of the fixed choices, the fastest first."""
    for key, rows in table.groupby("workload", sort=False):
        rows = rows.set_index("choice")
        yield key, rows.loc["auto"], rows["median_ms"].drop("auto").dropna().sort_values()


def problems(table: pd.DataFrame) -> list[str]:
    """A sentence for each workload on which `auto` does not keep its promise, or was not measured."""
    found = []
    for key, auto, fixed in beside_auto(table):
        if fixed.empty or pd.isna(auto["median_ms"]):
            found.append(f"{key}: there is nothing to compare.")
            continue
        if auto["median_ms"] > NEAR * fixed.iloc[0]:
            ratio = auto["median_ms"] / fixed.iloc[0]
            found.append(f"{key}: auto takes {ratio:.2f} times as long as {fixed.index[0]}.")
        if auto["median_ms"] > fixed.iloc[-1]:
            found.append(f"{key}: auto is slower than {fixed.index[-1]}, the slowest.")
    return found


def markdown(table: pd.DataFrame) -> str:
    """What docs/measure.md shows of docs/results/placing.csv."""
    lines = ["| | `auto` chose | ms | fastest fixed choice | ms | ratio |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {key} | {auto['chosen']} | {auto['median_ms']:.3g} | {fixed.index[0]} | {fixed.iloc[0]:.3g} "
        f"| {auto['median_ms'] / fixed.iloc[0]:.2f} |"
        for key, auto, fixed in beside_auto(table)
        if len(fixed)
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_of, default=list(KEYS), help=f"of {','.join(KEYS)}")
    parser.add_argument("--backends", type=names_of, default=list(BACKENDS), help="fixed ones")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of rounds per choice")
    parser.add_argument("--seconds", type=float, default=10.0, help="that auto may measure, about")
    parser.add_argument("--quick", action="store_true", help="sizes of a test")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    asked = parser.parse_args()
    if not set(asked.only) <= set(KEYS) or asked.rounds < 1:
        parser.error(f"--only must name {','.join(KEYS)}, and --rounds be at least 1")
    record.say_if_busy()
    torch.set_num_threads(machine.cores())  # whatever OMP_NUM_THREADS says: all numbers are to be compared
    places = choices(placement.devices("auto"), asked.backends, placement.thread_counts())
    rows: list[dict[str, Any]] = []
    for key in asked.only:
        begin = time.perf_counter()
        rows += compare(key, places, asked)
        print(f"{key} measured in {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    table = record.keep("placing", rows, asked.out, threads="as named")
    print(f"\n{markdown(table)}\n")
    if found := problems(table):
        raise SystemExit("\n".join(found))
    print(
        f"auto is within {NEAR - 1:.0%} of the fastest fixed choice, and not slower than the slowest, on all."
    )


if __name__ == "__main__":
    main()

"""qnnkit's quantum layer against its peers on this machine: `make bench`, or python -m benchmarks.run.

Every workload has one process per peer. All are set up one after the other, then they take turns, so that
only one computes at a time and a slow minute of the machine hits all equally. bench.csv has a row for each:

median_ms, min_ms, max_ms  of the rounds, of the whole workload
x_batched, x_compiled      the median over that of qnnkit's program, eager and compiled
first_s                    construction and first evaluation, from a cold compiler cache, without imports
peak_mb, before_mb         resident memory of the process, and what it had after its imports
deviation                  from float64 (default.qubit, above 8 wires lightning.qubit), of values and
                           gradients; relative where an array's largest number is above 1
x_classical                of the epoch: the median over that of the classical control
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import peers, record, worker, workloads
from qnnkit.device import machine

if TYPE_CHECKING:  # every process starts with this file
    import pandas as pd

TOLERANCE = 1e-4
"""Largest deviation of a peer in float32 from float64, see `peers.deviation`."""
PACKAGES = ("torch", "pennylane", "pennylane-lightning", "pennylane-lightning-gpu", "jax", "numpy")


def measure(key: str, names: Sequence[str], asked: Namespace, folder: str) -> list[dict[str, Any]]:
    """A row per peer of a workload, in their order."""
    known: dict[bool, Any] = {}
    workers = {name: worker.Worker(folder) for name in (*names, "float64")}
    rows = {name: {"workload": key, "peer": name} for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    spent = dict.fromkeys(names, 0.0)
    try:
        for name in names:
            rows[name] |= workers[name].ask(worker.set_up, name, key, asked.quick, asked.device)
        for number in range(asked.rounds):
            turn = number % max(1, len(names))
            for name in [*names[turn:], *names[:turn]]:  # one after the other, in changing order
                if not workers[name].lost and spent[name] < asked.budget:
                    reply = workers[name].ask(worker.timed_round)
                    taken[name] += [reply.pop("seconds")] if "seconds" in reply else []
                    spent[name] += reply.pop("spent", 0.0)
                    rows[name] |= reply
        for name in names:
            for do in (worker.peak, worker.answer):  # the check is not part of the measured memory
                rows[name] |= workers[name].ask(do) if not workers[name].lost else {}
            numbers, control = rows[name].pop("numbers", None), name == "classical"
            if numbers and control not in known:
                known[control] = workers["float64"].ask(worker.reference, key, asked.quick, control)
            if numbers and "numbers" in known[control]:
                rows[name]["deviation"] = peers.deviation(numbers, known[control]["numbers"])
            elif numbers:
                rows[name]["failed"] = f"no float64 numbers to compare with: {known[control]}"
            rows[name]["rounds"] = len(taken[name])
            for end, of in {"median": statistics.median, "min": min, "max": max}.items():
                rows[name][f"{end}_ms"] = 1e3 * of(taken[name]) if taken[name] else math.nan
    finally:
        for process in multiprocessing.active_children():
            process.kill()
    return complete(list(rows.values()), asked.rounds)


# --- the table ----------------------------------------------------------------------------------------------


def complete(rows: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """The rows of one workload with notes, and ratios to qnnkit's program in both forms."""
    medians = {row["peer"]: row["median_ms"] for row in rows}
    for row in rows:
        row["notes"] = notes(row, rounds)
        for base in ("batched", "compiled", "classical"):
            row[f"x_{base}"] = row["median_ms"] / medians.get(base, math.nan)
    return rows


def problems(rows: Sequence[dict[str, Any]], tolerance: float = TOLERANCE) -> list[str]:
    """A sentence for every peer that failed or whose numbers are wrong."""
    lines = []
    for row in rows:
        who = f"{row['workload']}: {peers.LABELS[row['peer']]}"
        if row.get("failed"):
            lines.append(f"{who} failed: {row['failed']}.")
        if "deviation" in row and not row["deviation"] <= tolerance:
            far = f"{row['deviation']:.1e}"
            lines.append(f"{who} deviates from float64 by {far}, where {tolerance:g} is allowed.")
    return lines


def notes(row: Mapping[str, Any], rounds: int) -> str:
    """Notes on a row: whether it is scaled, its precision, its number of rounds, and why it has no times."""
    parts = []
    if row.get("samples", 0) < row.get("total", 0):
        parts.append(f"scaled up from {row['samples']:,} of {row['total']:,}")
    if row.get("dtype") == "float64":
        parts.append("computes in float64")
    if 0 < row["rounds"] < rounds:
        parts.append(f"{row['rounds']} of {rounds} rounds")
    return "; ".join([*parts, *(row[why] for why in worker.LOST if row.get(why))])


SPEED = {
    "W1": "trainable quanvolution: 4 wires, 8,192 circuits",
    "W2": "frozen quanvolution: 200,704 patches, forward only",
    "W3-64": "hybrid head: 4 wires, 3 layers, batch 64",
    "W3-256": "the same, batch 256",
}
MOVED = {
    "W6-basic": "RX, `BasicEntanglerLayers`; a call for each patch",
    "W6-strong": "RY, `StronglyEntanglingLayers`; one call",
    "W6-gates": "gate by gate; one call",
}
"""Workload -> its name in the table."""


def table(rows: pd.DataFrame) -> str:
    """The medians that the README shows, in ms."""
    columns = {"qnnkit": "batched", "`default.qubit`": "default.qubit", "JAX `jit(vmap)`": "jax"}
    return _table(rows, SPEED, {name: ("median_ms", peer) for name, peer in columns.items()})


def moved(rows: pd.DataFrame) -> str:
    """Steps of nets that were moved from TorchLayer, in ms."""
    columns = {
        "`QuantumLayer`": ("median_ms", "batched"),
        "`TorchLayer`, `lightning.qubit`": ("median_ms", "lightning.qubit"),
        "`lightning.qubit`, times as long": ("x_batched", "lightning.qubit"),
        "`TorchLayer`, `default.qubit`": ("median_ms", "default.qubit"),
        "`default.qubit`, times as long": ("x_batched", "default.qubit"),
    }
    return _table(rows, MOVED, columns)


def widths(rows: pd.DataFrame) -> str:
    """Medians and peak memory by the number of wires."""
    columns = {
        "qnnkit (ms)": ("median_ms", "batched"),
        "JAX (ms)": ("median_ms", "jax"),
        "`lightning.qubit` (ms)": ("median_ms", "lightning.qubit"),
        "peak memory of qnnkit's process (MB)": ("peak_mb", "batched"),
    }
    return _table(rows, {f"W4-{wires}": f"{wires} wires" for wires in workloads.WIDTHS}, columns)


def _table(rows: pd.DataFrame, titles: Mapping[str, str], columns: Mapping[str, tuple[str, str]]) -> str:
    """Columns (measurement, peer) of some workloads, to three digits, in Markdown."""
    known = rows.pivot_table(index="workload", columns="peer", values=["median_ms", "x_batched", "peak_mb"])
    lines = []
    for key, title in titles.items():
        rounded = [float(f"{known.loc[key, column]:.3g}") for column in columns.values()]
        lines.append([title, *(f"{number:g}" for number in rounded)])
    return record.markdown(["", *columns], lines)


def main() -> None:
    parser = record.parser(__doc__)
    record.names(parser, "--only", workloads.GROUPS)
    record.names(parser, "--peers", peers.LABELS)
    rounds: Any = {"choices": range(1, 1000), "metavar": "N", "default": 7}
    parser.add_argument("--rounds", type=int, **rounds, help="times each peer is measured, at most")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds per peer and workload")
    parser.add_argument("--device", default="cpu", help="where torch's peers compute: cpu, cuda")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="qnnkit-bench-") as folder:
        for key in workloads.keys(asked.only, quick=asked.quick):
            start, workload = time.perf_counter(), workloads.find(key, quick=asked.quick)
            absent = {row["peer"] for row in rows if "absent" in row}
            names = [name for name in asked.peers if name not in absent and peers.takes_part(name, workload)]
            rows += [row | {"size": workload.size} for row in measure(key, names, asked, folder)]
            print(f"{key} measured in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    for row in rows:
        if "absent" in row:
            print(f"{peers.LABELS[row['peer']]} {row['absent']}.", file=sys.stderr)
    rows = [row for row in rows if "absent" not in row]
    versions = {package: machine.version(package) for package in PACKAGES}
    name = "bench" if asked.device == "cpu" else f"bench_{asked.device.replace(':', '_')}"
    record.keep(name, rows, asked.out, **versions)
    record.finish(problems(rows))


if __name__ == "__main__":
    main()

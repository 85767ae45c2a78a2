"""qnnkit's quantum layer against its peers on this machine: `make bench`, or python -m benchmarks.run.

The peers of a workload are made one after the other and checked; then they take turns, so that only one
computes at a time and a slow minute of the machine hits all alike. bench.csv has a row for each:

median_ms, min_ms, max_ms  of the rounds, of the whole workload
x_batched, x_compiled      the median over that of qnnkit's program, eager and compiled
deviation                  from float64 (default.qubit, above 8 wires lightning.qubit), of values and
                           gradients; relative where an array's largest number is above 1
x_classical                of the epoch: the median over that of the classical control
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers, record, workloads
from qnnkit.device import machine

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 1e-4
"""What a peer in float32 may deviate from float64, see `peers.deviation`."""
SHORTEST_ROUND = 0.25
"""Seconds that a round lasts at least, by evaluating again; its time is then their median."""
PACKAGES = ("torch", "pennylane", "pennylane-lightning", "pennylane-lightning-gpu", "jax", "numpy")


def measure(key: str, names: Sequence[str], asked: Namespace) -> list[dict[str, Any]]:
    """A row for each peer of a workload, in their order."""
    workload, taken = workloads.find(key, quick=asked.quick), dict[str, list[float]]()
    made = {name: prepared(name, workload, asked.device) for name in names}
    turns = [name for name, (peer, _) in made.items() if peer is not None]
    spent = dict.fromkeys(turns, 0.0)
    for number in range(asked.rounds):
        turn = number % max(1, len(turns))
        for name in [*turns[turn:], *turns[:turn]]:  # one after the other, in changing order
            if spent[name] < asked.budget:
                begin = time.perf_counter()
                taken.setdefault(name, []).append(seconds(made[name][0]))
                spent[name] += time.perf_counter() - begin
    rows = []
    for name, (_, row) in made.items():
        times = taken.get(name, [])
        ends = {"median": statistics.median, "min": min, "max": max}
        ms = {f"{end}_ms": 1e3 * of(times) if times else math.nan for end, of in ends.items()}
        rows.append({"workload": key, "peer": name, **row, "rounds": len(times), **ms})
    return complete(rows, asked.rounds)


def prepared(name: str, workload: workloads.Workload, device: str) -> tuple[Any, dict[str, Any]]:
    """A peer that has evaluated once, with what its row says of it; None with why there is none."""
    try:
        peers.libraries(name)
        peer = peers.make(name, workload, device)
        peer.first()
        peer.plan()
        found, right = peer.answer(), peers.reference(workload, control=name == "classical")
    except peers.Absent as reason:
        return None, {"absent": str(reason)}
    except Exception as error:
        trace = traceback.format_exc()
        if "InvalidCxxCompiler" in trace:  # of Inductor, which not every machine has
            return None, {"absent": "is left out: torch.compile finds no C++ compiler"}
        print(trace, file=sys.stderr, flush=True)
        return None, {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    about = {"samples": peer.samples, "total": peer.total, "device": peer.place(), "dtype": peer.dtype}
    return peer, about | {"deviation": peers.deviation(found, right)}


def seconds(peer: Any) -> float:
    """Of the whole workload, scaled from the samples that the peer evaluates."""
    times: list[float] = []
    while sum(times) < SHORTEST_ROUND:
        begin = time.perf_counter()
        peer.run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * peer.total / peer.samples


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
    found = []
    for row in rows:
        who = f"{row['workload']}: {peers.LABELS[row['peer']]}"
        if row.get("failed"):
            found.append(f"{who} failed: {row['failed']}.")
        if "deviation" in row and not row["deviation"] <= tolerance:
            far = f"{row['deviation']:.1e}"
            found.append(f"{who} deviates from float64 by {far}, where {tolerance:g} is allowed.")
    return found


def notes(row: Mapping[str, Any], rounds: int) -> str:
    """What a reader has to know of a row: scaled, in which precision, on how many rounds, why not at all."""
    told = []
    if row.get("samples", 0) < row.get("total", 0):
        told.append(f"scaled up from {row['samples']:,} of {row['total']:,}")
    if row.get("dtype") == "float64":
        told.append("computes in float64")
    if 0 < row["rounds"] < rounds:
        told.append(f"{row['rounds']} of {rounds} rounds")
    return "; ".join([*told, *(row[why] for why in ("absent", "failed") if row.get(why))])


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
"""Workloads of a table, and what it calls them."""


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
    """Medians by the number of wires."""
    columns = {
        "qnnkit (ms)": ("median_ms", "batched"),
        "JAX (ms)": ("median_ms", "jax"),
        "`lightning.qubit` (ms)": ("median_ms", "lightning.qubit"),
    }
    return _table(rows, {f"W4-{wires}": f"{wires} wires" for wires in workloads.WIDTHS}, columns)


def _table(rows: pd.DataFrame, titles: Mapping[str, str], columns: Mapping[str, tuple[str, str]]) -> str:
    """Columns (what is measured, peer) of some workloads, to three digits, in Markdown."""
    known = rows.pivot_table(index="workload", columns="peer", values=["median_ms", "x_batched"])
    lines = []
    for key, title in titles.items():
        rounded = [float(f"{known.loc[key, column]:.3g}") for column in columns.values()]
        lines.append([title, *(f"{number:g}" for number in rounded)])
    return record.markdown(["", *columns], lines)


def plot(table: pd.DataFrame, path: Path) -> None:
    """The medians of each workload."""
    import seaborn.objects as so

    known = table.dropna(subset="median_ms").assign(peer=table["peer"].map(peers.LABELS))
    picture = so.Plot(known, x="median_ms", y="workload", color="peer", marker="peer").add(so.Dots())
    picture = picture.scale(x="log").label(x="time (ms), median", y="", color="", marker="")
    record.draw(picture, path, (8, 1 + 0.4 * known["workload"].nunique()), dpi=120)


def main() -> None:
    parser = record.parser(__doc__)
    record.names(parser, "--only", workloads.GROUPS)
    record.names(parser, "--peers", peers.LABELS)
    parser.add_argument("--rounds", type=int, default=7, help="times each peer is measured, at most")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds per peer and workload")
    parser.add_argument("--device", default="cpu", help="where torch's peers compute: cpu, cuda")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds must be at least 1, but is {asked.rounds}")
    rows: list[dict[str, Any]] = []
    for key in workloads.keys(asked.only, quick=asked.quick):
        start, workload = time.perf_counter(), workloads.find(key, quick=asked.quick)
        absent = {row["peer"] for row in rows if "absent" in row}
        names = [name for name in asked.peers if name not in absent and peers.takes_part(name, workload)]
        rows += [row | {"size": workload.size} for row in measure(key, names, asked)]
        print(f"{key} measured in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    for row in rows:
        if "absent" in row:
            print(f"{peers.LABELS[row['peer']]} {row['absent']}.", file=sys.stderr)
    rows = [row for row in rows if "absent" not in row]
    versions = {package: machine.version(package) for package in PACKAGES}
    name = "bench" if asked.device == "cpu" else f"bench_{asked.device.replace(':', '_')}"
    table = record.keep(name, rows, asked.out, **versions)
    if "median_ms" in table:
        plot(table, asked.out / f"{name}.png")
    record.finish(problems(rows))


if __name__ == "__main__":
    main()

"""qnnkit's quantum layer against its peers on this machine: `make bench`, or python -m benchmarks.run.

Every workload has one process per peer. All are set up one after the other, then they take turns, so that
only one computes at a time and a slow minute of the machine hits all alike. bench.csv has a row for each:

median_ms, min_ms, max_ms  of the rounds, of the whole workload
x_batched, x_compiled      the median over that of qnnkit's program, eager and compiled
first_s                    construction and first evaluation, from a cold compiler cache, without imports
peak_mb, before_mb         resident memory of the process, and what it had after its imports
deviation                  from float64 (default.qubit, above 8 wires lightning.qubit), of values and
                           gradients; relative where an array's largest number is above 1
share, x_classical         of the epoch: inside the quanvolution, both passes; and over the classical control
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers, record, worker, workloads
from qnnkit.device import machine

if TYPE_CHECKING:  # every process begins with this file
    import pandas as pd

TOLERANCE = 1e-4
"""What a peer in float32 may deviate from float64, see `peers.deviation`."""
LONGEST = 300.0
"""Seconds after which a peer that does not answer is stopped."""
LOST = ("absent", "stopped", "failed")
"""Kinds of an answer that is none."""
PACKAGES = ("torch", "pennylane", "pennylane-lightning", "pennylane-lightning-gpu", "jax", "numpy")


class Worker:
    """A process that does what it is asked (see `worker.py`), and the row of what it found."""

    def __init__(self, name: str, folder: Path):
        self.name, self.row, self.lost = name, {}, False
        self.seconds: list[float] = []
        """Of each round, of the whole workload."""
        self.spent = 0.0
        """Seconds in rounds."""
        self.log = folder / f"{name}.log"
        # What an earlier run has kept, a compiler's cache included, would hide what the first result costs.
        kept = tempfile.mkdtemp(dir=folder)
        fresh = {"TORCHINDUCTOR_CACHE_DIR": f"{kept}/compiler", "QNNKIT_HOME": kept}
        spawned = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawned.Pipe()
        given = name, theirs, str(self.log), fresh | machine.launch_environment()
        self.process = spawned.Process(target=worker.serve, args=given, daemon=True)
        self.process.start()
        theirs.close()  # so that its end is seen

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """The answer; where there is none it is `lost`, and `absent`, `stopped` or `failed` says why."""
        reply = {"stopped": f"stopped after {LONGEST:.0f} s without an answer"}
        try:
            self.pipe.send((do, what))
            if self.pipe.poll(LONGEST):
                reply = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            killed = "was killed, as happens where memory runs out"
            code = self.process.exitcode
            reply = {"failed": f"its process {killed if code == -9 else f'ended with code {code}'}"}
        self.lost = not reply.keys().isdisjoint(LOST)
        if "failed" in reply:
            last = self.log.read_text(errors="replace").splitlines()[-20:]
            print(f"{self.name}: {reply['failed']}", *last, sep="\n", file=sys.stderr)
        return reply

    def note(self, do: str, **what: Any) -> None:
        """Asks, and keeps the answer in the row; the seconds of a round by themselves."""
        reply = self.ask(do, **what)
        self.seconds += [reply.pop("seconds")] if "seconds" in reply else []
        self.spent += reply.pop("spent", 0.0)
        self.row |= reply

    def times(self) -> dict[str, Any]:
        """Its rounds, for the row."""
        found = {"rounds": len(self.seconds)}
        for name, told in {"median": statistics.median, "min": min, "max": max}.items():
            found[f"{name}_ms"] = 1e3 * told(self.seconds) if self.seconds else math.nan
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def measure(key: str, names: Sequence[str], asked: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A row for each peer of a workload, in their order."""
    numbers = Worker("float64", folder)
    workers, known = [Worker(name, folder) for name in names], {}
    try:
        for each in workers:
            each.row = {"workload": key, "peer": each.name}
            each.note("set up", key=key, quick=asked.quick, device=asked.device)
        for number in range(asked.rounds):
            turn = number % max(1, len(workers))
            for each in [*workers[turn:], *workers[:turn]]:  # one after the other, in changing order
                if not each.lost and each.spent < asked.budget:
                    each.note("round")
        for each in workers:
            if not each.lost:
                each.note("peak")  # before the numbers, whose check is no part of what is measured
            reply = each.ask("answer") if not each.lost else {}
            if "numbers" not in reply:
                each.row |= reply
                continue
            control = each.name == "classical"
            if control not in known:
                known[control] = numbers.ask("reference", key=key, quick=asked.quick, control=control)
            each.row["dtype"] = reply["dtype"]
            if numbers.lost:
                each.row["failed"] = f"no float64 numbers to compare with: {known[control]}"
            else:
                each.row["deviation"] = peers.deviation(reply["numbers"], known[control]["numbers"])
        return complete([each.row | each.times() for each in workers], asked.rounds)
    finally:
        for each in (numbers, *workers):
            each.close()


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
    return "; ".join([*told, *(row[why] for why in LOST if row.get(why))])


SHOWN = {
    "W1": "trainable quanvolution: 4 wires, 8,192 circuits",
    "W2": "frozen quanvolution: 200,704 patches, forward only",
    "W3-64": "hybrid head: 4 wires, 3 layers, batch 64",
    "W3-256": "the same, batch 256",
}
"""Workloads of the README's table -> what it calls them."""


def table(rows: pd.DataFrame) -> str:
    """The medians that the README shows, in ms, as a table in Markdown."""
    known = rows.pivot_table(index="workload", columns="peer", values="median_ms")
    head, own = ["", "qnnkit", "`default.qubit`", "JAX `jit(vmap)`"], ("batched", "default.qubit", "jax")
    lines = ([title, *(f"{known.loc[key, peer]:.3g}" for peer in own)] for key, title in SHOWN.items())
    return record.markdown(head, lines)


def widths(rows: pd.DataFrame) -> str:
    """Medians in ms and peak memory by the number of wires, as a table in Markdown."""
    known = rows.pivot_table(index="workload", columns="peer", values=["median_ms", "peak_mb"])
    columns = {
        "qnnkit (ms)": ("median_ms", "batched"),
        "JAX (ms)": ("median_ms", "jax"),
        "`lightning.qubit` (ms)": ("median_ms", "lightning.qubit"),
        "peak memory of qnnkit's process (MB)": ("peak_mb", "batched"),
    }
    lines = (
        [str(wires), *(f"{known.loc[f'W4-{wires}', column]:.4g}" for column in columns.values())]
        for wires in workloads.WIDTHS
    )
    return record.markdown(["wires", *columns], lines)


def plot(table: pd.DataFrame, path: Path) -> None:
    """The medians of each workload."""
    import seaborn.objects as so

    known = table.dropna(subset="median_ms").assign(peer=table["peer"].map(peers.LABELS))
    picture = so.Plot(known, x="median_ms", y="workload", color="peer", marker="peer").add(so.Dots())
    picture = picture.scale(x="log").label(x="time (ms), median", y="", color="", marker="")
    picture.layout(size=(8, 1 + 0.4 * known["workload"].nunique())).save(path, bbox_inches="tight", dpi=120)


def main() -> None:
    names = ",".join(peers.LABELS)
    parser = record.parser(__doc__)
    parser.add_argument("--only", type=record.names_of, default=[], help="workloads, such as W1,W3; else all")
    parser.add_argument("--peers", type=record.names_of, default=list(peers.LABELS), help=f"of {names}")
    parser.add_argument("--rounds", type=int, default=7, help="times each peer is measured, at most")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds per peer and workload")
    parser.add_argument("--device", default="cpu", help="where torch's peers compute: cpu, cuda")
    asked = parser.parse_args()
    unknown = [name for name in asked.peers if name not in peers.LABELS]
    if unknown:
        parser.error(f"--peers must name {names}, but has {', '.join(unknown)}")
    if asked.rounds < 1:
        parser.error(f"--rounds must be at least 1, but is {asked.rounds}")
    try:
        keys = workloads.keys(asked.only, quick=asked.quick)
    except ValueError as error:
        parser.error(str(error))

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="qnnkit-bench-") as folder:
        for key in keys:
            start, workload = time.perf_counter(), workloads.find(key, quick=asked.quick)
            absent = {row["peer"] for row in rows if "absent" in row}
            names = [name for name in asked.peers if name not in absent and peers.takes_part(name, workload)]
            rows += measure(key, names, asked, Path(folder))
            print(f"{key} measured in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    for row in rows:
        if "absent" in row:
            print(f"{peers.LABELS[row['peer']]} {row['absent']}.", file=sys.stderr)
    rows = [row for row in rows if "absent" not in row]
    found = problems(rows)
    versions = {package: machine.version(package) for package in PACKAGES}
    for row in rows:
        row["size"] = workloads.find(row["workload"], quick=asked.quick).size
    name = "bench" if asked.device == "cpu" else f"bench_{asked.device.replace(':', '_')}"
    table = record.keep(name, rows, asked.out, **versions)
    if "median_ms" in table:
        plot(table, asked.out / f"{name}.png")
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()

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
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import peers, record, workloads
from qnnkit.device import machine

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-4
"""What a peer in float32 may deviate from float64, see `peers.deviation`."""
LONGEST = 300.0
"""Seconds after which a peer that does not answer is stopped."""
PACKAGES = ("torch", "pennylane", "pennylane-lightning", "pennylane-lightning-gpu", "jax", "numpy")


class Worker:
    """A process that holds one peer; see `worker.py`."""

    def __init__(
        self,
        name: str,
        folder: Path,
        module: str = "benchmarks.worker",
        environment: Mapping[str, str] | None = None,
    ):
        self.name = name
        self.row: dict[str, Any] = {}
        self.log = (folder / f"{name.replace(' ', '-')}.log").open("a")
        # What an earlier run has kept, a compiler's cache included, would hide what the first result costs.
        kept = tempfile.mkdtemp(dir=folder)
        fresh = {"TORCHINDUCTOR_CACHE_DIR": f"{kept}/compiler", "QNNKIT_HOME": kept}
        inherited = os.environ if environment is None else environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env={**inherited, **machine.launch_environment(), **fresh},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def send(self, do: str, **what: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
            self.process.stdin.flush()
        except OSError:  # it has ended, which `receive` will tell
            pass

    def receive(self) -> dict[str, Any]:
        """The answer; `stopped`, `failed` or `absent` with the reason where there is none."""
        try:
            line = self.lines.get(timeout=LONGEST)
        except queue.Empty:
            return {"stopped": f"stopped after {LONGEST:.0f} s without an answer"}
        if line:
            return json.loads(line)
        code = self.process.wait()
        reason = "was killed, as happens where memory runs out" if code == -9 else f"ended with code {code}"
        return {"failed": f"its process {reason}"}

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        self.send(do, **what)
        return self.receive()

    def last_words(self) -> list[str]:
        """The end of what it has written to standard error."""
        return Path(self.log.name).read_text(errors="replace").splitlines()[-20:]

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.log.close()


class Bench:
    """A run of the benchmark: what was asked, and what has been found so far."""

    def __init__(self, asked: argparse.Namespace, folder: Path):
        self.asked, self.folder = asked, folder
        self.notes: list[str] = []
        self.absent: set[str] = set()
        self.reference = Worker("float64", folder)
        self.reference.send("load", peer="default.qubit")
        self.known: dict[tuple[str, bool], dict[str, Any]] = {}  # workload, control -> float64 numbers

    def measure(self, key: str) -> list[dict[str, Any]]:
        """A row for each peer of the workload that could be set up, in the peers' order."""
        workload, quick = workloads.find(key, quick=self.asked.quick), self.asked.quick
        names = []
        for name in self.asked.peers:
            reason = peers.left_out(name, workload)
            if reason and name != "classical":
                self._note(f"{key}: {peers.LABELS[name]} {reason}.")
            if not reason and name not in self.absent:
                names.append(name)
        started = [Worker(name, self.folder) for name in names]
        try:
            for worker in started:
                worker.row = {"workload": key, "peer": worker.name, "rounds_s": [], "spent_s": []}
                worker.send("load", peer=worker.name)  # the imports of all at once, then one after the other
            alive = [worker for worker in started if self._loaded(worker)]
            alive = [worker for worker in alive if self._set_up(worker, key, quick)]
            for i in range(self.asked.rounds):
                turn = i % max(1, len(alive))
                for worker in [*alive[turn:], *alive[:turn]]:
                    if "reason" not in worker.row and sum(worker.row["spent_s"]) < self.asked.budget:
                        self._round(worker)
            for worker in alive:
                if "reason" not in worker.row:
                    self._finish(worker, key, quick)
        finally:
            for worker in started:
                worker.close()
        return [worker.row for worker in started if worker.name not in self.absent]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            print(text, file=sys.stderr, flush=True)

    def _loaded(self, worker: Worker) -> bool:
        reply = worker.receive()
        return not self._lost(worker, reply)

    def _set_up(self, worker: Worker, key: str, quick: bool) -> bool:
        reply = worker.ask("set up", key=key, quick=quick, device=self.asked.device)
        if self._lost(worker, reply):
            return False
        worker.row |= reply
        return True

    def _round(self, worker: Worker) -> None:
        reply = worker.ask("round")
        if not self._lost(worker, reply):
            worker.row["rounds_s"].append(reply["seconds"])
            worker.row["spent_s"].append(reply["spent"])
            if "share" in reply:
                worker.row.setdefault("shares", []).append(reply["share"])

    def _finish(self, worker: Worker, key: str, quick: bool) -> None:
        """The memory, then the numbers, whose check is no part of what is measured."""
        row = worker.row
        reply = worker.ask("peak")
        if self._lost(worker, reply):
            return
        row |= reply
        reply = worker.ask("answer")
        if self._lost(worker, reply):
            return
        row["dtype"] = reply["dtype"]
        reference = self._reference(key, quick, control=worker.name == "classical")
        if "numbers" in reference:
            row["deviation"] = peers.deviation(reply["numbers"], reference["numbers"])
        else:
            row |= {"failed": True, "reason": f"no float64 numbers to compare with: {reference}"}

    def _reference(self, key: str, quick: bool, *, control: bool) -> dict[str, Any]:
        """The float64 numbers of a workload, computed once, while nothing is timed."""
        if not self.known:
            self.reference.receive()  # that it has loaded
        if (key, control) not in self.known:
            self.known[key, control] = self.reference.ask("reference", key=key, quick=quick, control=control)
        return self.known[key, control]

    def _lost(self, worker: Worker, reply: dict[str, Any]) -> bool:
        """Whether there is no answer; the row or a note then says why, and the peer is asked no more."""
        if "absent" in reply:
            self.absent.add(worker.name)
            self._note(f"{peers.LABELS[worker.name]} {reply['absent']}.")
        for kind in ("failed", "stopped"):
            if kind in reply:
                worker.row |= {kind: True, "reason": reply[kind]}
                print(*worker.last_words(), sep="\n", file=sys.stderr)
        return bool(reply.keys() & {"absent", "failed", "stopped"})


# --- the table ----------------------------------------------------------------------------------------------


def complete(rows: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """The rows of one workload with median, spread, notes, and ratios to qnnkit's program in both forms."""
    for row in rows:
        times = [1e3 * second for second in row.pop("rounds_s", [])]
        row.pop("spent_s", None)
        if times:
            row |= {"median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}
        if "shares" in row:
            row["share"] = statistics.median(row.pop("shares"))
        row["rounds"], row["notes"] = len(times), notes(row, len(times), rounds)
    medians = {row["peer"]: row["median_ms"] for row in rows if "median_ms" in row}
    for row in rows:
        for base in ("batched", "compiled", "classical"):
            if base in medians and "median_ms" in row:
                row[f"x_{base}"] = row["median_ms"] / medians[base]
    return rows


def problems(rows: Sequence[dict[str, Any]], tolerance: float = TOLERANCE) -> list[str]:
    """A sentence for every peer that failed or whose numbers are wrong."""
    found = []
    for row in rows:
        who = f"{row['workload']}: {peers.LABELS[row['peer']]}"
        if row.get("failed"):
            found.append(f"{who} failed: {row['reason']}.")
        if "deviation" in row and not row["deviation"] <= tolerance:
            far = f"{row['deviation']:.1e}"
            found.append(f"{who} deviates from float64 by {far}, where {tolerance:g} is allowed.")
    return found


def notes(row: dict[str, Any], taken: int, rounds: int) -> str:
    """What a reader has to know of a row: scaled, in which precision, on how many rounds."""
    told = []
    if row.get("samples", 0) < row.get("total", 0):
        told.append(f"scaled up from {row['samples']:,} of {row['total']:,}")
    if row.get("dtype") == "float64":
        told.append("computes in float64")
    if 0 < taken < rounds:
        told.append(f"{taken} of {rounds} rounds")
    return "; ".join([*told, *([row["reason"]] if row.get("reason") else [])])


def plot(table: pd.DataFrame, path: Path) -> None:
    """The medians of each workload."""
    import seaborn.objects as so

    known = table.dropna(subset="median_ms").assign(peer=table["peer"].map(peers.LABELS))
    picture = so.Plot(known, x="median_ms", y="workload", color="peer", marker="peer").add(so.Dots())
    picture = picture.scale(x="log").label(x="time (ms), median", y="", color="", marker="")
    picture.layout(size=(8, 1 + 0.4 * known["workload"].nunique())).save(path, bbox_inches="tight", dpi=120)


def names_of(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    names = ",".join(peers.LABELS)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_of, default=[], help="workloads, such as W1,W3; else all")
    parser.add_argument("--peers", type=names_of, default=list(peers.LABELS), help=f"of {names}")
    parser.add_argument("--rounds", type=int, default=7, help="times each peer is measured, at most")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds per peer and workload")
    parser.add_argument("--device", default="cpu", help="where torch's peers compute: cpu, cuda")
    parser.add_argument("--quick", action="store_true", help="sizes of a test")
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder to write to (docs/results)")
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
        bench = Bench(asked, Path(folder))
        try:
            for key in keys:
                start = time.perf_counter()
                rows += complete(bench.measure(key), asked.rounds)
                print(f"{key} measured in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        finally:
            bench.reference.close()
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

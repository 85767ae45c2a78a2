"""qnnkit's quantum layer against its peers on this machine: `make bench`, or python -m benchmarks.run.

Every workload has one process per peer. All are set up one after the other, then they take turns, so that
only one computes at a time and a slow minute of the machine hits all alike. Written to the results' folder:
results.json, table.md and times.png.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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

from benchmarks import peers, workloads
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
        self.threads: int | None = None
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
        self.threads = reply.get("threads", self.threads)
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


# --- what is told --------------------------------------------------------------------------------


def complete(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one workload with median, spread, notes, and ratios to qnnkit's program in both forms."""
    for row in rows:
        seconds = row.pop("rounds_s", [])
        row.pop("spent_s", None)
        row["rounds_ms"] = [1e3 * second for second in seconds]
        if seconds:
            row["median_ms"] = statistics.median(row["rounds_ms"])
            row["min_ms"], row["max_ms"] = min(row["rounds_ms"]), max(row["rounds_ms"])
        if "shares" in row:
            row["share"] = statistics.median(row.pop("shares"))
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


def notes(row: dict[str, Any], rounds: int) -> str:
    """What one has to know about a row: scaled, in which precision, on how many rounds."""
    told = []
    if row.get("samples", 0) < row.get("total", 0):
        told.append(f"scaled up from {row['samples']:,} of {row['total']:,}")
    if row.get("dtype") == "float64":
        told.append("computes in float64")
    if 0 < len(row["rounds_ms"]) < rounds:
        told.append(f"{len(row['rounds_ms'])} of {rounds} rounds")
    if row.get("peak_gpu_mb"):
        told.append(f"{row['peak_gpu_mb']:,.0f} MB on the GPU")
    if row.get("reason"):
        told.append(row["reason"])
    return "; ".join(told)


def number(value: float | None) -> str:
    """Three digits, or a dash.

    Example:
        >>> number(12345.6), number(0.01234), number(None)
        ('12,346', '0.0123', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(rows: Sequence[dict[str, Any]], about: dict[str, Any], remarks: Sequence[str]) -> str:
    """The tables with the machine's kind above and what the columns mean below."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    lines = [
        "# qnnkit's quantum layer beside its peers",
        "",
        f"{about['kind']}; torch peers on {about['device']}; {about['platform']}; {about['date']}.",
        f"{versions}; Python {about['python']}.",
    ]
    for epoch in (False, True):
        chosen = [row for row in rows if (row["workload"] == "W5") == epoch]
        if chosen:
            lines += ["", *_table(chosen, about["rounds"], epoch=epoch), "", *_sizes(chosen, about["quick"])]
    lines += ["", *_meaning(), *([""] if remarks else []), *(f"- {remark}" for remark in remarks)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[dict[str, Any]], rounds: int, *, epoch: bool) -> list[str]:
    unit, factor = ("s / epoch", 1e-3) if epoch else ("ms", 1.0)
    header = ["workload", "peer", f"{unit}, median (min to max)"]
    header += ["in the quantum layer", "x classical"] if epoch else []
    header += ["x eager", "x compiled", "s to first result", "peak MB (before)", "largest deviation", "notes"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        low, middle, high = (
            number(factor * row[name] if name in row else None) for name in ("min_ms", "median_ms", "max_ms")
        )
        cells = [row["workload"], peers.LABELS[row["peer"]]]
        cells.append(f"{middle} ({low} to {high})" if "median_ms" in row else "–")
        if epoch:
            cells += [f"{row['share']:.0%}" if "share" in row else "–", number(row.get("x_classical"))]
        cells += [number(row.get("x_batched")), number(row.get("x_compiled")), number(row.get("first_s"))]
        memory = f"{row['peak_mb']:,.0f} ({row['before_mb']:,.0f})" if "peak_mb" in row else "–"
        deviation = f"{row['deviation']:.0e}" if "deviation" in row else "–"
        lines.append("| " + " | ".join([*cells, memory, deviation, notes(row, rounds)]) + " |")
    return lines


def _sizes(rows: Sequence[dict[str, Any]], quick: bool) -> list[str]:
    keys = dict.fromkeys(row["workload"] for row in rows)
    found = [workloads.find(key, quick=quick) for key in keys]
    return [f"- {workload.key}, {workload.title}: {workload.size}." for workload in found]


def _meaning() -> list[str]:
    return [
        "One process per peer, taking turns. x eager and x compiled: the time over that of qnnkit's program",
        "in this form. s to first result: construction and first evaluation (of the epoch: its first step),",
        "from a cold compiler cache, imports excluded. Peak MB: resident memory of the process, and what it",
        f"had after its imports. Largest deviation: of values and gradients of the first {workloads.CHECKED} "
        "samples from",
        "float64 (default.qubit, above 8 wires lightning.qubit), relative where an array's largest number is",
        "above 1.",
        "In the quantum layer: share of the epoch inside the quanvolution (or its control), both passes.",
    ]


def figure(rows: Sequence[dict[str, Any]], kind: str) -> Any:
    """The medians and spreads as a plot."""
    from qnnkit import plots

    times: dict[str, dict[str, tuple[float, float, float]]] = {}
    widths: dict[str, dict[int, tuple[float, float, float]]] = {}
    for row in rows:
        if "median_ms" not in row:
            continue
        label, value = peers.LABELS[row["peer"]], (row["min_ms"], row["median_ms"], row["max_ms"])
        workload = workloads.WORKLOADS[row["workload"]]
        if row["workload"].startswith("W4"):
            widths.setdefault(label, {})[workload.n_qubits] = value
        else:
            times.setdefault(f"{workload.key.split('-')[0]}: {workload.title}", {})[label] = value
    return plots.benchmark(times, widths, kind, peers=list(peers.LABELS.values()))


def names_of(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    names = ",".join(peers.LABELS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=names_of, default=[], help="workloads, such as W1,W3; else all")
    parser.add_argument(
        "--peers", type=names_of, default=list(peers.LABELS), help=f"of {','.join(peers.LABELS)}"
    )
    parser.add_argument("--rounds", type=int, default=7, help="times each peer is measured, at most")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds per peer and workload")
    parser.add_argument("--device", default="cpu", help="where torch's peers compute: cpu, cuda")
    parser.add_argument("--quick", action="store_true", help="sizes of a test")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder to write to"
    )
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
                rows += complete(bench.measure(key))
                print(f"{key} measured in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        finally:
            bench.reference.close()

    threads = f"torch on {bench.threads} of them" if bench.threads else "no torch"
    about = {
        "kind": f"{machine.processor()}, {machine.cores()} cores, {threads}, "
        f"{machine.memory()[0] / 1e9:.0f} GB",
        "device": _device_name(asked.device),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {package: machine.version(package) for package in PACKAGES},
        "threads": bench.threads,
        "rounds": asked.rounds,
        "quick": asked.quick,
        "tolerance": TOLERANCE,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    table, found = markdown(rows, about, bench.notes), problems(rows)
    results = {"about": about, "rows": rows, "notes": bench.notes, "problems": found}
    (asked.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (asked.out / "table.md").write_text(table, encoding="utf-8")
    if any("median_ms" in row for row in rows):
        where = "" if asked.device == "cpu" else f"; torch peers on {about['device']}"
        picture = figure(rows, about["kind"] + where).png(Title="Times of qnnkit and its peers")
        (asked.out / "times.png").write_bytes(picture)
    print(table)
    print(f"Written to {asked.out}.", file=sys.stderr)
    if found:
        raise SystemExit("\n".join(found))


def _device_name(device: str) -> str:
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


if __name__ == "__main__":
    main()

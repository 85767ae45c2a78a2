"""What a training tells while it goes on: rows of metrics.jsonl and gradients.jsonl, and sentences."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from qnnkit import measure
from qnnkit.runs.folder import Run
from qnnkit.runs.rows import number
from qnnkit.train.processes import is_main, n_processes

EVERY = 5.0
"""Seconds between two rows of a training, at least."""


class Journal:
    """Writes what the training of one net tells; of several processes that train it, the first does.

    Rows of metrics.jsonl are "begin", "step" every few seconds, "epoch", "warning" and "test", the last.
    A disk that fails "begin", "step" or "warning" stops nothing.

    Args:
        run: The run.
        net: Whose training begins, or goes on.
        seed: Its seed.
        place: Where it computes.
        on_row: Called with rows "step" and "epoch".
        on_warning: Called with a sentence on a fault of the gradients, once for each kind.
    """

    def __init__(
        self,
        run: Run,
        net: str,
        seed: int,
        place: torch.device,
        on_row: Callable[[dict[str, Any]], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ):
        self.run, self.place, self.main = run, place, is_main()
        self.whose = {"net": net, "seed": seed}
        self.on_row, self.on_warning = on_row or (lambda row: None), on_warning or (lambda told: None)
        self.warned: set[str] = set()
        rows = run.rows("metrics") if self.main else []
        same = [row for row in rows if self.whose.items() <= row.items() and row.get("device") == str(place)]
        self.peak = max((number(row, "peak_memory") or 0 for row in same), default=0)
        self.samples, self.since = 0, -math.inf
        counted = getattr(run.task, "counted", "samples")
        self._feel("begin", counted=counted)  # at once: the first update may be a minute away

    def update(self, row: dict[str, Any]) -> None:
        """Called after every update; most calls write nothing."""
        if not self.main:
            return
        row = dict(row)
        self.samples += row.pop("samples")
        now = time.monotonic()
        if now - self.since < EVERY:
            return
        row["loss"] = row["loss"] if math.isfinite(row["loss"]) else None
        per_second = n_processes() * self.samples / (now - self.since)  # 0 at first
        self.samples, self.since = 0, now
        self.on_row(self._feel("step", **row, per_second=per_second or None))

    def epoch(self, row: dict[str, Any]) -> None:
        """Adds what an epoch came to."""
        if self.main:
            self._add("epoch", row | speed(self.run, row["seconds"]))

    def gradients(self, row: dict[str, Any]) -> None:
        """Adds what an epoch's gradients were, and tells each kind of fault when it is first seen."""
        self.run.log("gradients", {"event": "epoch", **self.whose, **row})
        for sentence in row["warnings"]:
            if (fault := sentence.split(":")[0]) not in self.warned:
                self.warned.add(fault)
                self._feel("warning", of="gradients", sentence=sentence)
                self._tell(f"epoch {row['epoch']}: {sentence}", ", ")

    def end(self, epochs: Sequence[dict[str, Any]], final: dict[str, Any]) -> dict[str, Any]:
        """The final row, which it adds, after those of epochs that a checkpoint has and the file has lost."""
        final = {"event": "test", **self.whose, **final}
        final |= {"peak_memory": max(self.peak, measure.peak_on(self.place)), "peak_ram": measure.peak()}
        if self.main:
            whose = {"event": "epoch", **self.whose}
            there = {row["epoch"] for row in self.run.rows("metrics") if whose.items() <= row.items()}
            for row in epochs:
                if row["epoch"] not in there:
                    self.run.log("metrics", whose | row | speed(self.run, row["seconds"]))
            self.run.log("metrics", final)
        return final

    def _add(self, event: str, row: dict[str, Any]) -> None:
        row = {"event": event, **self.whose, **row}
        self.run.log("metrics", row)
        self.on_row(row)

    def _feel(self, event: str, **facts: Any) -> dict[str, Any]:
        """Adds a row that has the time and what memory is used."""
        self.peak = max(self.peak, measure.peak_on(self.place))
        row = {"event": event, **self.whose, "time": time.time(), "device": str(self.place), **facts}
        row |= {"memory": measure.resident(), "peak_memory": self.peak}
        if self.place.type != "cpu":
            row["device_memory"] = _on_device(self.place)
        if self.main:
            with contextlib.suppress(OSError):
                self.run.log("metrics", row)
        return row

    def _tell(self, sentence: str, mark: str = ": ") -> None:
        if self.main:
            self.on_warning(f"{self.whose['net']}, seed {self.whose['seed']}{mark}{sentence}")


def speed(run: Run, seconds: float) -> dict[str, float]:
    """Tokens of an epoch that are learnt from per second, where the data are tokens."""
    tokens = getattr(run.splits.train, "n_predicted", None)
    return {} if tokens is None else {"tokens_per_second": tokens / seconds}


def _on_device(place: torch.device) -> int:
    cuda = place.type == "cuda"
    return torch.cuda.memory_reserved(place) if cuda else torch.mps.driver_allocated_memory()

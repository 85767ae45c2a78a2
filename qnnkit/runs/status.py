"""`status.json`: how a training stands, written about once a second, and read from anywhere."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from qnnkit import checks, measure, workspace
from qnnkit.runs.folder import Run
from qnnkit.train import Moment
from qnnkit.train.processes import n_processes

FILE = "status.json"
EVERY = 1.0
"""Seconds between two writes, at least."""
STALE = 300.0
"""Seconds without a sign after which a training on another machine counts as stopped: Drive is slow."""


class Reporter:
    """Writes how the trainings of a run stand; a disk that fails it is no reason to stop.

    Args:
        run: The run; nothing is written before a training begins.
        finished: Rows of the nets and seeds that are trained already, see `Run.tested`.
        counted: What its updates count: "samples" or "tokens".
    """

    def __init__(
        self, run: Run, finished: Mapping[tuple[str, int], Mapping[str, Any]], counted: str = "samples"
    ):
        self.run, self.path, self.counted = run, run.folder / FILE, counted
        self.order = [(net, seed) for seed in run.seeds for net in run.nets]
        self.took = {pair: seconds_of(row) for pair, row in finished.items()}
        self.process: dict[str, Any] = {}
        self.latest: Moment | None = None
        self.warnings: list[str] = []
        self.written: float | None = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """The last word: all nets are trained, or the training was stopped."""
        if self.latest is not None and self.first is not None:
            facts = self._facts(self.latest, time.monotonic())
        elif self.process:  # stopped before an update, or what was trained before has only been tested
            facts = _read(self.path.parent) or {}
        else:
            return
        done = kind is None and len(self.took) == len(self.order)
        self._write(facts | {"ended": "finished" if done else "stopped"})

    def begin(self, net: str, seed: int, place: torch.device) -> None:
        """A net's training begins, or goes on: then its peak memory is at least what it was before."""
        earlier = _read(self.path.parent) or {}
        same = (earlier.get("net"), earlier.get("seed"), earlier.get("device")) == (net, seed, str(place))
        found = earlier.get("peak_memory") if same else None
        self.peak = found if isinstance(found, int) else 0
        self.net, self.seed, self.place = net, seed, place
        self.process = _process(place)
        self.started, self.warnings, self.written = time.monotonic(), [], None
        self.first: Moment | None = None
        self.latest = None
        self.samples, self.since = 0, self.started
        memory = {"memory": measure.resident(), "peak_memory": self.peak or None}
        self._write(self._about() | memory)  # at once: the first update may be a minute away

    def update(self, moment: Moment) -> None:
        """Called after every update; most calls only count."""
        self.samples, self.latest = self.samples + moment.samples, moment
        now = time.monotonic()
        if self.written is not None and now - self.written < EVERY:
            return
        if self.first is None:
            self.first, self.started = moment, now
        self._write(self._facts(moment, now))
        self.samples, self.since, self.written = 0, now, now

    def warn(self, sentence: str) -> None:
        """Adds a sentence to what the next write tells."""
        self.warnings.append(sentence)

    def end(self, row: Mapping[str, Any]) -> None:
        """A net's training has ended, with this row."""
        self.took[row["net"], row["seed"]] = seconds_of(row)

    def _facts(self, moment: Moment, now: float) -> dict[str, Any]:
        assert self.first is not None
        done = moment.updates - self.first.updates
        each = (now - self.started) / done if done else None  # validation and checkpoints are part of it
        left = (moment.epochs - moment.epoch) * moment.steps + moment.steps - moment.step
        for_net = None if each is None else each * left
        whole = None if each is None else each * moment.epochs * moment.steps
        memory = measure.resident()
        self.peak = max(self.peak, measure.peak_on(self.place), memory if self.place.type == "cpu" else 0)
        return self._about() | {
            "epoch": moment.epoch,
            "epochs": moment.epochs,
            "step": moment.step,
            "steps": moment.steps,
            "updates": moment.updates,
            "loss": moment.loss,
            "counted": self.counted,
            "per_second": n_processes() * self.samples / max(now - self.since, 1e-9) if done else None,
            "seconds_left_net": for_net,
            "seconds_left_run": None if for_net is None else for_net + self._for_others(whole),
            "samples_at_once": moment.at_once,
            "memory": memory,
            "peak_memory": self.peak,
            "device_memory": _on_device(self.place),
        }

    def _about(self) -> dict[str, Any]:
        """Which training it is, and where."""
        return {
            "net": self.net,
            "seed": self.seed,
            "number": self.order.index((self.net, self.seed)) + 1,
            "of": len(self.order),
            "device": str(self.place),
            "warnings": list(self.warnings),
            **self.process,
        }

    def _for_others(self, whole: float | None) -> float:
        """Seconds for the nets after this one: as long as the same net took, or else as this one takes."""
        total = 0.0
        for net, seed in self.order:
            if (net, seed) in self.took or (net, seed) == (self.net, self.seed):
                continue
            known = [seconds for (other, _), seconds in self.took.items() if other == net and seconds]
            total += max(known) if known else whole or 0.0
        return total

    def _write(self, facts: dict[str, Any]) -> None:
        """Without asking the disk to keep it, as what counts is: this is worth nothing after a power cut."""
        draft = workspace.draft_of(self.path)
        content = facts | {"time": time.time()}
        with contextlib.suppress(OSError, ValueError):
            draft.write_text(json.dumps(content, allow_nan=False) + "\n")
            draft.replace(self.path)


def seconds_of(row: Mapping[str, Any]) -> float:
    """Seconds that a net's training took, of its final row; 0 where it does not tell."""
    # rows of an earlier version do not tell after how many epochs a net stopped early
    n_epochs = row.get("epochs_trained") or row.get("epochs") or 0
    return float(row.get("seconds_per_epoch") or 0.0) * int(n_epochs)


def _on_device(place: torch.device) -> int | None:
    if place.type == "cuda":
        return torch.cuda.memory_reserved(place)
    return torch.mps.driver_allocated_memory() if place.type == "mps" else None


def _process(place: torch.device) -> dict[str, Any]:
    """By what this process, and its GPU, are found again."""
    import psutil

    name = None
    if place.type == "cuda" and hasattr(properties := torch.cuda.get_device_properties(place), "uuid"):
        name = f"GPU-{properties.uuid}"  # as nvidia-smi calls it
    started = psutil.Process().create_time()
    return {"pid": os.getpid(), "process_started": started, "host": platform.node(), "device_id": name}


# --- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """How a run stands."""

    folder: Path
    state: str
    """"running", "stopped", "finished" or "not begun", its training that is."""
    age: float | None = None
    """Seconds since the last sign."""
    net: str | None = None
    seed: int | None = None
    number: int | None = None
    """Which training of the run's it is, counted from 1."""
    of: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    counted: str | None = None
    """What is counted `per_second`: "samples" or "tokens"."""
    per_second: float | None = None
    seconds_left_net: float | None = None
    """Until this net is trained, if nothing stops it early."""
    seconds_left_run: float | None = None
    """Until all are."""
    samples_at_once: int | None = None
    memory: int | None = None
    """Bytes of RAM that the process holds."""
    peak_memory: int | None = None
    """The most bytes of the memory that the device computes in."""
    device: str | None = None
    device_memory: int | None = None
    device_id: str | None = None
    warnings: tuple[str, ...] = ()
    pid: int | None = None
    host: str | None = None

    @property
    def is_here(self) -> bool:
        return self.host == platform.node()


def read(run_dir: str | Path) -> Status:
    """How the run in a folder stands; also one that another machine works on, as its mirror has it.

    Raises:
        FileNotFoundError: There is no run.
    """
    folder = workspace.run_folder(run_dir)
    if not (folder / "config.json").exists():
        folder = workspace.place(run_dir)
    if _content(folder, "config.json") is None:
        step = "Name a folder that `qnnkit run` or `qnnkit batch` was given."
        raise FileNotFoundError(checks.message("run_dir", "hold a run or a batch", str(folder), step))
    found = _read(folder)
    finished = _content(folder, "result.json") is not None
    if found is None:
        return Status(folder, "finished" if finished else "not begun")
    age = max(0.0, time.time() - found["time"])
    if finished or found.get("ended") == "finished":
        state = "finished"
    else:
        state = "running" if found.get("ended") is None and _goes_on(found, age) else "stopped"
    told: dict[str, Any] = {
        each.name: _usable(each.name, found.get(each.name)) for each in fields(Status)[3:]
    }
    listed = found.get("warnings")
    told["warnings"] = tuple(map(str, listed)) if isinstance(listed, list) else ()
    return Status(folder, state, age, **told)


def _usable(name: str, value: Any) -> Any:
    """A value of the kind that it should be; None for any other."""
    kinds = str if name in ("net", "counted", "device", "device_id", "host") else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        return None
    return value if isinstance(value, str) or math.isfinite(value) else None


def _read(folder: Path) -> dict[str, Any] | None:
    """What the file says; None where there is none, or none that can be used."""
    content = _content(folder, FILE)
    try:
        found = json.loads(content or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and _usable("time", found.get("time")) is not None else None


def _content(folder: Path, name: str) -> bytes | None:
    """A file of a run; None where it cannot be read."""
    with contextlib.suppress(OSError):
        return (folder / name).read_bytes()
    return None


def _goes_on(found: Mapping[str, Any], age: float) -> bool:
    """Whether the process that wrote the file still lives: asked of the system here, guessed elsewhere."""
    import psutil

    if found.get("host") != platform.node():
        return age < STALE
    try:
        process = psutil.Process(int(found["pid"]))
        same = abs(process.create_time() - float(found["process_started"])) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False

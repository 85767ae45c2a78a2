"""How a training stands: its rows of metrics.jsonl, read from anywhere."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.runs.lock import held
from qnnkit.runs.reading import content, number, rows, trainings

STALE = 300.0
"""Seconds without a row after which a training on another machine counts as stopped: Drive is slow."""


def seconds_of(row: Mapping[str, Any]) -> float:
    """Seconds that a net's training took, of its final row; 0 where it does not tell."""
    return float(row.get("seconds_per_epoch") or 0.0) * int(row.get("epochs_trained") or 0)


@dataclass(frozen=True)
class Status:
    """How a run stands."""

    folder: Path
    state: str
    """"running", "stopped", "finished" or "not begun", its training that is."""
    age: float | None = None
    """Seconds since the last row."""
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
    micro_batch: int | None = None
    memory: int | None = None
    """Bytes of RAM that the process holds."""
    peak_memory: int | None = None
    """The most bytes of the memory that the device computes in."""
    device: str | None = None
    device_memory: int | None = None
    warnings: tuple[str, ...] = ()
    """Of this net's training, since it last began."""


def read(run_dir: str | Path) -> Status:
    """How the run in a folder stands; also one that another machine works on, as its mirror has it.

    Raises:
        FileNotFoundError: There is no run.
    """
    folder = workspace.run_folder(run_dir)
    if not (folder / "config.json").exists():
        folder = workspace.place(run_dir)
    config = content(folder, "config.json")
    if config is None:
        step = "Name a folder that `qnnkit run` or `qnnkit batch` was given."
        raise FileNotFoundError(checks.message("run_dir", "hold a run or a batch", str(folder), step))
    found = of_rows(folder, rows(folder), *_asked(config, content(folder, "provenance.json") or b""))
    if content(folder, "result.json") is not None:
        return replace(found, state="finished")
    if found.state == "finished":
        return found
    alive = held(folder, "train")
    if alive is None:  # a mirror, a folder that was brought from one, or one that may only be read
        alive = found.age is not None and found.age < STALE
    return replace(found, state="running" if alive else found.state)


def of_rows(
    folder: Path, rows: Sequence[Mapping[str, Any]], order: Sequence[tuple[str, int]], epochs: int | None
) -> Status:
    """What the rows of metrics.jsonl say; whether a training still goes on they cannot.

    Args:
        folder: Of the run.
        rows: Oldest first.
        order: (net, seed) of all trainings of the run; may be empty, where nothing tells.
        epochs: Of the run: a net that was tested after fewer, before it was extended, is trained again.
    """
    timed = ("begin", "step", "warning")
    rows = [row for row in rows if row.get("event") not in timed or number(row, "time") is not None]
    tested = {(row.get("net"), row.get("seed")): row for row in trainings(rows, "test", epochs)}
    state = "finished" if order and set(order) <= set(tested) else "stopped" if rows else "not begun"
    begun = [i for i, row in enumerate(rows) if row.get("event") == "begin"]
    if not begun:
        return Status(folder, state)
    lately = rows[begun[-1] :]
    begin, steps = lately[0], [row for row in lately if row.get("event") == "step"]
    last = steps[-1] if steps else begin
    ended = [row for row in lately if row.get("event") == "epoch"]
    if ended and (number(ended[-1], "epoch") or 0) >= (number(last, "epoch") or 0):
        last = {**last, "epoch": ended[-1].get("epoch"), "step": last.get("steps")}
        last["loss"] = ended[-1].get("train_loss", last.get("loss"))
    pair = begin.get("net"), begin.get("seed")
    left_net, left_run = _left(steps, pair, order, tested)
    words = {"net": str, "seed": int, "device": str}
    facts: dict[str, Any] = {name: _is(begin.get(name), kind) for name, kind in words.items()}
    numbers = ("epoch", "epochs", "step", "steps", "loss", "per_second", "micro_batch")
    facts |= {name: number(last, name) for name in (*numbers, "memory", "device_memory")}
    return Status(
        folder,
        state,
        age=max(0.0, time.time() - max(row["time"] for row in lately if "time" in row)),
        number=order.index(pair) + 1 if pair in order else None,
        of=len(order) or None,
        counted=_is(begin.get("counted"), str),
        seconds_left_net=left_net,
        seconds_left_run=left_run,
        peak_memory=max((number(row, "peak_memory") or 0 for row in lately), default=0) or None,
        warnings=tuple(str(row.get("sentence")) for row in lately if row.get("event") == "warning"),
        **facts,
    )


def _left(
    steps: Sequence[Mapping[str, Any]],
    pair: tuple[Any, Any],
    order: Sequence[tuple[str, int]],
    tested: Mapping[tuple[Any, Any], Mapping[str, Any]],
) -> tuple[float | None, float | None]:
    """Seconds until the net is trained, and until all are: as long as the same net took, or as this one."""
    names = ("time", "updates", "epoch", "epochs", "step", "steps")
    known: list[Any] = []
    for row in steps:
        if all(number(row, name) is not None for name in names):
            resumed = known and row["updates"] < known[-1]["updates"]  # from its last checkpoint
            known = [row] if resumed else [*known, row]
    if not known or (done := known[-1]["updates"] - known[0]["updates"]) <= 0:
        return None, None
    first, last = known[0], known[-1]
    each = (last["time"] - first["time"]) / done  # validation and checkpoints are part of it
    left = each * ((last["epochs"] - last["epoch"]) * last["steps"] + last["steps"] - last["step"])
    whole, others = each * last["epochs"] * last["steps"], 0.0
    for net, seed in order:
        if (net, seed) not in tested and (net, seed) != pair:
            took = [seconds_of(row) for (other, _), row in tested.items() if other == net]
            others += max(took, default=0.0) or whole
    return left, left + others


def _asked(config: bytes, provenance: bytes) -> tuple[list[tuple[str, int]], int | None]:
    """(net, seed) of all trainings of a run, and its epochs; none where its files do not tell."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        settings, nets = json.loads(config), json.loads(provenance)["nets"]
        seeds = range(settings["seed"], settings["seed"] + settings["n_seeds"])
        return [(net, seed) for seed in seeds for net in nets], settings.get("epochs")
    return [], None


def _is(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None

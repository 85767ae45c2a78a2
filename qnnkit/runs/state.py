"""Reads the state of runs and batches from their files and locks, here or on Drive, and watches it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.runs.lock import held
from qnnkit.runs.rows import content, facts, number, read, read_facts, trainings, work
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import ACCURACY, Score
from qnnkit.words import duration

STATES = ("running", "failed", "stopped", "trained", "waiting", "pruned", "finished")
"""States of a run, in the order in which they are shown."""
STALE = 300.0
"""Seconds without a row after which a run on another machine counts as stopped: Drive is slow."""
EVERY = 2.0
"""Seconds between two reads in `watch`."""
DAMAGED = "Its result.json cannot be used. Restore it, or delete it and run the same command again."
SESSION = "session.json"
"""File in a batch's folder that names the command now running it, and the runs that it has pruned."""


@dataclass(frozen=True)
class State:
    """The state of a run; None stands for what its files do not contain.

    Attributes:
        folder: The run's folder.
        state: "waiting", "running", "stopped", "failed", "pruned", "trained" (every net is tested, but the
            result is not written yet) or "finished".
        id: Id of the run in its batch; the name of its folder if it belongs to none.
        settings: Settings that vary within its batch.
        error: Why and where the run failed.
        score: Score by which its nets are compared.
        validation: Best value of `score` that the run's main net reached on the validation split.
        row: Progress of the training that began last: `net`, `seed`, `epoch`, `epochs`, `step`, `steps`,
            `loss`, samples `per_second`; empty if none has begun.
        seconds_left: Seconds until all nets are trained, if each takes as long as this one and none stops
            early; negative if the clock was set back.
    """

    folder: Path
    state: str = "waiting"
    id: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    score: Score = ACCURACY
    validation: float | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    seconds_left: float | None = None


def of_run(run_dir: str | Path) -> State:
    """Returns the state of the run in a folder; if another machine trains it, the state of its mirror.

    Raises:
        FileNotFoundError: There is no run.
    """
    folder = workspace.place(run_dir)
    if content(folder, "config.json") is None:
        step = "Give the folder of a `qnnkit run` or `qnnkit batch`."
        raise FileNotFoundError(checks.message("run_dir", "hold a run or a batch", str(folder), step))
    return look(folder)


def of_batch(folder: str | Path, known: Mapping[str, State] | None = None) -> list[State]:
    """Returns the states of the runs of a batch.

    Args:
        folder: The batch's folder; a relative path is resolved from the workspace.
        known: States that need not be read again, by the id of the run.

    Raises:
        FileNotFoundError: There is no batch.
        ValueError: Its batch.json is damaged.
    """
    batch, states = workspace.place(folder), []
    score = score_of(listed := batch_file(batch))
    for row in listed["runs"]:
        if known and row["id"] in known:
            states.append(known[row["id"]])
        else:
            run_dir = Path(os.path.normpath(batch / row["folder"]))
            states.append(replace(look(run_dir, score), id=row["id"], settings=row["settings"]))
    return states


def batch_file(batch: Path) -> dict[str, Any]:
    """Returns the content of batch.json in a batch's folder; raises the errors of `of_batch`."""
    listed = content(batch, "batch.json", read_facts)
    if listed is None:
        step = "Begin one: qnnkit batch FILE.yaml."
        raise FileNotFoundError(checks.message("folder", "hold a batch", str(batch), step))
    try:
        _ = [(row["id"], Path(row["folder"]), {**row["settings"]}) for row in listed["runs"]]
    except (KeyError, TypeError):
        step = "Run the same qnnkit batch again, which writes the file again."
        raise ValueError(checks.message("folder", "hold an undamaged batch.json", str(batch), step)) from None
    return listed


def score_of(listed: Mapping[str, Any]) -> Score:
    """Returns the score by which nets are compared, from the content of batch.json or provenance.json."""
    with contextlib.suppress(KeyError, TypeError, ValueError):  # damaged, or written by an earlier version
        return Score(**listed["score"])
    return ACCURACY


def look(folder: Path, score: Score | None = None) -> State:
    """Returns the state of the run in a folder; "waiting" if it has not begun."""
    files = ("provenance.json", "config.json", "failed.json")
    provenance, settings, failure = (facts(folder, name) for name in files)
    score, rows, first = score or score_of(provenance), read(folder), settings.get("seed", 0)
    seeds = range(first, first + settings.get("n_seeds", 1))
    wanted = {(net, seed) for seed in seeds for net in provenance.get("nets") or ()}
    tested = {(row["net"], row["seed"]) for row in trainings(rows, "test", settings.get("epochs"))}
    values = [number(row, f"validation_{score.on_validation}") for row in rows if row["net"] in MAIN_NETS]
    best = (max if score.larger else min)((value for value in values if value is not None), default=None)
    fields: dict[str, Any] = {"id": folder.name, "score": score, "validation": best}
    locks = [held(work(folder), name) for name in ("begin", "chain", "train")]
    if (work(folder) / "result.json").is_file():
        state, fields["error"] = ("finished", None) if facts(folder, "result.json") else ("failed", DAMAGED)
    elif any(locks):
        state = "running"
    elif failure:
        state, fields["error"] = str(failure.get("state", "failed")), failure.get("error")
    elif wanted and wanted <= tested:
        state = "trained"
    elif locks[-1] is None and any((number(row, "time") or 0) > time.time() - STALE for row in rows):
        state = "running"  # on another machine: this is a mirror, or restored from one, or read-only
    else:
        state = "stopped" if rows else "waiting"
    return State(folder, state, **fields, **_latest(rows, wanted - tested))


def write_failure(folder: Path, how: str, error: str) -> None:
    """Records in a run folder that the run failed or was pruned."""
    with contextlib.suppress(OSError):  # even if this cannot be written, the other runs continue
        workspace.write_json(workspace.make_folder(folder) / "failed.json", {"state": how, "error": error})


def _latest(rows: Sequence[Mapping[str, Any]], left: Collection[Any]) -> dict[str, Any]:
    """Returns `row` and `seconds_left` of a `State`.

    Args:
        rows: Rows of metrics.jsonl, oldest first.
        left: (net, seed) of each training that has not ended.
    """
    latest, steps = dict[str, Any](), list[Mapping[str, Any]]()
    for row in rows:
        if row["event"] in ("begin", "step"):
            latest, steps = dict(row), [] if row["event"] == "begin" else [*steps[:1], row]
        elif row["event"] == "epoch" and latest:
            latest |= {"epoch": row["epoch"], "step": latest.get("steps"), "loss": row.get("train_loss")}
    if len(steps) < 2:
        return {"row": latest}
    first, last = steps  # the time between them includes validation and checkpoints
    seconds = (last["time"] - first["time"]) / max(1, last["updates"] - first["updates"])
    n_others = len({*left} - {(latest["net"], latest["seed"])})
    updates = (1 + n_others) * last["epochs"] * last["steps"] - last["updates"]
    return {"row": latest, "seconds_left": seconds * updates}


# --- watching -----------------------------------------------------------------------------------------------


def watch(run_dir: str | Path, echo: Callable[[str], None] = print, *, once: bool = False) -> list[State]:
    """Shows the state of a run, or of every run of a batch, until none is running; returns the last states.

    Watching only reads files and tests locks, so it does not disturb the runs. Ctrl-C ends only `watch`.

    Args:
        run_dir: Folder of a run or of a batch.
        echo: Called with each line that has changed.
        once: Whether to show the state once and return.

    Raises:
        FileNotFoundError: There is no run and no batch.
        ValueError: batch.json is damaged.
    """
    folder, echoed, runs = workspace.place(run_dir), set[str](), list[State]()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            runs = of_batch(folder) if (folder / "batch.json").exists() else [of_run(run_dir)]
            begun = [run for run in runs if run.state != "waiting"] or runs
            # A batch may still propose another run, or retry one.
            has_batch = (folder / SESSION).exists() and held(folder, "batch") is not False  # a kill leaves it
            for text in [text for text in map(line, begun) if text not in echoed]:
                echoed.add(text)
                echo(text)
            if once or not (has_batch or any(run.state == "running" for run in runs)):
                break
            time.sleep(EVERY)
    return runs


def line(run: State) -> str:
    """Returns the state of a run as one line; the progress of nets is omitted if the run has finished."""
    row = {} if run.state == "finished" else run.row
    words = [run.folder.name, run.state + (f": {run.error}" if run.error else "")]
    if row:
        words.append(f"{row['net']}, seed {row['seed']}")
    if "epoch" in row:
        words.append(f"epoch {row['epoch']}/{row.get('epochs')}, step {row.get('step')}/{row.get('steps')}")
    if (loss := number(row, "loss")) is not None:
        words.append(f"loss {loss:.4f}")
    if run.state == "running" and (speed := number(row, "per_second")) is not None:
        words.append(f"{speed:,.0f} samples/s")
    if run.state == "running" and run.seconds_left is not None and run.seconds_left >= 0:
        words.append(f"{duration(run.seconds_left)} left")
    return "  ".join(words)

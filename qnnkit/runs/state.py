"""The state of a run, read from its files and locks alone, on this machine or on Drive; and looking on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, workspace
from qnnkit.runs.lock import held
from qnnkit.runs.rows import content, facts, number, read, read_facts, trainings, work
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import ACCURACY, Score
from qnnkit.words import duration

if TYPE_CHECKING:
    import pandas as pd

STATES = ("running", "failed", "stopped", "trained", "waiting", "pruned", "finished")
"""What a person looks for first comes first."""
STALE = 300.0
"""Seconds without a row after which a run on another machine counts as stopped: Drive is slow."""
EVERY = 2.0
"""Seconds between two looks of who watches."""
DAMAGED = "Its result.json cannot be used. Put it back, or delete it and run the same command again."
SESSION = "session.json"
"""In a batch's folder: the command that it belongs to now, and the runs that it has pruned."""


@dataclass(frozen=True)
class State:
    """The state of a run; what its files do not say is None."""

    folder: Path
    state: str = "waiting"
    """One of `STATES`. "trained": every net is tested, and the result is still to be written."""
    id: str = ""
    """In its batch; a run alone has the name of its folder."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What sets it apart in its batch."""
    error: str | None = None
    """Why it failed, and where."""
    score: Score = ACCURACY
    validation: float | None = None
    """The best that the run's own net came to on the validation split, by `score`."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """Of the training that began last: `net`, `seed`, `epoch`, `epochs`, `step`, `steps`, `loss`, samples
    `per_second`; nothing where none did."""
    seconds_left: float | None = None
    """Until all nets are trained, each as long as this one, if none stops early."""


def of_run(run_dir: str | Path) -> State:
    """The state of the run in a folder; of one that another machine trains, as of its mirror.

    Raises:
        FileNotFoundError: There is no run.
    """
    folder = workspace.place(run_dir)
    if content(folder, "config.json") is None:
        step = "Name a folder that `qnnkit run` or `qnnkit batch` was given."
        raise FileNotFoundError(checks.message("run_dir", "hold a run or a batch", str(folder), step))
    return look(folder)


def of_batch(folder: str | Path, known: Mapping[str, State] | None = None) -> list[State]:
    """The states of the runs of a batch.

    Args:
        folder: The batch's; a relative one is meant from the workspace.
        known: Runs that need no second look, by id.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged.
    """
    batch, states = workspace.place(folder), []
    score = score_of(listed := batch_file(batch))
    for row in listed["runs"]:
        if known and row["id"] in known:
            states.append(known[row["id"]])
        else:
            there = Path(os.path.normpath(batch / row["folder"]))
            states.append(replace(look(there, score), id=row["id"], settings=row["settings"]))
    return states


def batch_file(batch: Path) -> dict[str, Any]:
    """What batch.json of a batch's folder holds; errors are those of `of_batch`."""
    listed = content(batch, "batch.json", read_facts)
    if listed is None:
        step = "Begin one: qnnkit batch FILE.yaml."
        raise FileNotFoundError(checks.message("folder", "hold a batch", str(batch), step))
    try:
        _ = [(row["id"], Path(row["folder"]), {**row["settings"]}) for row in listed["runs"]]
    except (KeyError, TypeError):
        step = "Run the same qnnkit batch again; it writes it again."
        raise ValueError(checks.message("folder", "hold a whole batch.json", str(batch), step)) from None
    return listed


def score_of(listed: Mapping[str, Any]) -> Score:
    """What nets are compared by, from what a batch.json or a provenance.json says."""
    with contextlib.suppress(KeyError, TypeError, ValueError):  # damaged, or of a version that kept none
        return Score(**listed["score"])
    return ACCURACY


def look(folder: Path, score: Score | None = None) -> State:
    """The state of the run in a folder; "waiting" if nothing is there yet."""
    files = ("provenance.json", "config.json", "failed.json")
    provenance, settings, failure = (facts(folder, name) for name in files)
    score, rows, first = score or score_of(provenance), read(folder), settings.get("seed", 0)
    seeds = range(first, first + settings.get("n_seeds", 1))
    wanted = {(net, seed) for seed in seeds for net in provenance.get("nets") or ()}
    tested = {(row["net"], row["seed"]) for row in trainings(rows, "test", settings.get("epochs"))}
    own = [number(row, f"validation_{score.on_validation}") for row in rows if row["net"] in MAIN_NETS]
    best = (max if score.larger else min)((each for each in own if each is not None), default=None)
    known: dict[str, Any] = {"id": folder.name, "score": score, "validation": best}
    locks = [held(work(folder), each) for each in ("begin", "chain", "train")]
    if (work(folder) / "result.json").is_file():
        state, known["error"] = ("finished", None) if facts(folder, "result.json") else ("failed", DAMAGED)
    elif any(locks):
        state = "running"
    elif failure:
        state, known["error"] = str(failure.get("state", "failed")), failure.get("error")
    elif wanted and wanted <= tested:
        state = "trained"
    elif locks[-1] is None and any((number(row, "time") or 0) > time.time() - STALE for row in rows):
        state = "running"  # a mirror, a folder that was brought from one, or one that may only be read
    else:
        state = "stopped" if rows else "waiting"
    return State(folder, state, **known, **_latest(rows, wanted - tested))


def write_failure(folder: Path, how: str, error: str) -> None:
    """Notes in a run folder that it failed or was pruned."""
    with contextlib.suppress(OSError):  # where not even that can be written, the other runs continue
        workspace.write_json(workspace.make_folder(folder) / "failed.json", {"state": how, "error": error})


def frame(states: Iterable[State]) -> pd.DataFrame:
    """One row per run: what varies, its state, and its best score on the validation split, as it is kept."""
    import pandas as pd

    table = [
        {"run": each.id, **each.settings, "state": each.state}
        | {f"best {each.score.validation_word} of a seed": each.validation}
        | ({"error": each.error} if each.error else {})
        for each in states
    ]
    return pd.DataFrame(table).set_index("run") if table else pd.DataFrame()


def _latest(rows: Sequence[Mapping[str, Any]], left: Collection[Any]) -> dict[str, Any]:
    """`row` and `seconds_left` of a `State`.

    Args:
        rows: Of metrics.jsonl, oldest first.
        left: (net, seed) of the trainings that have not ended.
    """
    row, steps = dict[str, Any](), list[Mapping[str, Any]]()
    for each in rows:
        if each["event"] in ("begin", "step"):
            row, steps = dict(each), [] if each["event"] == "begin" else [*steps[:1], each]
        elif each["event"] == "epoch" and row:
            row |= {"epoch": each["epoch"], "step": row.get("steps"), "loss": each.get("train_loss")}
    if len(steps) < 2:
        return {"row": row}
    first, last = steps  # validation and checkpoints are part of their time
    each = (last["time"] - first["time"]) / max(1, last["updates"] - first["updates"])
    others = len({*left} - {(row["net"], row["seed"])})
    updates = (1 + others) * last["epochs"] * last["steps"] - last["updates"]
    return {"row": row, "seconds_left": each * updates}


# --- looking on ---------------------------------------------------------------------------------------------


def watch(run_dir: str | Path, echo: Callable[[str], None] = print, *, once: bool = False) -> list[State]:
    """Shows the state of a run, or of every run of a batch, until none is running; returns the last states.

    Only files are read and the system asked, so nothing that is watched is slowed down or can be harmed;
    Ctrl-C ends the watching alone.

    Args:
        run_dir: Folder of a run or of a batch.
        echo: Called with each line once, whenever it has changed.
        once: Looks once.

    Raises:
        FileNotFoundError: There is no run and no batch.
        ValueError: batch.json is damaged.
    """
    folder, echoed, runs = workspace.place(run_dir), set[str](), list[State]()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            runs = of_batch(folder) if (folder / "batch.json").exists() else [of_run(run_dir)]
            begun = [run for run in runs if run.state != "waiting"] or runs
            # Of a batch another run may be proposed, or one tried again.
            going_on = any(run.state == "running" for run in runs) or (folder / SESSION).exists()
            for text in [text for text in map(line, begun) if text not in echoed]:
                echoed.add(text)
                echo(text)
            if once or not going_on:
                break
            time.sleep(EVERY)
    return runs


def line(run: State) -> str:
    """A run in one line of words; of one that has finished not where its last control ended."""
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
    if run.state == "running" and run.seconds_left is not None:
        words.append(f"{duration(run.seconds_left)} left")
    return "  ".join(words)

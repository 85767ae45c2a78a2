"""How a run stands: read from its files and locks alone, here or on Drive, for everybody who asks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, workspace
from qnnkit.runs.lock import held
from qnnkit.runs.rows import content, facts, followed, number, trainings, work
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import ACCURACY, Score

if TYPE_CHECKING:
    import pandas as pd

STATES = ("running", "failed", "stopped", "trained", "waiting", "pruned", "finished")
"""What a person looks for first comes first."""
ENDED = ("finished", "failed", "pruned")
"""States that a run leaves only if somebody starts it again."""
STALE = 300.0
"""Seconds without a row after which a run on another machine counts as stopped: Drive is slow."""
SESSION = "session.json"
"""In a batch's folder: the command that it belongs to now, and the runs that it has pruned."""


@dataclass(frozen=True)
class State:
    """How a run stands; what its files do not tell is None."""

    folder: Path
    state: str = "waiting"
    """One of `STATES`. "trained": every net is tested, and the result is still to be written."""
    id: str = ""
    """In its batch; a run alone has the name of its folder."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What sets it apart in its batch."""
    error: str | None = None
    """Why it failed."""
    notebook: Path | None = None
    """Where it failed."""
    doing: str | None = None
    """The notebook that is being executed."""
    score: Score = ACCURACY
    validation: float | None = None
    """The best that the run's own net came to on the validation split, by `score`."""
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
    memory: int | None = None
    """Bytes of RAM that the process holds."""
    peak_memory: int | None = None
    """The most bytes of the memory that the device computes in."""
    device: str | None = None
    device_memory: int | None = None
    warnings: tuple[str, ...] = ()
    """Of this net's training, since it last began."""


def of_run(run_dir: str | Path) -> State:
    """How the run in a folder stands; also one that another machine works on, as its mirror has it.

    Raises:
        FileNotFoundError: There is no run.
    """
    folder = workspace.run_folder(run_dir)
    if not (folder / "config.json").exists():
        folder = workspace.place(run_dir)
    if content(folder, "config.json") is None:
        step = "Name a folder that `qnnkit run` or `qnnkit batch` was given."
        raise FileNotFoundError(checks.message("run_dir", "hold a run or a batch", str(folder), step))
    return look(folder)


def of_batch(folder: str | Path, known: Mapping[str, State] | None = None) -> list[State]:
    """The runs of a batch and how each stands.

    Args:
        folder: The batch's; a relative one is meant from the workspace.
        known: Runs that need no second look, by id.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json lists no runs.
    """
    batch = workspace.place(folder)
    listed = facts(batch, "batch.json")
    if not listed:
        step = "Begin one: qnnkit batch FILE.yaml."
        raise FileNotFoundError(checks.message("folder", "hold a batch", str(batch), step))
    if not isinstance(listed.get("runs"), list):
        rule, step = "hold a list of runs in batch.json", "The command that runs the batch writes it again."
        raise ValueError(checks.message("run_dir", rule, str(batch), step))
    known, score, found = known or {}, score_of(listed), []
    for row in map(named, listed["runs"]):
        there = Path(os.path.normpath(batch / str(row["folder"])))
        found.append(
            known.get(row["id"])
            or replace(look(there, score), id=row["id"], folder=there, settings=row["settings"])
        )
    return found


def named(planned: dict[str, Any]) -> dict[str, Any]:
    """A run as batch.json lists it; one without an id has the name of its folder."""
    return {"settings": {}} | planned | {"id": str(planned.get("id", Path(str(planned["folder"])).name))}


def score_of(listed: Mapping[str, Any]) -> Score:
    """What nets are compared by, from what a batch.json or a provenance.json says."""
    kept = listed.get("score")
    return Score(**kept) if isinstance(kept, dict) else ACCURACY


def look(folder: Path, score: Score | None = None) -> State:
    """How the run in a folder stands; "waiting" where nothing is there yet."""
    if not (folder.exists() or work(folder).exists()):
        return State(folder, id=folder.name, score=score or ACCURACY)
    provenance, settings = facts(folder, "provenance.json"), facts(folder, "config.json")
    score = score or score_of(provenance)
    order, epochs = _order(settings, provenance), settings.get("epochs")
    lines = followed(folder)
    lines.look()
    found = of_rows(folder, lines.rows, order, epochs)
    column = f"validation_{score.on_validation}"
    own = [number(row, column) for row in lines.rows if row["net"] in MAIN_NETS]
    reached = [value for value in own if value is not None]
    there = {"id": folder.name, "score": score, "validation": score.best(reached) if reached else None}
    names = sorted(path.name for path in (work(folder) / "notebooks").glob("*.running.ipynb"))
    if finished(folder):
        return replace(found, state="finished", **there)
    failure, locks = facts(folder, "failed.json"), [held(work(folder), each) for each in LOCKS]
    if any(locks):
        return replace(found, state="running", doing=names[-1].split(".")[0] if names else None, **there)
    if failure:
        where = failure.get("notebook")
        there |= {"error": failure.get("error"), "notebook": folder / where if where else None}
        return replace(found, state="pruned" if failure.get("state") == "pruned" else "failed", **there)
    unknown = locks[-1] is None  # a mirror, a folder that was brought from one, or one that may only be read
    if unknown and found.state == "stopped" and found.age is not None and found.age < STALE:
        return replace(found, state="running", **there)
    return replace(found, **there)


LOCKS = ("begin", "chain", "train")


def finished(folder: Path) -> bool:
    """Whether a run has its result."""
    return content(folder, "result.json") is not None


def write_failure(folder: Path, how: str, error: str) -> None:
    """Notes in a run folder that it failed or was pruned."""
    failed = sorted((work(folder) / "notebooks").glob("*.failed.ipynb")) if how == "failed" else []
    notebook = f"notebooks/{failed[-1].name}" if failed else None
    note = {"state": how, "error": error, "notebook": notebook}
    with contextlib.suppress(OSError):  # where not even that can be written, the other runs continue
        workspace.write_json(workspace.make_folder(folder) / "failed.json", note)


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


# --- what the rows say --------------------------------------------------------------------------------------


def of_rows(
    folder: Path, rows: Sequence[Mapping[str, Any]], order: Sequence[tuple[str, int]], epochs: int | None
) -> State:
    """What the rows of metrics.jsonl say; whether a training still goes on they cannot.

    Args:
        folder: Of the run.
        rows: Oldest first.
        order: (net, seed) of all trainings of the run; may be empty, where nothing tells.
        epochs: Of the run: a net that was tested after fewer, before it was extended, is trained again.
    """
    timed = ("begin", "step", "warning")
    rows = [row for row in rows if row["event"] not in timed or number(row, "time") is not None]
    tested = {(row["net"], row["seed"]): row for row in trainings(rows, "test", epochs)}
    state = "trained" if order and set(order) <= set(tested) else "stopped" if rows else "waiting"
    begun = [i for i, row in enumerate(rows) if row["event"] == "begin"]
    if not begun:
        return State(folder, state)
    lately = rows[begun[-1] :]
    begin, steps = lately[0], [row for row in lately if row["event"] == "step"]
    last = steps[-1] if steps else begin
    ended = [row for row in lately if row["event"] == "epoch"]
    if ended and (number(ended[-1], "epoch") or 0) >= (number(last, "epoch") or 0):
        last = {**last, "epoch": ended[-1].get("epoch"), "step": last.get("steps")}
        last["loss"] = ended[-1].get("train_loss", last.get("loss"))
    pair = begin["net"], begin["seed"]
    left_net, left_run = _left(steps, pair, order, tested)
    words = {"net": str, "seed": int, "device": str, "counted": str}
    known: dict[str, Any] = {name: _is(begin.get(name), kind) for name, kind in words.items()}
    numbers = ("epoch", "epochs", "step", "steps", "loss", "per_second")
    known |= {name: number(last, name) for name in (*numbers, "memory", "device_memory")}
    return State(
        folder,
        state,
        age=max(0.0, time.time() - max(row["time"] for row in lately if "time" in row)),
        number=order.index(pair) + 1 if pair in order else None,
        of=len(order) or None,
        seconds_left_net=left_net,
        seconds_left_run=left_run,
        peak_memory=max((number(row, "peak_memory") or 0 for row in lately), default=0) or None,
        warnings=tuple(str(row.get("sentence")) for row in lately if row["event"] == "warning"),
        **known,
    )


def seconds_of(row: Mapping[str, Any]) -> float:
    """Seconds that a net's training took, of its final row; 0 where it does not tell."""
    return float(row.get("seconds_per_epoch") or 0.0) * int(row.get("epochs_trained") or 0)


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
            known = [row] if resumed else [*known[:1], row]
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


def _order(settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(net, seed) of all trainings of a run; none where its files do not tell."""
    with contextlib.suppress(KeyError, TypeError):
        seeds = range(settings["seed"], settings["seed"] + settings["n_seeds"])
        return [(net, seed) for seed in seeds for net in provenance["nets"]]
    return []


def _is(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None

"""What the folder of a batch says: its runs, and the state of each, read from files alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, workspace
from qnnkit.runs import status as statuses
from qnnkit.runs.lock import held
from qnnkit.runs.reading import content, facts, rows, work
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import ACCURACY, Score

if TYPE_CHECKING:
    import pandas as pd

    from qnnkit.runs import Status

SESSION = "session.json"
"""In a batch's folder: the command that it belongs to now, and the runs that it has pruned."""


@dataclass(frozen=True)
class Outcome:
    """One run of a batch as its folder tells it."""

    id: str
    folder: Path
    settings: dict[str, Any]  # what sets it apart in its batch
    state: str = "waiting"  # waiting, running, finished, failed or pruned
    error: str | None = None
    notebook: Path | None = None  # the notebook it stopped in, with the error
    validation: float | None = None  # best of the run's own net on the validation split
    score: Score = ACCURACY  # what that is, and how it reads


def write_failure(folder: Path, how: str, error: str) -> None:
    """Notes in a run folder that it failed or was pruned."""
    failed = sorted((work(folder) / "notebooks").glob("*.failed.ipynb")) if how == "failed" else []
    notebook = f"notebooks/{failed[-1].name}" if failed else None
    content = {"state": how, "error": error, "notebook": notebook}
    with contextlib.suppress(OSError):  # where not even that can be written, the other runs still go on
        workspace.write_json(workspace.make_folder(folder) / "failed.json", content)


def score_of(content: Mapping[str, Any]) -> Score:
    """What the nets of a batch are compared by, from what its batch.json says."""
    return Score(**content["score"]) if "score" in content else ACCURACY


def read(folder: str | Path, known: Mapping[str, Outcome] | None = None) -> list[Outcome]:
    """The runs of a batch and how each stands.

    Args:
        folder: The batch's; a relative one is meant from the workspace.
        known: Runs that need no second look, by id.

    Raises:
        FileNotFoundError: No batch is there.
    """
    batch = workspace.place(folder)
    content = facts(batch, "batch.json")
    if not content:
        step = "Begin one: qnnkit batch FILE.yaml."
        raise FileNotFoundError(checks.message("folder", "hold a batch", str(batch), step))
    known, score = known or {}, score_of(content)
    return [
        known.get(row["id"])
        or look(row["id"], Path(os.path.normpath(batch / row["folder"])), row["settings"], score)
        for row in map(named, content["runs"])
    ]


def named(planned: dict[str, Any]) -> dict[str, Any]:
    """A run as batch.json lists it; one without an id has the name of its folder."""
    return {"settings": {}} | planned | {"id": str(planned.get("id", Path(str(planned["folder"])).name))}


def look(id_: str, folder: Path, settings: dict[str, Any], score: Score) -> Outcome:
    """How one run stands."""
    if not (folder.exists() or work(folder).exists()):
        return Outcome(id_, folder, settings, score=score)
    column = f"validation_{score.on_validation}"
    scores = [row[column] for row in rows(folder) if row.get("net") in MAIN_NETS and column in row]
    told: dict[str, Any] = {"validation": score.best(scores) if scores else None, "score": score}
    failure = facts(folder, "failed.json")
    if finished(folder):
        told["state"] = "finished"
    elif failure:
        told["state"] = "pruned" if failure.get("state") == "pruned" else "failed"
        told["error"], notebook = failure.get("error"), failure.get("notebook")
        told["notebook"] = folder / notebook if notebook else None
    elif held(work(folder), "chain") or getattr(status(folder), "state", None) == "running":
        told["state"] = "running"
    return Outcome(id_, folder, settings, **told)


def status(folder: Path) -> Status | None:
    """How the training of a run stands; None before it has begun."""
    with contextlib.suppress(OSError, ValueError):
        return statuses.read(folder)
    return None


def finished(folder: Path) -> bool:
    """Whether a run has its result."""
    return content(folder, "result.json") is not None


def frame(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """One row per run: what varies, its state, and its best score on the validation split, as it is kept."""
    import pandas as pd

    table = [
        {"run": each.id, **each.settings, "state": each.state}
        | {f"best {each.score.validation_word} of a seed": each.validation}
        | ({"error": each.error} if each.error else {})
        for each in outcomes
    ]
    return pd.DataFrame(table).set_index("run") if table else pd.DataFrame()

"""What the folder of a batch says: its runs, and the state of each, read from files alone."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, recipes, workspace
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import ACCURACY, SCORES, Score

if TYPE_CHECKING:
    import pandas as pd

STALE = 60.0  # seconds without a sign after which a run no longer counts as running


@dataclass(frozen=True)
class Outcome:
    """One run of a batch as its folder tells it."""

    id: str
    folder: Path
    settings: dict[str, Any]  # what sets it apart in its batch
    state: str = "waiting"  # waiting, running, finished, failed or pruned
    error: str | None = None
    notebook: Path | None = None  # the notebook it stopped in, with the error
    attempts: int = 0  # that failed
    net: str | None = None  # which is being trained, or was last
    seed: int | None = None
    epoch: int | None = None
    progress: float = 0.0  # share of all epochs of all nets and seeds
    validation: float | None = None  # best of the run's own net on the validation split
    score: Score = ACCURACY  # what that is, and how it reads
    started: float | None = field(default=None, compare=False)  # time.time() of this attempt


def control(batch: Path) -> Path:
    """Folder of the signs by which a batch and its workers speak."""
    return batch / "control"


def session(batch: Path) -> str | None:
    """Id of the command that the batch belongs to now; None when none runs."""
    try:
        return (control(batch) / "session").read_text()
    except OSError:
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds; None if it is missing or being replaced."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_failure(folder: Path, how: str, error: str, attempts: int) -> None:
    """Notes in a run folder that it failed or was pruned."""
    failed = sorted((work(folder) / "notebooks").glob("*.failed.ipynb")) if how == "failed" else []
    notebook = f"notebooks/{failed[-1].name}" if failed else None
    content = {"state": how, "error": error, "attempts": attempts, "notebook": notebook}
    workspace.write_json(workspace.make_folder(folder) / "failed.json", content)


def write_runs(
    batch: Path, name: str, recipe: str | list[str], runs: Iterable[Any], score: Score = ACCURACY
) -> None:
    """batch.json: which runs belong to the batch.

    Args:
        batch: Folder of the batch.
        name: Its name.
        recipe: What its runs start from, one name or several.
        runs: Planned runs.
        score: The number that their nets are compared by.
    """
    rows = [
        {"id": run.id, "folder": os.path.relpath(run.folder, batch), "settings": run.varied} for run in runs
    ]
    workspace.write_json(
        batch / "batch.json", {"name": name, "recipe": recipe, "score": asdict(score), "runs": rows}
    )


def score_of(content: Mapping[str, Any]) -> Score:
    """What the nets of a batch are compared by, from what its batch.json says."""
    kept, named = content.get("score"), content.get("recipe")
    if isinstance(kept, dict):
        return Score(**kept)
    first = named if isinstance(named, str) else next(iter(named or ()), None)
    if kept is None and first in recipes.names():  # of an earlier version
        found = recipes.find(first)
        return found.task(found.settings()).score
    return SCORES.get(str(kept), ACCURACY)


def read(folder: str | Path, known: Mapping[str, Outcome] | None = None) -> list[Outcome]:
    """The runs of a batch and how each stands.

    Args:
        folder: The batch's; a relative one is meant from the workspace.
        known: Runs that need no second look, by id.

    Raises:
        FileNotFoundError: No batch is there.
    """
    batch = workspace.place(folder)
    content = read_json(batch / "batch.json")
    if content is None:
        step = "Begin one: qnnkit batch FILE.yaml."
        raise FileNotFoundError(checks.message("folder", "hold a batch", str(batch), step))
    known, score = known or {}, score_of(content)
    return [
        known.get(row["id"])
        or look(row["id"], Path(os.path.normpath(batch / row["folder"])), row["settings"], batch, score)
        for row in content["runs"]
    ]


def look(id_: str, folder: Path, settings: Mapping[str, Any], batch: Path, score: Score) -> Outcome:
    """How one run stands."""
    facts: dict[str, Any] = {"id": id_, "folder": folder, "settings": dict(settings), "score": score}
    facts |= _progress(folder, score)
    if finished(folder):
        return Outcome(**facts | {"state": "finished", "progress": 1.0})
    failure = read_json(folder / "failed.json")
    if failure is not None:
        notebook = failure.get("notebook")
        return Outcome(
            **facts,
            state=failure["state"],
            error=failure["error"],
            attempts=failure["attempts"],
            notebook=folder / notebook if notebook else None,
        )
    mark = control(batch) / f"running-{id_}"
    sign = read_json(mark)
    if sign is not None and sign.get("session") == session(batch):
        try:
            fresh = time.time() - mark.stat().st_mtime < STALE
        except OSError:
            fresh = False
        if fresh:
            return Outcome(**facts, state="running", started=sign["started"])
    return Outcome(**facts)


def work(folder: Path) -> Path:
    """Where a run is worked on: its folder, or the copy of it on fast local disk."""
    try:
        local = workspace.run_folder(folder)
    except (OSError, ValueError):
        return folder
    return local if (local / "config.json").exists() else folder


def finished(folder: Path) -> bool:
    """Whether a run has its result."""
    return (folder / "result.json").exists() or (work(folder) / "result.json").exists()


def rows(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run; none where they cannot be read, for a table must not stop a batch."""
    with contextlib.suppress(OSError):
        return workspace.parse_lines(metrics(folder))[0]
    return []


def metrics(folder: Path) -> bytes:
    """The content of metrics.jsonl; empty where there is none."""
    return content(folder, "metrics.jsonl") or b""


def content(folder: Path, name: str) -> bytes | None:
    """A file of a run, worked on here, or kept on Drive; None if missing."""
    for place in dict.fromkeys((work(folder), folder)):
        with contextlib.suppress(FileNotFoundError):
            return (place / name).read_bytes()
    return None


def _progress(folder: Path, score: Score) -> dict[str, Any]:
    settings = read_json(work(folder) / "config.json")
    found = rows(folder)
    if settings is None or not found:
        return {}
    if "epochs" not in settings:  # of an earlier version
        return {}
    nets = (read_json(work(folder) / "provenance.json") or {}).get("nets") or [None, *settings["controls"]]
    epochs = settings["epochs"]
    total = len(nets) * settings["n_seeds"] * epochs
    done: dict[tuple[str, int], int] = {}
    for row in found:
        pair = (row["net"], row["seed"])
        done[pair] = epochs if row["event"] == "test" else max(done.get(pair, 0), row.get("epoch", 0))
    last = found[-1]
    column = f"validation_{score.on_validation}"
    scores = [row[column] for row in found if row["net"] in MAIN_NETS and column in row]
    return {
        "net": last["net"],
        "seed": last["seed"],
        "epoch": last.get("epoch"),
        "progress": min(1.0, sum(done.values()) / total),
        "validation": score.best(scores) if scores else None,
    }


def frame(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """One row per run: what varies, its state, and its best score on the validation split, as it is kept."""
    import pandas as pd

    table = [
        {"run": each.id, **each.settings, "state": each.state, each.score.validation_word: each.validation}
        | ({"error": each.error} if each.error else {})
        for each in outcomes
    ]
    return pd.DataFrame(table).set_index("run") if table else pd.DataFrame()

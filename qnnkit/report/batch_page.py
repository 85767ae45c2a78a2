"""The page of a batch: a table of its runs, and the executed 06_study."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from qnnkit import workspace
from qnnkit.report import page
from qnnkit.report.study import Study, read_study
from qnnkit.report.tables import comparisons, has_splits, means, show, verdict
from qnnkit.runs import launch, state
from qnnkit.runs import rows as files
from qnnkit.runs.chain import find_notebook
from qnnkit.runs.lock import alone
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

NOTEBOOK = "06_study"


def analyze_batch(folder: str | Path, *, again: bool = True) -> Path:
    """Executes 06_study on the finished runs of a batch, which writes its page and the files in `study/`.

    If no run has finished, the page has only the table.

    Args:
        folder: Folder of the batch; a relative path starts at the workspace.
        again: Whether to execute it again if it has been executed for the same state of the runs.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: There is no batch in the folder.
        ValueError: Its batch.json is damaged, or the notebook has no parameter `train`.
        NotebookError: The notebook stopped. The page has the table, and figures of an earlier execution.
        BlockingIOError: Another process is making the page.
        OSError: A file cannot be written.
    """
    folder = workspace.place(folder)
    study = read_study(folder)
    with alone(folder, "study"):
        try:
            if len(study.frame) and (again or _copy(study) is None):
                copy = folder / f"{NOTEBOOK}.ipynb"
                launch(find_notebook(NOTEBOOK), copy, {"run_dir": str(folder), "train": False})
        finally:
            write_batch_page(folder)
    return folder / "report.html"


def write_batch_page(folder: str | Path) -> Path:
    """Writes report.html into the folder of a batch, whatever the state of its runs; returns its path.

    Below the table, the page shows 06_study: what has been executed so far, if `runs.launch` is executing it
    for this folder; otherwise the last executed copy, if it shows the same runs.

    Args:
        folder: Folder of the batch; a relative path starts at the workspace.

    Raises:
        FileNotFoundError: There is no batch in the folder.
        ValueError: Its batch.json is damaged.
        OSError: The page cannot be written.
    """
    study = read_study(folder)
    table, failed = runs_table(study), Counter(study.left_out.values())
    notebook = page.executed(study.folder / f"{NOTEBOOK}.ipynb") or _copy(study)
    compared = comparisons(study.frame, study.score, study.min_difference)[0] if len(study.frame) else None
    content = page.render(
        "batch.html",
        title=f"{study.name}: {study.planned} run{'s' * (study.planned != 1)}",
        counts=", ".join(f"{n} {state}" for state, n in Counter(table["state"]).items()),
        table=table,
        links=_links(study),
        verdict="No run has finished yet." if compared is None else verdict(compared),
        splits=has_splits(study.frame),
        failed=[f"{n} run{'s' * (n > 1)}: {why}" for why, n in failed.items()],
        study=study,
        copy=notebook and f"{NOTEBOOK}.ipynb",
        body=page.body(notebook) if notebook else page.Body("", []),
    )
    workspace.write_bytes(study.folder / "report.html", content.encode())
    return study.folder / "report.html"


def runs_table(study: Study) -> pd.DataFrame:
    """One row per run of a batch: its present settings, state, test scores, costs and errors."""
    import pandas as pd

    rows, score = [], study.score
    for run in state.of_batch(study.folder):
        config, why = files.facts(run.folder, "config.json"), study.left_out.get(run.id)
        finished = run.state == "finished"
        rows.append(
            {"run": run.id, "folder": run.folder.name}
            | {name: show(config.get(name, value)) for name, value in run.settings.items()}
            | {"state": "unfinished" if finished and why else run.state}
            | {"notes": " ".join(filter(None, [run.error, why if finished else ""]))}
        )
    table = pd.DataFrame(rows, columns=None if rows else pd.Index(["run", "folder", "state", "notes"]))
    notes, places = table.pop("notes"), table.pop("folder")
    main: Any = study.frame[study.frame["net"].isin(MAIN_NETS)]
    of_runs = means(study.frame.assign(model=study.frame["run"]), score) if len(study.frame) else study.frame
    for net, of_net in of_runs.groupby("net", sort=False):
        of_net = of_net.set_index("model")[[score.name, f"{score.name}_low", f"{score.name}_high"]]
        cells = {run: score.with_interval(*numbers) for run, *numbers in of_net.itertuples()}
        table[f"{net}, {score.column}"] = places.map(cells)
    heads = {f"validation_{score.on_validation}": f"{score.validation_word}, mean"}
    heads |= {"quantum": "circuit weights", "classical": "other weights", "seconds_per_epoch": "s / epoch"}
    forms = [score.tell, "{:,.0f}".format, "{:,.0f}".format, "{:.2f}".format]
    for (name, head), form in zip(heads.items(), forms, strict=True):
        table[head] = places.map(main.groupby("run")[name].mean().map(form))
    return table.assign(notes=notes).astype(object).fillna("")


def _links(study: Study) -> list[str | None]:
    """Address of each run's report, or of the notebook in which it failed.

    Addresses are relative and quoted, so that no folder can pass for another kind of address ("javascript:").
    """
    links = []
    for run in state.of_batch(study.folder):
        folder = files.work(run.folder)
        pages = [folder / "report.html", *sorted((folder / "notebooks").glob("*.failed.ipynb"))]
        path = next((path for path in pages if path.is_file()), None)
        address = path and os.path.relpath(run.folder / path.relative_to(folder), study.folder)
        links.append(quote(Path(address).as_posix()) if address else None)
    return links


def _copy(study: Study) -> Path | None:
    """Path of the executed 06_study, if it shows exactly these runs."""
    path = study.folder / f"{NOTEBOOK}.ipynb"
    return path if path.is_file() and study.stamp in path.read_text(encoding="utf-8") else None

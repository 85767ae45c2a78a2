"""The page of a batch: a table of its runs that sorts and filters, then the executed 06_study."""

from __future__ import annotations

import hashlib
import html
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from qnnkit import workspace
from qnnkit.report import page
from qnnkit.report.compared import comparisons, verdict
from qnnkit.report.study import COVERED, Study, read_batch, read_study, settings_in, show
from qnnkit.runs import find_notebook, launch, state
from qnnkit.runs import rows as reading
from qnnkit.runs.lock import alone
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

NOTEBOOK = "06_study"
FILTERS_FIRST = """function () {
  const table = this.api().table();
  if (table.footer().nextElementSibling !== table.body()) table.body().before(table.footer());
}"""
"""Puts the row of filters between the names of the columns and the runs."""


def analyze_batch(folder: str | Path, *, again: bool = True) -> Path:
    """Executes 06_study on what has finished of a batch: its page, and the files in `study/`.

    A batch without a finished run gets a page with its table alone.

    Args:
        folder: The batch's; a relative one is meant from the workspace.
        again: Also where the page already shows what the runs have come to.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged, or the notebook has no parameter `train`.
        NotebookError: The notebook stopped; the page has the table, and what an earlier one drew.
        BlockingIOError: Another process makes the page.
        OSError: A file cannot be written.
    """
    folder = workspace.place(folder)
    study = read_study(folder)
    if not again and _is_of(folder, study):
        return folder / "report.html"
    with alone(folder, "study"):
        try:
            if len(study.frame):
                values = {"run_dir": str(folder), "train": False}
                launch(find_notebook(NOTEBOOK), folder / f"{NOTEBOOK}.ipynb", values)
        finally:
            if not _is_of(folder, study):
                write_batch_page(folder)
    return folder / "report.html"


def write_batch_page(folder: str | Path) -> Path:
    """Writes report.html into the folder of a batch, whatever its runs have come to; returns its path.

    Below the table it shows 06_study as it has been executed so far, if `runs.launch` is executing it for
    this folder; else the last executed copy, if it shows the same runs; else the figures in `study/`.

    Args:
        folder: The batch's; a relative one is meant from the workspace.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged.
        OSError: The page cannot be written.
    """
    folder = workspace.place(folder)
    study = read_study(folder)
    notebook = page.executed(folder / f"{NOTEBOOK}.ipynb") or _copy(study)
    files = files_of(study)
    shown = (
        page.body(notebook)
        if notebook
        else page.figures(study.folder / "study" / name for name in files if name.endswith(".png"))
    )
    path = folder / "report.html"
    workspace.write_bytes(path, _render(study, shown, files, notebook is not None).encode())
    return path


def runs_table(study: Study) -> pd.DataFrame:
    """One row per run of a batch, as words: settings, state, test scores with intervals, costs, notes."""
    import pandas as pd

    rows = [_row(study, planned) for planned in read_batch(study.folder)["runs"]]
    settings = dict.fromkeys(name for row in rows for name in row["settings"])
    nets = dict.fromkeys(net for row in rows for net in row["nets"])
    nets = sorted(nets, key=lambda net: net not in MAIN_NETS)
    score = study.score
    return pd.DataFrame(
        [
            {"run": row["id"]}
            | {name: show(row["settings"][name]) if name in row["settings"] else "" for name in settings}
            | {"state": row["state"]}
            | {f"{net}, {score.column}": row["nets"].get(net, "") for net in nets}
            | {
                f"{score.validation_word} ({score.per}), mean over seeds".replace(" ()", ""): row[
                    "validation"
                ]
            }
            | {name: row["costs"].get(name, "") for name in ("circuit weights", "other weights", "s / epoch")}
            | {"notes": " ".join(row["notes"])}
            for row in rows
        ],
        columns=None if rows else pd.Index(["run", "state", "notes"]),
    )


def best(study: Study) -> str:
    """Which model did best on the validation split by its mean, and why that number flatters it."""
    score, column = study.score, f"validation_{study.score.on_validation}"
    own: Any = study.frame[study.frame["net"].isin(MAIN_NETS)]
    reached = own.groupby(["model", "train_fraction"], sort=False)[column].mean().dropna()
    if len(reached) < 2:
        return ""
    top = score.best(reached)
    winners = [
        f"{model}, {100 * share:g} % of the data" for (model, share), value in reached.items() if value == top
    ]
    return (
        f"Best of {len(reached)} means of {score.validation_word} over seeds: {score.with_unit(top)} "
        f"({'; '.join(winners[:3])}{' and others' * (len(winners) > 3)}). It is the "
        f"{'largest' if score.larger else 'smallest'} of numbers that each vary by chance, so it is "
        "optimistic; seeds that took no part would tell more."
    )


# --- reading: any folder may be missing, half written or damaged -------------------------------------------


def _row(study: Study, planned: dict[str, Any]) -> dict[str, Any]:
    folder = Path(os.path.normpath(study.folder / str(planned["folder"])))
    settings, id_ = settings_in(planned), planned["id"]
    row: dict[str, Any] = {"id": id_, "settings": settings, "state": "unfinished", "notes": []}
    row |= {"folder": folder.name, "nets": {}, "costs": {}, "validation": ""}
    try:
        outcome = state.look(folder, study.score)
        row["state"], why = outcome.state, study.left_out.get(id_)
        row["notes"] += [str(outcome.error)] if outcome.error else []
        if outcome.state == "finished":
            row["state"] = "unfinished" if why else "finished"
            row["notes"] += [f"Left out of the study: {why}"] if why else []
            row |= _filled(row, reading.facts(folder, "result.json"), study)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        row["state"] = "unfinished"
        row["notes"].append(f"Its folder cannot be read ({type(error).__name__}: {error}).")
    return row


def _filled(row: dict[str, Any], result: dict[str, Any], study: Study) -> dict[str, Any]:
    """What a row has of a result: all of it, or an error."""
    score, row = study.score, row | {"nets": {}, "notes": [*row["notes"]]}
    for each in result["nets"]:
        reached, low, high = (reading.number(each, name) for name in ("score", "low", "high"))
        if reached is not None and result.get("score", score.name) == score.name:
            row["nets"][str(each["net"])] = score.with_interval(reached, low, high)
        if each["net"] in MAIN_NETS:
            row["costs"] = {
                "circuit weights": f"{each['quantum']:,}",
                "other weights": f"{each['classical']:,}",
                "s / epoch": f"{each['seconds_per_epoch']:.2f}",
            }
    own: Any = study.frame[(study.frame["run"] == row["folder"]) & study.frame["net"].isin(MAIN_NETS)]
    validation = own[f"validation_{score.on_validation}"].mean()
    row["validation"] = score.tell(validation) if validation == validation else ""
    judged = ((each["criterion"], each["sentence"].partition(":")[0]) for each in result.get("criteria", ()))
    row["notes"] += [f"{criterion}: {how}." for criterion, how in judged]
    return row


def files_of(study: Study) -> list[str]:
    """Those in `study/` that are of these very runs: each names the runs behind it."""
    stamp, folder = study.stamp.encode(), study.folder / "study"
    kinds = (".csv", ".tex", ".txt", ".png", ".pdf")
    found = [path for path in sorted(folder.glob("*.*")) if path.suffix in kinds]
    return [path.name for path in found if stamp in path.read_bytes()]


# --- writing -----------------------------------------------------------------------------------------------


def _digest(study: Study) -> str:
    """What the page says of the runs, in short."""
    said = [study.stamp, *study.notes, runs_table(study).to_csv()]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _copy(study: Study) -> Path | None:
    """The executed 06_study, if it shows these very runs."""
    copy = study.folder / f"{NOTEBOOK}.ipynb"
    known = copy.is_file() and study.stamp in copy.read_text(encoding="utf-8")
    return copy if known else None


def _is_of(folder: Path, study: Study) -> bool:
    """Whether the page shows these runs as they are, and 06_study below them where any has finished."""
    path = folder / "report.html"
    whole = not len(study.frame) or _copy(study) is not None
    return whole and path.is_file() and f"<!-- {_digest(study)} -->" in path.read_text(encoding="utf-8")


def _render(study: Study, shown: page.Body, files: list[str], copy: bool) -> str:
    batch, table = read_batch(study.folder), runs_table(study)
    counts = Counter(table["state"])
    failed = Counter(table.loc[table["state"] == "failed", "notes"])
    return page.render(
        "batch.html",
        title=f"{study.name}: {study.planned} run{'s' * (study.planned != 1)}",
        recipe=show(batch["recipe"]),
        counts=", ".join(f"{count} {each}" for each, count in counts.items()),
        table=_sortable(_linked(study, table)),
        verdict=verdict(comparisons(study.frame, study.score)[0])
        if len(study.frame)
        else "No run has finished yet.",
        best=best(study),
        failed=[f"{n} run{'s' * (n > 1)} failed: {why}" for why, n in failed.items()],
        notes=study.notes,
        covered=COVERED,
        study=study,
        files=[(name, quote(f"study/{name}")) for name in files],
        copy=f"{NOTEBOOK}.ipynb" if copy else "",
        digest=_digest(study),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        body=shown,
    )


def _linked(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """The table as HTML: all of it escaped, and links to what is in the folders of the runs."""
    linked = table.map(html.escape).rename(columns=lambda name: html.escape(str(name)))
    links = [_links(study.folder, planned) for planned in read_batch(study.folder)["runs"]]
    linked["run"] = [
        f'<a href="{report}">{name}</a>' if report else name
        for name, (report, _) in zip(linked["run"], links, strict=True)
    ]
    linked["notebooks"] = [
        " ".join(f'<a href="{address}">{html.escape(name)}</a>' for name, address in notebooks)
        for _, notebooks in links
    ]
    return linked


def _links(batch: Path, planned: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Addresses of a run's report and notebooks, from the batch's folder.

    Relative and quoted, so that a folder cannot pass for another kind of address ("javascript:").
    """
    kept = Path(os.path.normpath(batch / str(planned["folder"])))
    folder = reading.work(kept)

    def address(path: Path) -> str:
        return quote(Path(os.path.relpath(kept / path.relative_to(folder), batch)).as_posix())

    report = folder / "report.html"
    notebooks = [
        (path.name.removesuffix(".ipynb").replace(".failed", " (failed)"), address(path))
        for path in sorted((folder / "notebooks").glob("*.ipynb"))
        if not path.name.endswith(".running.ipynb")
    ]
    return address(report) if report.is_file() else "", notebooks


def _sortable(table: pd.DataFrame) -> str:
    """A table that sorts by the numbers that cells begin with; the script it needs is in the page."""
    from itables import JavascriptFunction, to_html_datatable
    from itables.javascript import generate_init_offline_itables_html
    from itables.options import dt_bundle

    number = "function (data, type) { return type === 'sort' ? parseFloat(data.replaceAll(',', '')) : data; }"
    numeric = [index for index, name in enumerate(table) if _is_numeric(table[name])]
    columns: list[Any] = [{"targets": [list(table).index("notes")], "className": "told"}]
    if numeric:
        render = {"type": "num", "render": JavascriptFunction(number)}
        columns.append({"targets": numeric, "className": "dt-right", **render})
    made = to_html_datatable(
        table,
        connected=False,
        allow_html=True,
        showIndex=False,
        display_logo_when_loading=False,
        column_filters="footer",
        text_in_header_can_be_selected=False,  # a click on it sorts
        maxBytes=0,
        lengthMenu=[25, 100, 500],
        table_id="runs",
        classes="compact nowrap",
        style="margin:0",
        columnDefs=columns,
        drawCallback=JavascriptFunction(FILTERS_FIRST),
    )
    script = generate_init_offline_itables_html(dt_bundle).partition("<div")[0]  # then words on notebooks
    return script + made


def _is_numeric(column: Any) -> bool:
    import pandas as pd

    first = column.str.replace(",", "").str.split(" ").str[0]
    known = first[~first.isin(("", "none"))]
    numbers: Any = pd.to_numeric(known, errors="coerce")
    return len(known) > 0 and bool(numbers.notna().all())

"""A batch on one page: every run in a table that sorts and filters, curves beside each other, notebooks."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from qnnkit import checks, workspace
from qnnkit.batch import state
from qnnkit.report.groups import batch_groups
from qnnkit.runs import reading
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import ACCURACY, Score

POINTS = 200  # of a curve that the page keeps
STATES = ("finished", "failed", "pruned", "unfinished", "waiting")


@dataclass
class Row:
    """One run of the batch, as far as its folder can be read."""

    id: str
    settings: dict[str, Any]
    state: str = "waiting"
    error: str | None = None
    notes: list[str] = field(default_factory=list)
    """What is wrong with its folder."""
    data_notes: list[str] = field(default_factory=list)
    """What its data were found to be, as its provenance keeps it."""
    nets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Net -> its row of result.json."""
    verdicts: list[str] = field(default_factory=list)
    criteria: list[str] = field(default_factory=list)
    validation: float | None = None
    """Best score of the run's own net on the validation split, mean over its seeds."""
    curves: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    """Net -> "epoch", "validation" (as it is told), "loss": means over the seeds that reached the epoch."""
    report: str | None = None
    """Address of the run's own page, from the batch's folder."""
    notebooks: list[tuple[str, str, str]] = field(default_factory=list)
    """(number, name, address) of the executed notebooks."""

    @property
    def varied(self) -> str:
        """What sets it apart, in words."""
        return ", ".join(f"{name} {show(value)}" for name, value in self.settings.items()) or "no setting"


def write_batch_page(folder: str | Path) -> Path:
    """Writes report.html into the folder of a batch, whatever its runs have come to; returns its path.

    Args:
        folder: The batch's, with batch.json in it; a relative one is meant from the workspace.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged.
        OSError: The page cannot be written.
    """
    folder = workspace.place(folder)
    content = read_batch(folder)
    rows = [_row(folder, planned, content["score"]) for planned in content["runs"]]
    page = folder / "report.html"
    content["groups"] = batch_groups(folder, content["runs"])
    workspace.write_bytes(page, _render(content, rows, _study(folder)).encode())
    return page


def best(rows: Iterable[Row], score: Score = ACCURACY) -> str:
    """Which setting did best on the validation split, and why that number flatters it."""
    scored = [row for row in rows if row.state == "finished" and row.validation is not None]
    if not scored:
        return "No run has finished yet, so nothing can be said about which setting is best."
    top = score.best(row.validation for row in scored if row.validation is not None)
    winners = [row for row in scored if row.validation == top]
    what, value = score.validation_word, score.with_unit(top)
    if len(scored) == 1:
        return f"One run has finished: {winners[0].varied}, {what} {value}."
    if len(winners) > 1:
        told = f"{len(winners)} of {len(scored)} finished runs share the best {what}, {value}: "
        told += "; ".join(row.varied for row in winners[:3]) + (" and others." if len(winners) > 3 else ".")
    else:
        told = f"Best {what} of {len(scored)} finished runs: {value}, with {winners[0].varied}."
    extreme = "largest" if score.larger else "smallest"
    return (
        f"{told} It is the {extreme} of {len(scored)} numbers that each vary by chance, so it is optimistic: "
        f"such a choice looks better on the validation split than it is. Its test {score.word} was not used "
        "to choose; seeds that took no part would tell more."
    )


def show(value: Any) -> str:
    """A setting as people write it.

    Example:
        >>> show(True), show(None), show(0.0010000000474974513), show(["a", "b"])
        ('yes', 'none', '0.001', 'a, b')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.5g}"
    return ", ".join(map(show, value)) if isinstance(value, list) else str(value)


# --- reading: any folder may be missing, half written or damaged -------------------------------------------


def read_batch(folder: Path) -> dict[str, Any]:
    """What batch.json says: name, recipe, score, and the runs that are told with their folders.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: It is damaged.
    """
    path = folder / "batch.json"
    try:
        content = json.loads(path.read_text())
        runs = [planned for planned in content["runs"] if isinstance(planned, dict) and "folder" in planned]
    except (FileNotFoundError, NotADirectoryError):
        step = "Begin one: qnnkit batch FILE.yaml."
        raise FileNotFoundError(checks.message("folder", "hold a batch", str(folder), step)) from None
    except (ValueError, KeyError, TypeError) as error:
        step = "Run the same qnnkit batch again; it writes it anew."
        raise ValueError(f"Batch `{path}` is damaged ({type(error).__name__}: {error}). {step}") from None
    name, recipe = content.get("name", folder.name), content.get("recipe", "")
    return {"name": name, "recipe": recipe, "score": state.score_of(content), "runs": runs}


def _study(folder: Path) -> dict[str, Any] | None:
    """What the study in a batch's folder concludes, and its files; None where none can be read."""
    found = reading.facts(folder / "study", "index.json")
    if not all(isinstance(found.get(key), list) for key in ("conclusions", "files")):
        return None
    files = [str(name) for name in found["files"] if (folder / "study" / str(name)).is_file()]
    return found | {"files": [(name, quote(f"study/{name}")) for name in files]}


def _row(batch: Path, planned: dict[str, Any], score: Score) -> Row:
    folder = Path(os.path.normpath(batch / str(planned["folder"])))
    settings = planned.get("settings")
    row = Row(str(planned.get("id", folder.name)), settings if isinstance(settings, dict) else {})
    try:
        _fill(row, folder, batch, score)
    except (OSError, ValueError, TypeError, KeyError) as error:  # what nobody thought of costs one row
        row.notes.append(f"Its folder cannot be read ({type(error).__name__}: {error}).")
    return row


def _fill(row: Row, folder: Path, batch: Path, score: Score) -> None:
    kept, folder = folder, reading.work(folder)
    if not folder.is_dir():
        row.notes.append("It has no folder yet.")
        return
    metrics, damaged = workspace.parse_lines(reading.content(kept, "metrics.jsonl") or b"")
    if damaged:
        row.notes.append(f"metrics.jsonl is damaged: {damaged} of its lines cannot be read.")
    _learn(row, metrics, score)
    row.data_notes = data_notes(_json(row, folder / "provenance.json") or {})
    row.state = "unfinished" if metrics else "waiting"
    failed = _json(row, folder / "failed.json")
    if failed is not None:
        row.state = "pruned" if failed.get("state") == "pruned" else "failed"
        row.error = str(failed.get("error") or "It does not say why.")
    result = _json(row, folder / "result.json")
    if result is not None:
        _finished(row, result, score)
    _link(row, folder, kept, batch)


def _finished(row: Row, result: dict[str, Any], score: Score) -> None:
    other = result.get("score", score.name)
    if other != score.name:  # as a batch of an earlier version may have
        row.notes.append(f"Its nets are compared by {other}, those of the batch by {score.name}.")
        return
    nets = result.get("nets")
    for each in nets if isinstance(nets, list) else ():
        if isinstance(each, dict) and isinstance(each.get("net"), str):
            # Before there were other scores, it had the name of this one.
            reached = number(each.get("score", each.get("accuracy")))
            if reached is not None:
                row.nets[each["net"]] = {**each, "score": reached}
    if not row.nets.keys() & set(MAIN_NETS):
        row.notes.append("result.json is damaged: it tells nothing of the run's own net.")
        return
    row.state, row.error = "finished", None
    told = result.get("verdicts")
    row.verdicts = [str(sentence) for sentence in told] if isinstance(told, list) else []
    judged = result.get("criteria")
    for each in judged if isinstance(judged, list) else ():
        if isinstance(each, dict) and "sentence" in each:
            row.criteria.append(f"{each.get('criterion')}: {each['sentence']}")


def _learn(row: Row, metrics: list[dict[str, Any]], score: Score) -> None:
    """Curves and the best score on the validation split; an epoch that was computed twice counts once."""
    watched = f"validation_{score.on_validation}"
    epochs: dict[str, dict[int, dict[Any, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    best: dict[Any, float] = {}
    for each in metrics:
        net, seed, epoch = str(each.get("net")), str(each.get("seed")), each.get("epoch")
        reached = number(each.get(watched))
        if each.get("event") == "epoch" and isinstance(epoch, int):
            epochs[net][epoch][seed] = each
        if net in MAIN_NETS and reached is not None:
            final = each.get("event") == "test"
            best[seed] = reached if final else score.best([reached, best.get(seed, reached)])
    row.validation = fmean(best.values()) if best else None
    controls = [net for net in epochs if net not in MAIN_NETS]
    control = "classical" if "classical" in controls else next(iter(controls), None)
    main = next((net for net in MAIN_NETS if net in epochs), None)
    for net in filter(None, (main, control)):
        numbers = sorted(epochs[net])
        numbers = numbers[:: math.ceil(len(numbers) / POINTS)]
        row.curves[net] = {
            "epoch": numbers,
            "validation": [_mean(epochs[net][n].values(), watched, score.factor) for n in numbers],
            "loss": [_mean(epochs[net][n].values(), "train_loss", 1) for n in numbers],
        }


def _link(row: Row, folder: Path, kept: Path, batch: Path) -> None:
    """Links to what is in `folder`, as it lies in `kept`: where the batch is."""

    def address(path: Path) -> str:
        # Relative and quoted, so a folder cannot pass for another kind of address ("javascript:").
        return quote(Path(os.path.relpath(kept / path.relative_to(folder), batch)).as_posix())

    if (folder / "report.html").is_file():
        row.report = address(folder / "report.html")
    for path in sorted((folder / "notebooks").glob("*.ipynb")):
        if not path.name.endswith(".running.ipynb"):
            title = path.name.removesuffix(".ipynb").replace(".failed", " (failed)")
            label = re.sub(r"^(\d+)_\w+", r"\1", title)  # five of them are to fit a line
            row.notebooks.append((label, title, address(path)))


def _json(row: Row, path: Path) -> dict[str, Any] | None:
    """What a file of the run says; None, with a note, where it is damaged."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        row.notes.append(f"{path.name} cannot be read ({type(error).__name__}).")
        return None
    if not isinstance(found, dict):
        row.notes.append(f"{path.name} is damaged.")
        return None
    return found


def data_notes(provenance: dict[str, Any]) -> list[str]:
    """What a run was told of its data when its training began, such as images that cannot be read."""
    found = provenance.get("notes")
    return list(dict.fromkeys(map(str, found))) if isinstance(found, list) else []


def noted(told: Counter[str], n_runs: int) -> list[str]:
    """A sentence on each note on the data, with how many of the runs have it."""
    return [f"Data of {count} of {n_runs} run{'s' * (n_runs > 1)}: {note}" for note, count in told.items()]


def number(value: Any) -> float | None:
    """`value`, if it is a finite number."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _mean(rows: Iterable[dict[str, Any]], name: str, factor: float) -> float | None:
    values = [value for value in (number(row.get(name)) for row in rows) if value is not None]
    return float(f"{factor * fmean(values):.5g}") if values else None


# --- writing -----------------------------------------------------------------------------------------------


@dataclass
class Cell:
    """What a cell shows, and by what it sorts: a number, a word, or nothing."""

    text: str = ""
    key: Any = ""


def _render(content: dict[str, Any], rows: list[Row], study: dict[str, Any] | None) -> str:
    from jinja2 import Environment, PackageLoader

    settings = list(dict.fromkeys(name for row in rows for name in row.settings))
    found = dict.fromkeys(net for row in rows for net in row.nets)
    nets = [*(net for net in MAIN_NETS if net in found), *(net for net in found if net not in MAIN_NETS)]
    nets = nets or ["hybrid"]
    counts, score = Counter(row.state for row in rows), content["score"]
    environment = Environment(loader=PackageLoader("qnnkit.report", "."), autoescape=True)
    return environment.get_template("batch.html").render(
        name=content["name"],
        recipe=show(content["recipe"]),
        rows=[(row, _cells(row, settings, nets, score)) for row in rows],
        heads=[
            *settings,
            "state",
            *(f"{net}, {score.told}" for net in nets),
            f"{score.validation_word} ({score.per})",
            "weights",
            "s / epoch",
        ],
        first_number=len(settings) + 1,
        counts=[(state, counts[state]) for state in STATES if counts[state]],
        score=score,
        best=best(rows, score),
        data_notes=noted(Counter(note for row in rows for note in row.data_notes), len(rows)),
        study=study,
        groups=content["groups"],
        choices=_choices(rows, settings),
        data={
            row.id: {"label": row.varied, "validation": row.validation, "curves": row.curves} for row in rows
        },
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )


def _cells(row: Row, settings: list[str], nets: list[str], score: Score) -> list[Cell]:
    cells = []
    for name in settings:
        value = row.settings.get(name)
        text = show(value) if name in row.settings else ""
        cells.append(Cell(text, value if number(value) is not None else text))
    cells.append(Cell(row.state, row.state))
    for net in nets:
        found = row.nets.get(net, {})
        reached, low, high = (number(found.get(key)) for key in ("score", "low", "high"))
        if reached is None:
            cells.append(Cell())
        else:
            known = low is not None and high is not None
            told = score.with_interval(reached, low, high) if known else score.tell(reached)
            cells.append(Cell(told, reached))
    cells.append(Cell() if row.validation is None else Cell(score.tell(row.validation), row.validation))
    main: dict[str, Any] = next((row.nets[net] for net in MAIN_NETS if net in row.nets), {})
    quantum, classical = (number(main.get(key)) for key in ("quantum", "classical"))
    if quantum is None or classical is None:
        cells.append(Cell())
    else:
        cells.append(Cell(f"{quantum:,.0f} + {classical:,.0f}", quantum + classical))
    seconds = number(main.get("seconds_per_epoch"))
    cells.append(Cell() if seconds is None else Cell(f"{seconds:.2f}", seconds))
    return cells


def _choices(rows: list[Row], settings: list[str]) -> list[tuple[int, str, list[str]]]:
    """(column, name, values) of every select."""
    found = []
    for column, name in enumerate(settings):
        values = {show(row.settings[name]): row.settings[name] for row in rows if name in row.settings}
        numbers = all(number(value) is not None for value in values.values())
        ordered = sorted(values, key=lambda text: values[text]) if numbers else sorted(values)
        found.append((column, name, ordered))
    present = {row.state for row in rows}
    return [*found, (len(settings), "state", [state for state in STATES if state in present])]

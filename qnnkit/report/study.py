"""A study: the finished runs of a batch as one table, its files, and its page."""

from __future__ import annotations

import copy
import hashlib
import html
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from qnnkit import checks, stats, workspace
from qnnkit.report import page
from qnnkit.report.tables import COSTS, COVERED, KEYS, comparisons, means, metrics, show, verdict
from qnnkit.runs import Run, find_notebook, frame, launch, state, sums
from qnnkit.runs import rows as reading
from qnnkit.runs.folder import settings_of, settled
from qnnkit.runs.lock import alone
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

NOTEBOOK = "06_study"
_NO_MODEL = ("train_fraction", "seed", "n_seeds", "min_difference")
"""Settings that vary within a model."""
_LENGTHS = ("epochs", "warmup_epochs", "patience")
"""Settings that do so too where each fraction has one value of its own, as for as many updates at each."""
_OF_NETS = ("controls", "net_settings")
"""Settings of the nets next to each other, of which a model's name is free where the rest tells it apart."""


@dataclass(frozen=True)
class Study:
    """The finished runs of a batch, as one table."""

    folder: Path
    """Of the batch."""
    name: str
    frame: pd.DataFrame
    """One row per model, net, train_fraction and seed: metrics of the score, COSTS, run, and fingerprint of
    the data."""
    curves: pd.DataFrame
    """One row per model, net, train_fraction, seed and epoch: `validation`, the score there."""
    planned: int
    """Runs of the batch."""
    left_out: Mapping[str, str]
    """Which of them are not in the table, and why."""
    stamp: str
    """Start of a SHA-256 over the settings and results of the runs in the table."""
    notes: tuple[str, ...] = ()
    """Notes on the data, with how many runs have them; which runs have left the batch's plan."""
    score: stats.Score = stats.ACCURACY
    """What its nets are compared by."""
    min_difference: float | None = None
    """The least difference that matters: the largest that its runs were given."""

    @property
    def finished(self) -> int:
        """Runs in the table."""
        return self.planned - len(self.left_out)

    def save(self, shown: Any, name: str, title: str = "", size: tuple[float, float] = (8, 4)) -> Any:
        """Writes a result with the study's stamp into `study/` of the batch's folder.

        Args:
            shown: A DataFrame (CSV), a Styler (LaTeX with booktabs), text, or a figure (PNG and PDF): a
                `seaborn.objects.Plot`, or one of matplotlib.
            name: Of the file, without its ending.
            title: Of the table or figure.
            size: Of a figure: width and height in inches.

        Returns:
            What a notebook shows of it.

        Raises:
            OSError: The folder cannot be written.
        """
        import pandas as pd

        files: dict[str, str | bytes]
        stamp = f"qnnkit study {' '.join(self.name.split())} {self.stamp}"
        if isinstance(shown, pd.DataFrame):
            files = {".csv": shown.assign(stamp=self.stamp).to_csv(index=False, lineterminator="\n")}
        elif hasattr(shown, "to_latex"):
            files = {".tex": f"% {stamp}; needs \\usepackage{{booktabs}}\n{_latex(shown, title)}"}
        elif isinstance(shown, str):
            files = {".txt": f"{shown}\n\n{stamp}\n"}
        else:
            from qnnkit import plots

            shown = shown if hasattr(shown, "savefig") else plots.stamped(shown, stamp, *size)
            files = {".png": plots.as_png(shown, Title=title, Stamp=stamp)}
            files |= {".pdf": plots.as_pdf(shown, Title=title, Keywords=stamp)}
        place = workspace.make_folder(self.folder / "study")
        for ending, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            workspace.write_bytes(place / f"{name}{ending}", data)
        return shown


def _latex(styler: Any, title: str) -> str:
    """A Styler as LaTeX, its words escaped by pandas; numbers keep their forms."""
    words = styler.data.select_dtypes(exclude="number").columns
    styler = copy.deepcopy(styler).format(escape="latex", subset=words).format_index(escape="latex", axis=1)
    caption = "".join(f"\\{each}" if each in "&%$#_{}" else each for each in title if each not in "\\~^")
    return styler.to_latex(hrules=True, caption=caption, position_float="centering")


def read_study(folder: str | Path) -> Study:
    """The finished runs of a batch, in whatever state the others are.

    A model is what varies besides train_fraction and seeds: a recipe, or settings, as the runs have them now;
    epochs of their own for each fraction make no other model. A seed that was trained twice counts once.

    Args:
        folder: The batch's; a relative one is meant from the workspace.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged.
    """
    folder = workspace.place(folder)
    name, score, planned = _plan(folder)
    same = _within_models([each.settings for each in planned])
    left_out: dict[str, str] = {}
    moved, notes, behind = [], Counter[str](), []
    chosen: dict[str, dict[str, Any]] = {}
    margins = []
    for each in planned:
        try:
            run, identity, own = _usable(each.folder, score)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            left_out[each.id] = (
                str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            )
            continue
        settings = run.config.model_dump(mode="json")
        now = {key: settings.get(key, value) for key, value in each.settings.items()}
        changed = {key: value for key, value in each.settings.items() if now[key] != value}
        if changed:
            told = (f"{key} {show(now[key])} instead of {show(value)}" for key, value in changed.items())
            moved.append(f"Run {run.folder.name} has left the batch's plan: {', '.join(told)}.")
        varied = {key: value for key, value in now.items() if key not in same}
        about = {"model": _label(run.config.title, varied), "train_fraction": run.config.train_fraction}
        chosen[str(each.folder)] = about | {"nets": run.nets, "seeds": run.seeds}
        margins += [run.config.min_difference] if run.config.min_difference else []
        behind.append(identity)
        notes.update(own)
    told = (f"Data of {n} of {len(behind)} run{'s' * (len(behind) > 1)}: {note}" for note, n in notes.items())
    watched = f"validation_{score.on_validation}"
    columns = [
        *KEYS,
        "seed",
        *(each.name for each in metrics(score)),
        watched,
        *COSTS,
        "epochs",
        "best_epoch",
        "n_test",
        "run",
        "data",
    ]
    curves = _of_models(frame(chosen, "epoch"), chosen, ["epoch", watched]).dropna(subset=watched)
    return Study(
        folder,
        name,
        _of_models(frame(chosen), chosen, columns).drop_duplicates([*KEYS, "seed"], ignore_index=True),
        curves.rename(columns={watched: "validation"}).drop_duplicates(
            [*KEYS, "seed", "epoch"], keep="last", ignore_index=True
        ),
        len(planned),
        left_out,
        hashlib.sha256("\n".join(sorted(behind)).encode()).hexdigest()[:12],
        (*told, *moved),
        score,
        max(margins, default=None),
    )


def _plan(folder: Path) -> tuple[str, stats.Score, list[state.State]]:
    """Name, score and runs of a batch.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged.
    """
    path = folder / "batch.json"
    try:
        content = json.loads(path.read_text())
        score = stats.Score(**content["score"]) if "score" in content else stats.ACCURACY
        name, _ = str(content.get("name", folder.name)), content["runs"]
        return name, score, state.of_batch(folder)
    except (FileNotFoundError, NotADirectoryError):
        step = "Begin one: qnnkit batch FILE.yaml."
        raise FileNotFoundError(checks.message("folder", "hold a batch", str(folder), step)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        step = "Run the same qnnkit batch again; it writes it again."
        raise ValueError(f"Batch `{path}` is damaged ({type(error).__name__}: {error}). {step}") from None


def _usable(folder: Path, score: stats.Score) -> tuple[Run, str, list[str]]:
    """A finished run, what identifies its settings and results, and the notes on its data.

    Raises:
        ValueError: Why it cannot be in the table.
    """

    def read(name: str) -> dict[str, Any] | None:
        content = reading.content(folder, name)
        try:
            found = None if content is None else json.loads(content)
        except ValueError:
            found = ()
        if found is not None and not isinstance(found, dict):
            raise ValueError(f"its {name} is damaged.")
        return found

    result, config, metrics_ = (
        read("result.json"),
        read("config.json"),
        reading.content(folder, "metrics.jsonl"),
    )
    if result is None:
        raise ValueError("it has not finished.")
    if config is None or metrics_ is None:
        raise ValueError(f"its {'config.json' if config is None else 'metrics.jsonl'} is missing.")
    hashed = hashlib.sha256(metrics_).hexdigest()
    kept = sums.parse((reading.content(folder, sums.FILE) or b"").decode(errors="replace"))
    if kept.get("metrics.jsonl", hashed) != hashed:
        raise ValueError("its metrics.jsonl has changed since it finished.")
    run = Run(folder, settled(folder, settings_of(config)))
    if run.score != score:
        raise ValueError(f"its nets are compared by {run.score.word}, those of the batch by {score.word}.")
    tests = frame(folder)
    for net in run.nets:
        for seed in run.seeds:
            of_net = tests[(tests["net"] == net) & (tests["seed"] == seed)] if len(tests) else tests
            value = (
                of_net[f"test_{score.name}"].iloc[-1]
                if f"test_{score.name}" in of_net and len(of_net)
                else math.nan
            )
            if not math.isfinite(value):
                raise ValueError(f"its metrics.jsonl tells no test {score.word} of {net}, seed {seed}.")
    said = json.dumps([result.get("nets"), result.get("verdicts")], sort_keys=True)
    identity = f"{result.get('config_digest') or run.asked.digest()} {hashed} "
    identity += hashlib.sha256(said.encode()).hexdigest()
    notes = (read("provenance.json") or {}).get("notes")
    return run, identity, list(dict.fromkeys(map(str, notes))) if isinstance(notes, list) else []


def _of_models(rows: pd.DataFrame, chosen: Mapping[str, Any], columns: Sequence[str]) -> pd.DataFrame:
    """Rows of `runs.frame` by model, as the batch lists them, then net, fraction and the rest."""
    import pandas as pd

    names = list(dict.fromkeys([*KEYS, "seed", *columns]))
    if not len(rows):
        return pd.DataFrame(columns=pd.Index(names))
    asked = [
        row.net in chosen[row.folder]["nets"] and row.seed in chosen[row.folder]["seeds"]
        for row in rows.itertuples()
    ]
    rows = rows[asked].rename(columns=lambda name: name.removeprefix("test_"))
    rows = rows.assign(
        **{key: [chosen[each][key] for each in rows["folder"]] for key in ("model", "train_fraction")}
    )
    rows = rows.reindex(columns=names)
    words = ("model", "net", "run", "data")
    rows[[*rows.columns.difference(words)]] = rows[[*rows.columns.difference(words)]].apply(
        pd.to_numeric, errors="coerce"
    )
    places = {"model": list(dict.fromkeys(each["model"] for each in chosen.values()))}
    places["net"] = list(dict.fromkeys([*MAIN_NETS, *rows["net"]]))
    order = [*KEYS, "seed", *(["epoch"] if "epoch" in names else [])]
    return rows.sort_values(
        order, key=lambda one: one.map(places[one.name].index) if one.name in places else one, kind="stable"
    ).reset_index(drop=True)


def _label(recipe: str, settings: Mapping[str, Any]) -> str:
    """What a model is called: by what varies, words as they are and numbers with their names."""
    words = [value if isinstance(value, str) else f"{name} {show(value)}" for name, value in settings.items()]
    return ", ".join(words) or recipe


def _within_models(runs: Sequence[Mapping[str, Any]]) -> Collection[str]:
    """Names of the settings that make no other model."""
    same = {*_NO_MODEL}
    for name in _LENGTHS:
        pairs = {(str(run.get("train_fraction")), str(run.get(name))) for run in runs}
        same |= {name} if len(pairs) == len({share for share, _ in pairs}) > 1 else set()

    def models(omitted: set[str]) -> int:
        return len({repr([(name, run[name]) for name in run if name not in omitted]) for run in runs})

    return same | {*_OF_NETS} if models({*same, *_OF_NETS}) == models(same) else same


# --- the page ----------------------------------------------------------------------------------------------


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
    if not again and _is_of(study):
        return folder / "report.html"
    with alone(folder, "study"):
        try:
            if len(study.frame):
                values = {"run_dir": str(folder), "train": False}
                launch(find_notebook(NOTEBOOK), folder / f"{NOTEBOOK}.ipynb", values)
        finally:
            if not _is_of(study):
                write_batch_page(folder)
    return folder / "report.html"


def write_batch_page(folder: str | Path) -> Path:
    """Writes report.html into the folder of a batch, whatever its runs have come to; returns its path.

    Below the table it shows 06_study as it has been executed so far, if `runs.launch` is executing it for
    this folder; else the last executed copy, if it shows the same runs.

    Args:
        folder: The batch's; a relative one is meant from the workspace.

    Raises:
        FileNotFoundError: No batch is there.
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
        counts=", ".join(f"{n} {each}" for each, n in Counter(table["state"]).items()),
        table=_sortable(_linked(study, table)),
        verdict="No run has finished yet." if compared is None else verdict(compared),
        failed=[f"{n} run{'s' * (n > 1)}: {why}" for why, n in failed.items()],
        covered=COVERED,
        study=study,
        files=[(path.name, quote(f"study/{path.name}")) for path in _files(study)],
        copy=notebook and f"{NOTEBOOK}.ipynb",
        digest=_digest(study),
        body=page.body(notebook) if notebook else page.Body("", []),
    )
    workspace.write_bytes(study.folder / "report.html", content.encode())
    return study.folder / "report.html"


def runs_table(study: Study) -> pd.DataFrame:
    """One row per run of a batch: its settings as they are now, state, test scores, costs, errors."""
    import pandas as pd

    rows, score = [], study.score
    found: Any = (
        means(study.frame.assign(model=study.frame["run"]), score) if len(study.frame) else pd.DataFrame()
    )
    for each in state.of_batch(study.folder):
        config = reading.facts(each.folder, "config.json")
        about = {name: config.get(name, value) for name, value in each.settings.items()}
        why = study.left_out.get(each.id)
        stands = "unfinished" if each.state == "finished" and why else each.state
        row = {"run": each.id, **{name: show(value) for name, value in about.items()}, "state": stands}
        of_run = found[found["model"] == each.folder.name] if len(found) else found
        for net in of_run.to_dict("records"):
            ends = (net[score.name], net[f"{score.name}_low"], net[f"{score.name}_high"])
            mean, _, interval = score.with_interval(*ends).partition(" ")
            row |= {
                f"{net['net']}, {score.column}": mean,
                f"{net['net']}, 95 % interval": interval.strip("()"),
            }
        own = of_run[of_run["net"].isin(MAIN_NETS)] if len(of_run) else of_run
        if len(own):
            validation: Any = study.frame[
                (study.frame["run"] == each.folder.name) & study.frame["net"].isin(MAIN_NETS)
            ]
            row[f"{score.validation_word}, mean"] = score.tell(
                validation[f"validation_{score.on_validation}"].mean()
            )
            row |= {
                "circuit weights": f"{own['quantum'].iloc[0]:,.0f}",
                "other weights": f"{own['classical'].iloc[0]:,.0f}",
            }
            row["s / epoch"] = f"{own['seconds_per_epoch'].iloc[0]:.2f}"
        criteria = reading.facts(each.folder, "result.json").get("criteria") if stands == "finished" else ()
        said = [
            f"{one['criterion']}: {one['sentence'].partition(':')[0]}."
            for one in criteria or ()
            if isinstance(one, dict)
        ]
        row["notes"] = " ".join(
            [*filter(None, [each.error, why if each.state == "finished" else None]), *said]
        )
        rows.append(row)
    table = pd.DataFrame(rows, columns=None if rows else pd.Index(["run", "state", "notes"])).fillna("")
    return table[[*(name for name in table if name != "notes"), "notes"]]


def _linked(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """The table as HTML: all of it escaped, and links to the report and the notebooks of each run.

    Relative and quoted, so that a folder cannot pass for another kind of address ("javascript:").
    """
    linked = table.map(html.escape).rename(columns=lambda name: html.escape(str(name)))
    runs, notebooks = [], []
    for each, name in zip(state.of_batch(study.folder), linked["run"], strict=True):
        here = reading.work(each.folder)

        def link(path: Path, text: str, kept: Path = each.folder, here: Path = here) -> str:
            address = os.path.relpath(kept / path.relative_to(here), study.folder)
            return f'<a href="{quote(Path(address).as_posix())}">{text}</a>'

        report = here / "report.html"
        runs.append(link(report, name) if report.is_file() else name)
        copies = [
            path for path in sorted((here / "notebooks").glob("*.ipynb")) if ".running." not in path.name
        ]
        notebooks.append(
            " ".join(link(path, html.escape(path.name.removesuffix(".ipynb"))) for path in copies)
        )
    return linked.assign(run=runs, notebooks=notebooks)


def _sortable(table: pd.DataFrame) -> str:
    """A table that sorts and searches; the script it needs is in the page."""
    from itables import to_html_datatable
    from itables.javascript import generate_init_offline_itables_html
    from itables.options import dt_bundle

    made = to_html_datatable(
        table,
        connected=False,
        allow_html=True,
        showIndex=False,
        display_logo_when_loading=False,
        text_in_header_can_be_selected=False,  # a click on it sorts
        maxBytes=0,
        lengthMenu=[25, 100, 500],
        table_id="runs",
        classes="compact nowrap",
        layout={"topStart": None, "topEnd": "search", "bottomStart": "info", "bottomEnd": "paging"},
    )
    return (
        generate_init_offline_itables_html(dt_bundle).partition("<div")[0] + made
    )  # then words on notebooks


def _files(study: Study) -> list[Path]:
    """Those in `study/` that are of these very runs: each names the runs behind it."""
    found = sorted((study.folder / "study").glob("*.*"))
    return [path for path in found if path.is_file() and study.stamp.encode() in path.read_bytes()]


def _digest(study: Study) -> str:
    """What the page says of the runs, in short."""
    said = [study.stamp, *study.notes, runs_table(study).to_csv()]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _copy(study: Study) -> Path | None:
    """The executed 06_study, if it shows these very runs."""
    path = study.folder / f"{NOTEBOOK}.ipynb"
    known = path.is_file() and study.stamp in path.read_text(encoding="utf-8")
    return path if known else None


def _is_of(study: Study) -> bool:
    """Whether the page shows these runs as they are, and 06_study below them where any has finished."""
    path = study.folder / "report.html"
    whole = not len(study.frame) or _copy(study) is not None
    return whole and path.is_file() and f"<!-- {_digest(study)} -->" in path.read_text(encoding="utf-8")

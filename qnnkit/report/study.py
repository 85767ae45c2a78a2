"""A study: the finished runs of a batch as one table, and files made from it."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import plots, stats, workspace
from qnnkit.recipes import RECIPES
from qnnkit.report.tables import COSTS, KEYS, frame_of, metrics, of_data, show
from qnnkit.runs import Run, frame, state
from qnnkit.runs import rows as files
from qnnkit.runs.folder import settings_of
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

_NO_MODEL = ("train_fraction", "seed", "n_seeds", "split_seed", "min_difference")
"""Settings that may vary within a model."""
_LENGTHS = ("epochs", "warmup_epochs", "patience")
"""Settings that may also vary if each fraction has one value, as for an equal number of updates."""
MOST_MODELS = 8
"""Most models in a figure: the best ones on the validation split. Tables have all models."""
_OF_NETS = ("controls", "net_settings")
"""Settings of which nets are trained, and how; ignored if the other settings distinguish the models."""


@dataclass(frozen=True)
class Study:
    """The finished runs of a batch, as one table.

    Attributes:
        folder: Folder of the batch.
        name: Name of the batch.
        frame: One row per model, net, train_fraction, split and seed: test metrics, numbers of weights
            (quantum, classical, frozen) and circuits per image, seconds per epoch, run, numbers of samples,
            and fingerprint of the data.
        curves: One row per model, net, train_fraction, seed and epoch, with the score as `validation`.
        planned: Number of runs in the batch.
        left_out: Runs that are not in the table, with the reason.
        stamp: Start of a SHA-256 over the settings and results of the runs in the table.
        notes: Notes on the data, each with the number of runs that have it.
        score: Score by which the nets are compared.
        min_difference: The smallest difference that matters: the largest value among the runs.
    """

    folder: Path
    name: str
    frame: pd.DataFrame
    curves: pd.DataFrame
    planned: int
    left_out: Mapping[str, str]
    stamp: str
    notes: tuple[str, ...] = ()
    score: stats.Score = stats.ACCURACY
    min_difference: float | None = None

    @property
    def finished(self) -> int:
        """Number of runs in the table."""
        return self.planned - len(self.left_out)

    def save(self, shown: Any, name: str, title: str = "", size: tuple[float, float] = (8, 4)) -> Any:
        """Writes a result with the study's stamp into `study/` of the batch's folder.

        Args:
            shown: A DataFrame (CSV), a Styler (LaTeX with booktabs), text, or a figure (PNG and PDF): a
                `seaborn.objects.Plot`, or one of matplotlib.
            name: Name of the file, without its ending.
            title: Title of the table or figure.
            size: Width and height of a figure, in inches.

        Returns:
            The result in the form that a notebook shows.

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
            shown = shown if hasattr(shown, "savefig") else plots.stamped(shown, stamp, *size)
            files = {".png": plots.as_png(shown, Title=title, Stamp=stamp)}
            files |= {".pdf": plots.as_pdf(shown, Title=title, Keywords=stamp)}
        place = workspace.make_folder(self.folder / "study")
        for ending, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            workspace.write_bytes(place / f"{name}{ending}", data)
        return shown


def _latex(styler: Any, title: str) -> str:
    """A Styler as LaTeX. pandas escapes its text; numbers keep their formats."""
    words = styler.data.select_dtypes(exclude="number").columns
    styler = copy.deepcopy(styler).format(escape="latex", na_rep="", subset=words)
    styler = styler.format_index(escape="latex", axis=1)
    caption = "".join(f"\\{sign}" if sign in "&%$#_{}" else sign for sign in title if sign not in "\\~^")
    return styler.to_latex(hrules=True, caption=caption, position_float="centering")


def read_study(folder: str | Path) -> Study:
    """Reads the finished runs of a batch, whatever the state of the others.

    A model is what varies besides train_fraction and seeds: a recipe, or settings with their present values.
    If epochs differ between fractions only, or if runs differ in `split_seed`, the model is the same; an
    extended run is another model. Models of the same name are numbered. A seed that was trained twice on one
    split counts once.

    Args:
        folder: Folder of the batch; a relative path starts at the workspace.

    Raises:
        FileNotFoundError: There is no batch in the folder.
        ValueError: Its batch.json is damaged.
    """
    folder = workspace.place(folder)
    listed, planned = state.batch_file(folder), state.of_batch(folder)
    name, score = str(listed.get("name", folder.name)), state.score_of(listed)
    same = _within_models([entry.settings for entry in planned])
    frames, curves, behind, margins, notes = [], [], [], [], Counter[str]()
    left_out, models = dict[str, str](), dict[str, str]()
    for entry in planned:
        try:
            run, rows, identity, of_run = _usable(entry.folder, score)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            left_out[entry.id] = str(error) if type(error) is ValueError else repr(error)
            continue
        settings = run.config.model_dump(mode="json", warnings=False)
        now = {key: settings.get(key, value) for key, value in entry.settings.items()}
        longer = {"epochs": run.config.epochs} if run.provenance.get("extended") else {}
        varied = {key: value for key, value in now.items() if key not in same} | longer
        source = files.facts(entry.folder, "config.json")["recipe_digest"]  # two files may be called net.py
        model = repr((run.config.recipe if run.config.recipe in RECIPES else source, varied))
        words = [one if isinstance(one, str) else f"{name} {show(one)}" for name, one in varied.items()]
        label = ", ".join(words) or run.config.title
        label = f"{label} ({len(models) + 1})" if label in models.values() else label
        about = {"model": models.setdefault(model, label), "train_fraction": run.config.train_fraction}
        frames.append(rows.assign(**about))
        curves.append(frame(run, "epoch").assign(**about, split_seed=run.config.split_seed))
        margins.append(run.config.min_difference or 0)
        behind.append(identity + str(run.config.min_difference or ""))
        notes.update(of_run)
    watched, n = f"validation_{score.on_validation}", len(behind)
    names = ["seed", *(metric.name for metric in metrics(score)), watched, *COSTS, "epochs", "best_epoch"]
    learned = _joined(curves, ["seed", "epoch", watched, "split_seed"]).dropna(subset=watched)
    learned = learned.rename(columns={watched: "validation"})
    on_data = (f"Data of {count} of {n} run{'s' * (n > 1)}: {note}" for note, count in notes.items())
    table = _joined(frames, [*names, "n_train", "n_test", "run", "data", "split_seed"])
    return Study(
        folder,
        name,
        table.drop_duplicates([*KEYS, "split_seed", "seed"], ignore_index=True),
        learned.drop_duplicates([*KEYS, "split_seed", "seed", "epoch"], keep="last", ignore_index=True),
        len(planned),
        left_out,
        hashlib.sha256("\n".join(sorted(behind)).encode()).hexdigest()[:12],
        (*on_data, *_mixed(table)),
        score,
        max(margins, default=0) or None,
    )


def _usable(folder: Path, score: stats.Score) -> tuple[Run, pd.DataFrame, str, list[str]]:
    """A finished run, its rows, a text that identifies its settings and results, and notes on its data.

    Raises:
        ValueError: The run cannot be in the table, for the reason given.
    """
    result, config = (files.facts(folder, name) for name in ("result.json", "config.json"))
    if not result or not config:
        raise ValueError("config.json is missing or damaged." if result else "not finished.")
    run = Run(files.work(folder), settings_of(config))
    if run.score != score:
        raise ValueError(f"nets are compared by {run.score.word}, but by {score.word} in the batch.")
    rows, provenance = frame_of(run), files.facts(folder, "provenance.json")
    tested = rows.dropna(subset=[score.name]).set_index(["net", "seed"]).index
    for net, seed in itertools.product(run.nets, run.seeds):
        if (net, seed) not in tested:
            raise ValueError(f"metrics.jsonl has no test {score.word} of {net}, seed {seed}.")
    facts = [result.get("config_digest") or run.asked.digest(), result.get("nets"), result.get("verdicts")]
    identity = json.dumps([*facts, files.read(folder)], sort_keys=True)
    notes = provenance.get("notes")
    notes = list(dict.fromkeys(map(str, notes))) if isinstance(notes, list) else []
    if provenance.get("data") is None:  # the data of the run have no fingerprint
        rows["data"] = None
    return run, rows.assign(run=folder.name), identity, notes


def _joined(frames: Sequence[pd.DataFrame], names: Sequence[str]) -> pd.DataFrame:
    """Rows of all runs, sorted by model in the order of the batch, then by net, fraction, seed and epoch."""
    import pandas as pd

    columns = pd.Index([*KEYS, *names])
    if not frames:
        return pd.DataFrame(columns=columns)
    rows = pd.concat([rows.reindex(columns=columns) for rows in frames], ignore_index=True)
    order: Any = {"model": [*rows["model"].unique()], "net": [*MAIN_NETS, *rows["net"].unique()]}
    return rows.sort_values(
        [*KEYS, *names[: 1 + ("epoch" in names)]],
        key=lambda column: column.map(order[column.name].index) if column.name in order else column,
        kind="stable",
        ignore_index=True,
    )


def _mixed(rows: Any) -> list[str]:
    """A note on models whose runs have different data in one split; [] if there are none."""
    n_data = rows.groupby([*KEYS, "split_seed"], dropna=False)["data"].transform("nunique")
    models = ", ".join(rows["model"][n_data > 1].unique())
    return [f"Means mix runs on different data (their fingerprints differ): {models}."] if models else []


def _within_models(runs: Sequence[Mapping[str, Any]]) -> Collection[str]:
    """Names of the settings that do not distinguish models."""
    same = {*_NO_MODEL}
    for name in _LENGTHS:
        pairs = {(str(run.get("train_fraction")), str(run.get(name))) for run in runs}
        same |= {name} if len(pairs) == len({share for share, _ in pairs}) > 1 else set()

    def models(omitted: set[str]) -> int:
        return len({repr([(name, run[name]) for name in run if name not in omitted]) for run in runs})

    return same | {*_OF_NETS} if models({*same, *_OF_NETS}) == models(same) else same


# --- its figures --------------------------------------------------------------------------------------------


def draw(study: Study, means: Any) -> Iterator[Any]:
    """Draws the figures of a study, saves them into its folder, and yields each as a notebook shows it.

    Args:
        study: A study of at least one finished run.
        means: Means of its frame, from `report.means`.
    """
    score, (rows, curves) = study.score, best(study, means)
    n_shares, longest = rows["data"].nunique(), (rows["model"] + rows["net"]).map(len).max()
    size = (3.2 * n_shares + 0.1 * longest + 0.3, 0.25 * rows.groupby(["model", "net"]).ngroups + 1)
    title = f"Test {score.word}: each seed, mean and 95 % interval"
    yield study.save(plots.study_scores(rows, score), "scores", title, size)
    size, labels = (3.2 * n_shares + 1, 2.4 * curves["model"].nunique()), {"x": "epoch"}
    labels |= {"y": f"{score.validation_word} ({score.per})"}
    plot = plots.study_lines(curves, "epoch", "validation", {"row": "model", "col": "data"}, labels)
    yield study.save(plot, "curves", "Learning curves: mean over seeds and their range", size)
    if n_shares > 1:
        n, unit = rows["model"].nunique(), "samples" if rows["train_fraction"].max() > 1 else "%"
        labels = {"x": f"training data ({unit})", "y": score.column}
        plot = plots.study_lines(rows, "share", score.name, {"col": "model", "wrap": 3}, labels)
        title = f"Test {score.word} against training data: mean over seeds and their range"
        yield study.save(plot, "fractions", title, (3.6 * min(n, 3) + 1, 3.2 * -(-n // 3)))


def best(study: Study, means: Any) -> tuple[Any, Any]:
    """Scores with their means, in the unit that is shown, and curves, of the best MOST_MODELS models."""
    score, name = study.score, study.score.name
    rows: Any = study.frame.merge(means, on=["model", "net", "train_fraction"], suffixes=("", "_mean"))
    rows[[name, f"{name}_mean", f"{name}_low", f"{name}_high"]] *= score.factor
    curves = study.curves.assign(validation=score.factor * study.curves["validation"])
    rows["share"] = rows["n_train"] if rows["train_fraction"].max() > 1 else 100 * rows["train_fraction"]
    rows, curves = (table.assign(data=table["train_fraction"].map(of_data)) for table in (rows, curves))
    validation: Any = rows.groupby("model")[f"validation_{score.on_validation}"].mean()
    top = validation.sort_values(ascending=not score.larger).index[:MOST_MODELS].tolist()
    return rows[rows["model"].isin(top)], curves[curves["model"].isin(top)]

"""A study: the finished runs of a batch as one table, and what they show of models and data fractions."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, stats, workspace
from qnnkit.report import latex
from qnnkit.runs import Run, state, sums
from qnnkit.runs import rows as reading
from qnnkit.runs.folder import settings_of, settled
from qnnkit.runs.rows import trainings
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

KEYS = ("model", "net", "train_fraction")
COSTS = ("quantum", "classical", "frozen", "circuits_per_image", "seconds_per_epoch")
COVERED = (
    "Intervals of a net's score cover what a seed draws (initial weights, order of the data) and, of "
    "accuracy and recall, the choice of test samples; intervals and p of a difference cover what a seed "
    "draws. None covers the choice of the training data: all seeds saw the same data at a fraction."
)
BESIDE = {
    "accuracy": (
        stats.Score("macro_f1", "macro-F1"),
        stats.Score("loss", "NLL", "nats", 1, "nats", 3, larger=False),
        stats.Score("ece", "ECE", larger=False),
    ),
    "recall_1": (
        stats.Score("zero_shot", "zero-shot accuracy", larger=True),
        stats.Score("loss", "loss", "nats / pair", 1, "nats", 3, larger=False),
    ),
    "loss": (stats.Score("perplexity", "perplexity", "", 1, "", 2, larger=False),),
}
"""Score that nets are compared by -> what is computed beside it."""
_NO_MODEL = ("train_fraction", "seed", "n_seeds")
"""Settings that vary within a model."""
_LENGTHS = ("epochs", "warmup_epochs", "patience")
"""Settings that do so too where each fraction has one value of its own, as for as many updates at each."""

_OF_NETS = ("controls", "net_settings")
"""Settings of the nets beside each other, of which a model's name is free where the rest tells it apart."""


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
    """What its data were found to be, with how many runs were told so; which runs have left the plan."""
    score: stats.Score = stats.ACCURACY
    """What its nets are compared by."""

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
            files = {".tex": latex.table(shown, title, stamp)}
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


def read_study(folder: str | Path) -> Study:
    """The finished runs of a batch, in whatever state the others are.

    A model is what varies besides train_fraction and seeds: a recipe, or settings; epochs of their own for
    each fraction make no other model. A seed that was trained twice counts once.

    Args:
        folder: The batch's; a relative one is meant from the workspace.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged.
    """
    import pandas as pd

    folder = workspace.place(folder)
    batch = read_batch(folder)
    score, rows, epochs, behind = batch["score"], [], [], []
    left_out: dict[str, str] = {}
    moved: list[str] = []
    notes: Counter[str] = Counter()
    asked = [settings_in(planned) for planned in batch["runs"]]
    same = {*_NO_MODEL, *_lengths(asked)}
    same |= _of_nets(asked, same)
    for planned in batch["runs"]:
        try:
            place = Path(os.path.normpath(folder / str(planned["folder"])))
            found = _read_run(place, settings_in(planned), same, score)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            left_out[planned["id"]] = why
            continue
        rows += found[0]
        epochs += found[1]
        behind.append(found[2])
        notes.update(found[3])
        moved += found[4]
    watched, n = f"validation_{score.on_validation}", len(behind)
    names = [*KEYS, "seed", *(metric.name for metric in metrics(score)), watched, *COSTS, "epochs"]
    frame = pd.DataFrame(rows, columns=pd.Index([*names, "best_epoch", "n_test", "run", "data"]))
    curves = pd.DataFrame(epochs, columns=pd.Index([*KEYS, "seed", "epoch", "validation"]))
    stamp = hashlib.sha256("\n".join(sorted(behind)).encode()).hexdigest()[:12]
    told = (f"Data of {count} of {n} run{'s' * (n > 1)}: {note}" for note, count in notes.items())
    return Study(
        folder,
        batch["name"],
        _ordered(frame.drop_duplicates([*KEYS, "seed"]), ["seed"]),
        _ordered(curves.drop_duplicates([*KEYS, "seed", "epoch"], keep="last"), ["seed", "epoch"]),
        len(batch["runs"]),
        left_out,
        stamp,
        (*told, *moved),
        score,
    )


def read_batch(folder: Path) -> dict[str, Any]:
    """What batch.json says: name, recipe, score, and the runs that are listed with their folders.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: It is damaged.
    """
    path = folder / "batch.json"
    try:
        content = json.loads(path.read_text())
        runs = [state.named(each) for each in content["runs"] if isinstance(each, dict) and "folder" in each]
    except (FileNotFoundError, NotADirectoryError):
        step = "Begin one: qnnkit batch FILE.yaml."
        raise FileNotFoundError(checks.message("folder", "hold a batch", str(folder), step)) from None
    except (ValueError, KeyError, TypeError) as error:
        step = "Run the same qnnkit batch again; it writes it anew."
        raise ValueError(f"Batch `{path}` is damaged ({type(error).__name__}: {error}). {step}") from None
    name, recipe = str(content.get("name", folder.name)), content.get("recipe", "")
    return {"name": name, "recipe": recipe, "score": state.score_of(content), "runs": runs}


def settings_in(planned: Mapping[str, Any]) -> dict[str, Any]:
    """What sets a run of a batch apart."""
    settings = planned.get("settings")
    return settings if isinstance(settings, dict) else {}


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


def metrics(score: stats.Score) -> tuple[stats.Score, ...]:
    """The score that nets are compared by, and what is computed beside it."""
    return (score, *(BESIDE[score.name] if score == stats.SCORES.get(score.name) else ()))


def _read_run(
    folder: Path, planned: dict[str, Any], same: set[str], score: stats.Score
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str, list[str], list[str]]:
    """Final rows, epochs, what identifies them, notes on its data, and what is no longer as planned.

    Raises:
        ValueError: Why it is not in the table.
    """
    result, config = (_json(folder, name) for name in ("result.json", "config.json"))
    if result is None:
        raise ValueError("it has not finished.")
    content = reading.content(folder, "metrics.jsonl")
    if config is None or content is None:
        raise ValueError(f"its {'config.json' if config is None else 'metrics.jsonl'} is missing.")
    hashed = hashlib.sha256(content).hexdigest()
    summed = reading.content(folder, sums.FILE)
    kept = {} if summed is None else sums.parse(summed.decode(errors="replace"))
    if kept.get("metrics.jsonl", hashed) != hashed:
        raise ValueError("its metrics.jsonl has changed since it finished.")
    run = Run(folder, settled(folder, settings_of(config)))
    now = planned | {
        name: value for name, value in run.config.model_dump(mode="json").items() if name in planned
    }
    moved = [
        f"{name} {show(now[name])} instead of {show(value)}"
        for name, value in planned.items()
        if now[name] != value
    ]
    settings = {name: value for name, value in now.items() if name not in same}
    if run.score != score:
        raise ValueError(f"its nets are compared by {run.score.word}, those of the batch by {score.word}.")
    logged, _ = workspace.parse_lines(content)
    epochs, watched = run.config.epochs, f"validation_{score.on_validation}"
    tests = {(row.get("net"), row.get("seed")): row for row in trainings(logged, "test", epochs)}
    provenance = _json(folder, "provenance.json") or {}
    about = {"model": _label(run.config.title, settings), "train_fraction": run.config.train_fraction}
    where = {**about, "run": folder.name, "data": provenance.get("data"), "epochs": epochs}
    names = (*(metric.name for metric in metrics(score)), watched, *COSTS, "best_epoch", "n_test")
    rows = []
    for net, seed in itertools.product(run.nets, run.seeds):
        test = {name.removeprefix("test_"): value for name, value in tests.get((net, seed), {}).items()}
        if reading.number(test, score.name) is None:
            raise ValueError(f"its metrics.jsonl tells no test {score.word} of {net}, seed {seed}.")
        numbers = {name: reading.number(test, name) for name in names}
        known = {name: math.nan if value is None else float(value) for name, value in numbers.items()}
        rows.append({**where, "net": net, "seed": seed, **known})
    learned = [
        {**about, **{name: row.get(name) for name in ("net", "seed", "epoch")}, "validation": row[watched]}
        for row in trainings(logged, "epoch", epochs)
        if row.get("net") in run.nets and row.get("seed") in run.seeds
        if "epoch" in row and reading.number(row, watched) is not None
    ]
    told = json.dumps([result.get("nets"), result.get("verdicts")], sort_keys=True)
    identity = f"{result.get('config_digest') or run.asked.digest()} {hashed} "
    identity += hashlib.sha256(told.encode()).hexdigest()
    notes = provenance.get("notes")
    notes = list(dict.fromkeys(map(str, notes))) if isinstance(notes, list) else []
    moved = [f"Run {folder.name} is no longer as planned: {', '.join(moved)}."] if moved else []
    return rows, learned, identity, notes, moved


def _json(folder: Path, name: str) -> dict[str, Any] | None:
    content = reading.content(folder, name)
    try:
        found = None if content is None else json.loads(content)
    except ValueError:
        raise ValueError(f"its {name} is damaged.") from None
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"its {name} is damaged.")
    return found


def _label(recipe: str, settings: Mapping[str, Any]) -> str:
    """What a model is called: by what varies, words as they are and numbers with their names."""
    words = [value if isinstance(value, str) else f"{name} {show(value)}" for name, value in settings.items()]
    return ", ".join(words) or recipe


def _lengths(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of _LENGTHS that follow from the train_fraction of a run."""
    pairs = {
        name: {(str(run.get("train_fraction")), str(run.get(name))) for run in runs} for name in _LENGTHS
    }
    return [name for name, found in pairs.items() if len(found) == len({share for share, _ in found}) > 1]


def _of_nets(runs: Sequence[Mapping[str, Any]], same: set[str]) -> set[str]:
    """_OF_NETS, where all models have names of their own without them."""

    def models(left_out: set[str]) -> int:
        return len({repr([(name, run[name]) for name in run if name not in left_out]) for run in runs})

    return {*_OF_NETS} if models({*same, *_OF_NETS}) == models(same) else set()


def _ordered(frame: pd.DataFrame, more: list[str]) -> pd.DataFrame:
    """By model as the batch lists them, net with the run's own first, and numbers."""
    places = {"model": list(dict.fromkeys(frame["model"]))}
    places["net"] = list(dict.fromkeys([*MAIN_NETS, *frame["net"]]))

    def key(column: Any) -> Any:
        return column.map(places[column.name].index) if column.name in places else column

    return frame.sort_values([*KEYS, *more], key=key).reset_index(drop=True)

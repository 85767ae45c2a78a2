"""A study: what a batch of models, data fractions and seeds shows, as tables, figures and sentences."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import stats, workspace
from qnnkit.report.batch import data_notes, noted, number, read_batch, show
from qnnkit.report.sentences import AS_FROZEN, EQUAL_SIZE, LORA, TRAINED, Compared, conclude
from qnnkit.report.tables import latex, metrics_of, records, told_comparisons, told_means
from qnnkit.runs import Run, reading, sums
from qnnkit.runs.folder import settings_of, settled
from qnnkit.runs.reading import trainings
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from qnnkit.plots import Picture

COSTS = ("quantum", "classical", "frozen", "circuits_per_image", "seconds_per_epoch")
_NO_MODEL = ("train_fraction", "seed", "n_seeds")
"""Settings that vary within a model."""
MOST_HYBRIDS = 7
"""Hybrid nets of so many models are compared with each other: above, every pair costs the others too much."""
SAME_DATA = (
    "All seeds saw the same training, validation and test data at a fraction: intervals and p cover what a "
    "seed draws, such as initial weights and the order of the data, but not the choice of the training data "
    "or of the test data."
)
KEYS = ("model", "net", "train_fraction")


@dataclass(frozen=True)
class Study:
    """The finished runs of a batch, as one table."""

    name: str
    frame: pd.DataFrame
    """One row per model, net, train_fraction and seed: metrics of the score, COSTS, run, and fingerprint of
    the data."""
    curves: Mapping[tuple[str, str], Mapping[float, np.ndarray]]
    """(model, net) -> train_fraction -> score on validation, (seeds, epochs); NaN where missing."""
    planned: int
    """Runs of the batch."""
    left_out: tuple[str, ...]
    """Of which these are not in the table: a sentence on each."""
    stamp: str
    """Start of a SHA-256 over the settings and results of the runs in the table."""
    notes: tuple[str, ...] = ()
    """What its data were found to be, with how many runs were told so; and whether figures can be drawn."""
    score: stats.Score = stats.ACCURACY
    """What its nets are compared by."""

    @property
    def finished(self) -> int:
        """Runs in the table."""
        return self.planned - len(self.left_out)


def read_study(folder: str | Path) -> Study:
    """The finished runs of a batch, in whatever state the others are.

    A model is what varies besides train_fraction and seeds: a recipe, or settings. A seed that was trained
    twice counts once.

    Args:
        folder: The batch's; a relative one is meant from the workspace.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged.
    """
    import pandas as pd

    folder = workspace.place(folder)
    batch = read_batch(folder)
    score = batch["score"]
    watched = f"validation_{score.on_validation}"
    rows, epochs, behind, left_out = [], [], [], []
    told: Counter[str] = Counter()
    for planned in batch["runs"]:
        settings = planned.get("settings")
        settings = settings if isinstance(settings, dict) else {}
        try:
            found = _read_run(Path(os.path.normpath(folder / str(planned["folder"]))), settings, score)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            varied = ", ".join(f"{name} {show(value)}" for name, value in settings.items())
            why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            left_out.append(f"Run {planned.get('id', '?')} ({varied or 'no setting'}) is left out: {why}")
            continue
        rows += found[0]
        epochs += found[1]
        behind.append(found[2])
        told.update(found[3])
    names = [
        *KEYS,
        "seed",
        *(metric.column for metric in metrics_of(score)),
        watched,
        *COSTS,
        "epochs",
        "best_epoch",
        "n_test",
        "run",
        "data",
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(names)).drop_duplicates([*KEYS, "seed"])
    models = list(dict.fromkeys(frame["model"]))
    nets = list(dict.fromkeys([*MAIN_NETS, *frame["net"]]))
    place = {"model": models.index, "net": nets.index}
    frame = frame.sort_values(
        [*KEYS, "seed"], key=lambda column: column.map(place.get(str(column.name), lambda value: value))
    ).reset_index(drop=True)
    stamp = hashlib.sha256("\n".join(sorted(behind)).encode()).hexdigest()[:12]
    notes = [*noted(told, len(behind)), *_too_many(models)]
    planned, curves = len(batch["runs"]), _curves(epochs, frame, watched)
    return Study(batch["name"], frame, curves, planned, tuple(left_out), stamp, tuple(notes), score)


def _read_run(
    folder: Path, settings: dict[str, Any], score: stats.Score
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str, list[str]]:
    """Final rows, epochs, what identifies them, and notes on its data; a ValueError says why not."""
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
    if run.score != score:
        raise ValueError(f"its nets are compared by {run.score.word}, those of the batch by {score.word}.")
    metrics, _ = workspace.parse_lines(content)
    epochs = run.config.epochs
    tests = {(row.get("net"), row.get("seed")): row for row in trainings(metrics, "test", epochs)}
    label, provenance = _label(run.config.title, settings), _json(folder, "provenance.json") or {}
    about = {"model": label, "train_fraction": run.config.train_fraction}
    rows, watched = [], f"validation_{score.on_validation}"
    for net, seed in itertools.product(run.nets, run.seeds):
        test = tests.get((net, seed), {})
        if number(test.get(f"test_{score.name}")) is None:
            raise ValueError(f"its metrics.jsonl tells no test {score.word} of {net}, seed {seed}.")
        numbers = {metric.column: test.get(metric.there) for metric in metrics_of(score)}
        numbers |= {name: test.get(name) for name in (*COSTS, watched, "best_epoch", "n_test")}
        known = {name: number(value) for name, value in numbers.items()}
        found = {name: math.nan if value is None else value for name, value in known.items()}
        where = {"run": folder.name, "data": provenance.get("data"), "epochs": epochs}
        rows.append({**about, **where, "net": net, "seed": seed, **found})
    learned = [
        {**about, **row}
        for row in trainings(metrics, "epoch", epochs)
        if row.get("net") in run.nets and row.get("seed") in run.seeds
    ]
    told = json.dumps([result.get("nets"), result.get("verdicts")], sort_keys=True)
    said = hashlib.sha256(told.encode()).hexdigest()
    identity = f"{result.get('config_digest') or run.asked.digest()} {hashed} {said}"
    return rows, learned, identity, data_notes(provenance)


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
    varied = {name: value for name, value in settings.items() if name not in _NO_MODEL}
    words = [value if isinstance(value, str) else f"{name} {show(value)}" for name, value in varied.items()]
    return ", ".join(words) or recipe


def _curves(
    epochs: list[dict[str, Any]], frame: pd.DataFrame, watched: str
) -> dict[tuple[str, str], dict[float, Any]]:
    import pandas as pd

    found: dict[tuple[str, str], dict[float, Any]] = {}
    rows = [row for row in epochs if number(row.get(watched)) is not None and "epoch" in row]
    if not rows:
        return found
    learned = pd.DataFrame(rows).drop_duplicates([*KEYS, "seed", "epoch"], keep="last")
    groups = _groups(learned)
    for model, net, fraction in _groups(frame):
        if (model, net, fraction) in groups:
            one = groups[model, net, fraction]
            table = one.pivot(index="seed", columns="epoch", values=watched)
            found.setdefault((model, net), {})[fraction] = table.to_numpy(dtype=float)
    return found


# --- what it shows -----------------------------------------------------------------------------------------


def means(frame: pd.DataFrame, score: stats.Score = stats.ACCURACY) -> pd.DataFrame:
    """One row per model, net and fraction: means over seeds with 95 % intervals, weights and costs.

    Frame and score are a study's; the interval of a share of test samples covers those as well as the seeds,
    see `stats.mean_interval`. Bounds are NaN where they are not known, as for one seed; a metric is NaN where
    a seed lacks it.
    """
    import pandas as pd

    rows = []
    for key, group in _groups(frame).items():
        row: dict[str, Any] = {**dict(zip(KEYS, key, strict=True)), "seeds": len(group)}
        for name, factor in ((metric.column, metric.factor) for metric in metrics_of(score)):
            row |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
            values = group[name].tolist()
            if all(map(math.isfinite, values)):
                interval = score.interval(values, group["n_test"] if name == score.name else ())
                row[name] = interval.mean
                if interval.known:
                    ends = interval.low, interval.high
                    if factor == 100:  # a share
                        ends = max(0.0, ends[0]), min(1.0, ends[1])
                    row[f"{name}_low"], row[f"{name}_high"] = ends
        rows.append(row | {name: group[name].median() for name in COSTS})
    return pd.DataFrame(rows)


def comparisons(frame: pd.DataFrame, score: stats.Score = stats.ACCURACY) -> tuple[pd.DataFrame, list[str]]:
    """Hybrid nets beside their controls, every classical reference and one another, seed by seed.

    Frame and score are a study's. Compared are test scores of the same seeds on the same data, by the
    fingerprints that the runs keep; `p_holm` is corrected over the whole table.

    Returns:
        The table, and a sentence on every pair that is not compared, or not with all of its seeds.
        Hybrid nets of more models than MOST_HYBRIDS are not compared with one another, which is told once.
    """
    import pandas as pd

    rows, notes = [], []
    hybrids = _hybrids(frame)
    if len(hybrids) > MOST_HYBRIDS:
        notes.append(
            f"Hybrid nets are not compared with one another: of {len(hybrids)} models there are too many "
            f"pairs for seeds to decide; of {MOST_HYBRIDS} or fewer they are."
        )
    groups = {key: group.set_index("seed") for key, group in _groups(frame).items()}
    for model, net, other_model, other_net in _pairs(frame):
        for fraction in sorted(frame["train_fraction"].unique()):
            ours = groups.get((model, net, fraction))
            theirs = groups.get((other_model, other_net, fraction))
            if ours is None:
                continue
            pair = f"{model} {net} and {other_model} {other_net}, {_percent(fraction)}"
            seeds = [] if theirs is None else [seed for seed in ours.index if seed in theirs.index]
            if theirs is None or not seeds:
                notes.append(f"{pair}: not compared, for no finished run of the second has the same seeds.")
                continue
            data = {*ours.loc[seeds, "data"], *theirs.loc[seeds, "data"]}
            known = all(isinstance(each, str) for each in data)
            if len(data) > 1 or not known:
                why = "they saw different data" if known else "a run keeps no fingerprint of its data"
                notes.append(f"{pair}: not compared, for {why}.")
                continue
            if len(seeds) < max(len(ours), len(theirs)):
                notes.append(f"{pair}: compared over the {len(seeds)} seeds that both have.")
            found = stats.compare(
                ours.loc[seeds, score.name].tolist(), theirs.loc[seeds, score.name].tolist()
            )
            rows.append(
                {
                    "model": model,
                    "net": net,
                    "other_model": other_model,
                    "other_net": other_net,
                    "train_fraction": fraction,
                    "seeds": found.n,
                    "difference": found.difference,
                    "low": found.low if math.isfinite(found.low) else math.nan,
                    "high": found.high if math.isfinite(found.high) else math.nan,
                    "effect_size": found.effect,
                    "p": found.p,
                }
            )
    names = [*KEYS[:2], "other_model", "other_net", KEYS[2], "seeds", "difference", "low", "high"]
    table = pd.DataFrame(rows, columns=pd.Index([*names, "effect_size", "p"]))
    table["p_holm"] = pd.Series(stats.holm(table["p"].tolist()), dtype=float)
    return table, notes


def _groups(frame: pd.DataFrame) -> dict[Any, Any]:
    """(model, net, train_fraction) -> its rows, in the order of the table."""
    return dict(list(frame.groupby(list(KEYS), sort=False)))


def _pairs(frame: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    nets: dict[str, list[str]] = {}
    for model, net, _ in _groups(frame):
        nets.setdefault(model, []).extend([net] * (net not in nets.get(model, [])))
    references = [model for model in nets if "reference" in nets[model]]
    hybrids = _hybrids(frame)
    return [
        (model, "hybrid", *other)
        for model in hybrids
        for other in (
            *((model, net) for net in nets[model] if net not in MAIN_NETS),
            *((reference, "reference") for reference in references),
        )
    ] + [
        (model, "hybrid", other, "hybrid")
        for model, other in itertools.combinations(hybrids, 2)
        if len(hybrids) <= MOST_HYBRIDS
    ]


def _hybrids(frame: pd.DataFrame) -> list[str]:
    """Models with a circuit."""
    return list(frame.loc[frame["net"] == "hybrid", "model"].unique())


def _control(row: Any, with_trained: set[str]) -> str:
    """What classical control a comparison is with, in words; "" where with none."""
    if row.model != row.other_model:
        return ""
    if row.other_net == "classical":
        return AS_FROZEN if row.model in with_trained else EQUAL_SIZE
    return {"classical_trained": TRAINED, "lora": LORA}.get(row.other_net, "")


def conclusions(table: pd.DataFrame, score: stats.Score = stats.ACCURACY) -> list[str]:
    """What the data show and what they do not, in sentences, from a table of `comparisons`."""
    several = len(set(table["train_fraction"])) > 1
    with_trained = set(table.loc[table["other_net"] == "classical_trained", "model"])
    family = [
        Compared(
            f"{row.model} {row.net}",
            f"{row.other_model} {row.other_net}",
            _percent(row.train_fraction) if several else "",
            stats.Comparison(row.difference, row.low, row.high, row.effect_size, row.p, row.seeds),
            row.p_holm,
            control=_control(row, with_trained),
        )
        for row in records(table)
    ]
    sentences = conclude(family, score)
    if several:
        sentences[0] += " Percentages are shares of the training data."
    return [*sentences, SAME_DATA] if family else sentences


def _too_many(models: Sequence[str]) -> list[str]:
    from qnnkit.plots.study import MOST_MODELS

    if len(models) <= MOST_MODELS:
        return []
    return [
        f"No figures are drawn: {len(models)} models are more than the {MOST_MODELS} that colours tell "
        "apart. The tables have all of them; name fewer in a batch of its own, which trains nothing anew."
    ]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:g} %"


# --- writing -----------------------------------------------------------------------------------------------


def figures(study: Study) -> dict[str, Picture]:
    """Name -> figure; none where there are more models than colours tell apart, as the study's notes say."""
    from qnnkit import plots
    from qnnkit.plots.study import MOST_MODELS, stamped

    if not 0 < len(set(study.frame["model"])) <= MOST_MODELS:
        return {}
    found: dict[tuple[str, str], dict[float, tuple[float, float, float]]] = {}
    costs: dict[tuple[str, str], dict[str, float]] = {}
    seeds: dict[tuple[str, str], dict[float, list[float]]] = {}
    score = study.score
    table = means(study.frame, score)
    for row in records(table):
        key = (row.model, row.net)
        spread = tuple(getattr(row, f"{score.name}{end}") for end in ("", "_low", "_high"))
        found.setdefault(key, {})[row.train_fraction] = spread
        costs[key] = {  # those of the largest fraction stay
            "weights": row.quantum + row.classical,
            "circuits": row.circuits_per_image,
            "seconds": row.seconds_per_epoch,
        }
    for (model, net, fraction), group in _groups(study.frame).items():
        seeds.setdefault((model, net), {})[fraction] = group[score.name].tolist()
    whole = max(table["train_fraction"])
    last = {key: by_fraction[whole] for key, by_fraction in found.items() if whole in by_fraction}
    drawn = {"scores": plots.study_scores(found, seeds, score)}
    if study.curves:
        drawn["curves"] = plots.study_curves(study.curves, score)
    if len(set(table["train_fraction"])) > 1:
        drawn["fractions"] = plots.study_fractions(found, score)
    drawn["costs"] = plots.study_costs(last, costs, score)
    return {name: stamped(figure, _stamp(study)) for name, figure in drawn.items()}


def _titles(score: stats.Score) -> dict[str, tuple[str, str]]:
    """Name of a figure -> its title, and how to read it."""
    word = score.word[0].upper() + score.word[1:]
    return {
        "scores": (f"Test {score.word}", "A dot per seed, the mean and its 95 % interval."),
        "curves": ("Learning curves", f"{score.validation_word.capitalize()} by epoch, mean over seeds."),
        "fractions": (f"{word} against training fraction", f"Test {score.word}, mean and 95 % interval."),
        "costs": (f"{word} against cost", f"Test {score.word} with the largest fraction of the data."),
    }


def _stamp(study: Study) -> str:
    return f"qnnkit study {' '.join(study.name.split())} {study.stamp}"


def write_study(folder: str | Path) -> Study | None:
    """Writes tables, figures and conclusions into `study/` of a batch's folder; None if no run has finished.

    Tables are CSV and LaTeX (booktabs), figures PNG and PDF; each names the stamp of the runs behind it, and
    index.json lists them.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: Its batch.json is damaged.
        OSError: The folder cannot be written.
    """
    study = read_study(folder)
    if not len(study.frame):
        return None
    place = workspace.make_folder(workspace.place(folder) / "study")
    (place / "index.json").unlink(missing_ok=True)  # until all of it is written
    score = study.score
    table = means(study.frame, score)
    compared, notes = comparisons(study.frame, score)
    notes = [*study.notes, *notes]
    sentences, stamp = conclusions(compared, score), _stamp(study)
    told = told_means(table, score)
    pages = {
        "conclusions.txt": "\n".join([*sentences, "", *notes, *study.left_out, "", stamp, ""]),
        "runs.csv": _csv(study.frame, study.stamp),
        "means.csv": _csv(table, study.stamp),
        "means.tex": latex(told, f"{study.name}: means over seeds and 95 % intervals.", stamp),
        "comparisons.csv": _csv(compared, study.stamp),
        "comparisons.tex": latex(
            told_comparisons(compared, score),
            f"{study.name}: test {score.word} of hybrid nets minus that of others, over the same seeds and "
            "splits: 95 % interval, effect size (Cohen's d_z with Hedges' correction), p of the paired "
            "t-test, and p after Holm's correction over the table.",
            stamp,
        ),
    }
    files = {name: page.encode() for name, page in pages.items()}
    for name, figure in figures(study).items():
        title, description = _titles(score)[name]
        files[f"{name}.png"] = figure.png(Title=title, Description=description, Stamp=stamp)
        files[f"{name}.pdf"] = figure.pdf(Title=title, Subject=description, Keywords=stamp)
    for old in place.iterdir():
        if old.suffix in (".png", ".pdf") and old.name not in files:
            old.unlink()  # of an earlier state, which had it
    for name, content in files.items():
        workspace.write_bytes(place / name, content)
    index = {
        "name": study.name,
        "stamp": study.stamp,
        "planned": study.planned,
        "finished": study.finished,
        "left_out": list(study.left_out),
        "notes": notes,
        "conclusions": sentences,
        "files": list(files),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    workspace.write_json(place / "index.json", index)
    return study


def _csv(table: pd.DataFrame, stamp: str) -> str:
    return table.assign(stamp=stamp).to_csv(index=False, lineterminator="\n")

"""A study: the finished runs of a batch as one table, and what they show of models and data fractions."""

from __future__ import annotations

import copy
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
from qnnkit.batch import state
from qnnkit.runs import Run, reading, sums
from qnnkit.runs.folder import settings_of, settled
from qnnkit.runs.reading import trainings
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

KEYS = ("model", "net", "train_fraction")
COSTS = ("quantum", "classical", "frozen", "circuits_per_image", "seconds_per_epoch")
MOST_HYBRIDS = 7
"""Hybrid nets of so many models are compared with each other: above, every pair costs the others too much."""
SAME_DATA = (
    "All seeds saw the same training, validation and test data at a fraction: intervals and p cover what a "
    "seed draws, such as initial weights and the order of the data, but not the choice of the training data "
    "or of the test data."
)
BESIDE = {
    "accuracy": (
        stats.Score("macro_f1", "macro-F1"),
        stats.Score("loss", "NLL", "nats", 1, "nats", 3, larger=False),
        stats.Score("ece", "ECE", larger=False),
    ),
    "recall_1": (
        stats.Score("zero_shot", "zero-shot accuracy"),
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
    """What its data were found to be, with how many runs were told so."""
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
                `seaborn.objects.Plot`, or one of `qnnkit.plots`.
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
            files = {".tex": _latex(shown, title, stamp)}
        elif isinstance(shown, str):
            files = {".txt": f"{shown}\n\n{stamp}\n"}
        else:
            from qnnkit import plots

            shown = shown if isinstance(shown, plots.Picture) else plots.stamped(shown, stamp, *size)
            files = {".png": shown.png(Title=title, Stamp=stamp)}
            files |= {".pdf": shown.pdf(Title=title, Keywords=stamp)}
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
    notes: Counter[str] = Counter()
    asked = [settings_in(planned) for planned in batch["runs"]]
    same = {*_NO_MODEL, *_lengths(asked)}
    same |= _of_nets(asked, same)
    for planned in batch["runs"]:
        try:
            place = Path(os.path.normpath(folder / str(planned["folder"])))
            varied = {name: value for name, value in settings_in(planned).items() if name not in same}
            found = _read_run(place, varied, score)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            left_out[str(planned.get("id", "?"))] = why
            continue
        rows += found[0]
        epochs += found[1]
        behind.append(found[2])
        notes.update(found[3])
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
        tuple(told),
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
        runs = [planned for planned in content["runs"] if isinstance(planned, dict) and "folder" in planned]
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
    return rows, learned, identity, list(dict.fromkeys(map(str, notes))) if isinstance(notes, list) else []


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
        for metric in metrics(score):
            ends = (f"{metric.name}_low", f"{metric.name}_high")
            row |= dict.fromkeys((metric.name, *ends), math.nan)
            values = group[metric.name].tolist()
            if all(map(math.isfinite, values)):
                interval = metric.interval(values, group["n_test"] if metric == score else ())
                row[metric.name] = interval.mean
                if interval.known:
                    row |= zip(ends, (interval.low, interval.high), strict=True)
        rows.append(row | {name: group[name].median() for name in COSTS})
    return pd.DataFrame(rows)


def comparisons(frame: pd.DataFrame, score: stats.Score = stats.ACCURACY) -> tuple[pd.DataFrame, list[str]]:
    """Hybrid nets against their controls, every classical reference and one another, seed by seed.

    Frame and score are a study's. Compared are test scores of the same seeds on the same data, by the
    fingerprints that the runs keep; `p_holm` is corrected over the whole table, and `result` follows from it.

    Returns:
        The table, and a sentence on every pair that is not compared, or not with all of its seeds.
        Hybrid nets of more models than MOST_HYBRIDS are not compared with one another, which is told once.
    """
    import pandas as pd

    rows, notes = [], []
    groups = {key: group.set_index("seed") for key, group in _groups(frame).items()}
    hybrids = frame.loc[frame["net"] == "hybrid", "model"].unique().tolist()
    if len(hybrids) > MOST_HYBRIDS:
        notes.append(
            f"Hybrid nets are not compared with one another: of {len(hybrids)} models there are too many "
            f"pairs for seeds to decide; of {MOST_HYBRIDS} or fewer they are."
        )
    for model, other_model, other_net in _pairs(frame, hybrids):
        for fraction in sorted(frame["train_fraction"].unique()):
            ours = groups.get((model, "hybrid", fraction))
            theirs = groups.get((other_model, other_net, fraction))
            if ours is None:
                continue
            pair = f"{model} hybrid and {other_model} {other_net}, {100 * fraction:g} %"
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
            ends = (end if math.isfinite(end) else math.nan for end in (found.low, found.high))
            pair = (model, "hybrid", other_model, other_net, fraction)
            rows.append((*pair, found.n, found.difference, *ends, found.effect, found.p))
    names = ["model", "net", "other_model", "other_net", "train_fraction", "seeds", "difference"]
    table = pd.DataFrame(rows, columns=pd.Index([*names, "low", "high", "effect_size", "p"]))
    table["p_holm"] = pd.Series(stats.holm(table["p"].tolist()), dtype=float)
    better = (table["difference"] > 0) == score.larger
    table["result"] = ["better" if each else "worse" for each in better]
    table.loc[~(table["p_holm"] < stats.ALPHA), "result"] = "no difference shown"
    table.loc[table["p_holm"].isna(), "result"] = "cannot be tested"
    return table, notes


def _groups(frame: pd.DataFrame) -> dict[Any, Any]:
    """(model, net, train_fraction) -> its rows, in the order of the table."""
    return dict(list(frame.groupby(list(KEYS), sort=False)))


def _pairs(frame: pd.DataFrame, hybrids: list[str]) -> list[tuple[str, str, str]]:
    """(model of a hybrid net, model and net that it is compared with)."""
    nets = frame[["model", "net"]].drop_duplicates()
    controls = nets[~nets["net"].isin(MAIN_NETS)]
    references = [(model, "reference") for model in nets.loc[nets["net"] == "reference", "model"]]
    pairs = []
    for model in hybrids:
        pairs += [(model, model, net) for net in controls.loc[controls["model"] == model, "net"]]
        pairs += [(model, *reference) for reference in references]
    if len(hybrids) <= MOST_HYBRIDS:
        pairs += [(model, other, "hybrid") for model, other in itertools.combinations(hybrids, 2)]
    return pairs


_CONTROLS = {
    "classical": "the classical control of equal size",
    "classical_trained": "the classical control that is trained, though the circuit is frozen",
    "no_entanglement": "the same without entanglement",
    "frozen_random": "circuits that stay at random angles",
    "no_quantum": "the net without a circuit",
    "reference": "the classical reference",
    "lora": "LoRA, which has no circuit",
}
"""Net that a hybrid one is compared with -> what it is."""
_WINNERS = {"no_entanglement": "the circuit without it", "frozen_random": "the random circuit"}
_WINNERS |= {"no_quantum": "the net without a circuit", "reference": "the reference", "lora": "LoRA"}
_AS_FROZEN = "the classical control that is as frozen as the circuit"


def verdict(compared: pd.DataFrame) -> str:
    """What a table of `comparisons` shows and what it does not: a line, and one for each kind of rival.

    Counted is by p after correction alone; where that is not below 0.05 no net is called better.
    """
    if not len(compared):
        return "No two nets could be compared, so nothing can be said of any difference."
    counts, n = Counter(compared["result"]), len(compared)
    shown, untold = counts["better"] + counts["worse"], counts["cannot be tested"]
    told = [
        f"Of {n} comparison{'s' * (n > 1)} over the same seeds and splits, {shown} "
        f"show{'s' * (shown == 1)} a difference (paired t-test, p < {stats.ALPHA} after Holm's correction "
        "for all of them)" + ("; that holds for these data, settings and seeds." if shown else ".")
    ]
    if untold:
        told.append(f"{untold} cannot be tested: one seed, or one and the same difference on every seed.")
    trained = set(compared.loc[compared["other_net"] == "classical_trained", "model"])
    alike = compared["model"] == compared["other_model"]
    kinds: Any = (
        compared["other_net"].map(_CONTROLS.get).where(alike | (compared["other_net"] == "reference"))
    )
    kinds[(compared["other_net"] == "classical") & compared["model"].isin([*trained])] = _AS_FROZEN
    for kind in kinds.dropna().unique():
        results = compared.loc[kinds == kind, "result"]
        winner = _WINNERS.get(compared.loc[kinds == kind, "other_net"].iloc[0], "the classical control")
        won, lost = ((results == result).sum() for result in ("better", "worse"))
        told.append(
            f"Against {kind}, the circuit did better in {won} of {len(results)} "
            f"case{'s' * (len(results) > 1)} and worse in {lost}"
            + ("." if won else "")
            + (f"; where the data decide, {winner} wins." if lost and not won else "")
            + ("; no advantage of a circuit is shown, nor of the control." if not won + lost else "")
        )
    return "\n".join(told)


def _latex(styler: Any, title: str, stamp: str) -> str:
    """A Styler as LaTeX; its first line names the runs behind it."""
    from pandas.api.types import is_numeric_dtype

    first = f"% {stamp}; needs \\usepackage{{booktabs}}\n"
    data = styler.data
    if not len(data):
        return first + "% No two nets could be compared.\n"
    words = [name for name in data if not is_numeric_dtype(data[name])]
    styler = copy.deepcopy(styler).format(escaped, subset=words).format_index(escaped, axis=1)
    return first + styler.to_latex(
        hrules=True,
        caption=escaped(title),
        position_float="centering",
        column_format="".join("l" if name in words else "r" for name in data),
    )


_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"<": r"$<$", ">": r"$>$", "±": r"$\pm$", "−": r"$-$", "\n": " "},
}


def escaped(text: Any) -> str:
    """Text as LaTeX prints it."""
    return str(text).translate(str.maketrans(_LATEX))

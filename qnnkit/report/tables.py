"""Tables of trained nets from one tidy frame: means, comparisons with verdicts, groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnkit import plots, runs, stats
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

KEYS = ("model", "net", "train_fraction")
COSTS = ("quantum", "classical", "frozen", "circuits_per_image", "seconds_per_epoch")
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
    "loss": (stats.Score("perplexity", "perplexity", "", 1, "", 2, larger=False, least=1.0),),
}
"""Other metrics that are computed, by the name of the score that nets are compared by."""
MOST_HYBRIDS = 7
"""Most models whose hybrid nets are compared with each other. More pairs would cost each one too much."""
WITH_CIRCUIT = ("no_entanglement", "frozen_random", "frozen_classical")
"""Controls that still contain a circuit, which do not show whether the net needs one."""
CONTROLS = {
    "classical": "a classical layer of as many weights as the circuit",
    "classical_trained": "a classical layer that is trained, though the circuit is not",
    "no_entanglement": "the same circuit without entanglement",
    "frozen_random": "the same circuit left at random angles",
    "no_quantum": "the net without its circuit",
    "fourier": "a trained linear map of the circuit's own trigonometric features",
    "fourier_random": "a trained linear map of as many random trigonometric features",
    "compute_matched": "two classical layers with as many multiplications as a simulation of the circuit",
    "frozen_classical": "the same net with the classical layers before the circuit not trained",
    "reference": "the classical reference",
    "lora": "LoRA, which has no circuit",
    "vera": "VeRA, which has no circuit",
}
"""Nets that a hybrid net is compared with, and what replaces the circuit in each."""
VERDICTS = ("better", "worse", "equivalent", "undecided")
OF_NET, OF_BASE = "test_loss_on_", "test_base_on_"
"""Prefixes of the columns with the loss on a group, of a net and of its adapter's base."""
SAME = 1e-4
"""Largest relative difference between two runs' losses of one base."""


def metrics(score: stats.Score) -> tuple[stats.Score, ...]:
    """The score that nets are compared by, and the other metrics that are computed, such as macro-F1."""
    return (score, *(BESIDE[score.name] if score == stats.SCORES.get(score.name) else ()))


def frame_of(run: runs.Run) -> pd.DataFrame:
    """A run's rows of `runs.frame`, in the form for `means` and `comparisons`; empty before a net is trained.

    There is one row per net and seed. `model` is the recipe, and names of metrics have no `test_`.
    """
    import pandas as pd

    numbers = [*(metric.name for metric in metrics(run.score)), *COSTS, "n_train", "n_test", "hours"]
    numbers += ["peak_memory"]
    rows: Any = runs.frame(run, settings=["train_fraction", "split_seed"])
    rows = rows.drop(columns=[name for name in rows if f"test_{name}" in rows])  # a setting `loss`
    rows = rows.rename(columns=lambda name: name.removeprefix("test_"))
    rows = rows.reindex(columns=[*dict.fromkeys([*KEYS, "seed", *rows, *numbers])])
    rows[numbers] = rows[numbers].apply(pd.to_numeric, errors="coerce")
    rows = rows[rows["net"].isin(run.nets) & rows["seed"].isin(run.seeds)]
    rows = rows.assign(model=run.config.title, place=rows["net"].map(run.nets.index))
    samples = dict(run.provenance.get("samples") or {})
    rows = rows.fillna({"n_train": float(samples.get("train") or math.nan), "data": run.folder.name})
    return rows.sort_values(["place", "seed"], ignore_index=True).drop(columns="place")


def means(frame: pd.DataFrame, score: stats.Score = stats.ACCURACY) -> pd.DataFrame:
    """One row per model, net and fraction: means over seeds with 95 % intervals, weights and costs.

    If runs have different splits (`split_seed`), means are over splits, each of which is the mean of its
    seeds. Frame and score are a study's, or a run's (`frame_of`). Bounds are NaN if they are unknown, as for
    one seed; a metric is NaN if a seed lacks it.
    """
    import pandas as pd

    rows, several = [], has_splits(frame)
    for key, group in _units(frame).groupby(list(KEYS), sort=False):
        row: dict[str, Any] = {**dict(zip(KEYS, key, strict=True)), "seeds": len(group)}
        for metric in metrics(score):
            values, numbers = group[metric.name].tolist(), [math.nan] * 3
            if all(map(math.isfinite, values)):
                n_test, ratio = group["n_test"] if metric == score else (), _ratio(group) if several else 0.0
                numbers = metric.interval(values, n_test, ratio)
            row |= zip((metric.name, f"{metric.name}_low", f"{metric.name}_high"), numbers, strict=True)
        rows.append(row | {name: group[name].dropna().median() for name in COSTS})
    return pd.DataFrame(rows)


def of_data(fraction: float) -> str:
    """Returns a `train_fraction` as text: a share, or a number of samples if it is above 1.

    Example:
        >>> of_data(0.25), of_data(200)
        ('25 %', '200 samples')
    """
    return f"{fraction:g} samples" if fraction > 1 else f"{100 * fraction:g} %"


def reached(table: Any, score: stats.Score, most: int = 24) -> list[str]:
    """A sentence with the score and its interval for each of the first nets in a table of `means`."""
    names = [score.name, f"{score.name}_low", f"{score.name}_high"]
    return [
        f"{row['model']} {row['net']}, {of_data(row['train_fraction'])} of the data: {score.column} "
        f"{score.with_interval(*map(row.get, names))}"
        for row in table.head(most).to_dict("records")
    ]


def comparisons(
    frame: pd.DataFrame, score: stats.Score = stats.ACCURACY, min_difference: float | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Compares nets with their controls, and hybrid nets with references and with each other, by seed.

    Frame and score are a study's, or a run's (`frame_of`). Test scores of the same seeds on the same data are
    compared (by the fingerprints that the runs record), and p are corrected over the whole table. If runs
    have different splits, splits are compared, by the corrected test of `stats.compare`.

    Args:
        frame: One row per model, net, train_fraction and seed.
        score: Score by which they are compared.
        min_difference: The smallest difference that matters; see `stats.Score.margin`.

    Returns:
        The table, with the columns of `stats.decide`, and a sentence on every pair that is not compared, or
        not over all of its seeds. Hybrid nets of more than MOST_HYBRIDS models are not compared with each
        other, which one note says.
    """
    import pandas as pd

    rows, notes, several = [], [], has_splits(frame)
    frame = _units(frame)
    groups = {key: group.set_index("seed") for key, group in frame.groupby(list(KEYS), sort=False)}
    hybrids = frame.loc[frame["net"] == "hybrid", "model"].unique().tolist()
    if len(hybrids) > MOST_HYBRIDS:
        notes.append(f"{len(hybrids)} hybrid nets are not compared with each other (at most {MOST_HYBRIDS}).")
    shares = sorted(frame["train_fraction"].unique())
    for (model, net, other_model, other_net), share in itertools.product(_pairs(frame, hybrids), shares):
        ours, theirs = groups.get((model, net, share)), groups.get((other_model, other_net, share))
        if ours is None:
            continue
        pair = f"{model} {net} and {other_model} {other_net}, {of_data(share)}"
        seeds = [] if theirs is None else [seed for seed in ours.index if seed in theirs.index]
        if theirs is None or not seeds:
            notes.append(f"{pair}: not compared, because no finished run of the second has the same seeds.")
            continue
        compared = [group.loc[seeds] for group in (ours, theirs)]
        one, other = (group["data"].tolist() for group in compared)
        known = all(isinstance(fingerprint, str) for fingerprint in one + other)
        ratio = _ratio(compared[0]) if several else 0.0
        if one != other or not (several or len({*one}) == 1) or not known or math.isnan(ratio):
            why = "their data differ" if known else "a run has no fingerprint of its data"
            notes.append(f"{pair}: not compared, because {why}.")
            continue
        if len(seeds) < max(len(ours), len(theirs)):
            notes.append(f"{pair}: compared over the seeds that both have ({len(seeds)}).")
        values, others = (group[score.name].tolist() for group in compared)
        names = {"model": model, "net": net, "other_model": other_model, "other_net": other_net}
        rows.append({**names, "train_fraction": share, "values": values, "others": others, "ratio": ratio})
    decided = stats.decide(rows, score, min_difference)
    return pd.DataFrame(decided, columns=None if rows else pd.Index(["verdict"])), notes


def has_splits(frame: Any) -> bool:
    """Whether seeds or runs have different splits, by `vary_split` or by a batch over `split_seed`."""
    return "split_seed" in frame and frame["split_seed"].nunique() > 1


def _ratio(rows: Any) -> float:
    return float((rows["n_test"] / rows["n_train"]).mean())


def _units(frame: pd.DataFrame) -> Any:
    """One row per seed; if runs have different splits, one row per split, the mean over its seeds."""
    if not has_splits(frame):
        return frame
    keys = [*KEYS, "split_seed"]
    numbers = {*frame.select_dtypes("number")}
    how = {name: "mean" if name in numbers else "first" for name in frame.columns.drop(keys)}
    return frame.groupby(keys, sort=False).agg(how).reset_index().assign(seed=lambda rows: rows["split_seed"])


def _pairs(frame: pd.DataFrame, hybrids: list[str]) -> list[tuple[str, str, str, str]]:
    """Pairs to compare, as (model, net, other model, other net). Each model's main net comes first."""
    nets: Any = frame[["model", "net"]].drop_duplicates()
    main = {row.model: row.net for row in nets.itertuples() if row.net in MAIN_NETS}
    pairs = []
    for model, net in main.items():
        controls = nets.loc[(nets["model"] == model) & ~nets["net"].isin(MAIN_NETS), "net"]
        pairs += [(model, net, model, control) for control in controls]
        if net == "hybrid":
            others = [other for other in main if main[other] == "reference"]
            pairs += [(model, net, other, "reference") for other in others]
    if len(hybrids) <= MOST_HYBRIDS:
        pairs += [(one, "hybrid", other, "hybrid") for one, other in itertools.combinations(hybrids, 2)]
    return pairs


def headline(rows: Sequence[Mapping[str, Any]], score: stats.Score = stats.ACCURACY) -> str:
    """Sentences on whether a run's circuit helped: the comparison with its strongest classical control.

    Controls that still contain a circuit count only if there are no others.

    Args:
        rows: Rows of `comparisons` or `stats.decide`.
        score: Score that they compare.
    """
    classical = [row for row in rows if row["other_net"] not in WITH_CIRCUIT]
    if not rows or rows[0]["net"] != "hybrid":
        return ""
    strongest = (min if score.larger else max)(classical or rows, key=lambda row: row["difference"])
    conclusion = {
        "better": "The circuit helped.",
        "worse": "The circuit did not help.",
        "equivalent": "The circuit makes no difference that matters.",
        "undecided": "The circuit is not shown to help.",
    }[strongest["verdict"]]
    kind = "classical control" if classical else "control"
    sentence, power = stats.sentence(strongest, score), stats.detectable(strongest, score)
    more = f" {power}" if power and power not in sentence else ""
    return f"{conclusion} Against its strongest {kind}: {sentence}{more}"


def forest(rows: Sequence[Mapping[str, Any]], score: stats.Score = stats.ACCURACY) -> plots.Picture:
    """Picture of a run's comparisons: for each control the difference with its interval and corrected p.

    Args:
        rows: Rows of `comparisons` or `stats.decide`, at least one.
        score: Score that they compare; the axis has its unit.
    """
    unit = f" ({score.unit})" if score.unit else ""
    return plots.forest(
        [row["other_net"] for row in rows],
        [score.factor * row["difference"] for row in rows],
        [(score.factor * row["low"], score.factor * row["high"]) for row in rows],
        [f"{score.signed(row['difference'])}, {stats.format_p(row['p_holm'])}" for row in rows],
        margin=score.factor * max(row["min_difference"] for row in rows),
        label=f"{rows[0]['net']} minus the other: test {score.word}{unit}",
    )


def verdict(compared: Any) -> str:
    """Sentences that count the verdicts in a table of `comparisons`, in all and for each kind of control.

    Args:
        compared: The first result of `comparisons`.
    """
    if not len(compared):
        return "No two nets could be compared, so there is no verdict on any difference."
    alike = (compared["model"] == compared["other_model"]) | (compared["other_net"] == "reference")
    kinds: Any = compared["other_net"].where(alike, "hybrid nets of other models")
    groups = {f"Against {CONTROLS.get(kind, kind)}": kinds == kind for kind in kinds.unique()}
    lines = []
    for name, chosen in {"All comparisons": kinds.notna(), **groups}.items():
        counts = compared["verdict"][chosen].value_counts().reindex(VERDICTS, fill_value=0)
        lines.append(f"{name}: {', '.join(f'{n} {each}' for each, n in counts.items())} of {chosen.sum()}.")
    unit = compared["unit"].iloc[0].removesuffix("s")
    tests = "corrected resampled t-tests" if unit == "split" else "t-tests"
    lines[1:1] = [
        f"Paired by {unit}; {tests}, and two one-sided ones for equivalence, p < {stats.ALPHA} after Holm's "
        "correction over all of them. The verdicts hold for these data, settings and seeds."
    ]
    return "\n".join(lines)


def by_group(rows: pd.DataFrame, named: Sequence[str] = ("net",)) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean losses over seeds, and half the width of their 95 % intervals (NaN for a single seed).

    Args:
        rows: Rows of `runs.frame`.
        named: Columns that distinguish the nets. Each combination is a row.

    Returns:
        Two tables of nets, and of the base of adapters, by group; empty if there are no groups.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"net": ["lora", "lora"], "test_loss_on_bach": [0.75, 0.25]})
        >>> float(by_group(rows)[0].loc["lora", "bach"])
        0.5
    """
    import pandas as pd

    rows = rows.reset_index(drop=True)

    def of(begin: str) -> Any:
        return rows.filter(regex=f"^{begin}").rename(columns=lambda name: str(name).removeprefix(begin))

    def half_width(values: pd.Series) -> float:
        numbers = values.dropna().tolist()
        mean, _, high = stats.mean_interval(numbers) if numbers else [math.nan] * 3
        return high - mean

    if not of(OF_NET).shape[1]:
        return pd.DataFrame(), pd.DataFrame()
    grouped = of(OF_NET).groupby(rows[list(named)].map(show).agg(", ".join, axis=1), sort=False)
    losses, halves, base = grouped.mean(), grouped.agg(half_width), of(OF_BASE)
    if base.shape[1] and (base.max() - base.min() <= SAME * base.min()).all():  # nets on one base
        losses = pd.concat([base.mean().rename("base").to_frame().T, losses])
        halves = halves.reindex(losses.index)
    return losses, halves


def show(value: Any) -> str:
    """A setting in readable form.

    Example:
        >>> show(True), show([]), show(0.0010000000474974513), show(["a", "b"])
        ('yes', 'none', '0.001', 'a, b')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.5g}"
    return ", ".join(map(show, value)) or "none" if isinstance(value, list) else str(value)

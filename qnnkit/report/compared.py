"""What tables of trained nets show: means, paired comparisons, groups of the test split, conclusions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnkit import stats
from qnnkit.report.study import COSTS, KEYS, metrics, show
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

MOST_HYBRIDS = 7
"""Hybrid nets of so many models are compared with each other: above, every pair costs the others too much."""
OF_NET, OF_BASE = "test_loss_on_", "test_base_on_"
"""How the columns begin that tell the loss on a group, of a net and of the base of its adapter."""
SAME = 1e-4
"""Losses of one base that two runs computed differ by less, relative to themselves."""


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
            found = score.compare(
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
    nets: Any = frame[["model", "net"]].drop_duplicates()
    controls = nets[~nets["net"].isin(MAIN_NETS)]
    references = [(model, "reference") for model in nets.loc[nets["net"] == "reference", "model"]]
    pairs = []
    for model in hybrids:
        pairs += [(model, model, net) for net in controls.loc[controls["model"] == model, "net"]]
        pairs += [(model, *reference) for reference in references]
    if len(hybrids) <= MOST_HYBRIDS:
        pairs += [(model, other, "hybrid") for model, other in itertools.combinations(hybrids, 2)]
    return pairs


RIVALS = {
    "classical": ("a classical layer of as many weights as the circuit", "the classical control"),
    "as_frozen": ("the classical control that is as frozen as the circuit", "the classical control"),
    "classical_trained": ("a classical layer that is trained, though the circuit is not", "that layer"),
    "no_entanglement": ("the same circuit without entanglement", "the circuit without it"),
    "frozen_random": ("the same circuit left at random angles", "the random circuit"),
    "no_quantum": ("the net without its circuit", "the net without it"),
    "reference": ("the classical reference", "the reference"),
    "lora": ("LoRA, which has no circuit", "LoRA"),
    "vera": ("VeRA, which has no circuit", "VeRA"),
}
"""Net that a hybrid one is compared with -> what stands for the circuit in it, and who wins where it does."""


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
    trained = compared.loc[compared["other_net"] == "classical_trained", "model"]
    alike = (compared["model"] == compared["other_model"]) | (compared["other_net"] == "reference")
    kinds: Any = compared["other_net"].where(alike)
    kinds[(kinds == "classical") & compared["model"].isin([*trained])] = "as_frozen"
    for kind in kinds.dropna().unique():
        results = compared.loc[kinds == kind, "result"]
        what, winner = RIVALS.get(kind, (f"the control `{kind}`", f"`{kind}`"))
        won, lost, n = (results == "better").sum(), (results == "worse").sum(), len(results)
        told.append(
            f"Against {what}, the circuit did better in {won} of {n} case{'s' * (n > 1)} and worse in {lost}"
            + ("." if won else "")
            + (f"; where the data decide, {winner} wins." if lost and not won else "")
            + ("; no advantage of a circuit is shown, nor of the control." if not won + lost else "")
        )
    return "\n".join(told)


def by_group(rows: pd.DataFrame, named: Sequence[str] = ("net",)) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean losses over seeds, and half the width of their 95 % intervals (NaN for a single seed).

    Args:
        rows: Of `runs.frame`, or `finals` of a run.
        named: Columns that tell the nets apart: each combination is a row.

    Returns:
        Two tables of nets, and of the base that adapters stand on, by group; empty where none is judged.

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

    if not of(OF_NET).shape[1]:
        return pd.DataFrame(), pd.DataFrame()
    grouped = of(OF_NET).groupby(rows[list(named)].map(show).agg(", ".join, axis=1), sort=False)
    losses, halves, base = grouped.mean(), grouped.agg(_half_width), of(OF_BASE)
    if base.shape[1] and (base.max() - base.min() <= SAME * base.min()).all():  # nets on one base
        losses = pd.concat([base.mean().rename("base").to_frame().T, losses])
        halves = halves.reindex(losses.index)
    return losses, halves


def _half_width(values: pd.Series) -> float:
    known = values.dropna().tolist()
    half = stats.mean_interval(known).half_width if known else math.nan
    return half if math.isfinite(half) else math.nan

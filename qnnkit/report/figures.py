"""The figures of a study: scores, learning curves, less data, costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qnnkit.report.study import Study

if TYPE_CHECKING:
    import pandas as pd

MOST_MODELS = 8
"""Models in a figure: those that did best on the validation split. Tables have all."""


def draw(study: Study, means: pd.DataFrame) -> Iterator[Any]:
    """Draws the figures of a study, saves them into its folder, and yields each as a notebook shows it.

    Args:
        study: Of finished runs, one at least.
        means: Of its frame, as `report.means` gives them.
    """
    score, (rows, curves) = study.score, best(study, means)
    n_shares = rows["data"].nunique()
    size = (3.2 * n_shares + 1.5, 0.25 * rows.groupby(["model", "net"]).ngroups + 1)
    yield study.save(
        _scores(rows, study), "scores", f"Test {score.word}: each seed, mean and 95 % interval", size
    )
    size = (3.2 * n_shares + 1, 2.4 * curves["model"].nunique())
    yield study.save(
        _curves(curves, study), "curves", "Learning curves: mean over seeds and their range", size
    )
    if n_shares > 1:
        plot, n = _fractions(rows, study)
        size = (3.6 * min(n, 3) + 1, 3.2 * -(-n // 3))
        yield study.save(plot, "fractions", f"Test {score.word} against training data", size)
    size = (9, 1 + 2 * rows["model"].nunique())
    yield study.save(_costs(rows, study), "costs", f"Test {score.word} against cost", size)


def best(study: Study, means: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores with their means, as people read them, and curves, of the models that a figure has room for."""
    score, name = study.score, study.score.name
    rows = study.frame.merge(means, on=["model", "net", "train_fraction"], suffixes=("", "_mean"))
    rows[[name, f"{name}_mean", f"{name}_low", f"{name}_high"]] *= score.factor
    rows["data"] = [f"{100 * share:g} %" for share in rows["train_fraction"]]
    validation = rows.groupby("model")[f"validation_{score.on_validation}"].mean()
    top = validation.sort_values(ascending=not score.larger).index[:MOST_MODELS]
    return rows[rows["model"].isin(top)], study.curves[study.curves["model"].isin(top)]


def _scores(rows: pd.DataFrame, study: Study) -> Any:
    """A dot for every seed, the mean of each net and its interval, a panel for each share of the data."""
    import seaborn.objects as so

    name = study.score.name
    return (
        so.Plot(rows.assign(row=rows["model"] + " " + rows["net"]), x=f"{name}_mean", y="row", color="net")
        .facet("data")
        .add(so.Dots(), x=name, legend=False)  # every row names its net
        .add(so.Range(linewidth=2), orient="y", xmin=f"{name}_low", xmax=f"{name}_high", legend=False)
        .add(so.Dot(edgecolor="black"), marker="net", legend=False)
        .scale(color="colorblind")
        .label(x=study.score.column, y="", title="{} of the data".format)
    )


def _curves(curves: pd.DataFrame, study: Study) -> Any:
    """The score on the validation split by epoch, a panel for each model and share of the data."""
    import seaborn.objects as so

    score, epochs = study.score, sorted(curves["epoch"].unique())
    shares = [f"{100 * share:g} %" for share in curves["train_fraction"]]
    return (
        so.Plot(
            curves.assign(validation=score.factor * curves["validation"], data=shares),
            x="epoch",
            y="validation",
            color="net",
        )
        .facet(col="data", row="model")
        .add(so.Line(marker="."), so.Agg(), linestyle="net")
        .add(so.Band(), so.Est(errorbar=("pi", 100)))
        .scale(color="colorblind", x=so.Continuous().tick(at=epochs[:: 1 + len(epochs) // 6]))
        .label(x="epoch", y=f"{score.validation_word} ({score.per})", row="", col="")
    )


def _fractions(rows: pd.DataFrame, study: Study) -> tuple[Any, int]:
    """The score over the share of training data, a panel for each model; classical references are in all."""
    import pandas as pd
    import seaborn.objects as so

    hybrids, references = rows.loc[rows["net"] == "hybrid", ["model"]], rows[rows["net"] == "reference"]
    repeated = references.assign(net=references["model"]).drop(columns="model")
    repeated = repeated.merge(hybrids.drop_duplicates(), how="cross")
    panels = pd.concat([rows.drop(references.index), repeated] if len(hybrids) else [rows], ignore_index=True)
    shares = sorted(100 * panels["train_fraction"].unique())
    aside = panels["net"].map({net: at for at, net in enumerate(panels["net"].unique())})
    aside = 0.015 * (aside - aside.max() / 2)  # nets are next to each other at their share
    panels = panels.assign(share=100 * panels["train_fraction"] * (shares[-1] / shares[0]) ** aside)
    name = study.score.name
    plot = (
        so.Plot(panels, x="share", y=f"{name}_mean", color="net")
        .facet("model", wrap=3)
        .add(so.Line())
        .add(so.Dot(), marker="net")
        .add(so.Range(), ymin=f"{name}_low", ymax=f"{name}_high")
        .scale(color="colorblind", x=so.Continuous(trans="log").tick(at=shares).label(like="{x:.3g} %"))
        .limit(x=(0.93 * panels["share"].min(), 1.07 * panels["share"].max()))
        .label(x="training data", y=study.score.column, col="")
    )
    return plot, panels["model"].nunique()


def _costs(rows: pd.DataFrame, study: Study) -> Any:
    """The mean score over what a net costs with the largest share of the data, a row for each model."""
    import seaborn.objects as so

    costs = {"weights": "trained weights", "circuits_per_image": "circuits per sample"}
    costs |= {"seconds_per_epoch": "seconds per epoch"}
    whole = rows[rows["train_fraction"] == rows["train_fraction"].max()]
    whole = whole.assign(weights=whole["quantum"] + whole["classical"])
    whole = whole.groupby(["model", "net"], sort=False).first().reset_index()  # the same on every seed
    known = [cost for cost in costs if whole[cost].notna().any()]
    return (
        so.Plot(whole, y=f"{study.score.name}_mean", color="net", marker="net")
        .pair(x=known)
        .facet(row="model")
        .add(so.Dot(edgecolor="black", pointsize=8))
        .scale(color="colorblind")
        .label(y=study.score.column, row="", **{f"x{at}": costs[cost] for at, cost in enumerate(known)})
    )

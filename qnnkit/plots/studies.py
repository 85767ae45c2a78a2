"""Figures of a study by seaborn: scores, learning curves, less data, costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnkit.stats import Score


def study_scores(rows: Any, score: Score) -> Any:
    """A dot for every seed, the mean of each net and its interval, a panel for each share of the data."""
    so = _seaborn()
    name = score.name
    return (
        so.Plot(rows.assign(row=rows["model"] + " " + rows["net"]), x=f"{name}_mean", y="row", color="net")
        .facet("data")
        .add(so.Dots(), x=name, legend=False)  # every row names its net
        .add(so.Range(linewidth=2), orient="y", xmin=f"{name}_low", xmax=f"{name}_high", legend=False)
        .add(so.Dot(edgecolor="black"), marker="net", legend=False)
        .scale(color="colorblind")
        .label(x=score.column, y="", title="{} of the data".format)
    )


def study_curves(curves: Any, score: Score) -> Any:
    """The score on the validation split by epoch, a panel for each model and share of the data."""
    so = _seaborn()
    epochs = sorted(curves["epoch"].unique())
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


def study_fractions(rows: Any, score: Score) -> tuple[Any, int]:
    """The score over the share of training data, a panel for each model; classical references are in all."""
    import pandas as pd

    so = _seaborn()
    hybrids, references = rows.loc[rows["net"] == "hybrid", ["model"]], rows[rows["net"] == "reference"]
    repeated = references.assign(net=references["model"]).drop(columns="model")
    repeated = repeated.merge(hybrids.drop_duplicates(), how="cross")
    panels: Any = pd.concat(
        [rows.drop(references.index), repeated] if len(hybrids) else [rows], ignore_index=True
    )
    shares = sorted(100 * panels["train_fraction"].unique())
    aside = panels["net"].map({net: at for at, net in enumerate(panels["net"].unique())})
    aside = 0.015 * (aside - aside.max() / 2)  # nets are next to each other at their share
    panels = panels.assign(share=100 * panels["train_fraction"] * (shares[-1] / shares[0]) ** aside)
    name = score.name
    plot = (
        so.Plot(panels, x="share", y=f"{name}_mean", color="net")
        .facet("model", wrap=3)
        .add(so.Line())
        .add(so.Dot(), marker="net")
        .add(so.Range(), ymin=f"{name}_low", ymax=f"{name}_high")
        .scale(color="colorblind", x=so.Continuous(trans="log").tick(at=shares).label(like="{x:.3g} %"))
        .limit(x=(0.93 * panels["share"].min(), 1.07 * panels["share"].max()))
        .label(x="training data", y=score.column, col="")
    )
    return plot, panels["model"].nunique()


def study_costs(rows: Any, score: Score) -> Any:
    """The mean score over what a net costs with the largest share of the data, a row for each model."""
    so = _seaborn()
    costs = {"weights": "trained weights", "circuits_per_image": "circuits per sample"}
    costs |= {"seconds_per_epoch": "seconds per epoch"}
    whole = rows[rows["train_fraction"] == rows["train_fraction"].max()]
    whole = whole.assign(weights=whole["quantum"] + whole["classical"])
    whole = whole.groupby(["model", "net"], sort=False).first().reset_index()  # the same on every seed
    known = [cost for cost in costs if whole[cost].notna().any()]
    return (
        so.Plot(whole, y=f"{score.name}_mean", color="net", marker="net")
        .pair(x=known)
        .facet(row="model")
        .add(so.Dot(edgecolor="black", pointsize=8))
        .scale(color="colorblind")
        .label(y=score.column, row="", **{f"x{at}": costs[cost] for at, cost in enumerate(known)})
    )


def _seaborn() -> Any:
    """Its interface of objects, which is loaded when it is first used and has no types."""
    import seaborn.objects

    return seaborn.objects

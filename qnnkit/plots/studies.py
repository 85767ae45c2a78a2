"""Figures of a study by seaborn: scores, and scores by epoch or by share of the training data."""

# seaborn's objects interface does not declare the types of its arguments.
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnkit.stats import Score


def study_scores(rows: Any, score: Score) -> Any:
    """A dot for every seed, the mean and interval of each net, and a panel for each share of the data.

    Args:
        rows: One row per model, net, share (`data`, a text) and seed, with columns of the score's name and of
            the ends `_mean`, `_low` and `_high`.
        score: Score that is shown.
    """
    import seaborn.objects as so

    name = score.name
    return (
        so.Plot(rows.assign(row=rows["model"] + " " + rows["net"]), x=f"{name}_mean", y="row", color="net")
        .facet("data")
        .add(so.Dots(), x=name, legend=False)  # every row names its net
        .add(so.Range(linewidth=2), orient="y", xmin=f"{name}_low", xmax=f"{name}_high", legend=False)
        .add(so.Dot(edgecolor="black"), marker="net", legend=False)
        .scale(color=so.Nominal("colorblind"))
        .label(x=score.column, y="", title="{} of the data".format)  # pyright: ignore[reportArgumentType]
    )


def study_lines(rows: Any, x: str, y: str, panels: Mapping[str, Any], labels: Mapping[str, str]) -> Any:
    """A line for each net: the mean of `y` over its seeds by `x`, with their range.

    Args:
        rows: One row per net, seed and value of `x`.
        x: Column of the horizontal axis.
        y: Column of the scores.
        panels: Columns that are split into panels, as arguments of `seaborn.objects.Plot.facet`.
        labels: Labels of both axes.
    """
    import seaborn.objects as so

    ticks = sorted(rows[x].unique())
    return (
        so.Plot(rows, x=x, y=y, color="net")
        .facet(**panels)
        .add(so.Line(marker="."), so.Agg(), linestyle="net")
        .add(so.Band(), so.Est(errorbar=("pi", 100)))
        .scale(color=so.Nominal("colorblind"), x=so.Continuous().tick(at=ticks[:: 1 + len(ticks) // 6]))
        .label(row="", col="", **labels)
    )

"""Figures of a study by seaborn: its scores, and what they are by epoch or by share of the training data."""

# seaborn's interface of objects declares no types of its arguments.
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnkit.stats import Score


def study_scores(rows: Any, score: Score) -> Any:
    """A dot for every seed, the mean of each net and its interval, a panel for each share of the data."""
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
    """A line for each net: the mean of `y` over its seeds along `x`, and their range.

    Args:
        rows: One per net, seed and place.
        x: Column of the places.
        y: Column of the scores.
        panels: Which columns have panels of their own, as `seaborn.objects.Plot.facet` takes them.
        labels: Of both axes.
    """
    import seaborn.objects as so

    places = sorted(rows[x].unique())
    return (
        so.Plot(rows, x=x, y=y, color="net")
        .facet(**panels)
        .add(so.Line(marker="."), so.Agg(), linestyle="net")
        .add(so.Band(), so.Est(errorbar=("pi", 100)))
        .scale(color=so.Nominal("colorblind"), x=so.Continuous().tick(at=places[:: 1 + len(places) // 6]))
        .label(row="", col="", **labels)
    )

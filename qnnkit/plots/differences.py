"""Forest plots: differences with their intervals, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

from qnnkit.plots.picture import COLOURS, Picture


def forest(
    names: Sequence[str],
    differences: Sequence[float],
    ends: Sequence[tuple[float, float]],
    notes: Sequence[str],
    *,
    margin: float,
    label: str,
) -> Picture:
    """A forest plot of differences from zero, each with its interval and a note above it.

    Args:
        names: Names of what the differences are from.
        differences: Differences in the unit of `label`.
        ends: Low and high end of each interval; NaN if it is unknown.
        notes: Texts after the names, such as the numbers.
        margin: Half the width of the grey band around zero, in which differences do not matter.
        label: Label of the axis.
    """
    n = len(names)
    figure = Picture(figsize=(6, 0.62 * n + 0.9), layout="constrained", dpi=150)
    axis = figure.subplots()
    axis.axvspan(-margin, margin, color="0.92", linewidth=0)
    axis.axvline(0, color="0.4", linewidth=1)
    for place, (name, middle, (low, high), note) in enumerate(
        zip(names, differences, ends, notes, strict=True)
    ):
        axis.plot([low, high], [place, place], color=COLOURS[0], linewidth=2.5, solid_capstyle="butt")
        axis.plot(middle, place, "o", color=COLOURS[0], markersize=8)
        where = {"xy": (0, place - 0.38), "xycoords": ("axes fraction", "data"), "va": "center"}
        over = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # covers the band and the line at zero
        axis.annotate(f"{name}   {note}", **where, bbox=over, fontsize=11, parse_math=False)
    axis.set_ylim(n - 0.6, -0.75)
    axis.set_yticks([])
    axis.margins(x=0.08)
    axis.spines[["top", "left", "right"]].set_visible(False)
    axis.set_xlabel(label, fontsize=11, parse_math=False)
    axis.tick_params(labelsize=11)
    return figure

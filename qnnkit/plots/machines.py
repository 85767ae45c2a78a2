"""Machines beside each other: time, memory, cost and stability of one net."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import LogLocator

from qnnkit.plots.picture import COLOURS, Picture, decades, picture, short

PANELS = (
    ("time of an epoch (s)", True),
    ("peak memory (MB)", False),
    ("cost of an epoch", True),
    ("slowest update / median", False),
)
"""Name of a panel's axis, and whether it is logarithmic."""
ROOM = 1.45
"""Of a panel's width, over its longest bar: for the number beside it."""


def machines(
    names: Sequence[str],
    devices: Sequence[str],
    seconds: Sequence[float | None],
    megabytes: Sequence[float | None],
    costs: Sequence[float | None],
    spreads: Sequence[float | None],
    net: str = "",
) -> Picture:
    """Four panels with a bar for each device of each machine; what is not known is said in its place.

    Args:
        names: Of the rows' machines, the first on top; one machine has one colour.
        devices: Of the rows.
        seconds: Per epoch.
        megabytes: Of memory, at the peak.
        costs: Per epoch, in any currency; 0 is free.
        spreads: The slowest update over the median one, 1 or more.
        net: What was trained, as the figure's title.
    """
    figure = picture(11, 0.5 * len(names) + 1.4)
    if net:
        figure.suptitle(textwrap.fill(net, 110), fontsize=10, parse_math=False)
    axes = figure.subplots(1, len(PANELS), sharey=True)
    order = list(dict.fromkeys(names))
    colours = [COLOURS[order.index(name) % len(COLOURS)] for name in names]
    columns = (seconds, megabytes, costs, spreads)
    for axis, (label, logarithmic), values in zip(axes, PANELS, columns, strict=True):
        _bars(axis, values, colours, logarithmic)
        axis.set_xlabel(label)
    told = [f"{short(name)}\n{device}" for name, device in zip(names, devices, strict=True)]
    axes[0].set_yticks(range(len(names)), told, parse_math=False)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def _bars(axis: Any, values: Sequence[float | None], colours: Sequence[str], logarithmic: bool) -> None:
    lengths = {row: value for row, value in enumerate(values) if value}
    axis.barh(list(lengths), list(lengths.values()), 0.6, color=[colours[row] for row in lengths])
    if not lengths:
        axis.set_xticks([])
    elif logarithmic:
        decades(axis, list(lengths.values()))
        axis.xaxis.set_major_locator(LogLocator(numticks=4))  # the panels are narrow
        first, last = axis.get_xlim()
        axis.set_xlim(first, max(last, first * (max(lengths.values()) / first) ** ROOM))
    else:
        axis.set_xlim(0, ROOM * max(lengths.values()))
    for row, value in enumerate(values):
        told = "not known" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        axis.annotate(
            "free" if value == 0 else told,
            (value, row) if value else (0.0, row),
            xycoords="data" if value else ("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)

"""A trained net under shots and noise; where a step's time goes, and what other strategies would take."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter, ScalarFormatter

from qnnkit.plots.picture import COLOURS, MARKERS, Picture, decades, legend_beside, name_rows, picture

CONDITIONS = {
    "shots": (COLOURS[0], MARKERS[0], "finite shots"),
    "depolarizing": (COLOURS[1], MARKERS[1], "depolarizing, per gate and wire"),
    "readout": (COLOURS[2], MARKERS[2], "readout flip, per wire"),
    "device": (COLOURS[3], MARKERS[3], "device, finite shots"),
}
KINDS = {"quantum": COLOURS[0], "classical": COLOURS[1], "other": COLOURS[3]}

Point = tuple[float, float, float, float]


def robustness(exact: tuple[float, float, float], conditions: Mapping[str, Sequence[Point]]) -> Picture:
    """Accuracy against the number of shots, and against the strength of noise, beside the exact one.

    Args:
        exact: (accuracy, low, high) with exact circuits, as fractions.
        conditions: "shots", "device", "depolarizing" or "readout" -> (strength, accuracy, low, high) of each
            point.
    """
    pairs = (["shots", "device"], ["depolarizing", "readout"])
    panels = [names for names in pairs if any(map(conditions.get, names))]
    figure = picture(3.2 + 3.4 * max(1, len(panels)), 3.4)
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False, sharey=True)[0]
    shown: dict[str, Any] = {}
    for axis, names in zip(axes, panels or [[]], strict=True):
        accuracy, low, high = (100 * value for value in exact)
        shown["exact"] = axis.axhline(accuracy, color="black", linestyle="--")
        shown["exact, 95 % interval"] = axis.axhspan(low, high, color="black", alpha=0.08, lw=0)
        ticks = []
        for name in names:
            points = np.array([point for point in conditions.get(name, ()) if point[0] > 0])
            if not len(points):
                continue
            colour, marker, label = CONDITIONS[name]
            points = points[points[:, 0].argsort()]
            shift = (
                1.12 if name in ("readout", "device") else 1.0
            )  # bars at one strength do not hide each other
            strengths, (middle, lower, upper) = points[:, 0] * shift, 100 * points[:, 1:].T
            spread = [middle - lower, upper - middle]
            shown[label] = axis.errorbar(
                strengths, middle, spread, color=colour, marker=marker, capsize=3, linestyle="-"
            )
            ticks += points[:, 0].tolist()
        if ticks:
            axis.set_xscale("log")
            axis.set_xlim(min(ticks) / 2, max(ticks) * 2)
            axis.set_xticks(sorted(set(ticks)), [f"{tick:,g}" for tick in sorted(set(ticks))])
            axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("shots per circuit" if "shots" in names else "probability of an error")
        axis.set_ylabel("test accuracy (%)" if axis is axes[0] else "")
        axis.grid(alpha=0.3)
    figure.legend(shown.values(), shown.keys(), loc="outside right upper", frameon=False)
    return figure


def step_parts(names: Sequence[str], kinds: Sequence[str], milliseconds: Sequence[float]) -> Picture:
    """Where one training step's time goes: a bar per part, quantum and classical told apart.

    Args:
        names: Of the parts, in the order of a step.
        kinds: "quantum", "classical" or "other", one per part.
        milliseconds: One per part; their sum is the step.
    """
    figure = picture(8, 0.4 * len(names) + 1.2)
    axis, total = figure.subplots(), sum(milliseconds)
    for kind, colour in KINDS.items():
        rows = [row for row, which in enumerate(kinds) if which == kind]
        if rows:
            share = sum(milliseconds[row] for row in rows) / total
            told = f"{kind}: {100 * share:.0f} %"
            axis.barh(rows, [milliseconds[row] for row in rows], color=colour, label=told)
    name_rows(axis, names, milliseconds)
    for row, value in enumerate(milliseconds):
        axis.annotate(
            f"{value:.3g}", (max(value, 0), row), (3, 0), textcoords="offset points", va="center", fontsize=8
        )
    axis.set_xlim(min(0, *milliseconds), 1.12 * max(milliseconds))
    axis.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axis.set_xlabel(f"median time of a part (ms); the step takes {total:.3g} ms")
    legend_beside(figure, axis)
    return figure


def strategies(
    names: Sequence[str], groups: Sequence[str], seconds: Sequence[float | None], unit: str = "epoch"
) -> Picture:
    """What training would take by each strategy: a bar each, one colour a group, logarithmic.

    Args:
        names: Of the strategies.
        groups: What each of them changes.
        seconds: Per `unit`; None for those that were not measured, whose row says so.
        unit: "epoch" or "image".
    """
    figure = picture(8.5, 0.34 * len(names) + 1.2)
    axis = figure.subplots()
    for i, group in enumerate(dict.fromkeys(groups)):
        rows = [row for row, which in enumerate(groups) if which == group]
        known = [(row, value) for row in rows if (value := seconds[row]) is not None]
        places, lengths = zip(*known, strict=True) if known else ((), ())
        axis.barh(places, lengths, color=COLOURS[i % len(COLOURS)], label=group)
    told = [
        f"{textwrap.shorten(name, 40)}{': not measured' if value is None else ''}"
        for name, value in zip(names, seconds, strict=True)
    ]
    axis.set_yticks(range(len(names)), told, parse_math=False)
    axis.set_ylim(len(names) - 0.5, -0.5)
    known = [value for value in seconds if value is not None]
    if known:
        decades(axis, known)
    for row, value in enumerate(seconds):
        if value is not None:
            axis.annotate(
                f"{value:{',.0f' if value >= 100 else '.2g'}}",
                (value, row),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axis.set_xlabel(f"seconds per {unit} (logarithmic)")
    legend_beside(figure, axis)
    return figure

"""Many runs beside each other: scores by model and net, by training fraction, by epoch, by cost.

A line is known by its model (colour) and its net (marker and line style); of one model, colour tells nets.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

from qnnkit.plots.picture import COLOURS, Picture, inches, picture
from qnnkit.stats import ACCURACY, Score

Key = tuple[str, str]
"""(model, net)."""
Spread = tuple[float, float, float]
"""Mean and both ends of its interval, as they are kept; NaN ends are not drawn."""
MOST_MODELS = len(COLOURS)
NETS: dict[str, tuple[str, Any]] = {
    "hybrid": ("o", "-"),
    "reference": ("P", "-"),
    "classical": ("s", "--"),
    "classical_trained": ("p", (0, (4, 1))),
    "no_entanglement": ("^", ":"),
    "frozen_random": ("v", "-."),
    "no_quantum": ("D", (0, (5, 1, 1, 1, 1, 1))),
    "lora": ("s", "--"),
    "vera": ("D", (0, (5, 1, 1, 1, 1, 1))),
}
"""Marker and line style of each net, the same everywhere; two that never stand together may share one."""
OTHER = ("X", (0, (1, 2)))
COSTS = {
    "weights": "trained weights",
    "circuits": "circuits per sample",
    "seconds": "training time of an epoch (s)",
}
COLUMNS = 4


def stamped(figure: Picture, stamp: str) -> Picture:
    """The same figure with small words in its lower right corner, below all else."""
    engine: Any = figure.get_layout_engine()
    low = 0.16 / figure.get_figheight()
    engine.set(rect=(0.01, low, 0.98, 0.99 - low))
    figure.text(
        0.995, 0.03 / figure.get_figheight(), stamp, ha="right", va="bottom", fontsize=6, color="#555"
    )
    return figure


def study_scores(
    found: Mapping[Key, Mapping[float, Spread]],
    seeds: Mapping[Key, Mapping[float, Sequence[float]]],
    score: Score = ACCURACY,
) -> Picture:
    """Test score of every net: a dot per seed, the mean and its interval; a panel per training fraction.

    Args:
        found: (model, net) -> training fraction -> mean and interval.
        seeds: (model, net) -> training fraction -> score of each seed.
        score: What it is; accuracies as fractions by default.
    """
    models, fractions, look = _models(found), _fractions(found), _Looks(found)
    names: list[str] = []
    places: dict[Key, int] = {}
    for model in models:
        if len(models) > 1:
            names.append(_named(model))  # a row of its own above its nets
        for key in (key for key in found if key[0] == model):
            places[key] = len(names)
            names.append(key[1])
    columns = min(COLUMNS, len(fractions))
    rows = math.ceil(len(fractions) / columns)
    width = inches([line for name in names for line in name.split("\n")]) + max(4.0, 2.1 * columns)
    figure = picture(width, (0.26 * len(names) + 1.0) * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for (row, column), axis in np.ndenumerate(grid):
        if row * columns + column >= len(fractions):
            axis.set_axis_off()
            continue
        fraction = fractions[row * columns + column]
        for key, place in places.items():
            if fraction not in found[key]:
                continue
            mean, low, high = (score.factor * value for value in found[key][fraction])
            colour, marker, _ = look[key]
            values = score.factor * np.asarray(seeds[key][fraction], dtype=float)
            axis.plot(values, np.full(len(values), place + 0.28), ".", color=colour, alpha=0.45, ms=4)
            axis.plot([low, high], [place, place], color=colour, lw=1.8)
            axis.plot([mean], [place], marker, color=colour, markeredgecolor="black", ms=5.5)
        axis.set_title(_share(fraction), fontsize=9)
        axis.set_xlabel(score.told)
        axis.xaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2))
        axis.grid(axis="x", alpha=0.3)
        shown = names if column == 0 else [""] * len(names)
        axis.set_yticks(range(len(names)), shown, fontsize=8, parse_math=False)
        axis.set_ylim(len(names) - 0.4, -0.6)
        for place, label in enumerate(axis.get_yticklabels()):
            if place not in places.values():
                label.set_fontweight("bold")
    return figure


def study_curves(curves: Mapping[Key, Mapping[float, np.ndarray]], score: Score = ACCURACY) -> Picture:
    """Score on validation by epoch: a row per training fraction, a column per model, a line per net.

    Args:
        curves: (model, net) -> training fraction -> scores of shape (seeds, epochs); missing ones NaN.
        score: What they are; accuracies as fractions by default.
    """
    models, fractions, look = _models(curves), _fractions(curves), _Looks(curves)
    width = max(2.3, 4.2 - 0.6 * len(models))
    figure = picture(width * len(models) + look.room() + 0.6, 1.7 * len(fractions) + 1.0)
    grid = figure.subplots(len(fractions), len(models), squeeze=False, sharey="row", sharex="col")
    for (row, column), axis in np.ndenumerate(grid):
        fraction, model = fractions[row], models[column]
        for key in (key for key in curves if key[0] == model and fraction in curves[key]):
            values = np.ma.masked_invalid(score.factor * np.asarray(curves[key][fraction], dtype=float))
            colour, marker, line = look[key]
            epochs = np.arange(1, values.shape[1] + 1)
            alone = marker if len(epochs) == 1 else ""
            axis.plot(epochs, values.mean(axis=0), color=colour, ls=line, marker=alone, lw=1.4)
        name = _named(model, int(11 * width)) + "\n" if row == 0 else ""
        axis.set_title(f"{name}{_share(fraction)}", fontsize=8, parse_math=False)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        axis.yaxis.set_major_locator(MaxNLocator(4))
        axis.grid(alpha=0.3)
        if row == len(fractions) - 1:
            axis.set_xlabel("epoch")
        if column == 0:
            axis.set_ylabel(f"{score.validation_word} ({score.per})", fontsize=8)
    look.legend(figure, markers=False)
    return figure


def study_fractions(found: Mapping[Key, Mapping[float, Spread]], score: Score = ACCURACY) -> Picture:
    """Test score against the share of training data; a panel per hybrid model, references in each.

    Args:
        found: (model, net) -> training fraction -> mean and interval.
        score: What it is; accuracies as fractions by default.
    """
    fractions, look = _fractions(found), _Looks(found)
    models = [model for model in _models(found) if (model, "reference") not in found] or [""]
    width = max(2.6, 5.6 - 1.2 * len(models))
    figure = picture(width * len(models) + look.room() + 0.5, 3.9)
    panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
    for axis, model in zip(panels, models, strict=True):
        keys = [key for key in found if key[0] == model or key[1] == "reference"]
        for place, key in enumerate(keys):
            shares = sorted(found[key])
            aside = 1.022 ** (place - (len(keys) - 1) / 2)  # so that no interval hides another
            at = [100 * share * aside for share in shares]
            spreads = score.factor * np.array([found[key][share] for share in shares])  # (fractions, 3)
            colour, marker, line = look[key]
            axis.plot(at, spreads[:, 0], color=colour, ls=line, marker=marker, ms=4.5, lw=1.3)
            axis.vlines(at, spreads[:, 1], spreads[:, 2], color=colour, lw=1.2, alpha=0.8)
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks([100 * share for share in fractions], _tick_names(fractions, 0.75 * width))
        axis.set_xlim(100 * min(fractions) / 1.25, 100 * max(fractions) * 1.25)
        axis.set_xlabel("training data used (%)")
        axis.grid(alpha=0.3)
        if len(models) > 1:
            axis.set_title(_named(model, int(10 * width)), fontsize=9, parse_math=False)
    panels[0].set_ylabel(f"{score.told}, 95 % interval")
    look.legend(figure)
    return figure


def study_costs(
    found: Mapping[Key, Spread], costs: Mapping[Key, Mapping[str, float]], score: Score = ACCURACY
) -> Picture:
    """Test score against what it costs: weights, circuits, time; to the left is better, and up or down.

    Args:
        found: (model, net) -> mean and interval.
        costs: (model, net) -> a key of COSTS -> number; NaN where it was not recorded.
        score: What it is; accuracies as fractions by default.
    """
    look = _Looks(found)
    figure = picture(8.4 + look.room(), 3.6)
    panels = figure.subplots(1, len(COSTS), sharey=True)
    for axis, (cost, label) in zip(panels, COSTS.items(), strict=True):
        known = {key: costs[key][cost] for key in found if math.isfinite(costs[key].get(cost, math.nan))}
        for key, at in known.items():
            mean, low, high = (score.factor * value for value in found[key])
            colour, marker, _ = look[key]
            axis.vlines([at], low, high, color=colour, lw=1.2, alpha=0.8)
            axis.plot([at], [mean], marker, color=colour, markeredgecolor="black", ms=6.5, alpha=0.85)
        if known:
            _cost_scale(axis, list(known.values()))
        else:
            axis.text(0.5, 0.5, "not recorded", transform=axis.transAxes, ha="center", color="#555")
            axis.set_xticks([])
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    panels[0].set_ylabel(f"{score.told}, 95 % interval")
    look.legend(figure, lines=False)
    return figure


def _cost_scale(axis: Any, values: Sequence[float]) -> None:
    """Logarithmic where the numbers ask for it; a net without circuits has its place at zero."""
    low, high = min(values), max(values)
    if low > 0 and high > 4 * low:
        axis.set(xscale="log", xlim=(low / 1.8, high * 1.8))
        if high < 100 * low:  # few whole decades, or none: name some numbers between them
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.4g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    elif high > 0:
        axis.set_xlim(-0.08 * high, 1.15 * high)
        axis.xaxis.set_major_locator(MaxNLocator(3))
        axis.ticklabel_format(axis="x", style="plain")
    else:
        axis.set_xlim(-1, 1)
        axis.set_xticks([0])


class _Looks:
    """Colour, marker and line style of each (model, net), and the legend that tells them."""

    def __init__(self, keys: Iterable[Key]):
        self.models, self.nets = _models(keys), list(dict.fromkeys(net for _, net in keys))

    def __getitem__(self, key: Key) -> tuple[str, str, Any]:
        model, net = self.models.index(key[0]), self.nets.index(key[1])
        colour = COLOURS[(model if len(self.models) > 1 else net) % len(COLOURS)]
        return colour, *NETS.get(key[1], OTHER)

    def room(self) -> float:
        """Width of the legend, in inches."""
        lines = [line for model in self.models for line in _named(model).split("\n")]
        return inches([*lines, *self.nets]) + 0.7

    def legend(self, figure: Picture, *, lines: bool = True, markers: bool = True) -> None:
        """Outside the axes: models by colour, then nets by marker and line style."""
        handles, names = [], []
        for index, model in enumerate(self.models if len(self.models) > 1 else ()):
            handles.append(Line2D([], [], color=COLOURS[index % len(COLOURS)], lw=6))
            names.append(_named(model))
        if handles:
            handles.append(Line2D([], [], ls=""))
            names.append("")
        for index, net in enumerate(self.nets):
            colour = "#333" if len(self.models) > 1 else COLOURS[index % len(COLOURS)]
            marker, style = NETS.get(net, OTHER)
            style, marker = style if lines else "", marker if markers else ""
            handles.append(Line2D([], [], color=colour, ls=style, marker=marker, ms=5, lw=1.3))
            names.append(net)
        made = figure.legend(
            handles, names, loc="outside right upper", frameon=False, fontsize=9, handlelength=2.8
        )
        for text in made.get_texts():
            text.set_parse_math(False)


def _models(keys: Iterable[Key]) -> list[str]:
    return list(dict.fromkeys(model for model, _ in keys))


def _fractions(found: Mapping[Key, Mapping[float, Any]]) -> list[float]:
    return sorted({fraction for by_fraction in found.values() for fraction in by_fraction})


def _share(fraction: float) -> str:
    return f"{100 * fraction:g} % of training data"


def _named(model: str, letters: int = 30) -> str:
    """In lines of so many letters, three at most: models may differ in the last of their settings only."""
    return "\n".join(textwrap.wrap(model, max(12, letters), max_lines=3, placeholder=" …")) or "unnamed"


def _tick_names(fractions: Sequence[float], room: float) -> list[str]:
    """In %, from the largest down; none where it would touch the one before, on a logarithmic axis."""
    inch = room / math.log(1.6 * max(fractions) / min(fractions))
    names, last = [], math.inf
    for share in sorted(fractions, reverse=True):
        fits = inch * (math.log(last / share) if last < math.inf else 1e9) > 0.3
        last = share if fits else last
        names.append(f"{100 * share:g}" if fits else "")
    return names[::-1]

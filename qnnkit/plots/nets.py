"""How nets learn and what they get wrong: gradients, curves, comparisons, circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from qnnkit.plots.picture import (
    COLOURS,
    STYLES,
    Picture,
    decades,
    inches,
    legend_beside,
    lengths,
    name_rows,
    name_ticks,
    picture,
)
from qnnkit.stats import ACCURACY, Score

SIZES = {"quantum": COLOURS[0], "classical": COLOURS[1]}


def gradient_errors(methods: Sequence[str], errors: Sequence[float], tolerance: float) -> Picture:
    """Largest disagreement of autograd with each independent method, against what is allowed."""
    figure = picture(7, 0.45 * len(methods) + 1.3)
    axis = figure.subplots()
    colours = [COLOURS[2] if error <= tolerance else COLOURS[1] for error in errors]
    axis.barh(range(len(methods)), lengths(errors), color=colours)
    axis.axvline(tolerance, color="black", linestyle="--", label=f"allowed: {tolerance:g}")
    name_rows(axis, methods, errors)
    axis.set_xlabel("largest error of a weight's gradient (relative)")
    decades(axis, [*lengths(errors), tolerance])
    legend_beside(figure, axis)
    return figure


def gradient_sizes(names: Sequence[str], kinds: Sequence[str], means: Sequence[float]) -> Picture:
    """Mean absolute gradient of each parameter, quantum and classical told apart."""
    figure = picture(max(7, 5 + inches(names)), 0.4 * len(names) + 1.3)
    axis = figure.subplots()
    for kind, colour in SIZES.items():
        rows = [i for i, which in enumerate(kinds) if which == kind]
        if rows:
            axis.barh(rows, lengths([means[i] for i in rows]), color=colour, label=kind)
    name_rows(axis, names, means)
    axis.set_xlabel("mean absolute gradient of one weight")
    decades(axis, lengths(means))
    legend_beside(figure, axis)
    return figure


def training_curves(curves: Mapping[str, Mapping[str, np.ndarray]]) -> Picture:
    """Loss and score by epoch on the validation split: the mean over seeds, and their whole range.

    Args:
        curves: Net -> {"loss" and the score, if that is another number: of shape (seeds, validations), NaN
            where there is none; "epoch": when each was, of shape (validations,)}. Scores are fractions.
    """
    names = [
        name for name in next(iter(curves.values()), ["loss"]) if name != "epoch"
    ]  # none yet: empty axes
    figure = picture(4.5 * len(names), 3.4)
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        factor = 1 if name == "loss" else 100
        for i, (net, numbers) in enumerate(curves.items()):
            values = factor * np.asarray(numbers[name], dtype=float)
            epochs = np.asarray(numbers["epoch"], dtype=float)
            known = np.ma.masked_invalid(values)
            colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
            axis.plot(epochs, known.mean(axis=0), style, color=colour, label=net, marker=".")
            if len(values) > 1:
                axis.fill_between(
                    epochs, known.min(axis=0), known.max(axis=0), color=colour, alpha=0.15, lw=0
                )
        ends = [end for numbers in curves.values() for end in (min(numbers["epoch"]), max(numbers["epoch"]))]
        axis.set_xlim(min([0.5, *(end - 0.1 for end in ends)]), max(ends, default=1) + 0.5)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set(xlabel="epoch", ylabel=f"validation {name}" + (" (%)" if factor == 100 else ""))
    legend_beside(figure, figure.axes[0])
    return figure


def confusion(matrix: np.ndarray, classes: Sequence[str]) -> Picture:
    """Counts of (true class, predicted class); rows are the truth."""
    upright, names = max(map(len, classes)) > 3, inches(classes)
    side = min(9.2, 0.42 * max(3, len(classes)) + 0.8)
    figure = picture(side + 1.4 + names, side + 0.6 + (names if upright else 0.2))
    axis = figure.subplots()
    image = axis.imshow(matrix, cmap="Blues", vmin=0, vmax=max(1, matrix.max()))
    if len(classes) <= 30:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if count > matrix.max() / 2 else "black"
                axis.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    name_ticks(axis.xaxis, classes, rotation=90 if upright else 0)
    name_ticks(axis.yaxis, classes)
    axis.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(image, ax=axis, label="images", shrink=0.8)
    return figure


def comparison(
    nets: Mapping[str, Sequence[float]],
    intervals: Mapping[str, tuple[float, float | None, float | None]],
    score: Score = ACCURACY,
) -> Picture:
    """The score of each net: a dot per seed, the mean and its interval.

    Args:
        nets: Net -> score of each seed.
        intervals: Net -> (mean, low, high) of it; bounds of None are not drawn.
        score: What it is; accuracies as fractions by default.
    """
    factor = score.factor
    figure = picture(7, 0.55 * len(nets) + 1.1)
    axis = figure.subplots()
    for row, (net, values) in enumerate(nets.items()):
        mean, low, high = intervals[net]
        colour = COLOURS[row % len(COLOURS)]
        axis.plot(factor * np.asarray(values), [row] * len(values), "o", color=colour, alpha=0.5)
        if low is not None and high is not None:
            axis.plot([factor * low, factor * high], [row, row], color=colour, lw=2)
        axis.plot([factor * mean], [row], "D", color=colour, markeredgecolor="black")
    axis.set_yticks(range(len(nets)), list(nets))
    axis.set_ylim(len(nets) - 0.5, -0.5)
    axis.set_xlabel(f"{score.told}: a dot per seed, the mean and its 95 % interval")
    axis.grid(axis="x", alpha=0.3)
    return figure


def circuit(layer: Any, inputs: Any) -> Picture:
    """A quantum layer's circuit, gate by gate.

    Args:
        layer: A TorchLayer, such as `QuantumLayer`.
        inputs: One sample, of shape (n_features,).
    """
    import pennylane as qp
    from matplotlib import pyplot

    draw: Any = qp.draw_mpl(layer.qnode, level="device", decimals=2, style="black_white")
    figure, _ = draw(inputs, **layer.qnode_weights)
    pyplot.close(figure)  # PennyLane draws through pyplot, which would keep it and show it twice
    figure.__class__ = Picture
    return figure

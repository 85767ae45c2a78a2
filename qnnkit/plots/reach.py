"""What circuits reach and what it costs: gradient variances by size, fidelities, frequencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from qnnkit.plots.picture import COLOURS, MARKERS, STYLES, Picture, decades, legend_beside, picture

LEAST = 1e-12
"""Of a power that is drawn: below, it is rounding."""


def gradient_variances(
    rows: Sequence[Mapping[str, Any]], references: Mapping[str, Mapping[int, float]] | None = None
) -> Picture:
    """The variance of a derivative against the number of qubits: a panel per observable.

    Colour tells initialisations apart, or depths where there is one initialisation only; with several of
    both, line and marker tell depths apart.

    Args:
        rows: Each with n_qubits, depth, observable, initialisation, variance, low, high; variances of 0 (all
            weights dead) have no place on the axis and are left out.
        references: Observable -> number of qubits -> variance in random circuits, drawn dashed.
    """
    references = references or {}
    observables = list(dict.fromkeys(row["observable"] for row in rows))
    starts = list(dict.fromkeys(row["initialisation"] for row in rows))
    depths = list(dict.fromkeys(str(row["depth"]) for row in rows))
    figure = picture(4.1 * len(observables) + 2, 3.6)
    axes = np.atleast_1d(figure.subplots(1, len(observables), sharey=True))
    seen = [row["low"] for row in rows if row["low"] > 0] + [row["high"] for row in rows if row["high"] > 0]
    for axis, observable in zip(axes, observables, strict=True):
        for i, start in enumerate(starts):
            for j, depth in enumerate(depths):
                line = [
                    row
                    for row in sorted(rows, key=lambda row: row["n_qubits"])
                    if (row["observable"], row["initialisation"], str(row["depth"]))
                    == (observable, start, depth)
                    and row["variance"] > 0
                ]
                k = i if len(starts) > 1 else j
                mark = i if len(depths) == 1 else j
                style = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[mark % len(MARKERS)], "ms": 4}
                start_told = f"{start} (mirrored circuit)" if start == "identity_block" else start
                told = ", ".join(
                    [start_told] * (len(starts) > 1 or len(depths) == 1)
                    + [f"{depth.removesuffix('n')} layers{' a qubit' * depth.endswith('n')}"]
                    * (len(depths) > 1)
                )
                values = np.array([[row["variance"], row["low"], row["high"]] for row in line]).reshape(-1, 3)
                spread = np.abs(values[:, 1:] - values[:, :1]).T
                aside = 0.04 * (i + j - (len(starts) + len(depths) - 2) / 2)  # lines that agree stay visible
                qubits = [row["n_qubits"] + aside for row in line]
                dash = STYLES[j % len(STYLES)] if len(starts) > 1 else "-"
                axis.errorbar(qubits, values[:, 0], spread, linestyle=dash, lw=1.3, label=told, **style)
        if observable in references:
            qubits, values = zip(*sorted(references[observable].items()), strict=True)
            axis.plot(qubits, values, "--", color="black", lw=1, label="random circuit", zorder=1)
            seen += values
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="qubits", title=f"{observable} observable")
        axis.grid(alpha=0.3)
    if seen:
        decades(axes[0], [10 * min(seen), max(seen)], "y")
    axes[0].set_ylabel("variance of a weight's derivative (1/rad²)")
    legend_beside(figure, axes[0])
    return figure


def fidelity_histograms(
    shares: Mapping[str, np.ndarray], haar: np.ndarray, edges: np.ndarray | None = None
) -> Picture:
    """How alike random states of a circuit are, against Haar-random states: a panel per circuit.

    Args:
        shares: Circuit -> share of the pairs in each bin of fidelity from 0 to 1, of shape (n_bins,).
        haar: The same for Haar-random states.
        edges: Of the bins, of shape (n_bins + 1,); of equal width by default.
    """
    columns = min(4, len(shares))
    n_rows = -(-len(shares) // columns)
    figure = picture((2.4 * columns if columns > 1 else 4) + 1.6, 2.2 * n_rows + 0.4)
    axes = figure.subplots(n_rows, columns, sharex=True, sharey=True, squeeze=False)
    edges = np.linspace(0, 1, len(haar) + 1) if edges is None else edges
    for axis, (name, values) in zip(axes.flat, shares.items(), strict=False):
        axis.stairs(haar, edges, fill=True, color="0.8", label="Haar-random")
        axis.stairs(values, edges, color=COLOURS[0], lw=1.3, label="circuit")
        axis.set_title(name, fontsize=10, parse_math=False)
    for axis in axes.flat[len(shares) :]:
        axis.remove()
    least = min(float(values[values > 0].min()) for values in shares.values())
    far = 1.0 if edges[-2] > 0.9 else 1.2 * float(edges[-2])  # bins of equal share end in one long one
    axes[0, 0].set(yscale="log", ylim=(least / 2, 1.5), xlim=(0, far))
    axes[0, 0].xaxis.set_major_locator(MaxNLocator(3))
    figure.supxlabel("fidelity of two random states", fontsize=10)
    figure.supylabel("share of pairs", fontsize=10)
    legend_beside(figure, axes[0, 0])
    return figure


def spectra(features: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Picture:
    """How strongly a circuit expresses each frequency that it can express: a panel per feature.

    Args:
        features: Name -> (frequencies, mean |c|^2 of each). A frequency without power is a cross.
    """
    figure = picture(7, 1.5 * len(features) + 0.6)
    axes = figure.subplots(len(features), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    powers = [power for _, values in features.values() for power in values if power > LEAST]
    least, highest = (min(powers), max(powers)) if powers else (LEAST, 1)
    gaps = [
        np.diff(sorted(frequencies)).min() for frequencies, _ in features.values() if len(frequencies) > 1
    ]
    width = 0.5 * min(gaps, default=1)
    silent = any(sum(power > LEAST for power in found) < len(places) for places, found in features.values())
    crosses = "possible, but not expressed" if silent else ""
    for axis, (name, (frequencies, values)) in zip(axes, features.items(), strict=True):
        where, height = np.asarray(frequencies, dtype=float), np.zeros(len(frequencies))
        height[: len(values)] = values
        there = height > LEAST
        decades(axis, [least, highest], "y")
        axis.bar(where[there], height[there], width=width, color=COLOURS[0], label="expressed")
        bottom = np.full((~there).sum(), axis.get_ylim()[0] * 1.5)
        axis.plot(where[~there], bottom, "x", color=COLOURS[1], label=crosses)
        axis.set_title(name, fontsize=10, loc="left", parse_math=False)
        axis.grid(axis="y", alpha=0.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    highest = max((max(frequencies, default=0) for frequencies, _ in features.values()), default=0)
    axes[-1].set_xlim(-1.5 * width, highest + 1.5 * width)
    axes[-1].set_xlabel("frequency (radians per unit of the feature)")
    figure.supylabel("mean |c|² over weights", fontsize=10)
    legend_beside(figure, axes[0])
    return figure

"""A circuit with each gate coloured by a number of its weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.patches import Circle, FancyBboxPatch, Patch

from qnnkit.plots.picture import COLOURS, Picture, picture

ACROSS = 14
"""Columns of gates in a row of the drawing, at most; a longer circuit goes on below."""
COLUMN, WIRE = 0.62, 0.62
"""Inches."""
MAP = "cividis"  # Nunez et al. (2018), arXiv:1712.01662: read alike by every kind of colour vision
DATA, CONSTANT, DEAD = "#d9d9d9", "white", COLOURS[1]


def coloured_circuit(
    gates: Sequence[Any],
    n_wires: int,
    values: np.ndarray,
    label: str,
    *,
    dead: Collection[int] = (),
    chosen: int | None = None,
) -> Picture:
    """A circuit whose gates are coloured by their weights, from left to right, wire 0 on top.

    Args:
        gates: In the order of time; each has what `gradients.Gate` has.
        n_wires: Number of wires.
        values: A number above zero per weight, such as the size of its gradient, of shape (n_weights,); zero
            and NaN have no colour. Of a gate with several weights the largest counts.
        label: What the numbers are, with their unit.
        dead: Weights that cannot learn: their gates are hatched.
        chosen: A weight whose gates are outlined.
    """
    values = np.array(values, dtype=float)
    columns = _columns(gates, n_wires)
    n_columns = max(columns, default=0) + 1
    n_rows = -(-n_columns // ACROSS)
    across = -(-n_columns // n_rows)
    figure = picture(COLUMN * across + 2.4, WIRE * n_wires * n_rows + 0.35 * n_rows + 0.5)
    axes = figure.subplots(n_rows, 1, squeeze=False)[:, 0]
    values[list(dead)] = np.nan
    shown = values[np.isfinite(values) & (values > 0)]
    norm = LogNorm(*_decades(shown))
    paint = ScalarMappable(norm, MAP)
    for row, axis in enumerate(axes):
        _wires(axis, n_wires, across, first=row == 0)
    for gate, column in zip(gates, columns, strict=True):
        of_gate = [values[i] for i in gate.weights if np.isfinite(values[i]) and values[i] > 0]
        is_dead = bool(gate.weights) and set(gate.weights) <= set(dead)
        face: Any = DATA if gate.on_inputs else CONSTANT
        if of_gate:
            face = paint.to_rgba(max(of_gate))
        _draw(axes[column // across], gate, column % across, face, is_dead, chosen in gate.weights)
    if len(shown):
        bar_label = label.replace(" (", "\n(")  # few wires make a low picture
        figure.colorbar(paint, ax=axes, label=bar_label, shrink=0.9, aspect=15, pad=0.02)
    _legend(figure, gates, bool(dead))
    return figure


def _columns(gates: Sequence[Any], n_wires: int) -> list[int]:
    """The column of each gate: the first that is free on every wire from its first to its last."""
    free, found = [0] * n_wires, []
    for gate in gates:
        over = range(min(gate.wires, default=0), max(gate.wires, default=n_wires - 1) + 1)
        column = max(free[wire] for wire in over)
        for wire in over:
            free[wire] = column + 1
        found.append(column)
    return found


def _decades(values: np.ndarray) -> tuple[float, float]:
    """Bounds of the colours: at least a decade apart, so that noise does not look like structure."""
    if not len(values):
        return 0.1, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > 10 * low else (high / 10, high)


def _wires(axis: Any, n_wires: int, n_columns: int, *, first: bool) -> None:
    axis.set_axis_off()
    axis.set(xlim=(-0.9, n_columns - 0.4), ylim=(n_wires - 0.45, -0.55), aspect="equal")
    for wire in range(n_wires):
        axis.plot([-0.5, n_columns - 0.45], [wire, wire], color="black", lw=0.8, zorder=0)
        told = str(wire) if first else f"… {wire}"
        axis.text(-0.6, wire, told, ha="right", va="center", fontsize=9)


def _draw(axis: Any, gate: Any, column: int, face: Any, is_dead: bool, is_chosen: bool) -> None:
    wires = gate.wires or (0,)
    targets, controls = wires[gate.n_controls :], wires[: gate.n_controls]
    if len(wires) > 1:
        axis.plot([column, column], [min(wires), max(wires)], color="black", lw=1.2, zorder=1)
    for wire in controls:
        axis.add_patch(Circle((column, wire), 0.09, color="black", zorder=2))
    if gate.name == "CNOT":
        axis.add_patch(Circle((column, targets[0]), 0.2, fill=False, lw=1.2, zorder=2))
        axis.plot([column, column], [targets[0] - 0.2, targets[0] + 0.2], color="black", lw=1.2, zorder=2)
        return
    if gate.name == "CZ":
        axis.add_patch(Circle((column, targets[0]), 0.09, color="black", zorder=2))
        return
    name = gate.name.removeprefix("C" * len(controls)) if controls else gate.name
    light = isinstance(face, str) or np.dot(face[:3], (0.299, 0.587, 0.114)) > 0.5
    edge, width = (COLOURS[3], 2.6) if is_chosen else (DEAD, 1.6) if is_dead else ("black", 0.8)
    told = name if len(name) < 6 else name[:4] + "…"
    font = {"fontsize": 8 if len(told) < 4 else 6, "color": "black" if light else "white"}
    for wire in targets:
        box = FancyBboxPatch(
            (column - 0.3, wire - 0.26), 0.6, 0.52, boxstyle="round,pad=0.02", fc=face, zorder=3
        )
        box.set(edgecolor=edge, linewidth=width, hatch="////" if is_dead else None)
        axis.add_patch(box)
        axis.text(column, wire, told, ha="center", va="center", zorder=4, **font)


def _legend(figure: Picture, gates: Sequence[Any], some_dead: bool) -> None:
    told = []
    if any(gate.on_inputs and not gate.weights for gate in gates):
        told.append(Patch(facecolor=DATA, edgecolor="black", label="turned by the data"))
    if some_dead:
        told.append(Patch(facecolor="white", edgecolor=DEAD, hatch="////", label="cannot learn"))
    if told:
        figure.legend(handles=told, loc="outside lower left", ncols=2, frameon=False, fontsize=8)

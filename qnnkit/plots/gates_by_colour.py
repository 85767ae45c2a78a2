"""Drawings of a circuit whose gates are coloured by their weights, such as by gradients."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from qnnkit.plots.picture import COLOURS, Picture, picture

ACROSS = 14
"""Most columns of gates in a row of the drawing. A longer circuit continues below."""
INCHES = 0.62
"""Width of a column, and distance between wires."""
MAP = "cividis"  # Nunez et al. (2018), arXiv:1712.01662: readable with every kind of colour vision
DATA, CONSTANT, DEAD = "#d9d9d9", "white", COLOURS[1]


def coloured_circuit(
    gates: Sequence[Any], values: np.ndarray, label: str, *, dead: Collection[int] = ()
) -> Picture:
    """A circuit from left to right, with wire 0 on top, whose gates are coloured by their weights.

    It is drawn by PennyLane's `MPLDrawer`.

    Args:
        gates: Gates in order of time, with the attributes of `gradients.Gate`.
        values: A number above zero for each weight, such as the size of its gradient, of shape (n_weights,).
            Zero and NaN have no colour. If a gate has several weights, the largest number counts.
        label: Name and unit of the numbers.
        dead: Weights that cannot learn. Their gates are hatched.
    """
    from pennylane.drawer import MPLDrawer

    values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    values[list(dead)] = np.nan
    n_wires = 1 + max((wire for gate in gates for wire in gate.wires), default=0)
    columns = _columns(gates, n_wires)
    n_columns = max(columns, default=0) + 1
    n_rows = -(-n_columns // ACROSS)
    across, lines = -(-n_columns // n_rows), (n_wires + 1) * n_rows - 1  # a free line between rows
    figure, size = picture(1, 1), (INCHES * across + 2.4, INCHES * lines + 0.5)
    FigureCanvasAgg(figure)  # fits long names into their boxes
    places = {line: line for line in range(lines) if line % (n_wires + 1) < n_wires}
    look = {"color": "black", "linewidth": 0.8}
    drawer = MPLDrawer(across, places, wire_options=look, figsize=size, fig=figure)
    drawer.ax.set_subplotspec(figure.add_gridspec(1, 1)[0])  # so that constrained layout places it
    drawer.ax.set(xlim=(-1.4, across), ylim=(lines - 0.5, -0.5), aspect="equal")
    for line in places:
        drawer.ax.text(-1.1, line, str(line % (n_wires + 1)), ha="right", va="center")
    high = np.nanmax(values, initial=0) or 1.0
    low = min(np.nanmin(values, initial=high), high / 10)  # at least a decade, as noise is no structure
    paint = ScalarMappable(LogNorm(low, high), MAP)
    for gate, column in zip(gates, columns, strict=True):
        of_gate, top = values[list(gate.weights)], column // across * (n_wires + 1)
        face: Any = DATA if gate.features else CONSTANT
        if np.isfinite(of_gate).any():
            face = paint.to_rgba(np.nanmax(of_gate))
        is_dead = bool(gate.weights) and set(gate.weights) <= set(dead)
        wires = [top + wire for wire in gate.wires or (0,)]
        _draw(drawer, gate, column % across, wires, face, is_dead)
    if np.isfinite(values).any():
        bar_label = label.replace(" (", "\n(")  # with few wires, the picture is low
        about: Any = {"ticks": LogLocator(subs=(1, 3)), "shrink": 0.9, "aspect": 15, "pad": 0.02}
        figure.colorbar(paint, ax=drawer.ax, label=bar_label, **about).minorticks_off()
    data = any(gate.features and not gate.weights for gate in gates)
    handles = [Patch(facecolor=DATA, edgecolor="black", label="turned by the data")] * data
    handles += [Patch(facecolor="white", edgecolor=DEAD, hatch="////", label="cannot learn")] * bool(dead)
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=11)
    return figure


def outlines(figure: Picture, weight: int) -> list[Patch]:
    """Outlines of the gates that one weight turns, to be drawn over a coloured circuit."""
    weights: Any = {box: box.get_gid() or () for box in figure.axes[0].patches}
    boxes = [copy.copy(box) for box in weights if weight in weights[box]]
    for box in boxes:
        box.set(fill=False, edgecolor=COLOURS[3], linewidth=2.6, hatch=None)
    return boxes


def _columns(gates: Sequence[Any], n_wires: int) -> list[int]:
    """The column of each gate: the first one that is free on all wires from its first to its last."""
    from pennylane import Barrier
    from pennylane.drawer.drawable_layers import drawable_layers

    barriers = [Barrier(gate.wires or range(n_wires)) for gate in gates]
    layers = drawable_layers(barriers, {wire: wire for wire in range(n_wires)})
    column_of = {id(barrier): column for column, layer in enumerate(layers) for barrier in layer}
    return [column_of[id(barrier)] for barrier in barriers]


def _draw(drawer: Any, gate: Any, column: int, wires: list[int], face: Any, is_dead: bool) -> None:
    """Draws a gate as a box on each wire that it turns. The boxes' gid holds its weights."""
    black = {"color": "black", "linewidth": 1.2}
    if gate.name == "CNOT":
        drawer.CNOT(column, wires, options=black)
        return
    if len(wires) > 1:
        drawer.ctrl(column, wires, options=black)
    name = gate.name.removeprefix("C" * gate.n_controls)[:8]  # a longer name would be too small to read
    light = isinstance(face, str) or np.dot(face[:3], (0.299, 0.587, 0.114)) > 0.5
    font = {"fontsize": 12, "color": "black" if light else "white", "zorder": 5}
    look = {"facecolor": face, "edgecolor": DEAD if is_dead else "black", "zorder": 4}
    look |= {"linewidth": 1.6 if is_dead else 0.8, "hatch": "////" if is_dead else None}
    for wire in wires[gate.n_controls :]:
        drawer.box_gate(column, wire, name, look, font, autosize=len(name) > 3)
        drawer.ax.patches[-1].set_gid(gate.weights)

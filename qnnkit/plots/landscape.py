"""The loss around a net's weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qnnkit.plots.picture import COLOURS, STYLES, Picture, legend_beside, picture


def landscape_lines(offsets: np.ndarray, losses: np.ndarray, names: Sequence[str]) -> Picture:
    """The loss along lines through the weights as they are.

    Args:
        offsets: In radians, of shape (n_points,).
        losses: Of shape (n_directions, n_points).
        names: Of the directions.
    """
    figure = picture(7, 3.2)
    axis = figure.subplots()
    for i, (name, line) in enumerate(zip(names, losses, strict=True)):
        axis.plot(offsets, line, STYLES[i % len(STYLES)], color=COLOURS[i % len(COLOURS)], label=name)
    axis.axvline(0, color="black", lw=0.8)
    axis.set(xlabel="distance from the weights as they are (rad, root mean square)", ylabel="loss (nats)")
    axis.grid(alpha=0.3)
    legend_beside(figure, axis)
    return figure


def landscape_plane(offsets: np.ndarray, losses: np.ndarray, names: Sequence[str]) -> Picture:
    """The loss on a plane through the weights as they are; the cross is the net itself.

    Args:
        offsets: In radians, of shape (n_points,), along both directions.
        losses: Of shape (n_points, n_points); the first direction runs down.
        names: Of the two directions.
    """
    figure = picture(5.6, 4.6)
    axis = figure.subplots()
    shading = axis.pcolormesh(offsets, offsets, losses, cmap="cividis", shading="nearest")
    if losses.max() > losses.min():
        axis.contour(offsets, offsets, losses, levels=8, colors="white", linewidths=0.6)
    axis.plot([0], [0], "+", color=COLOURS[1], markersize=12, markeredgewidth=2)
    axis.set(xlabel=f"{names[1]} (rad, root mean square)", ylabel=f"{names[0]} (rad, root mean square)")
    axis.set_aspect("equal")
    figure.colorbar(shading, ax=axis, label="loss (nats)")
    return figure

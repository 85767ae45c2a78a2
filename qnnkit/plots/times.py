"""Times of peers beside each other."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

from qnnkit.plots.picture import COLOURS, MARKERS, Picture, decades, picture


def benchmark(
    times: Mapping[str, Mapping[str, tuple[float, float, float]]],
    widths: Mapping[str, Mapping[int, tuple[float, float, float]]],
    machine: str,
    peers: Sequence[str],
) -> Picture:
    """Milliseconds of each peer: a row of dots per workload, and lines over the number of wires.

    Args:
        times: Workload -> peer -> (least, median, most), in ms; drawn if there are any.
        widths: Peer -> number of wires -> (least, median, most), in ms; drawn if there are any.
        machine: The kind of machine, as the figure's title.
        peers: All names, in the order of their colours.
    """
    rows = 0.7 * len(times) + 1.2 if times else 0.0
    figure = picture(11 if times and widths else 8.5, max(rows, 3.6 if widths else 2.4, 0.28 * len(peers)))
    figure.suptitle(textwrap.fill(machine, 90), fontsize=10, parse_math=False)
    panels = list(figure.subplots(1, bool(times) + bool(widths), squeeze=False)[0])
    looks = {peer: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, peer in enumerate(peers)}
    shown: dict[str, Any] = {}
    if times:
        axis = panels.pop(0)
        for row, found in enumerate(times.values()):
            for peer, (least, median, most) in found.items():
                colour, marker = looks[peer]
                place = row + 0.6 * (peers.index(peer) / max(1, len(peers) - 1) - 0.5)  # none hides another
                axis.plot([least, most], [place, place], color=colour, lw=2)
                [shown[peer]] = axis.plot(median, place, marker, color=colour, alpha=0.8, ls="none")
        axis.set_yticks(range(len(times)), [textwrap.fill(name, 22) for name in times], parse_math=False)
        axis.set_ylim(len(times) - 0.5, -0.5)
        axis.set_xlabel("time (ms): median, least to most")
        decades(axis, [value for found in times.values() for spread in found.values() for value in spread])
        axis.grid(alpha=0.3)
    if widths:
        axis = panels.pop(0)
        for peer, found in widths.items():
            colour, marker = looks[peer]
            wires = sorted(found)
            for n in wires:
                axis.plot([n, n], [found[n][0], found[n][2]], color=colour, lw=2)
            medians = [found[n][1] for n in wires]
            [shown[peer]] = axis.plot(wires, medians, f"-{marker}", color=colour, alpha=0.8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set(xlabel="wires", ylabel="time (ms): median, least to most")
        decades(axis, [v for found in widths.values() for spread in found.values() for v in spread], "y")
        axis.grid(alpha=0.3)
    known = [peer for peer in peers if peer in shown]
    figure.legend([shown[peer] for peer in known], known, loc="outside right upper", frameon=False)
    return figure

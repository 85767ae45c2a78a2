"""A plot of seaborn as a figure that names the runs behind it."""

from __future__ import annotations

from typing import Any

from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from qnnkit.plots.picture import Picture


class _Whole(Picture):
    """A picture whose legend may stand outside of it."""

    def savefig(self, *args: Any, **options: Any) -> None:
        super().savefig(*args, **{"bbox_inches": "tight", **options})


def stamped(plot: Any, stamp: str, width: float, height: float) -> Picture:
    """Draws a `seaborn.objects.Plot`, with the stamp in small letters below it.

    Args:
        plot: The plot; names in it are never read as mathematics.
        stamp: What tells the runs behind it.
        width: Of the axes together, in inches; the legend stands beside them.
        height: In inches.
    """
    figure = _Whole(figsize=(width, height), layout=ConstrainedLayoutEngine())
    plot.on(figure).plot()
    for legend in figure.legends:
        legend.set_bbox_to_anchor((1.01, 0.5))  # beside the axes, not over them
    figure.text(1, -0.06 / height, stamp, ha="right", va="top", fontsize=6, color="#555")
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    return figure

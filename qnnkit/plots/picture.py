"""The figure class, and what all figures share: colours, names on axes, legends.

Figures are made without pyplot, so there is no global state. A notebook shows a figure that a cell ends with.
"""

from __future__ import annotations

import io
import re
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

# Okabe and Ito (2008): distinct for every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LONGEST_NAME = 32  # most letters of a class name that are shown
EAST_ASIAN = re.compile("CJK|Hiragino|PingFang|Gothic|YaHei|WenQuanYi|Nanum|Unicode MS|Fallback")
"""Names of fonts with letters of East Asia; most systems have one of them."""


class Picture(Figure):
    """A figure that a notebook shows without pyplot.

    Letters that matplotlib's font lacks come from an installed font; without one they are drawn as boxes.
    """

    def draw(self, renderer: Any) -> None:
        fonts = sorted({font.name for font in fontManager.ttflist if EAST_ASIAN.search(font.name)})
        for text in self.findobj(Text):
            if not text.get_text().isascii():
                text.set_fontfamily([*dict.fromkeys([*text.get_fontfamily(), *fonts])])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # matplotlib's, for each letter that is a box
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        return as_png(self)


def as_png(figure: Any, **metadata: str) -> bytes:
    """The bytes of a figure as a PNG, with metadata such as Title and Description."""
    buffer, metadata = io.BytesIO(), {"Software": "qnnkit"} | metadata
    if isinstance(figure, Picture):  # drawn once; `savefig` draws it twice, first for its layout
        figure.dpi = 110
        FigureCanvasAgg(figure).print_png(buffer, metadata=metadata)
    else:
        figure.savefig(buffer, format="png", dpi=110, metadata=metadata)
    return buffer.getvalue()


def as_pdf(figure: Figure, **metadata: str) -> bytes:
    """The bytes of a figure as a PDF, in which text stays text. `metadata`: Title, Subject, Keywords."""
    from matplotlib import rc_context

    buffer, always = io.BytesIO(), {"Creator": "qnnkit", "CreationDate": None}  # no date
    with rc_context({"pdf.fonttype": 42}):  # TrueType: what most publishers ask for
        figure.savefig(buffer, format="pdf", metadata=always | metadata)
    return buffer.getvalue()


class Live:
    """A figure that is redrawn in place during a computation, and costs at most a twentieth of the time.

    As a context manager, it draws at the beginning and at the end, also if the computation was stopped.

    Args:
        draw: Function that makes the figure.
    """

    def __init__(self, draw: Callable[[], Picture]):
        self.draw, self.handle = draw, None
        self.last, self.cost = 0.0, 0.0

    def __enter__(self) -> Live:
        self.update(final=True)
        self.cost = 0.0  # the first drawing imports much
        return self

    def __exit__(self, *error: Any) -> None:
        self.update(final=True)

    def update(self, *, final: bool = False) -> None:
        """Redraws, unless the last drawing is too recent; if `final`, in any case."""
        start = time.perf_counter()
        if not final and start - self.last < max(1.0, 20 * self.cost):
            return
        from IPython.display import display

        figure = self.draw()
        if self.handle is None:
            self.handle = display(figure, display_id=True)
        else:
            self.handle.update(figure)
        self.last = time.perf_counter()
        self.cost = self.last - start


def picture(width: float, height: float) -> Picture:
    # A margin of 1 %, because the layout is a few pixels off if images keep their shape.
    layout = ConstrainedLayoutEngine(rect=(0.01, 0.01, 0.98, 0.98))
    return Picture(figsize=(width, height), layout=layout)


def show(axis: Any, image: np.ndarray) -> None:
    """Shows an image of shape (channels, height, width), grey or colour."""
    axis.imshow(np.moveaxis(image, 0, -1), cmap="gray", vmin=0, vmax=255)


def short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def name_ticks(axis: Any, names: Sequence[str], rotation: float = 0) -> None:
    # A folder may be called "$5 to $10", which is not mathematics.
    axis.set_ticks(range(len(names)), [short(name) for name in names], rotation=rotation, parse_math=False)


def stamped(plot: Any, stamp: str, width: float, height: float) -> Picture:
    """Draws a `seaborn.objects.Plot`, with a stamp in small letters below it.

    Args:
        plot: The plot. Names in it are never read as mathematics.
        stamp: Text that identifies the runs behind the plot.
        width: Width in inches, with the legend on the right.
        height: Height in inches.
    """
    figure = Picture(figsize=(width, height), layout=ConstrainedLayoutEngine())
    plot.on(figure).plot()
    for axis in figure.axes:
        axis.margins(0.08)  # keeps marks at the ends of the scale away from the frame
        axis.title.set_text(textwrap.fill(axis.get_title(), 30))  # the width of a panel
    for legend in figure.legends:
        legend.set_bbox_to_anchor(None)
        legend.set_loc("outside right center")
    figure.supxlabel(stamp, x=1, ha="right", fontsize=6, color="#555")
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    return figure

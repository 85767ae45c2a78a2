"""Figures from plain arrays. Only this package imports matplotlib. Every figure names its axes and units.

A notebook shows a figure that a cell ends with; `as_png` and `as_pdf` make files. `COLOURS` are those of
Okabe and Ito (2008), distinct for every kind of colour vision.
"""

from qnnkit.plots.differences import forest
from qnnkit.plots.gates_by_colour import coloured_circuit, outlines
from qnnkit.plots.inspection import ImageSeen, Redrawn, WhatIfFigure, layer_gradients, stacked
from qnnkit.plots.notes import piano_roll
from qnnkit.plots.picture import COLOURS, Live, Picture, as_pdf, as_png, stamped
from qnnkit.plots.pixels import confusion, labelled_images
from qnnkit.plots.studies import study_lines, study_scores

__all__ = [
    "COLOURS", "ImageSeen", "Live", "Picture", "Redrawn", "WhatIfFigure", "as_pdf", "as_png",
    "coloured_circuit", "confusion", "forest", "labelled_images", "layer_gradients", "outlines",
    "piano_roll", "stacked", "stamped", "study_lines", "study_scores",
]  # fmt: skip

"""Plain arrays to figures. The only importer of matplotlib; every figure names its axes and units."""

from qnnkit.plots.captions import captions_found, images_found, similarities
from qnnkit.plots.circuits import coloured_circuit
from qnnkit.plots.images import class_balance, class_samples, confusion, labelled_images
from qnnkit.plots.inspection import WhatIfFigure, image_seen, layer_gradients, stacked
from qnnkit.plots.machines import machines
from qnnkit.plots.music import piano_roll
from qnnkit.plots.picture import COLOURS, Live, Picture, as_pdf, as_png, stamped

__all__ = [
    "class_samples",
    "class_balance",
    "labelled_images",
    "confusion",
    "coloured_circuit",
    "layer_gradients",
    "image_seen",
    "WhatIfFigure",
    "stacked",
    "Picture",
    "Live",
    "COLOURS",
    "as_pdf",
    "as_png",
    "stamped",
    "images_found",
    "captions_found",
    "similarities",
    "piano_roll",
    "machines",
]

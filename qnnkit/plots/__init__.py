"""Plain arrays to figures. The only importer of matplotlib; every figure names its axes and units."""

from qnnkit.plots.captions import captions_found, images_found, similarities
from qnnkit.plots.circuits import coloured_circuit
from qnnkit.plots.gradients import gradient_history, gradient_snr
from qnnkit.plots.hardware import robustness, step_parts, strategies
from qnnkit.plots.images import class_balance, class_samples, feature_maps, labelled_images
from qnnkit.plots.inspection import WhatIfFigure, image_seen, layer_gradients, stacked
from qnnkit.plots.landscape import landscape_lines, landscape_plane
from qnnkit.plots.machines import machines
from qnnkit.plots.music import loss_matrices, loss_matrix, piano_roll
from qnnkit.plots.nets import circuit, comparison, confusion, gradient_errors, gradient_sizes, training_curves
from qnnkit.plots.picture import COLOURS, MARKERS, STYLES, Live, Picture
from qnnkit.plots.reach import fidelity_histograms, gradient_variances, spectra
from qnnkit.plots.study import stamped
from qnnkit.plots.times import benchmark

__all__ = [
    "class_samples",
    "class_balance",
    "labelled_images",
    "feature_maps",
    "gradient_errors",
    "gradient_sizes",
    "gradient_history",
    "gradient_snr",
    "training_curves",
    "confusion",
    "comparison",
    "circuit",
    "coloured_circuit",
    "landscape_lines",
    "landscape_plane",
    "layer_gradients",
    "image_seen",
    "WhatIfFigure",
    "stacked",
    "gradient_variances",
    "fidelity_histograms",
    "spectra",
    "Picture",
    "Live",
    "COLOURS",
    "MARKERS",
    "STYLES",
    "benchmark",
    "stamped",
    "images_found",
    "captions_found",
    "similarities",
    "piano_roll",
    "loss_matrix",
    "loss_matrices",
    "robustness",
    "step_parts",
    "strategies",
    "machines",
]

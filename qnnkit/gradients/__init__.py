"""Are gradients right, large enough, and what becomes of them in training."""

from qnnkit.gradients.check import METHODS, STEPS, Comparison, GradientError, by_weight, check, prove, require
from qnnkit.gradients.landscape import Landscape, lines, plane
from qnnkit.gradients.reach import Dead, Gate, dead, gates, told, weight_names
from qnnkit.gradients.sizes import Size, sizes

__all__ = [
    "METHODS",
    "STEPS",
    "Comparison",
    "Dead",
    "Gate",
    "GradientError",
    "Landscape",
    "Size",
    "by_weight",
    "check",
    "dead",
    "gates",
    "lines",
    "plane",
    "prove",
    "require",
    "sizes",
    "told",
    "weight_names",
]

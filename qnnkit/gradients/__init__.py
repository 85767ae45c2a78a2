"""Are gradients right, large enough, and what becomes of them in training."""

from qnnkit.gradients import plateau
from qnnkit.gradients.check import METHODS, STEPS, Comparison, GradientError, by_weight, check, prove, require
from qnnkit.gradients.diagnosis import diagnose
from qnnkit.gradients.history import History, Series, Training, history, read
from qnnkit.gradients.landscape import Landscape, lines, plane
from qnnkit.gradients.reach import Dead, Gate, dead, gates, told, weight_names
from qnnkit.gradients.sizes import Size, of_weights, sizes
from qnnkit.gradients.watch import Watch

__all__ = [
    "METHODS",
    "STEPS",
    "Comparison",
    "Dead",
    "Gate",
    "GradientError",
    "History",
    "Landscape",
    "Series",
    "Size",
    "Training",
    "Watch",
    "by_weight",
    "check",
    "dead",
    "diagnose",
    "gates",
    "history",
    "lines",
    "of_weights",
    "plane",
    "plateau",
    "prove",
    "read",
    "require",
    "sizes",
    "told",
    "weight_names",
]

"""Are gradients right, large enough, and what becomes of them in training."""

from qnnkit.gradients.check import METHODS, STEPS, Comparison, GradientError, check, prove, require
from qnnkit.gradients.history import History, Series, Training, history, read
from qnnkit.gradients.reach import Dead, Gate, dead, gates, told, weight_names
from qnnkit.gradients.sizes import Size, sizes
from qnnkit.gradients.watch import Watch
from qnnkit.gradients.words import diagnose

__all__ = [
    "METHODS",
    "STEPS",
    "Comparison",
    "Dead",
    "Gate",
    "GradientError",
    "History",
    "Series",
    "Size",
    "Training",
    "Watch",
    "check",
    "dead",
    "diagnose",
    "gates",
    "history",
    "prove",
    "read",
    "require",
    "sizes",
    "told",
    "weight_names",
]

"""Are gradients right and large enough, and what becomes of them in training."""

from qnnkit.gradients import plateau
from qnnkit.gradients.check import METHODS, STEPS, Comparison, GradientError, check, prove, require
from qnnkit.gradients.diagnosis import diagnose
from qnnkit.gradients.history import History, Training, history, read
from qnnkit.gradients.landscape import Landscape, lines
from qnnkit.gradients.one_batch import of_batch
from qnnkit.gradients.reach import Dead, Gate, dead, describe, gates, weight_names
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
    "Training",
    "Watch",
    "check",
    "dead",
    "describe",
    "diagnose",
    "gates",
    "history",
    "lines",
    "of_batch",
    "plateau",
    "prove",
    "read",
    "require",
    "weight_names",
]

"""Are gradients right, large enough, what becomes of them in training, and what a circuit can express."""

from qnnkit.gradients import expressivity, plateau
from qnnkit.gradients.check import METHODS, STEPS, Comparison, GradientError, check, prove, require
from qnnkit.gradients.diagnosis import diagnose
from qnnkit.gradients.fourier import Spectrum, spectrum
from qnnkit.gradients.history import History, Training, history, read
from qnnkit.gradients.landscape import Landscape, lines, plane
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
    "Spectrum",
    "Training",
    "Watch",
    "check",
    "dead",
    "describe",
    "diagnose",
    "expressivity",
    "gates",
    "history",
    "lines",
    "of_batch",
    "plane",
    "plateau",
    "prove",
    "read",
    "require",
    "spectrum",
    "weight_names",
]

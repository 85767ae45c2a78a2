"""Are gradients right, large enough, and what becomes of them in training."""

from qnnkit.gradients.check import METHODS, STEPS, Comparison, GradientError, check, prove, require
from qnnkit.gradients.history import History, Series, Training, history, read
from qnnkit.gradients.sizes import Size, sizes

__all__ = [
    "METHODS",
    "STEPS",
    "Comparison",
    "GradientError",
    "History",
    "Series",
    "Size",
    "Training",
    "check",
    "history",
    "prove",
    "read",
    "require",
    "sizes",
]

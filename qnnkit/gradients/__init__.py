"""Are gradients right, large enough, and what becomes of them in training."""

from qnnkit.gradients import plateau
from qnnkit.gradients.check import METHODS, STEPS, Comparison, GradientError, check, prove, require
from qnnkit.gradients.sizes import Size, sizes

__all__ = [
    "METHODS",
    "STEPS",
    "Comparison",
    "GradientError",
    "Size",
    "check",
    "plateau",
    "prove",
    "require",
    "sizes",
]

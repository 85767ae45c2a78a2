"""Are gradients right and large enough, and what becomes of them in training."""

from qnnkit.gradients import plateau
from qnnkit.gradients.capacity import alignment, effective_dimension, pauli_weights, tangent_kernel
from qnnkit.gradients.check import METHODS, STEPS, Comparison, GradientError, check, prove, require
from qnnkit.gradients.faults import Fault, diagnose, of_dead
from qnnkit.gradients.history import History, Training, history, read
from qnnkit.gradients.one_batch import of_batch
from qnnkit.gradients.reach import Dead, Gate, circuits_of, dead, gates, weight_names
from qnnkit.gradients.watch import Watch

__all__ = [
    "METHODS",
    "STEPS",
    "Comparison",
    "Dead",
    "Fault",
    "Gate",
    "GradientError",
    "History",
    "Training",
    "Watch",
    "alignment",
    "check",
    "circuits_of",
    "dead",
    "diagnose",
    "effective_dimension",
    "gates",
    "history",
    "of_batch",
    "of_dead",
    "pauli_weights",
    "plateau",
    "prove",
    "read",
    "require",
    "tangent_kernel",
    "weight_names",
]

"""Gradients: are they correct and large enough, and how do they change in training?

Before training, `check` compares them with other methods (`METHODS`), `diagnose` and `dead` find faults on a
batch, and `plateau.scan` shows whether they vanish as a circuit grows. In training, a `Watch` records them;
`read` returns the record of a run. `pauli_weights`, `tangent_kernel` and `effective_dimension` describe what
a net computes.
"""

from qnnkit.gradients import plateau
from qnnkit.gradients.capacity import alignment, effective_dimension, pauli_weights, tangent_kernel
from qnnkit.gradients.check import METHODS, GradientError, check, require
from qnnkit.gradients.faults import Fault
from qnnkit.gradients.one_batch import dead, diagnose
from qnnkit.gradients.reach import Gate, circuits_of, gates, weight_names
from qnnkit.gradients.record import History, Training, history, of_batch, read
from qnnkit.gradients.watch import Watch, on_batch

__all__ = [
    "METHODS", "Fault", "Gate", "GradientError", "History", "Training", "Watch", "alignment", "check",
    "circuits_of", "dead", "diagnose", "effective_dimension", "gates", "history", "of_batch", "on_batch",
    "pauli_weights", "plateau", "read", "require", "tangent_kernel", "weight_names",
]  # fmt: skip

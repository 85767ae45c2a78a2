"""The batched simulator: a QNode as one fused torch program, exact, differentiable, on any torch device.

`layers.QuantumLayer` uses it; `EXACT_DEVICES` are PennyLane's devices whose results it reproduces. The
mathematics is in `simulator/DERIVATION.md`.
"""

from qnnkit.simulator.array_api import autocasts, rounds
from qnnkit.simulator.by_hand import autograd_must
from qnnkit.simulator.circuit import is_elementary
from qnnkit.simulator.fused import Fused
from qnnkit.simulator.gates import NotFusable
from qnnkit.simulator.over_weights import OverWeights
from qnnkit.simulator.programs import EXACT_DEVICES, Call, Programs, own_device
from qnnkit.simulator.shots import Sampled, diagonal, results_of

__all__ = [
    "EXACT_DEVICES", "Call", "Fused", "NotFusable", "OverWeights", "Programs", "Sampled",
    "autocasts", "autograd_must", "diagonal", "is_elementary", "own_device", "results_of", "rounds",
]  # fmt: skip

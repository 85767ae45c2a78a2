"""`QuantumLayer`, `Quanv2d` and the classical layers that stand in for them as controls."""

from qnnkit.layers.controls import Bypass, ClassicalLayer, controls, count_parameters, quantum_parameters
from qnnkit.layers.quantum import BACKENDS, EXACT_DEVICES, QuantumLayer, worth_compiling
from qnnkit.layers.quanvolution import Quanv2d

__all__ = [
    "QuantumLayer",
    "Quanv2d",
    "Bypass",
    "ClassicalLayer",
    "controls",
    "count_parameters",
    "quantum_parameters",
    "worth_compiling",
    "BACKENDS",
    "EXACT_DEVICES",
]

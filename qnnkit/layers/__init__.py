"""`QuantumLayer`, `Quanv2d` and the classical layers that stand in for them as controls."""

from qnnkit.layers.controls import (
    CONTROLS,
    MORE_CONTROLS,
    STAND_INS,
    Bypass,
    ClassicalLayer,
    MatchedLayer,
    as_classical,
    control,
    control_names,
    controls,
    count_parameters,
    exchanged_parameters,
    has_circuit,
    on_backend,
    quantum_parameters,
)
from qnnkit.layers.counting import (
    Given,
    called,
    circuit_inputs,
    circuits_per_image,
    evaluating,
    feature_maps_of,
    first_circuit,
)
from qnnkit.layers.fourier import FourierLayer, fourier_fit
from qnnkit.layers.quantum import BACKENDS, EXACT_DEVICES, QuantumLayer
from qnnkit.layers.quanvolution import Quanv2d

__all__ = [
    "QuantumLayer", "Quanv2d", "CONTROLS", "MORE_CONTROLS", "STAND_INS", "Bypass", "ClassicalLayer",
    "FourierLayer", "MatchedLayer", "as_classical", "fourier_fit", "control", "control_names", "controls",
    "count_parameters", "exchanged_parameters", "has_circuit", "on_backend", "quantum_parameters", "Given",
    "called", "circuit_inputs", "circuits_per_image", "evaluating", "feature_maps_of",
    "first_circuit", "BACKENDS", "EXACT_DEVICES",
]  # fmt: skip

"""`QuantumLayer`, `Quanv2d` and the classical layers that replace them in controls.

`BACKENDS` are the values of a layer's `backend`; `CONTROLS` are the controls that a run trains by default.
`Given` is what a model takes: a tensor, or several by name.
"""

from qnnkit.layers.controls import (
    CONTROLS,
    ClassicalLayer,
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
    rows_of,
)
from qnnkit.layers.fourier import FourierLayer, fourier_fit
from qnnkit.layers.quantum import BACKENDS, QuantumLayer
from qnnkit.layers.quanvolution import Quanv2d

__all__ = [
    "QuantumLayer", "Quanv2d", "CONTROLS", "BACKENDS", "ClassicalLayer",
    "FourierLayer", "as_classical", "fourier_fit", "control", "control_names", "controls", "Given", "called",
    "count_parameters", "exchanged_parameters", "has_circuit", "on_backend", "quantum_parameters",
    "circuit_inputs", "circuits_per_image", "evaluating", "feature_maps_of", "rows_of",
]  # fmt: skip

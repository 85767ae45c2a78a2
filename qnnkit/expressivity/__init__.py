"""What a circuit can reach: states against Haar's, entanglement, and Fourier frequencies of its inputs."""

from qnnkit.expressivity.fourier import Spectrum, spectrum
from qnnkit.expressivity.random_states import (
    BINS,
    PAIRS,
    Estimate,
    Expressibility,
    entanglement,
    entangling_capability,
    expressibility,
    states,
    table,
)

__all__ = [
    "BINS",
    "PAIRS",
    "Estimate",
    "Expressibility",
    "Spectrum",
    "entanglement",
    "entangling_capability",
    "expressibility",
    "spectrum",
    "states",
    "table",
]

"""Circuit settings that the nets share, and the layer that they build."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator

from qnnkit import checks, circuits
from qnnkit.layers import QuantumLayer
from qnnkit.settings import Base

KNOWN = {"circuit": circuits.ANSAETZE, "embedding": circuits.EMBEDDINGS}


class CircuitSettings(Base):
    """Settings of a circuit; `CircuitSettings.model_fields[NAME].description` is the meaning of one."""

    circuit: str = "data_reuploading"
    """Name of an ansatz in CIRCUITS."""
    embedding: str = "angle"
    """Name of an embedding in CIRCUITS, for an ansatz that does not embed its data itself."""
    n_layers: int = Field(default=2, ge=1, le=1_000)
    """Depth of the ansatz."""
    initialisation: Literal["uniform", "small", "gaussian", "identity_block"] = "uniform"
    """How a circuit's angles start; identity_block pairs each layer with its inverse, so n_layers is even."""
    trainable: bool = True
    """Whether the circuit's weights are trained."""

    @field_validator("circuit", "embedding")
    @classmethod
    def _known(cls, value: str, field: ValidationInfo) -> str:
        return checks.choice(str(field.field_name), value, KNOWN[str(field.field_name)])


def circuit_layer(
    n_qubits: int,
    *,
    circuit: str = "data_reuploading",
    embedding: str = "angle",
    n_layers: int = 2,
    initialisation: str = "uniform",
    trainable: bool = True,
    seed: int = 0,
    backend: str = "auto",
) -> tuple[QuantumLayer, int]:
    """The layer of a named circuit, and the number of features that it takes.

    Args:
        n_qubits: Number of wires.
        circuit: Name of an ansatz in `circuits.CIRCUITS`.
        embedding: Name of an embedding, for an ansatz that does not embed its data itself.
        n_layers: Depth of the ansatz; even for `identity_block`.
        initialisation: Name in `circuits.INITIALISATIONS`, which draws the angles.
        trainable: Whether the angles are trained.
        seed: Fixes the circuit's structure and initial angles.
        backend: As in `QuantumLayer`.

    Raises:
        ValueError: A name is unknown, a number is below 1, or `n_layers` is odd for `identity_block`.
    """
    mirrored = checks.choice("initialisation", initialisation, circuits.INITIALISATIONS) in circuits.MIRRORED
    sizes: dict[str, Any] = {"n_qubits": n_qubits, "n_layers": n_layers}
    qnode, shapes = circuits.build(circuit, **sizes, embedding=embedding, seed=seed, mirrored=mirrored)
    generator = torch.Generator().manual_seed(seed)
    start = partial(circuits.INITIALISATIONS[initialisation], generator=generator)
    layer = QuantumLayer(qnode, shapes, start, backend=backend).requires_grad_(trainable)
    count = circuits.embedding_of(circuit, embedding).n_features
    assert count is not None  # every embedding has one
    return layer, count(n_qubits)

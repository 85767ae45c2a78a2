"""What every net with a circuit of the kit's is told of it, and the layer that comes of it."""

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
    """Of a circuit."""

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


def layer(config: Any, *, seed: int, backend: str) -> QuantumLayer:
    """The circuit of `n_qubits` wires that settings ask for; `seed` fixes its gates and its first angles."""
    qnode, shapes = circuits.build(
        config.circuit,
        n_qubits=config.n_qubits,
        n_layers=config.n_layers,
        embedding=config.embedding,
        seed=seed,
        mirrored=config.initialisation in circuits.MIRRORED,
    )
    generator = torch.Generator().manual_seed(seed)
    start = partial(circuits.INITIALISATIONS[config.initialisation], generator=generator)
    return QuantumLayer(qnode, shapes, start, backend=backend).requires_grad_(config.trainable)


def n_features(config: Any) -> int:
    """How many angles that circuit takes."""
    count = circuits.embedding_of(config.circuit, config.embedding).n_features
    assert count is not None  # every embedding has it
    return count(config.n_qubits)

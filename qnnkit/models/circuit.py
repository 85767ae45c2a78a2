"""What every net with a circuit of the kit's is told of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from qnnkit import checks
from qnnkit.circuits import ANSAETZE, EMBEDDINGS
from qnnkit.settings import Base

KNOWN = {"circuit": ANSAETZE, "embedding": EMBEDDINGS}


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

"""Four qubits after a ResNet18 that is trained with them; in `resnet_circuit_frozen` it is frozen."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

import qnnkit
from qnnkit import data, models, tasks
from qnnkit.models.blocks import precise, seeded


class Settings(data.Images, models.ResNetSettings, models.CircuitSettings, qnnkit.Settings):
    dataset: str = "mnist"
    validation_fraction: float = 0.1
    circuit: str = "strongly_entangling"
    n_layers: int = 3
    stem_stride: int = 4
    n_qubits: int = Field(default=4, ge=1)
    """Wires of the circuit."""
    hidden: int = Field(default=32, ge=1)
    """Units of the classical layer that reads the circuit's values."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate of the backbone's features, in training only."""
    epochs: int = 4
    batch_size: int = 128
    learning_rate: float = 4e-3
    quantum_learning_rate: float | None = 2e-2
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    warmup_epochs: float = 0.5
    n_seeds: int = 3
    controls: tuple[str, ...] = ("classical", "no_entanglement", "frozen_random", "no_quantum")


load, task = data.of, tasks.Classification.of


def build(settings, splits, seed):
    own = settings.arguments(models.CircuitSettings) | {"seed": seed * 1000, "backend": settings.backend}
    circuit = models.circuit_layer(settings.n_qubits, **own)
    backbone, sizes = settings.arguments(models.ResNetSettings), splits.sizes
    read = {"hidden": settings.hidden, "dropout": settings.dropout}
    return ResNetCircuit(sizes["channels"], sizes["n_classes"], *circuit, **read, seed=seed, **backbone)


class ResNetCircuit(models.OnBackbone):
    """ResNet18 -> n angles in (0, pi) -> one circuit -> two linear layers -> logits.

    Based on the dressed circuit of Mari et al. (2020), arXiv:1912.08278, sec. 2; the shift of the angles
    corresponds to their Hadamards before angles in (-pi/2, pi/2). The features of a frozen backbone are
    computed once (`models.features`).

    Args:
        channels: Channels of the images.
        n_classes: Number of logits.
        circuit: Any layer that takes angles in radians, of shape (batch, n_angles).
        n_angles: Number of angles.
        hidden: Units of the layer that reads the circuit's values.
        dropout: Dropout rate of the backbone's features, in training only.
        seed: Fixes all initial weights but the circuit's; global generators do not change.
        backbone: Other arguments of `Backbone`.
    """

    def __init__(self, channels, n_classes, circuit, n_angles, *, hidden, dropout, seed, **backbone):
        super().__init__()
        n_values = circuit(torch.zeros(0, n_angles)).shape[-1]
        with seeded(seed):
            self.backbone = models.Backbone(channels, **backbone)
            self.reduce = nn.Sequential(
                nn.Dropout(dropout),
                nn.Linear(self.backbone.n_features, n_angles),
                nn.BatchNorm1d(n_angles),  # so that angles vary from the first step on
            )
            self.circuit = circuit
            self.head = nn.Sequential(nn.Linear(n_values, hidden), nn.SiLU(), nn.Linear(hidden, n_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Returns logits of shape (batch, n_classes) for uint8 images, or for outputs of `features`."""
        angles = math.pi * torch.sigmoid(precise(self.reduce, self.features(images)))  # (batch, n_angles)
        return self.head(self.circuit(angles))

"""Three quanvolution nets as in a project on `qml.qnn.TorchLayer`: the workloads W6 of `make bench`.

Images of one channel, patches of 2x2 pixels on four qubits, a classical head; docs/move.md moves one of them.
"""

from __future__ import annotations

import math
from typing import Any

import pennylane as qml
import torch
from torch import Tensor, nn

N_QUBITS = 4


def basic(inputs: Tensor, weights: Tensor) -> list[Any]:
    qml.AngleEmbedding(inputs, wires=range(N_QUBITS), rotation="X")
    qml.BasicEntanglerLayers(weights, wires=range(N_QUBITS))
    return [qml.expval(qml.PauliZ(wire)) for wire in range(N_QUBITS)]


def strong(inputs: Tensor, weights: Tensor) -> list[Any]:
    qml.AngleEmbedding(inputs, wires=range(N_QUBITS), rotation="Y")
    qml.StronglyEntanglingLayers(weights, wires=range(N_QUBITS))
    return [qml.expval(qml.PauliZ(wire)) for wire in range(N_QUBITS)]


def gates(inputs: Tensor, weights: Tensor) -> list[Any]:
    for layer in weights:
        for wire in range(N_QUBITS):
            qml.RY(inputs[..., wire], wires=wire)
            qml.RX(layer[wire, 0], wires=wire)
            qml.RZ(layer[wire, 1], wires=wire)
        for wire in range(N_QUBITS):
            qml.CNOT(wires=[wire, (wire + 1) % N_QUBITS])
    return [qml.expval(qml.PauliZ(wire)) for wire in range(N_QUBITS)]


class QuanvNet(nn.Module):
    """A quanvolution and a classical head; the layer takes the patches of all images in one call.

    Args:
        quantum: Layer from (..., 4) angles to (..., 4) expectation values.
        side: Side of an image, in pixels.
    """

    def __init__(self, quantum: nn.Module, side: int = 32):
        super().__init__()
        self.quantum = quantum
        self.head = nn.Sequential(nn.Linear(side * side, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, 10) of images of shape (batch, 1, side, side) in [0, 1]."""
        return self.head(self.maps(math.pi * images).flatten(1))

    def maps(self, images: Tensor) -> Tensor:
        patches = nn.functional.unfold(images, kernel_size=2, stride=2)  # (batch, 4, n_patches)
        return self.quantum(patches.transpose(1, 2))  # (batch, n_patches, 4)


class LoopNet(QuanvNet):
    """The same with a loop: each call of the layer takes one patch of every image."""

    def maps(self, images: Tensor) -> Tensor:
        corners = range(0, images.shape[-1], 2)
        patches = [images[:, 0, i : i + 2, j : j + 2].flatten(1) for i in corners for j in corners]
        return torch.stack([self.quantum(patch) for patch in patches], dim=1)


NETS = {
    "basic": (basic, (2, 4), LoopNet),
    "strong": (strong, (2, 4, 3), QuanvNet),
    "gates": (gates, (2, 4, 2), QuanvNet),
}
"""Circuit -> its function, the shape of its weights, and the net around it."""

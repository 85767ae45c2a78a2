"""Points inside and outside a circle by one qubit that reads each point ten times.

Reference: Perez-Salinas et al. 2020, arXiv:1907.02085.
"""

import numpy as np
import pennylane as qml
from torch import nn

import qnnkit
from qnnkit import data


class Settings(qnnkit.Settings):
    n_layers: int = 10
    validation_fraction: float = 200
    test_fraction: float = 4000  # leaves 200 to train on, as in the paper
    epochs: int = 80
    batch_size: int = 25
    n_seeds: int = 10
    # One qubit has no entanglement to remove, and its trained input scales leave no fixed
    # frequencies for `fourier`.
    controls: tuple[str, ...] = ("frozen_random", "classical", "no_quantum", "compute_matched")
    threads: int = 1


def load(settings):
    points = np.random.uniform(-1, 1, (int(400 + settings.test_fraction), 2))  # noqa: NPY002  seeded by the kit
    return data.arrays(settings, points, ((points**2).sum(1) > 2 / np.pi).astype(int), name="circle")


def circuit(inputs, angles, scales):
    for angle, scale in zip(angles, scales, strict=True):
        first, second = angle[0] + scale[0] * inputs[..., 0], angle[1] + scale[1] * inputs[..., 1]
        qml.Rot(angle[2], first, second, wires=0)
    return [qml.expval(qml.PauliZ(0))]


class OneQubit(nn.Module):
    """The circuit, and a weight and an offset for each class on the <Z> that it gives."""

    def __init__(self, n_layers):
        super().__init__()
        qnode = qml.QNode(circuit, qml.device("default.qubit", wires=1))
        shapes = {"angles": (n_layers, 3), "scales": (n_layers, 2)}
        self.circuit = qnnkit.QuantumLayer(qnode, shapes, nn.init.normal_)
        self.read = nn.Linear(1, 2)

    def forward(self, points):
        return self.read(self.circuit(points))


def build(settings, splits, seed):
    return OneQubit(settings.n_layers)

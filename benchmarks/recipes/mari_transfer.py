"""Two letters by a dressed circuit behind a frozen net that was trained on digits: transfer learning.

Reference: Mari et al. 2020, arXiv:1912.08278.
"""

import math

import given_splits
import numpy as np
import pennylane as qml
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from torch import nn

import qnnkit
from qnnkit import data, tasks

LETTERS = (21, 22)
"""Kaf and lam."""


class Settings(data.Images, qnnkit.Settings):
    dataset: str = "ahcd"
    train_fraction: float = 0.28  # 242 images of the two letters; the paper had 244 of ants and bees
    validation_fraction: float = 0.2
    n_layers: int = 6
    n_features: int = 512
    """Hidden units of the net that was trained on digits."""
    epochs: int = 30
    batch_size: int = 32
    n_seeds: int = 10
    controls: tuple[str, ...] = (
        *("no_entanglement", "frozen_random", "classical", "no_quantum"),
        *("fourier", "frozen_classical"),
    )
    threads: int = 1


def load(settings):
    digits, labels = load_digits(return_X_y=True)
    frozen = MLPClassifier(settings.n_features, max_iter=40, random_state=0, tol=0).fit(digits / 16, labels)
    letters = data.of(settings)
    parts = []
    for part in (letters.train, letters.validation, letters.test):
        chosen = torch.isin(part.labels, torch.tensor(LETTERS))
        pixels = nn.functional.avg_pool2d(part.images[chosen].float() / 255, 4).flatten(1).numpy()
        features = np.maximum(0, pixels @ frozen.coefs_[0] + frozen.intercepts_[0])
        parts.append((features, (part.labels[chosen] == LETTERS[1]).long()))
    return given_splits.of("letters", parts, tuple(letters.classes[i] for i in LETTERS))


def circuit(inputs, weights):
    for wire in range(4):
        qml.Hadamard(wires=wire)
    qml.AngleEmbedding(inputs, wires=range(4), rotation="Y")
    for layer in weights:
        for pair in ((0, 1), (2, 3), (1, 2)):
            qml.CNOT(wires=pair)
        for wire in range(4):
            qml.RY(layer[wire], wires=wire)
    return [qml.expval(qml.PauliZ(wire)) for wire in range(4)]


class Dressed(nn.Module):
    """A layer that makes four angles, the circuit, and a layer that reads it."""

    def __init__(self, n_features, n_layers):
        super().__init__()
        self.reduce, self.read = nn.Linear(n_features, 4), nn.Linear(4, 2)
        qnode = qml.QNode(circuit, qml.device("default.qubit", wires=4))
        self.circuit = qnnkit.QuantumLayer(qnode, {"weights": (n_layers, 4)})

    def forward(self, features):
        return self.read(self.circuit(math.pi / 2 * torch.tanh(self.reduce(features))))


def build(settings, splits, seed):
    return Dressed(splits.sizes["input_shape"][0], settings.n_layers)


def task(settings):
    return tasks.Classification.of(settings)

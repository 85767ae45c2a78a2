"""Moons or spirals by a circuit behind a classical layer that was trained before it and then frozen.

Reference: Altmann et al. 2023, arXiv:2301.02601 (SEQUENT).
"""

import copy
import math
from typing import Literal

import numpy as np
import pennylane as qml
import torch
from sklearn.datasets import make_moons
from torch import nn

import qnnkit
from qnnkit import data

WIRES = 6


class Settings(qnnkit.Settings):
    points: Literal["moons", "spirals"] = "moons"
    """Two half moons, or two arms of a spiral."""
    n_layers: int = 4
    n_first: int = 300
    """Updates of the classical layer, with a linear classifier behind it, before the circuit comes."""
    validation_fraction: float = 200
    test_fraction: float = 1000
    epochs: int = 30
    batch_size: int = 25
    n_seeds: int = 10
    controls: tuple[str, ...] = (
        *("joint", "no_entanglement", "frozen_random", "classical", "no_quantum", "fourier"),
    )
    threads: int = 1


def load(settings):
    n = int(400 + settings.test_fraction)
    points, labels = make_moons(n, noise=0.1, random_state=0)
    if settings.points == "spirals":
        radius = np.sqrt(np.random.uniform(0.02, 1, n))  # noqa: NPY002  seeded by the kit
        angle = 3 * math.pi * radius + math.pi * labels
        points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        points += np.random.normal(0, 0.02, points.shape)  # noqa: NPY002
    return data.arrays(settings, points, labels, name=settings.points)


def circuit(inputs, weights):
    qml.AngleEmbedding(inputs, wires=range(WIRES))
    qml.StronglyEntanglingLayers(weights, wires=range(WIRES))
    return [qml.expval(qml.PauliZ(wire)) for wire in range(2)]


class Sequent(nn.Module):
    """A layer that makes the angles, the circuit, and a layer of six weights that reads two of its wires."""

    def __init__(self, n_layers):
        super().__init__()
        self.compress = nn.Sequential(nn.Linear(2, WIRES), nn.Tanh())
        qnode = qml.QNode(circuit, qml.device("default.qubit", wires=WIRES))
        self.circuit = qnnkit.QuantumLayer(qnode, {"weights": (n_layers, WIRES, 3)})
        self.read = nn.Linear(2, 2)

    def forward(self, points):
        return self.read(self.circuit(math.pi * self.compress(points)))


def build(settings, splits, seed):
    net = Sequent(settings.n_layers)
    if hasattr(splits, "train"):  # a trained run is opened without its data
        first = nn.Sequential(net.compress, nn.Linear(WIRES, 2))
        optimizer = torch.optim.Adam(first.parameters(), 0.05)
        for _ in range(settings.n_first):
            optimizer.zero_grad()
            nn.functional.cross_entropy(first(splits.train.inputs), splits.train.targets).backward()
            optimizer.step()
    net.compress.requires_grad_(False)
    return net


def controls(net):
    return {**qnnkit.controls(net), "joint": copy.deepcopy(net).requires_grad_(True)}

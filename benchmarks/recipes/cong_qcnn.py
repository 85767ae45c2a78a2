"""Phases of the cluster-Ising chain by a quantum convolutional net, trained on one line of the diagram.

H = -sum Z X Z - h1 sum X - h2 sum X X on a ring of eight spins; ground states by exact diagonalisation.

Reference: Cong et al. 2019, arXiv:1810.03787.
"""

from functools import reduce

import given_splits
import numpy as np
import pennylane as qml
import torch
from torch import nn

import qnnkit

N = 8


class Settings(qnnkit.Settings):
    n_side: int = 16
    """Points of the diagram on each side, of which all are tested; 40 points of h2 = 0 train."""
    epochs: int = 60
    batch_size: int = 10
    n_seeds: int = 10
    # A state enters as amplitudes: there are no angles for `fourier`.
    controls: tuple[str, ...] = (
        *("no_entanglement", "frozen_random", "classical", "no_quantum", "compute_matched"),
    )
    threads: int = 1


def product(**sites):
    """A product of Pauli matrices, such as Z1=..., on the ring."""
    pauli = {"X": np.array([[0.0, 1], [1, 0]]), "Z": np.diag([1.0, -1])}
    placed = {int(site) % N: pauli[name[0]] for name, site in sites.items()}
    return reduce(np.kron, [placed.get(site, np.eye(2)) for site in range(N)])


def load(settings):
    cluster = sum(product(Z=i, X=i + 1, Z2=i + 2) for i in range(N))
    fields = sum(product(X=i) for i in range(N)), sum(product(X=i, X2=i + 1) for i in range(N))
    order = product(Z=0, X=1, X2=3, X3=5, Z2=6)

    def state(h1, h2):
        ground = np.linalg.eigh(-cluster - h1 * fields[0] - h2 * fields[1])[1][:, 0]
        return ground * np.sign(ground.sum())

    critical = state(1.0, 0.0)  # the one transition that is known exactly
    least = critical @ order @ critical

    def part(points):
        states = np.array([state(*point) for point in points])
        return states, torch.as_tensor(np.einsum("ni,ij,nj->n", states, order, states) > least).long()

    line = [(h1, 0.0) for h1 in np.linspace(0.02, 2, 60)]
    first, second = np.linspace(0.05, 1.6, settings.n_side), np.linspace(-1.6, 1.6, settings.n_side)
    plane = [(h1, h2) for h1 in first for h2 in second]
    parts = [part([*line[::3], *line[1::3]]), part(line[2::3]), part(plane)]
    return given_splits.of("cluster_ising", parts, ("other", "topological"))


def convolve(weights, one, other):
    qml.Rot(*weights[:3], wires=one)
    qml.Rot(*weights[3:6], wires=other)
    for gate, angle in zip((qml.IsingXX, qml.IsingYY, qml.IsingZZ), weights[6:9], strict=True):
        gate(angle, wires=(one, other))


def circuit(inputs, weights):
    qml.AmplitudeEmbedding(inputs, wires=range(N), validate_norm=False)
    wires = list(range(N))
    for layer in weights:
        ring = wires[1:] + wires[:1]
        for side in (0, 1) if len(wires) > 2 else (0,):
            for one, other in zip(wires[side::2], ring[side::2], strict=True):
                convolve(layer, one, other)
        for wire, dropped in zip(wires[::2], wires[1::2], strict=True):
            qml.CRot(*layer[9:], wires=(dropped, wire))
        wires = wires[::2]
    return [qml.expval(qml.PauliZ(wires[0]))]


class Phases(nn.Module):
    """The circuit, and a weight and an offset for each phase on the <Z> of its last qubit."""

    def __init__(self):
        super().__init__()
        qnode = qml.QNode(circuit, qml.device("default.qubit", wires=N))
        self.circuit, self.read = qnnkit.QuantumLayer(qnode, {"weights": (3, 12)}), nn.Linear(1, 2)

    def forward(self, states):
        return self.read(self.circuit(states))


def build(settings, splits, seed):
    return Phases()

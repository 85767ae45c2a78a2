"""Small nets around a circuit and their watched trainings, for several test files."""

import json

import pennylane as qp
import torch
from torch import nn

from qnnkit import QuantumLayer, gradients, train
from qnnkit.gradients import Watch
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests.toys import Batches, shipped, uniform

TASK = Classification()


class Turned(nn.Module):
    """Linear -> circuit -> factor -> linear."""

    def __init__(self, circuit: nn.Module, n_features: int = 2, n_outputs: int = 2, factor: float = 1.0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.first, self.last = nn.Linear(2, n_features), nn.Linear(n_outputs, 2)
        self.circuit, self.factor = circuit, factor

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.last(self.factor * self.circuit(inputs=self.first(points)))


def net(**options) -> Turned:
    return Turned(shipped("hardware_efficient", n_qubits=2, seed=1), **options)


def data(n: int = 96, batch_size: int = 8) -> dict[str, Batches]:
    """Two clouds of points that overlap."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    points = torch.randn(n, 2, generator=generator) + 1.5 * labels[:, None]
    return {
        "train": Batches(points, labels, batch_size, shuffle=True),
        "validation": Batches(points[:16], labels[:16], 16, shuffle=False),
    }


def groups(
    model: Turned, rate: float = 0.01, quantum_rate: float | None = None, **quantum
) -> list[train.Group]:
    classical = [*model.first.parameters(), *model.last.parameters()]
    return [
        train.Group("quantum", list(model.circuit.parameters()), quantum_rate or rate, **quantum),
        train.Group("classical", classical, rate),
    ]


def trained(model: Turned, *, per_epoch: int = 16, clip: float | None = None, **settings) -> list[dict]:
    """The gradient rows of a training."""
    rates = {"rate": settings.pop("rate", 0.01), "quantum_rate": settings.pop("quantum_rate", None)}
    made = groups(model, **rates, clip_norm=clip)
    watch = Watch(model, made, per_epoch=per_epoch)
    loaders = settings.pop("loaders", None) or data()
    folder, task = settings.pop("folder", None), settings.pop("task", TASK)
    config = Settings(**{"epochs": 2, "optimizer": "sgd", "schedule": "constant", **settings})
    train.fit(model, task, loaders, config, groups=made, folder=folder, watch=watch)
    json.dumps(watch.rows, allow_nan=False)
    return watch.rows


def of(rows: list[dict], net: str = "hybrid", seed: int = 0) -> gradients.Training:
    return gradients.history([{"event": "epoch", "net": net, "seed": seed, **row} for row in rows])[net, seed]


def layer(circuit, shape, weights=None, n_qubits=2, **options) -> QuantumLayer:
    """A layer of a plain PennyLane circuit."""
    qnode = qp.QNode(circuit, qp.device("default.qubit", wires=n_qubits, seed=0), **options)
    start = weights if weights is not None else uniform(*shape, seed=1, top=3.0)
    return QuantumLayer(qnode, {"weights": shape}, {"weights": start})

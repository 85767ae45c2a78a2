"""Four qubits behind a ResNet18, which stays as it is (`resnet_circuit_frozen`) or is trained with them.

A frozen one's features are computed once: an epoch then takes seconds.
"""

import qnnkit
from qnnkit import data, models, tasks

PRESETS = {
    "frozen": {
        "frozen_backbone": True,
        "epochs": 50,
        "batch_size": 256,
        "learning_rate": 5e-3,
        "warmup_epochs": 1.0,
        "threads": 1,
    },
    "trained": {
        "epochs": 4,
        "batch_size": 128,
        "learning_rate": 4e-3,
        "optimizer": "adamw",
        "weight_decay": 0.01,
        "warmup_epochs": 0.5,
    },
}


class Settings(data.Images, models.ResNetCircuitSettings, qnnkit.Settings):
    dataset: str = "mnist"
    validation_fraction: float = 0.1
    circuit: str = "strongly_entangling"
    n_layers: int = 3
    stem_stride: int = 4
    hidden: int = 32
    quantum_learning_rate: float | None = 2e-2
    n_seeds: int = 3
    controls: tuple[str, ...] = ("classical", "no_entanglement", "frozen_random", "no_quantum")


def load(settings):
    return data.of(settings)


def build(settings, splits, seed):
    return models.ResNetCircuit(settings, **splits.sizes, seed=seed, backend=settings.backend)


def task(settings):
    return tasks.Classification.of(settings)

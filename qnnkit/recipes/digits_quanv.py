"""A trainable quanvolution on handwritten digits: does entanglement help? A minute or two on two cores."""

import qnnkit
from qnnkit import data, models, tasks


class Settings(data.Images, models.QuanvSettings, qnnkit.Settings):
    dataset: str = "digits"  # real data that ship with scikit-learn
    n_layers: int = 2
    stride: int = 1
    hidden: int = 24
    epochs: int = 12
    batch_size: int = 32
    learning_rate: float = 1e-2
    quantum_learning_rate: float | None = 5e-2  # 24 angles of order 1 need larger steps than weights
    label_smoothing: float = 0.1
    n_seeds: int = 3
    controls: tuple[str, ...] = ("classical", "no_entanglement", "frozen_random", "no_quantum")
    threads: int = 1  # nets this small gain nothing from more, and are ten times slower on a busy machine
    min_accuracy: float | None = 0.9
    max_memory_gb: float | None = 4


load, task = data.of, tasks.Classification.of


def build(settings, splits, seed):
    own = settings.arguments(models.QuanvSettings)
    return models.QuanvNet(**splits.sizes, **own, seed=seed, backend=settings.backend)

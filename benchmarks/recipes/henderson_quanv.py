"""MNIST by random circuits that never train (quanvolution): are they better than convolutions?

Reference: Henderson et al. 2019, arXiv:1904.04767.
"""

from dataclasses import replace

import qnnkit
from qnnkit import data, models, tasks


class Settings(data.Images, models.QuanvSettings, qnnkit.Settings):
    dataset: str = "mnist"
    train_fraction: float = 1000
    validation_fraction: float = 1000
    n_test: int = 2000
    """Test images that are used, of the 10,000."""
    circuit: str = "random"
    filters: int = 4
    trainable: bool = False
    hidden: int = 16
    epochs: int = 10
    n_seeds: int = 10
    controls: tuple[str, ...] = ("classical", "classical_trained", "no_entanglement", "no_quantum", "fourier")
    threads: int = 1


def load(settings):
    splits = data.of(settings)
    return replace(splits, test=splits.test.at(range(min(settings.n_test, len(splits.test)))))


def build(settings, splits, seed):
    return models.QuanvNet(**splits.sizes, **settings.arguments(models.QuanvSettings), seed=seed)


def task(settings):
    return tasks.Classification.of(settings)

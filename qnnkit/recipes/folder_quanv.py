"""Your own images, in a folder for each class (data_dir/<class>/*.png), by a trainable quanvolution."""

import qnnkit
from qnnkit import data, models, tasks


class Settings(data.Images, models.QuanvSettings, qnnkit.Settings):
    dataset: str = "class_folder"
    image_size: int | None = 16
    grey: bool | None = True
    n_layers: int = 2
    hidden: int = 24
    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-2
    quantum_learning_rate: float | None = 5e-2
    label_smoothing: float = 0.1
    n_seeds: int = 3
    controls: tuple[str, ...] = ("classical", "no_entanglement", "frozen_random", "no_quantum")
    threads: int = 1


def load(settings):
    return data.of(settings)


def build(settings, splits, seed):
    own = settings.arguments(models.QuanvSettings)
    return models.QuanvNet(**splits.sizes, **own, seed=seed, backend=settings.backend)


def task(settings):
    return tasks.Classification.of(settings)

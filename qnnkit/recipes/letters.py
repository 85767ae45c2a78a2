"""Handwritten letters in one folder, the class in each file's name, by a trainable net of 88,000 weights."""

import qnnkit
from qnnkit import data, models, tasks


class Settings(data.Images, models.ResidualQuanvSettings, qnnkit.Settings):
    dataset: str = "flat_folder"  # the class is the last number of a name, or the group of label_pattern
    image_size: int | None = 32
    grey: bool | None = True
    validation_fraction: float = 0.1
    hidden: int = 114
    # Letters turned, shifted and scaled a little; found on the validation images of AHCD.
    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 4e-3
    quantum_learning_rate: float | None = 2e-2
    optimizer: str = "adamw"
    weight_decay: float = 0.02
    warmup_epochs: float = 2
    label_smoothing: float = 0.1
    augmentation: str = "affine"
    n_seeds: int = 3
    controls: tuple[str, ...] = ("classical", "no_entanglement", "frozen_random", "no_quantum")


def load(settings):
    return data.of(settings)


def build(settings, splits, seed):
    return models.ResidualQuanvNet(settings, **splits.sizes, seed=seed, backend=settings.backend)


def task(settings):
    return tasks.Classification.of(settings)

"""Images by a small convolutional net: a classical reference without a circuit."""

import qnnkit
from qnnkit import data, models, tasks


class Settings(data.Images, models.CNNSettings, qnnkit.Settings):
    width: int = 32
    hidden: int = 512
    dropout: float = 0.3
    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 2e-3
    optimizer: str = "adamw"
    weight_decay: float = 0.02
    warmup_epochs: float = 2
    label_smoothing: float = 0.1
    augmentation: str = "affine"
    n_seeds: int = 3
    controls: tuple[str, ...] = ()


def load(settings):
    return data.of(settings)


def build(settings, splits, seed):
    return models.SmallCNN(settings, **splits.sizes, seed=seed)


def task(settings):
    return tasks.Classification.of(settings)

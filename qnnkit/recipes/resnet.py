"""Images by a ResNet18, from scratch or from `pretrained`: a classical reference without a circuit."""

import qnnkit
from qnnkit import data, models
from qnnkit.recipes import cnn


class Settings(data.Images, models.ResNetSettings, qnnkit.Settings):
    stem_stride: int = 2  # 4 is four times as fast, and sees less
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


load, task = cnn.load, cnn.task


def build(settings, splits, seed):
    return models.ResNet18(settings, **splits.sizes, seed=seed)

"""Arabic letters by a small CNN: the classical reference of the study, half as wide as `cnn`."""

from qnnkit.recipes import cnn


class Settings(cnn.Settings):
    dataset: str = "ahcd"
    validation_fraction: float = 0.1
    width: int = 16
    hidden: int = 256
    learning_rate: float = 3e-3  # the best of four on validation images: docs/study_settings.yaml


load, build, task = cnn.load, cnn.build, cnn.task

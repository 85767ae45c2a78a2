"""Arabic letters by a small CNN: the classical reference of the study, half as wide as `cnn`."""

from qnnkit.recipes import cnn


class Settings(cnn.Settings):
    dataset: str = "ahcd"
    validation_fraction: float = 0.1
    width: int = 16
    hidden: int = 256


load, build, task = cnn.load, cnn.build, cnn.task

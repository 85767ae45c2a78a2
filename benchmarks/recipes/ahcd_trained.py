"""Arabic letters by the trainable quanvolution of 88,000 weights (86,096 with these 28 classes)."""

from qnnkit.recipes import letters


class Settings(letters.Settings):
    dataset: str = "ahcd"
    image_size: int | None = None
    grey: bool | None = None
    # The best of four pairs for every net on validation images: docs/study_settings.yaml.
    learning_rate: float = 3e-2
    quantum_learning_rate: float | None = 1.5e-1


load, build, task = letters.load, letters.build, letters.task

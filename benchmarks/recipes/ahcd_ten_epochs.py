"""As many Arabic letters and epochs as the field's 88,000-weight net took 21 h 43 m for: seconds here."""

from qnnkit.recipes import letters


class Settings(letters.Settings):
    dataset: str = "ahcd"
    image_size: int | None = None
    grey: bool | None = None
    train_fraction: float = 0.25505  # 3,085 images
    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 6e-3
    quantum_learning_rate: float | None = 3e-2
    warmup_epochs: float = 1


load, build, task = letters.load, letters.build, letters.task

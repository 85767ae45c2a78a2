"""Arabic letters by eight random circuits that never train, and the same without entanglement."""

from qnnkit.recipes import letters_frozen


class Settings(letters_frozen.Settings):
    dataset: str = "ahcd"
    image_size: int | None = None
    grey: bool | None = None
    # The best of four pairs for each net on validation images: docs/study_settings.yaml.
    learning_rate: float = 3e-3
    quantum_learning_rate: float | None = 1.5e-2
    net_settings: tuple[str, ...] = (
        "classical_trained.learning_rate=0.01",
        "classical_trained.quantum_learning_rate=0.05",
        "no_quantum.learning_rate=0.01",
    )


load, build, task = letters_frozen.load, letters_frozen.build, letters_frozen.task

"""Eight random circuits that are not trained on handwritten letters, with a trained readout.

Reference: Henderson et al. 2020, arXiv:1904.04767.
"""

import qnnkit
from qnnkit import data, models
from qnnkit.recipes import letters


class Settings(data.Images, models.QuanvSettings, qnnkit.Settings):
    dataset: str = "flat_folder"  # the class is the last number of a name, or the group of label_pattern
    image_size: int | None = 32
    grey: bool | None = True
    validation_fraction: float = 0.1
    circuit: str = "random"
    filters: int = 8
    trainable: bool = False
    hidden: int = 32
    dropout: float = 0.2
    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 3e-3
    quantum_learning_rate: float | None = 2e-2
    optimizer: str = "adamw"
    weight_decay: float = 0.05
    warmup_epochs: float = 2
    label_smoothing: float = 0.1
    augmentation: str = "affine"
    n_seeds: int = 3
    # Another frozen random circuit would be an uninformative control here; a trained layer is informative.
    controls: tuple[str, ...] = ("classical", "classical_trained", "no_entanglement", "no_quantum")


load, task = letters.load, letters.task


def build(settings, splits, seed):
    own = settings.arguments(models.QuanvSettings)
    return models.QuanvNet(**splits.sizes, **own, seed=seed, backend=settings.backend)

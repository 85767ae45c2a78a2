"""CLIP from scratch on digits with captions ("a photo of the digit three"), with a circuit in each tower.

`head=full` uses the original projections instead, as a reference without a circuit.
"""

import qnnkit
from qnnkit import data, models, tasks


class Settings(data.Captions, models.ClipSettings, qnnkit.Settings):
    dataset: str = "digit_captions"
    patch_size: int | None = 4
    n_qubits: int = 6
    # Without clipping, contrastive nets this small stay at chance; larger batches need more epochs.
    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-3
    quantum_learning_rate: float | None = 1e-2
    optimizer: str = "adamw"
    weight_decay: float = 0.05
    warmup_epochs: float = 2
    clip_norm: float | None = 1.0
    n_seeds: int = 3
    controls: tuple[str, ...] = ("classical", "no_entanglement", "frozen_random", "no_quantum")
    threads: int = 1


load, task = data.of, tasks.Contrastive


def build(settings, splits, seed):
    own = settings.arguments(models.ClipSettings)
    return models.Clip(**splits.sizes, **own, seed=seed, backend=settings.backend)


def check(settings):
    if settings.head != "quantum" and settings.controls:
        raise ValueError("Argument `controls` must be () for a head without a circuit. Set controls=[].")

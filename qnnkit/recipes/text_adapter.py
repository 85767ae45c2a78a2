"""A quantum adapter on a frozen language model (pretrained=FOLDER), and adapters with as many weights."""

import qnnkit
from qnnkit import data, tasks
from qnnkit.adapters import recipe


class Settings(data.Text, recipe.AdapterSettings, qnnkit.Settings):
    adapter_weights: int | None = 4000
    sequence_length: int | None = 128
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    epochs: int = 4
    batch_size: int = 8
    learning_rate: float = 1e-2
    quantum_learning_rate: float | None = 3e-2
    optimizer: str = "adamw"
    warmup_epochs: float = 0.1
    clip_norm: float | None = 1.0
    n_seeds: int = 3
    controls: tuple[str, ...] = recipe.CONTROLS


check, build, controls = recipe.require_base, recipe.build, recipe.controls
load, task = data.of, tasks.Language

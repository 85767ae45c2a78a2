"""One composer (composers=["mozart-16th"]) by an adapter on a music model (pretrained=FOLDER).

Of the step sizes tried (of angles 0.01 to 0.2), these did best on Bach's validation pieces; twice the epochs
do a little better.
"""

import qnnkit
from qnnkit import data
from qnnkit.adapters import recipe
from qnnkit.recipes import text_adapter


class Settings(data.Music, recipe.AdapterSettings, qnnkit.Settings):
    adapter_weights: int | None = 4000
    sequence_length: int | None = 512
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    epochs: int = 2
    batch_size: int = 8
    learning_rate: float = 1e-2
    quantum_learning_rate: float | None = 3e-2
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    warmup_epochs: float = 0.1
    clip_norm: float | None = 1.0
    n_seeds: int = 3
    controls: tuple[str, ...] = recipe.CONTROLS


check, load, build = text_adapter.check, text_adapter.load, text_adapter.build
task, controls = text_adapter.task, text_adapter.controls

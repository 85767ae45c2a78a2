"""An adapter to one composer (composers=["mozart-16th"]) on a music model (pretrained=FOLDER).

Of the learning rates that were tried (0.01 to 0.2 for angles), these were best on the validation pieces of
Bach. Twice as many epochs are slightly better.
"""

import qnnkit
from qnnkit import data, tasks
from qnnkit.adapters import recipe


class Settings(data.Music, recipe.AdapterSettings, qnnkit.Settings):
    adapter_weights: int | None = 4000
    sequence_length: int | None = 1024
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


check, build, controls = recipe.require_base, recipe.build, recipe.controls
load, task = data.of, tasks.Music

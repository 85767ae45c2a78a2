"""The named, complete settings that notebooks and `qnnkit run` offer."""

from __future__ import annotations

from qnnkit import checks
from qnnkit.config import DataConfig, ModelConfig, RunConfig, TrainingConfig

ALL_CONTROLS = ("classical", "no_entanglement", "frozen_random")

RECIPES: dict[str, RunConfig] = {
    # The main job: real digits that ship inside scikit-learn, a minute or two on two CPU cores.
    "digits_quanv": RunConfig(
        recipe="digits_quanv",
        data=DataConfig(dataset="digits"),
        model=ModelConfig(circuit="data_reuploading", n_layers=2, stride=1, hidden=24),
        training=TrainingConfig(
            epochs=12,
            batch_size=32,
            learning_rate=1e-2,
            quantum_learning_rate=5e-2,  # 24 angles of order 1 have farther to go than the classical weights
            label_smoothing=0.1,
        ),
        n_seeds=3,
        controls=ALL_CONTROLS,
        threads=1,  # nets this small gain nothing from more, and lose tenfold on a machine that is busy
    ),
    # The same net on your own images: data_dir/<class>/*.png.
    "folder_quanv": RunConfig(
        recipe="folder_quanv",
        data=DataConfig(dataset="class_folder", image_size=16, grey=True),
        model=ModelConfig(circuit="data_reuploading", n_layers=2, stride=2, hidden=24),
        training=TrainingConfig(
            epochs=20, batch_size=32, learning_rate=1e-2, quantum_learning_rate=5e-2, label_smoothing=0.1
        ),
        n_seeds=3,
        controls=ALL_CONTROLS,
        threads=1,  # nets this small gain nothing from more, and lose tenfold on a machine that is busy
    ),
}


def recipe(name: str) -> RunConfig:
    """The settings called `name`.

    Raises:
        ValueError: No recipe has that name; the message lists them and the nearest.
    """
    return RECIPES[checks.choice("recipe", name, RECIPES)]

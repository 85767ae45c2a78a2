"""A small Llama trained from scratch on your own text: data_dir is a file or folder of texts or chats."""

import qnnkit
from qnnkit import data, models, tasks


class Settings(data.Text, models.LanguageModelSettings, qnnkit.Settings):
    sequence_length: int | None = 128
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    epochs: int = 3
    batch_size: int = 16
    learning_rate: float = 4e-3
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    warmup_epochs: float = 0.2
    clip_norm: float | None = 1.0
    controls: tuple[str, ...] = ()


load, build, task = data.of, models.language_model, tasks.Language

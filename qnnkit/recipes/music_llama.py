"""A small Llama trained from scratch on music: data_dir is a folder of MIDI by composer, or JSON of 16ths."""

import qnnkit
from qnnkit import data, models, tasks


class Settings(data.Music, models.LanguageModelSettings, qnnkit.Settings):
    sequence_length: int | None = 1024
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    epochs: int = 2
    batch_size: int = 8
    learning_rate: float = 2e-3
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    warmup_epochs: float = 0.1
    clip_norm: float | None = 1.0
    controls: tuple[str, ...] = ()


load, build, task = data.of, models.language_model, tasks.Music

"""LoRA on a model of a few billion weights (pretrained=meta-llama/Llama-3.2-3B) on an A100.

`llama_t4` and `llama_mac` are versions for smaller machines.
"""

import qnnkit
from qnnkit import data, tasks
from qnnkit.adapters import recipe


class Settings(data.Text, recipe.AdapterSettings, qnnkit.Settings):
    adapter: str = "lora"
    sequence_length: int | None = 512
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    optimizer: str = "adamw"  # as LoRA was published; moments are stored only for the adapter's weights
    learning_rate: float = 2e-4  # ten times that of full training: an adapter is small and starts at zero
    schedule: str = "cosine"  # ends smoothly, so the last epoch is usually the best
    warmup_epochs: float = 0.1  # moments of the first updates cover few batches
    clip_norm: float | None = 1.0  # an unusual block must not undo earlier updates
    epochs: int = 3  # with more, adapters begin to repeat their training text
    controls: tuple[str, ...] = ()
    base_precision: str = "bfloat16"  # fits, and is faster than unpacking 4 bits
    batch_size: int = 16
    micro_batch: int | None = 8  # for 40 GB or more: fewer, larger products
    precision: str = "bfloat16"  # has float32's range, so no scaler is needed


check, build, controls = recipe.require_base, recipe.build, recipe.controls
load, task = data.of, tasks.Language

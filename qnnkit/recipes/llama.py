"""LoRA on some billion weights (pretrained=meta-llama/Llama-3.2-3B) on a Mac, a T4 or an A100."""

from typing import Any

import qnnkit
from qnnkit import data, tasks
from qnnkit.adapters import recipe

PRESETS: dict[str, dict[str, Any]] = {
    "mac": {
        "sequence_length": 2048,
        "rank": 16,
        "batch_size": 8,
        "micro_batch": 1,  # 3 billion weights in float32 are 12.9 GB; little is left for activations
        "gradient_checkpointing": True,  # activations of one layer in place of 28, for a forward pass more
        "save_every_steps": 250,  # laptops sleep: at most so many updates are lost
        "save_every_minutes": None,  # by updates alone, so that runs are saved alike
    },
    "t4": {
        "four_bit": True,  # 16 GB hold the 4-bit weights
        "base_precision": "float16",  # 6.4 of 15 GB where bitsandbytes is missing
        "batch_size": 16,
        "micro_batch": 1,  # one block at a time, for an update of 16
        "precision": "float16",  # this GPU has no bfloat16; a scaler keeps small gradients
        "gradient_checkpointing": True,
    },
    "a100": {
        "base_precision": "bfloat16",  # they fit so, which is faster than unpacking 4 bits
        "batch_size": 16,  # as on a T4
        "micro_batch": 8,  # 40 GB or more: fewer, larger products
        "precision": "bfloat16",  # float32's range, so no scaler is needed
    },
}


class Settings(data.Text, recipe.AdapterSettings, qnnkit.Settings):
    adapter: str = "lora"
    sequence_length: int | None = 512
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    optimizer: str = "adamw"  # as LoRA was published; its moments are kept for the adapter's weights alone
    learning_rate: float = 2e-4  # ten times that of all weights: an adapter starts at no change, and is small
    schedule: str = "cosine"  # ends without a jump, so the last epoch is mostly the best
    warmup_epochs: float = 0.1  # the first updates come from moments over few batches
    clip_norm: float | None = 1.0  # one odd block must not undo the ones before
    epochs: int = 3  # adapters repeat their training text from about there on
    controls: tuple[str, ...] = ()


check, build, controls = recipe.require_base, recipe.build, recipe.controls
load, task = data.of, tasks.Language

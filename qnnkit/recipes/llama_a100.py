"""LoRA on some billion weights (pretrained=meta-llama/Llama-3.2-3B) on an A100.

`llama_t4` and `llama_mac` are the same on smaller machines.
"""

import qnnkit
from qnnkit import data, tasks
from qnnkit.adapters import recipe


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
    base_precision: str = "bfloat16"  # they fit so, which is faster than unpacking 4 bits
    batch_size: int = 16
    micro_batch: int | None = 8  # 40 GB or more: fewer, larger products
    precision: str = "bfloat16"  # float32's range, so no scaler is needed


check, build, controls = recipe.require_base, recipe.build, recipe.controls
load, task = data.of, tasks.Language

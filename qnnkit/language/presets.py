"""Training settings by machine, for LoRA on a language model of some billion weights.

Each is a dictionary of names of `Settings`, for `Settings(**PRESETS["mac"])` or as overrides of a
recipe.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "optimizer": "adamw",  # as LoRA was published; its moments are kept for the adapter's weights alone
    "learning_rate": 2e-4,  # ten times that of all weights: an adapter starts at no change, and is small
    "weight_decay": 0.0,  # the frozen weights hold an adapter near the base already
    "schedule": "cosine",  # ends without a jump, so the last epoch is mostly the best
    "warmup_epochs": 0.1,  # the first updates come from moments over few batches
    "clip_norm": 1.0,  # one odd block must not undo the ones before
    "epochs": 3,  # adapters repeat their training text from about there on
}

PRESETS: dict[str, dict[str, Any]] = {
    "mac": {
        **_COMMON,
        "batch_size": 1,  # 3 billion weights in float32 are 12.9 GB; little is left for activations
        "accumulation": 8,  # the update is that of 8 blocks all the same
        "precision": "float32",  # MPS has no gain from half precision in training, and loses digits
        "gradient_checkpointing": True,  # activations of one layer in place of 28, for a forward pass more
        "save_every_steps": 250,  # laptops sleep: at most so many updates are lost
        "save_every_minutes": None,  # by updates alone, so that runs are saved alike
        "keep_checkpoints": 2,  # one may be cut short, the other is whole
    },
    "t4": {
        **_COMMON,
        "batch_size": 1,  # 16 GB beside the 4-bit weights
        "accumulation": 16,  # the update is that of 16 blocks
        "precision": "float16",  # this GPU has no bfloat16; a scaler keeps small gradients
        "gradient_checkpointing": True,  # as above
        "save_every_minutes": 5.0,  # Colab takes the machine back at any time
        "keep_checkpoints": 2,  # as above
    },
    "a100": {
        **_COMMON,
        "batch_size": 8,  # 40 GB or more: fewer, larger products
        "accumulation": 2,  # the same 16 blocks an update as on a T4
        "precision": "bfloat16",  # float32's range, so no scaler is needed
        "gradient_checkpointing": False,  # activations fit
        "save_every_minutes": 5.0,  # Colab, as above
        "keep_checkpoints": 2,  # as above
    },
}

BASES: dict[str, dict[str, Any]] = {
    "mac": {},
    # 3 billion weights in float16 take 6.4 of 15 GB, where bitsandbytes is missing
    "t4": {"four_bit": True, "base_precision": "float16"},
    "a100": {"base_precision": "bfloat16"},  # they fit so, which is faster than unpacking 4 bits
}
"""How the frozen weights are kept on that machine: settings of `ModelConfig`."""

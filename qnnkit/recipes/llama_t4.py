"""LoRA on a model of a few billion weights (pretrained=meta-llama/Llama-3.2-3B) on a T4, in 4 bits."""

from qnnkit.recipes import llama_a100


class Settings(llama_a100.Settings):
    four_bit: bool = True  # 16 GB hold the 4-bit weights
    base_precision: str = "float16"  # 6.4 of 15 GB if bitsandbytes is missing
    micro_batch: int | None = 1  # one block at a time, for an update of 16
    precision: str = "float16"  # this GPU has no bfloat16; a scaler preserves small gradients
    gradient_checkpointing: bool = True


check, build, controls = llama_a100.check, llama_a100.build, llama_a100.controls
load, task = llama_a100.load, llama_a100.task

"""LoRA on a model of a few billion weights (pretrained=meta-llama/Llama-3.2-3B) on a Mac, in float32."""

from qnnkit.recipes import llama_a100


class Settings(llama_a100.Settings):
    sequence_length: int | None = 2048
    rank: int = 16
    base_precision: str = "float32"
    precision: str = "float32"
    batch_size: int = 8
    micro_batch: int | None = 1  # 3 billion float32 weights take 12.9 GB; little is left for activations
    gradient_checkpointing: bool = True  # activations of one layer instead of 28, for one more forward pass
    save_every_steps: int | None = 250  # laptops sleep: at most this many updates are lost
    save_every_minutes: float | None = None  # only by updates, so that all runs save at the same ones


check, build, controls = llama_a100.check, llama_a100.build, llama_a100.controls
load, task = llama_a100.load, llama_a100.task

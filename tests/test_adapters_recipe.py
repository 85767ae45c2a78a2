"""The settings of adapters on large models, by machine."""

from __future__ import annotations

from qnnkit import recipes
from qnnkit.recipes import llama


def test_presets_are_settings_by_machine():
    mac, t4, a100 = (recipes.settings(f"llama_{name}") for name in ("mac", "t4", "a100"))
    assert set(llama.PRESETS) == {"mac", "t4", "a100"}
    for one in (mac, t4, a100):
        assert one.schedule == "cosine" and one.warmup_epochs > 0 and one.keep_checkpoints == 2
        assert (one.adapter, one.optimizer, one.controls, one.clip_norm) == ("lora", "adamw", (), 1.0)
    assert (mac.batch_size, mac.micro_batch, mac.precision, mac.save_every_steps) == (8, 1, "float32", 250)
    assert (mac.sequence_length, mac.rank) == (2048, 16)
    assert mac.gradient_checkpointing and mac.save_every_minutes is None and not mac.four_bit
    assert (t4.precision, t4.four_bit, t4.base_precision) == ("float16", True, "float16")
    assert (a100.precision, a100.base_precision, a100.four_bit) == ("bfloat16", "bfloat16", False)
    assert t4.sequence_length == a100.sequence_length == 512 and t4.save_every_minutes == 5.0
    assert t4.batch_size == a100.batch_size == 16 and (t4.micro_batch, a100.micro_batch) == (1, 8)

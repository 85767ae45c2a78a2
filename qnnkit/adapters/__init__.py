"""Adapters of language models whose LoRA weights are computed by circuits, and controls of equal size.

In `quantum_peft`, circuits compute the `lora_A` and `lora_B` of PEFT's own LoRA layers, and gradients flow to
the angles. A saved or merged one is an ordinary LoRA adapter, which PEFT loads without qnnkit. `adapt` adds
an adapter, of any method in `names()`; `load` adds a saved one.

    >>> from torch import nn
    >>> from qnnkit import adapters
    >>> model = adapters.adapt(nn.Sequential(nn.Linear(8, 8)), "quantum_peft", targets=["0"])
    >>> adapters.count(model)
    {'weights': 34, 'angles': 30}
"""

from qnnkit.adapters.attach import adapt, base_of, config, count, load, names, once, size
from qnnkit.adapters.sources import QUANTUM_PEFT, QuantumPeftConfig

__all__ = [
    "QUANTUM_PEFT", "QuantumPeftConfig", "adapt", "base_of", "config", "count", "load", "names", "once",
    "size",
]  # fmt: skip

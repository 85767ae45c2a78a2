"""Quantum adapters for language models, registered with PEFT, and their controls of equal parameter count.

`quantum_peft` and `qpa` generate a low-rank update by a circuit, and merge into the frozen weights; in
`quantum_token` every token passes a circuit. PEFT knows them as soon as qnnkit and peft are both imported, in
either order: `get_peft_model`, `save_pretrained` and `PeftModel.from_pretrained` work as for its own methods.

    >>> from torch import nn
    >>> from qnnkit import adapters
    >>> model = adapters.adapt(nn.Sequential(nn.Linear(8, 8)), "quantum_peft", targets=["0"])
    >>> adapters.count(model)
    {'weights': 34, 'angles': 30}
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qnnkit.adapters.later import NAMES, register, register_later

if TYPE_CHECKING:
    from qnnkit.adapters.attach import adapt, load
    from qnnkit.adapters.methods.qpa import QPAConfig
    from qnnkit.adapters.methods.quantum_peft import QuantumPeftConfig
    from qnnkit.adapters.methods.quantum_token import QuantumTokenConfig
    from qnnkit.adapters.sizes import config, count, names, size, table
    from qnnkit.adapters.targets import linear_layers, matched

__all__ = [
    "NAMES",
    "adapt",
    "config",
    "count",
    "names",
    "size",
    "table",
    "load",
    "register",
    "register_later",
    "linear_layers",
    "matched",
    "QuantumPeftConfig",
    "QPAConfig",
    "QuantumTokenConfig",
]

_HOMES = {
    "adapt": "attach",
    "config": "sizes",
    "count": "sizes",
    "names": "sizes",
    "size": "sizes",
    "table": "sizes",
    "load": "attach",
    "linear_layers": "targets",
    "matched": "targets",
    "QuantumPeftConfig": "methods.quantum_peft",
    "QPAConfig": "methods.qpa",
    "QuantumTokenConfig": "methods.quantum_token",
}

register_later()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qnnkit.adapters' has no attribute {name!r}")
    register()
    return getattr(import_module(f"qnnkit.adapters.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

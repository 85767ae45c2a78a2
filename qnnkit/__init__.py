"""qnnkit: a notebook-first research kit for hybrid quantum-classical neural networks.

The names below load what they need when first used: importing qnnkit costs and changes nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnkit.circuits import CIRCUITS
    from qnnkit.data import DATASETS
    from qnnkit.layers import QuantumLayer, Quanv2d, controls
    from qnnkit.recipes import RECIPES
    from qnnkit.runs import open_run
    from qnnkit.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "QuantumLayer",
    "Quanv2d",
    "Settings",
    "controls",
    "open_run",
    "CIRCUITS",
    "DATASETS",
    "RECIPES",
]

_HOMES = {
    "QuantumLayer": "layers",
    "Quanv2d": "layers",
    "Settings": "settings",
    "controls": "layers",
    "open_run": "runs",
    "CIRCUITS": "circuits",
    "DATASETS": "data",
    "RECIPES": "recipes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qnnkit' has no attribute {name!r}")
    return getattr(import_module(f"qnnkit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

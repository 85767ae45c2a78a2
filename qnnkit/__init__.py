"""qnnkit: a research kit for hybrid quantum-classical neural networks in PyTorch and PennyLane.

Where to start:

* **One layer.** `QuantumLayer` replaces `pennylane.qnn.TorchLayer` and runs the whole batch at once;
  `Quanv2d` slides a circuit over images. `circuits.build(name, ...)` makes a QNode of `CIRCUITS`.
* **A fair comparison.** `controls(model)` returns the same net with its circuit replaced, frozen, unentangled
  or removed.
* **A run.** `open_run("runs/first", "digits_quanv")` opens a folder for a recipe (one of `RECIPES`, a file or
  a class of yours); `qnnkit run --recipe digits_quanv --run-dir runs/first` trains it, its controls included,
  and writes the report. Start your own recipe with a subclass of `Settings`, or with `qnnkit new`.
* **Parts.** `circuits`, `layers` and `models` make nets, `adapters` tune language models; `data` reads and
  splits, `tasks` score, `train` is the loop; `recipes`, `runs` and `batch` keep what is trained, `report`
  compares it (`stats`) and draws it (`plots`); `gradients`, `noise` and `inspector` look inside; `measure`
  predicts time, memory and cost, `device` lists what can compute here. Import a part by name, and ask it what
  it has: `from qnnkit import gradients; help(gradients)`. `qnnkit --help` lists the commands.

A net and its controls, whose sizes follow from a batch that the net has processed:

>>> import torch
>>> from qnnkit import QuantumLayer, circuits, controls
>>> net = QuantumLayer(*circuits.build("strongly_entangling", n_qubits=4, n_layers=2))
>>> net(torch.zeros(8, 4)).shape
torch.Size([8, 4])
>>> controls(net)["classical"](torch.zeros(8, 4)).shape
torch.Size([8, 4])

The names below load what they need when they are first used, so importing qnnkit costs and changes nothing.
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

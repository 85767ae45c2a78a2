"""What it costs to run a QNode's Python at every call: python -m benchmarks.queueing.

Steps forward and backward of QuantumLayer, and of TorchLayer on default.qubit (backprop), take turns on one
thread; medians in microseconds. A function that reads only its arguments and constants is pure: qnnkit traces
it once. A queued one reads an attribute of an object, so its Python runs at every call. The column
`explained` has what `explain()` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pennylane as qp
import torch

from benchmarks import record
from benchmarks.quanvolutions import gates, strong
from qnnkit import QuantumLayer, circuits

BATCHES, SECONDS = (64, 8192), 20.0


def queued(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same circuit, found through an attribute of an object at every call."""
    net = SimpleNamespace(circuit=function)

    def circuit(inputs, weights):
        return net.circuit(inputs, weights)

    return circuit


def qnodes() -> dict[str, tuple[qp.QNode, dict[str, tuple[int, ...]]]]:
    found = {f"qnnkit's {name}": circuits.build(name, n_layers=3) for name in circuits.ANSAETZE}
    for name, function, n_angles in (("template", strong, 3), ("48 gates", gates, 2)):
        for label, own in {name: function, f"{name}, queued": queued(function)}.items():
            qnode = qp.QNode(own, circuits.make_device("default.qubit", range(4)))
            found[label] = qnode, {"weights": (3, 4, n_angles)}
    return found


def step(layer: torch.nn.Module, inputs: torch.Tensor) -> None:
    torch.autograd.grad(layer(inputs).sum(), [inputs, *layer.parameters()])


def rows() -> Iterator[dict[str, Any]]:
    for batch in BATCHES:
        inputs = torch.rand(batch, 4, requires_grad=True)
        own = {name: QuantumLayer(*qnode) for name, qnode in qnodes().items()}
        steps = {name: partial(step, layer, inputs) for name, layer in own.items()}
        for name, qnode in qnodes().items():
            steps[f"{name}, TorchLayer"] = partial(step, qp.qnn.TorchLayer(*qnode), inputs)
        spent = record.beside(steps, SECONDS)
        for name, layer in own.items():
            times = {"qnnkit_us": 1e3 * spent[name], "torchlayer_us": 1e3 * spent[f"{name}, TorchLayer"]}
            yield {"qnode": name, "batch": batch, **times, "explained": layer.explain()}


def ratios(found: pd.DataFrame) -> Iterator[str]:
    """A line for each batch size: queued over pure, and default.qubit over queued."""
    for batch, times in found.set_index("qnode").groupby("batch"):
        own, other = times["qnnkit_us"], times["torchlayer_us"]
        yield f"batch {batch}, template: queued / pure {own['template, queued'] / own['template']:.2f}"
        yield f"batch {batch}, 48 gates: default.qubit / queued {(other / own)['48 gates, queued']:.2f}"


if __name__ == "__main__":
    print(*ratios(pd.read_csv(record.run(__doc__, queueing=rows) / "queueing.csv")), sep="\n")

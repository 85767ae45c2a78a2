"""What the watch over a QNode's Python costs at every call: python -m benchmarks.guards.

Prints, for some QNodes, the time of `Watch.holds` and of finding the program with it, and of a whole step at
batch 64 beside them; medians, in microseconds.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import pennylane as qp
import torch

from qnnkit import QuantumLayer, circuits

ROUNDS = 2000


def microseconds(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


class Net(torch.nn.Module):
    """A user's module, of which the QNode reads the mode."""


def closure() -> tuple[qp.QNode, dict[str, tuple[int, ...]]]:
    """A user's QNode that reads a dictionary, an attribute and an array."""
    settings, offsets, net = {"scale": 0.5}, torch.zeros(4), Net()

    @qp.qnode(circuits.make_device("default.qubit", range(4)))
    def circuit(inputs, weights):
        angles = settings["scale"] * inputs + offsets
        qp.AngleEmbedding(angles if net.training else inputs, wires=range(4))
        qp.StronglyEntanglingLayers(weights, wires=range(4))
        return [qp.expval(qp.Z(wire)) for wire in range(4)]

    return circuit, {"weights": (3, 4, 3)}


def main() -> None:
    named = {name: circuits.build(name, n_layers=3) for name in circuits.ANSAETZE}
    named["a closure over a dict, a net and a tensor"] = closure()
    print("| QNode | holds, us | find, us | step at batch 64, us |\n|---|---|---|---|")
    for name, circuit in named.items():
        layer, inputs = QuantumLayer(*circuit), torch.rand(64, 4, requires_grad=True)

        def step(layer: QuantumLayer = layer, inputs: torch.Tensor = inputs) -> None:
            torch.autograd.grad(layer(inputs).sum(), [inputs, *layer.parameters()])

        step()
        programs = layer._programs
        assert programs is not None and programs.states, layer.explain()
        runs = programs.states[0].watch.holds, functools.partial(programs.find, inputs), step
        found = (microseconds(run) for run in runs)
        print(f"| {name} | " + " | ".join(f"{each:.1f}" for each in found) + " |")


if __name__ == "__main__":
    main()

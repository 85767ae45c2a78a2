"""What the watch over a QNode's Python costs at every call: python -m benchmarks.guards.

For some QNodes: the time of `Watch.holds`, of finding the program with it, and of a whole step at batch 64;
medians, in microseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pennylane as qp
import torch

from benchmarks import record
from qnnkit import QuantumLayer, circuits

ROUNDS = 2000


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


def rows() -> Iterator[dict[str, Any]]:
    named = {name: circuits.build(name, n_layers=3) for name in circuits.ANSAETZE}
    named["a closure over a dict, a net and a tensor"] = closure()
    for name, circuit in named.items():
        layer, inputs = QuantumLayer(*circuit), torch.rand(64, 4, requires_grad=True)

        def step(layer: QuantumLayer = layer, inputs: torch.Tensor = inputs) -> None:
            torch.autograd.grad(layer(inputs).sum(), [inputs, *layer.parameters()])

        step()
        programs = layer._programs
        assert programs is not None and programs.states, layer.explain()
        timed = {
            "holds_us": programs.states[0].watch.holds,
            "find_us": functools.partial(programs.find, inputs),
            "step_64_us": step,
        }
        yield {"qnode": name} | {unit: 1e3 * record.milliseconds(run, ROUNDS) for unit, run in timed.items()}


if __name__ == "__main__":
    record.run(__doc__, guards=rows)

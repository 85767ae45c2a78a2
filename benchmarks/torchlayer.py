"""Where PennyLane's TorchLayer is wrong and QuantumLayer is right: python -m benchmarks.torchlayer.

Each row is a small program that runs with three layers: `Exact`, TorchLayer and QuantumLayer. All take half a
minute; the script writes docs/results/torchlayer.csv and prints the table of the pages.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pennylane as qml
import torch
from torch import Tensor, nn

from benchmarks import record
from benchmarks.quanvolutions import strong
from qnnkit import QuantumLayer

INPUTS, WEIGHTS = torch.linspace(-1, 1, 20).reshape(5, 4), torch.linspace(0.1, 2, 24).reshape(2, 4, 3)


class Exact(nn.Module):
    """The correct values: the QNode in float64, by backprop, with the current weights in torch."""

    def __init__(self, qnode: qml.QNode, shapes: dict[str, Any], start: dict[str, Tensor]):
        super().__init__()
        self.qnode = qml.QNode(qnode.func, qnode.device, diff_method="backprop")
        self.weights = nn.Parameter(start["weights"].double())

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.stack(tuple(self.qnode(inputs.double(), self.weights)), dim=-1)


def make(kind: Any, form: type = list, shots: int | None = None, method: str = "backprop") -> Any:
    """A layer around a QNode that returns four expectation values, as a list or as a tuple."""

    @qml.qnode(qml.device("default.qubit", wires=4, seed=0), diff_method=method)
    def circuit(inputs, weights):
        return form(strong(inputs, weights))

    return kind(qml.set_shots(circuit, shots), {"weights": WEIGHTS.shape}, {"weights": WEIGHTS.clone()})


# --- what a row measures: its docstring is the row's name --------------------------------------------------


def second_derivative(kind: Any) -> float:
    """second derivative, `diff_method="adjoint"`"""
    x = torch.tensor(0.3, requires_grad=True)
    outputs = make(kind, method="adjoint")(torch.tanh(x * INPUTS + 0.2))
    [slope] = torch.autograd.grad(outputs[:, 0].sum(), x, create_graph=True)
    return torch.autograd.grad(slope, x)[0].item()


def functional_jacobian(kind: Any) -> float:
    """`torch.func.jacrev` of `functional_call`: largest entry"""
    layer = make(kind)
    outputs = torch.func.jacrev(lambda w: torch.func.functional_call(layer, {"weights": w}, INPUTS))
    return outputs(layer.weights.detach()).max().item()


def parametrized(kind: Any) -> float:
    """output with weights parametrized by `nn.Tanh()`"""
    layer = make(kind)
    nn.utils.parametrize.register_parametrization(layer, "weights", nn.Tanh())
    return layer(INPUTS)[0, 0].item()


def assigned(kind: Any) -> float:
    """output after `layer.weights = nn.Parameter(...)`"""
    layer = make(kind)
    layer.weights = nn.Parameter(2 * layer.weights.detach())
    return layer(INPUTS)[0, 0].item()


def returned(kind: Any) -> str:
    """output shape: tuple of four `expval`, batch of 5"""
    return str(tuple(make(kind, form=tuple)(INPUTS).shape))


def saved(kind: Any) -> float:
    """output after `torch.save` and `torch.load`, `@qml.qnode`"""
    layer, file = make(kind), io.BytesIO()
    if kind is not Exact:
        torch.save(layer, file)
        layer = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    return layer(INPUTS)[0, 0].item()


def with_shots(kind: Any) -> float:
    """gradient before the circuit, 100 shots, `parameter-shift`"""
    shift = torch.zeros(4, requires_grad=True)
    layer = make(kind, shots=100, method="parameter-shift")
    layer.generator = torch.Generator().manual_seed(0)
    layer(INPUTS + shift)[:, 3].mean().backward()
    return shift.grad[0].item()  # pyright: ignore[reportOptionalSubscript]


CASES = (second_derivative, functional_jacobian, parametrized, assigned, returned, saved, with_shots)


def cell(case: Callable[[Any], Any], kind: Any) -> str:
    """The result of a case with a layer, or the name of the error that it raises."""
    try:
        value = case(kind)
    except Exception as error:
        return f"raises {type(error).__name__}"
    return f"{value:.4f}" if isinstance(value, float) else value


def rows() -> Iterator[dict[str, Any]]:
    kinds = (Exact, qml.qnn.TorchLayer, QuantumLayer)
    for case in CASES:
        yield {"what": case.__doc__} | {kind.__name__: cell(case, kind) for kind in kinds}


def table(frame: pd.DataFrame) -> str:
    """The rows in Markdown, as on the pages."""
    shown = frame[["what", "Exact", "TorchLayer", "QuantumLayer"]]
    return record.markdown(["", "right", "`TorchLayer`", "`QuantumLayer`"], shown.to_numpy())


if __name__ == "__main__":
    print(table(pd.read_csv(record.run(__doc__, torchlayer=rows) / "torchlayer.csv")))

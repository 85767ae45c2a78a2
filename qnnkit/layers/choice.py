"""Which backend runs a circuit, in which form: measured once for a circuit, a size of batch, a machine."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pennylane as qp
import torch
from torch import Tensor

from qnnkit import circuits, measure
from qnnkit.simulator import Fused
from qnnkit.simulator.execute import beside_the_graph

DEVICES = ("default.qubit", "lightning.qubit", "lightning.gpu")
MOST_WIRES = 12
"""A device that keeps the state after every gate for its backward pass is not tried with more."""

MARGIN = 1.5
"""On a busy machine a single measurement may be off by that much."""


def seconds(
    qnode: qp.QNode, program: Fused, rows: Tensor, weights: dict[str, Tensor], input_name: str, backward: bool
) -> dict[str, float]:
    """Seconds for a batch of about this size by backend, measured once and then remembered.

    Args:
        qnode: The circuit.
        program: Its fused program.
        rows: Inputs of shape (batch, n_features).
        weights: By name.
        input_name: Of the QNode's argument that takes the inputs.
        backward: Whether gradients are wanted, too.
    """
    question = {
        "circuit": program.fingerprint,
        "batch": size_class(rows),
        "dtype": str(rows.dtype),
        "backward": backward,
        "pennylane": qp.__version__,
        **measure.machine(rows.device),
    }
    return measure.once(question, lambda: _race(qnode, program, rows, weights, input_name, backward))


def best(times: dict[str, float]) -> str:
    """The backend of the least time; a device has to be clearly faster than the program."""
    least = min(times, key=lambda backend: times[backend])
    return least if times[least] * MARGIN < times["batched"] else "batched"


def size_class(rows: Tensor) -> int:
    """The next power of two: batches of one class are taken to run alike."""
    return 1 << (len(rows) - 1).bit_length()


def _race(
    qnode: qp.QNode, program: Fused, rows: Tensor, weights: dict[str, Tensor], input_name: str, backward: bool
) -> dict[str, float]:
    """A device that one sample rules out is not tried with more."""
    rows = rows.detach()

    def timed(run: Callable[..., Any], rows: Tensor, rounds: int) -> float:
        given = {name: weight.detach().to(rows) for name, weight in {input_name: rows, **weights}.items()}
        leaves = {name: tensor.clone().requires_grad_(backward) for name, tensor in given.items()}

        def once() -> None:
            values = run(**leaves)
            parts = values if isinstance(values, list | tuple) else [values]
            total = sum(torch.as_tensor(part).abs().sum() for part in parts)
            if isinstance(total, Tensor) and total.requires_grad:
                torch.autograd.grad(total, list(leaves.values()), allow_unused=True)

        with torch.set_grad_enabled(backward), beside_the_graph():
            return measure.seconds(once, rows.device, rounds=rounds)

    found = {"batched": timed(lambda **given: program(given.pop(input_name), [*given.values()]), rows, 9)}
    for device, moved in _moved(qnode, program.n_wires):
        with contextlib.suppress(Exception):  # what a device cannot run, it does not win
            if device != "default.qubit":  # one sample after the other, from host memory
                found[device] = timed(moved, rows[:1].cpu(), 1) * len(rows)
                continue
            least = timed(moved, rows[:1], 1)  # all samples take no less
            found[device] = least if least > found["batched"] else timed(moved, rows, 1)
    return found


def on_device(qnode: qp.QNode, device: str) -> qp.QNode:
    """The QNode on a PennyLane device, by the differentiation method that suits it.

    Raises:
        Exception: What PennyLane raises where that device does not work.
    """
    method = "backprop" if device == "default.qubit" else "adjoint"
    return qnode.update(device=circuits.make_device(device, qnode.device.wires), diff_method=method)


def columns(values: Any, x: Tensor) -> Tensor:
    """What a QNode returns for inputs `x`, in their precision; of several measurements, a column a number."""
    if not isinstance(values, Tensor):
        values = torch.hstack([value.reshape(len(x), -1) for value in values] if x.ndim > 1 else list(values))
    return values.to(x.dtype.to_complex() if values.is_complex() else x.dtype)


def agree(program: Fused, moved: qp.QNode, rows: Tensor, weights: dict[str, Tensor], input_name: str) -> bool:
    """Whether a device gives the program's values for this very batch."""
    near = rows if moved.device.name == "default.qubit" else rows.cpu()
    with torch.no_grad():
        expected = program(rows, [weight.to(rows) for weight in weights.values()])
        try:
            given = {name: weight.to(near) for name, weight in weights.items()}
            values = columns(moved(**{input_name: near}, **given), near).to(rows.device)
        except Exception:
            return False
    return values.shape == expected.shape and bool(torch.allclose(values, expected, atol=1e-4))


def _moved(qnode: qp.QNode, n_wires: int) -> Iterator[tuple[str, qp.QNode]]:
    """The QNode on every PennyLane device that works here."""
    for device in DEVICES:
        if device == "default.qubit" and n_wires > MOST_WIRES:
            continue
        try:
            moved = on_device(qnode, device)
        except Exception:  # not installed, or without its hardware: `qnnkit doctor` says which
            continue
        yield device, moved

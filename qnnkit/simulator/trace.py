"""A circuit as a fixed list of gates and a graph of their angles, whatever Python queues it."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pennylane as qp
import torch
from pennylane.operation import Operator
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from qnnkit.simulator.array_api import as_outside
from qnnkit.simulator.gates import constant, is_unitary
from qnnkit.simulator.graph import (
    ROWS,
    SHARED,
    Angles,
    Graph,
    Node,
    NotFollowed,
    NotFusable,
    Recorder,
    Traced,
    agree,
)
from qnnkit.simulator.readout import Readout, readout
from qnnkit.simulator.structure import Unkeyable, operator_key, value_key

ONE_AT_A_TIME = threading.RLock()
MOST_WIRES = 24
"""Up to here `backend="auto"` runs the program; the QNode's own device beyond.

No PennyLane device was measured to win below. Forward and backward on 2 cores, `lightning.qubit` (adjoint)
took 6 times as long as the program at 12 wires, 14 at 18, 10 at 20 (batch 1, 3 layers), 24 at 22 and 12 at 24
(batch 1, 1 layer), and 25 to 65 times as long at batch 64 and 12 to 18 wires.
"""


@dataclass(frozen=True)
class Argument:
    """A tensor that a circuit is computed from."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_rows: bool
    """Whether each sample has its own."""
    batched: bool
    """Whether axis 0 counts the samples."""

    @property
    def of_one(self) -> tuple[int, ...]:
        """Its shape for a batch of one."""
        return (1, *self.shape[1:]) if self.batched else self.shape


@dataclass(frozen=True)
class Gate:
    """An operation with at most one angle."""

    operation: Operator
    """As it was queued; its matrix is asked for again at other angles."""
    wires: tuple[int, ...]
    """Positions of its wires, most significant first."""
    angle: Node | None
    """None for a constant gate."""

    @property
    def on_rows(self) -> bool:
        """Whether the angle differs from sample to sample."""
        return self.angle is not None and bool(self.angle.sources & ROWS)


@dataclass(frozen=True)
class Prepared:
    """The state that a circuit begins with, as amplitudes of some wires; the others are |0>."""

    wires: tuple[int, ...]
    amplitudes: Node | np.ndarray
    """Of shape (2**n,), or (1, 2**n) in a batch."""

    @property
    def is_complex(self) -> bool:
        if isinstance(self.amplitudes, Node):
            return self.amplitudes.shadow.is_complex()
        return bool(np.iscomplexobj(self.amplitudes))


@dataclass(frozen=True)
class Trace:
    """What a circuit does with arguments of one form."""

    arguments: tuple[Argument, ...]
    prepared: Prepared | None
    gates: tuple[Gate, ...]
    readout: Readout
    wires: tuple[Any, ...]
    """The circuit's wire labels by position; position 0 is the most significant bit."""
    nodes: list[Node]
    """All recorded operations, the arguments first."""
    kinds: frozenset[type]
    """Classes of the operators and measurements that were met on the way."""

    def graph(self, wanted: list[Node]) -> Graph:
        return Graph(self.nodes, len(self.arguments), wanted)

    def angles(self, wanted: list[Node], *, on_rows: bool) -> Angles:
        """Angles as a function of the arguments that each sample has, or of those that all share."""
        shapes = [each.of_one for each in self.arguments]
        free = [i for i, each in enumerate(self.arguments) if each.on_rows == on_rows]
        return Angles(self.graph(wanted), shapes, free, ROWS if on_rows else SHARED)


Record = Callable[[Sequence[Traced]], tuple[Sequence[Operator], Sequence[Any]]]
"""Gives operators and measurements for traced arguments."""


def trace(
    record: Record,
    arguments: Sequence[Argument],
    device_wires: Any,
    device: torch.device | str = "cpu",
) -> Trace:
    """Runs Python on tensors without values: on one sample, and, of a batch, on several to compare.

    Args:
        record: The Python.
        arguments: What it takes.
        device_wires: Wires of the PennyLane device, or None.
        device: Of the arguments.

    Raises:
        NotFusable: The circuit depends on values or on the batch as a whole, or holds what no unitary
            program can express.
    """
    batch = next((each.shape[0] for each in arguments if each.batched), 1)
    runs, kinds = [], set()
    with apart():
        for size in {1: None, batch: None}:
            with Recorder(torch.device(device)) as recorder:
                traced = [
                    recorder.argument(
                        (size, *each.shape[1:]) if each.batched else each.shape,
                        each.dtype,
                        ROWS if each.on_rows else SHARED,
                    )
                    for each in arguments
                ]
                operations, measurements = record(traced)
                gates = [each for whole in operations for each in elementary(whole, kinds)]
            if recorder.refusal is not None:  # it may have been caught
                raise NotFollowed(recorder.refusal)
            runs.append((recorder.nodes, gates, measurements))
        nodes, gates, measurements = runs[0]
        if batch > 1:
            _compare(runs[0], runs[1], len(arguments))
        wires = _wires(device_wires, gates, measurements)
        if len(wires) > MOST_WIRES:
            gib = 2 ** (len(wires) + 3) / 2**30
            raise NotFusable(f"a state of {len(wires)} wires takes {gib:.3g} GiB for every sample")
        prepared, assembled = _assembled(gates, wires, any(each.batched for each in arguments))
        measured = readout(tuple(measurements), wires)
    kinds |= {type(each) for each in measurements} | {type(m.obs) for m in measurements if m.obs is not None}
    return Trace(tuple(arguments), prepared, assembled, measured, wires, nodes, frozenset(kinds))


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """No transform, mode, autocast, gradient or recording of the caller holds inside.

    Raises:
        NotFusable: Something inside raised that, or anything else.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(ONE_AT_A_TIME)
        stack.enter_context(temporarily_clear_interpreter_stack())
        stack.enter_context(as_outside())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(qp.QueuingManager.stop_recording())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if (traced := torch._C._get_tracing_state()) is not None:  # of torch.jit
            torch._C._set_tracing_state(None)
        state = np.random.get_state()  # noqa: NPY002  # RandomLayers seeds it
        try:
            yield
        except NotFusable:
            raise
        except Exception as error:
            reason = f"it could not be followed without values ({type(error).__name__}: {error})"
            raise NotFollowed(reason.splitlines()[0]) from error
        finally:
            if traced is not None:
                torch._C._set_tracing_state(traced)
            np.random.set_state(state)  # noqa: NPY002


# --- gates ----------------------------------------------------------------------------------------


def is_elementary(operation: Operator) -> bool:
    """Whether a gate is taken as it is: a matrix on few wires, with at most one number as its angle."""
    template = type(operation).__module__.startswith("pennylane.templates")
    if isinstance(operation, qp.StatePrep | qp.GlobalPhase):
        return True  # a global phase would be decomposed into nothing
    if not operation.has_matrix or template:
        return not operation.has_decomposition
    if len(operation.wires) > 4 and operation.has_decomposition:
        return False
    numbers = [value for value in operation.data if isinstance(value, torch.Tensor)]
    return not numbers or (operation.num_params == 1 and numbers[0].ndim < 2)


def elementary(operation: Operator, kinds: set[type]) -> Iterator[Operator]:
    """The elementary gates of an operator; notes the classes met on the way in `kinds`."""
    kinds.add(type(operation))
    base = operation
    while isinstance(base := getattr(base, "base", None), Operator):
        kinds.add(type(base))
    if is_elementary(operation):
        yield operation
        return
    if isinstance(operation, qp.QubitUnitary | qp.DiagonalQubitUnitary) and not is_unitary(
        constant(operation)
    ):
        raise NotFusable(f"the matrix of {operation.name} is not unitary")
    for each in operation.decomposition():
        yield from elementary(each, kinds)


def _compare(one: tuple, many: tuple, n_arguments: int) -> None:
    """Raises NotFusable unless a batch is the circuit of one sample, for each of its samples."""
    keys, graphs = [], []
    for nodes, gates, _ in (one, many):
        leaves: list[Any] = []
        try:
            key = [operator_key(gate, leaves) for gate in gates]
            traced = [leaf.node for leaf in leaves if isinstance(leaf, Traced)]
            keys.append((key, [None if isinstance(leaf, Traced) else value_key(leaf) for leaf in leaves]))
        except Unkeyable as error:
            raise NotFusable(f"it holds {error}, which cannot be compared") from error
        graphs.append(Graph(nodes, n_arguments, traced))
    if keys[0] != keys[1] or not agree(*graphs):
        raise NotFusable("its Python mixes samples of the batch, or depends on its size")


def _wires(device_wires: Any, operations: Sequence[Operator], measurements: Sequence[Any]) -> tuple[Any, ...]:
    """The labels in the order of the state's bits."""
    used = qp.wires.Wires.all_wires([operation.wires for operation in operations])
    every = qp.wires.Wires.all_wires([used, *(measurement.wires for measurement in measurements)])
    on_order = any(
        isinstance(each, qp.measurements.ProbabilityMP | qp.measurements.StateMP)
        and each.obs is None
        and not each.wires
        for each in measurements
    )
    if device_wires is not None:
        return tuple(wire for wire in device_wires if on_order or wire in every)
    standard = set(every) == set(range(len(every))) and set(used) == set(range(len(used)))
    if on_order and not standard:
        raise NotFusable(
            "its device has no wires, and their labels are not 0, 1, 2, ...: give the device its wires"
        )
    return tuple(sorted(every)) if standard else tuple(every)


def _assembled(
    operations: Sequence[Operator], wires: tuple[Any, ...], is_batched: bool
) -> tuple[Prepared | None, tuple[Gate, ...]]:
    """The state that a circuit begins with, and its gates."""
    place = {wire: i for i, wire in enumerate(wires)}

    def require_shape(value: Traced, operation: Operator, shape: tuple[int, ...]) -> Node:
        # alone, PennyLane would take one row for a batch
        if tuple(value.shape) not in ([shape, (1, *shape)] if is_batched else [shape]):
            raise NotFusable(f"what {operation.name} takes is no single number for each sample")
        return value.node

    prepared, operations, gates = None, list(operations), []
    if operations and isinstance(operations[0], qp.StatePrep):
        operation = operations.pop(0)
        [value] = operation.data
        if isinstance(value, Traced):
            value = require_shape(value, operation, (2 ** len(operation.wires),))
        else:
            value = np.asarray(operation.state_vector()).ravel()
        prepared = Prepared(tuple(place[wire] for wire in operation.wires), value)
    for operation in operations:
        _require_unitary(operation)
        traced = [value for value in operation.data if isinstance(value, Traced)]
        angle = require_shape(traced[0], operation, ()) if traced else None
        gates.append(Gate(operation, tuple(place[wire] for wire in operation.wires), angle))
    return prepared, tuple(gates)


def _require_unitary(operation: Operator) -> None:
    if isinstance(operation, qp.measurements.MeasurementProcess | qp.operation.Channel):
        raise NotFusable(f"{operation.name} is no unitary gate")
    if not operation.has_matrix or isinstance(operation, qp.operation.StatePrepBase):
        raise NotFusable(f"{operation.name} has no matrix")
    if any(isinstance(value, Traced) for value in operation.data) and operation.num_params != 1:
        raise NotFollowed(f"{operation.name} cannot be taken apart into gates of one angle")

"""A QNode's Python, run at every call, as a structure that selects a program and numbers that it takes.

PennyLane's queue collects the operators. Their structure is everything that determines the result except the
numbers, and selects a program. The numbers are the program's arguments; torch differentiates the arithmetic
that produced them. The structure is a dictionary key: classes, wires, hyperparameters and constants by value.
Objects whose content cannot be read have no key.
"""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import operator
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pennylane as qp
import torch
from pennylane.measurements import MeasurementProcess
from pennylane.operation import Operator
from torch import Tensor

from qnnkit.simulator.gates import NotFusable, constant, is_wrapped, with_numbers

CONTROLLED = {
    qp.CNOT, qp.CY, qp.CZ, qp.CH, qp.CSWAP, qp.Toffoli, qp.CCZ, qp.CRX, qp.CRY, qp.CRZ, qp.CRot,
    qp.ControlledPhaseShift,
}  # fmt: skip
"""Controlled gates that their class alone identifies."""
NESTED = qp.ops.CompositeOp | qp.ops.SymbolicOp
BY_ITSELF = {int, str, bool, bytes, type(None), type, complex, types.BuiltinFunctionType}
"""Types of values that are their own key; not float, because nan differs from itself."""
PLAIN_OBSERVABLES = (qp.X, qp.Y, qp.Z, qp.Identity)
METHODS = (
    "__init__", "matrix", "compute_matrix", "decomposition", "compute_decomposition", "eigvals",
    "compute_eigvals", "compute_diagonalizing_gates", "execute", "preprocess_transforms",
    "setup_execution_config", "process_state",
)  # fmt: skip
"""Methods that determine what an operator, a measurement or a device computes."""
NUMBERS = (float, int, np.floating, np.integer)


@dataclass
class Structure:
    """A circuit's structure, with its numbers listed separately."""

    key: tuple
    operations: list[Operator]
    measurements: list[Any]
    leaves: list[Tensor | float] = field(default_factory=list)
    """Numbers that the program takes, in the order of the operations."""
    batched: list[bool] = field(default_factory=list)
    """For each leaf, whether axis 0 is the batch."""
    shapes: list[list[tuple[int, ...]]] = field(default_factory=list)
    """For each operation, its leaves' shapes without the batch; empty if its numbers are constant."""
    batch: int | None = None
    """Number of samples; None if nothing differs between them."""


def queue(qnode: qp.QNode, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """The tape that the QNode's Python queues, and what it returns."""
    with qp.queuing.AnnotatedQueue() as queued:
        result = qnode.func(**arguments)
    return qp.tape.QuantumScript.from_queue(queued, shots=qnode.shots), result


def replayed(qnode: qp.QNode, tape: Any, result: Any) -> qp.QNode:
    """A copy of the QNode that queues the recorded tape, so that its Python runs only once per call."""

    def again(*arguments: Any, **named: Any) -> Any:
        for each in (*tape.operations, *tape.measurements):
            qp.QueuingManager.append(each)
        return result

    twin = copy.copy(qnode)
    twin.func = again
    return twin


def transformed(qnode: qp.QNode, tape: Any) -> tuple[Sequence[Any], Callable[[Any], Any] | None]:
    """The tapes that the QNode's transforms make of one, and their postprocessing, None if there is none."""
    pipeline = qnode.compile_pipeline
    if not pipeline:
        return [tape], None
    if pipeline.has_final_transform or pipeline.is_informative:
        raise NotFusable("one of its transforms returns something other than its measurements")
    with qp.QueuingManager.stop_recording():
        tapes, finish = pipeline((tape,))
    if {each.shots for each in tapes} != {tape.shots}:
        raise NotFusable("its transforms change the number of shots, or leave no circuit")
    origins, mark = [str(each.tape_transform.__module__) for each in pipeline], object()
    is_known = all(origin.startswith(("pennylane", "qnnkit")) for origin in origins)
    with contextlib.suppress(Exception):  # raised by real postprocessing; a user's may differ at every call
        if is_known and len(tapes) == 1 and finish((mark,))[0] is mark:
            return tapes, None
    return tapes, lambda results: finish(results)[0]


def single(qnode: qp.QNode, arguments: Mapping[str, Any]) -> Any:
    """The single tape that the QNode's Python and transforms make.

    Raises:
        NotFusable: A transform computes with the measured values.
    """
    tapes, finish = transformed(qnode, queue(qnode, arguments)[0])
    if finish is not None:
        raise NotFusable("one of its transforms computes with the measured values")
    return tapes[0]


def structure(tape: Any, in_parts: set[str]) -> Structure:
    """Splits a tape into its structure and its numbers.

    Args:
        tape: A tape of PennyLane, with the numbers of this call.
        in_parts: Names of operators that are decomposed with the numbers of this call.

    Raises:
        NotFusable: Something in the tape has no fused form.
    """
    result = Structure((), [], tape.measurements)
    keys: list[Any] = []
    for operation, key, leaves in _taken(tape.operations, in_parts):
        result.operations.append(operation)
        result.shapes.append([])
        keys.append((key, *(_leaf(result, *leaf) for leaf in leaves)))
    measured = tuple(map(measurement_key, tape.measurements))
    result.key = tuple(keys), measured, result.batch if result.batch in (None, 1) else 2
    return result


def _leaf(result: Structure, leaf: Any, ndim: int) -> Hashable:
    """Adds a number, or an array of `ndim` axes per sample, to the leaves; returns its part of the key."""
    if isinstance(leaf, NUMBERS):
        result.leaves.append(float(leaf))
        result.batched.append(False)
        result.shapes[-1].append(())
        return None
    if not isinstance(leaf, Tensor):
        if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "iufc":
            raise NotFusable(f"a gate takes a {type(leaf).__name__}")
        leaf = torch.as_tensor(leaf)
    if leaf.is_complex() and not isinstance(result.operations[-1], qp.StatePrep):
        raise NotFusable("one of its angles is complex")
    is_batched = leaf.ndim == ndim + 1
    if (is_batched and result.batch not in (None, len(leaf))) or leaf.ndim > ndim + 1:
        raise NotFusable("its gates have batches of different sizes")
    if is_batched:
        result.batch = len(leaf)
    result.leaves.append(leaf)
    result.batched.append(is_batched)
    result.shapes[-1].append(tuple(leaf.shape[is_batched:]))
    return result.shapes[-1][-1], is_batched, leaf.is_complex()


Taken = tuple[Operator, Hashable, Iterable[tuple[Any, int]]]
"""An operator, its key, and those numbers that are arguments, each with its number of axes per sample."""


@functools.cache
def _is_simple(kind: type[Operator]) -> bool:
    """Whether a class holds only numbers that are angles, or arrays of angles in a template."""
    is_nested = kind._flatten is not Operator._flatten or issubclass(kind, NESTED)
    return is_pennylanes(kind) and (kind in CONTROLLED or not is_nested) and not _is_matrix(kind)


@functools.cache
def _is_matrix(kind: type[Operator]) -> bool:
    """Whether a class takes arrays that are not a template's angles, such as a matrix."""
    dims: Any = kind.ndim_params  # a property if it differs between operators
    takes_arrays = kind.__module__.startswith("pennylane.templates") or issubclass(kind, qp.StatePrep)
    return isinstance(dims, tuple) and any(dims) and not takes_arrays


def _taken(operations: Sequence[Operator], in_parts: set[str]) -> Iterator[Taken]:
    """The operators with their keys and numbers; others are decomposed with the numbers of this call.

    Raises:
        NotFusable: The numbers of a matrix are not constant, or the operator is unknown.
    """
    for operation in operations:
        if not isinstance(operation, Operator):
            raise NotFusable(f"{type(operation).__name__} is not a unitary gate")
        if any(each.hyperparameters.get("seed", 0) is None for each in within(operation)):
            raise NotFusable(f"{operation.name} has no seed, so that each call draws other gates")
        try:
            taken = None if operation.name in in_parts else _whole(operation)
        except Unkeyable:
            taken = None
        if taken is None and operation.has_matrix and _is_constant(operation):
            if any(is_changed(type(each)) for each in within(operation)):
                raise NotFusable(f"{operation.name} is not an unmodified PennyLane operator")
            with qp.QueuingManager.stop_recording():
                taken = _whole(qp.QubitUnitary(constant(operation), operation.wires))
        if taken is None:
            yield from _taken(_decomposed(operation, in_parts), in_parts)
        else:
            yield taken


def _whole(operation: Operator) -> Taken | None:
    """An operator undecomposed, if its numbers are angles or constants and all its parts are known."""
    kind, leaves = type(operation), []
    if _is_simple(kind):
        settings = None if kind in CONTROLLED else operation.hyperparameters
        key = kind, operation.wires.labels, value_key(settings) if settings else None
        return operation, key, zip(operation.data, operation.ndim_params, strict=True)
    if not is_known(operation):
        return None
    key, inner, data = operator_key(operation, leaves), operation, list(operation.data)
    while isinstance(inner, qp.ops.Adjoint | qp.ops.Controlled | qp.ops.Pow):
        inner = inner.base
    is_evolution = isinstance(inner, qp.ops.Evolution)
    is_sum = isinstance(inner, NESTED) and not is_evolution
    if is_sum or _is_matrix(type(inner)):
        if _is_constant(operation):
            is_plain = is_sum or not any(isinstance(each, Tensor) for each in leaves)
            return (operation, (key, *map(value_key, leaves)), ()) if is_plain else None
        if not is_sum:
            raise NotFusable(f"the matrix of {operation.name} depends on its arguments")
        return None
    constants = [value_key(leaf) for leaf in leaves if not (data and leaf is data[0] and [data.pop(0)])]
    dims = [0] if is_evolution else operation.ndim_params  # an Evolution counts a batch as an axis
    return operation, (key, *constants), zip(operation.data, dims, strict=True)


def _decomposed(operation: Operator, in_parts: set[str]) -> Sequence[Operator]:
    """The decomposition of an operator, with its numbers."""
    trusted = is_pennylanes(type(operation)) if operation.name in in_parts else is_known(operation)
    with qp.QueuingManager.stop_recording():
        try:
            if operation.has_decomposition and (trusted or not operation.has_matrix):
                return operation.decomposition()
        except Exception as error:
            raise NotFusable(f"{operation.name} cannot be decomposed") from error
    raise NotFusable(f"{operation.name} has no decomposition that holds for all its numbers")


def is_known(operation: Operator) -> bool:
    """Whether an operator and its parts have PennyLane's own classes."""
    return all(_is_pennylanes(type(each)) for each in within(operation))


def within(operation: Operator) -> list[Operator]:
    """An operator and the operators that it is made of."""
    parts = [operation]
    for each in parts:  # grows on the way
        inner = getattr(each, "base", None), *(getattr(each, "operands", None) or ())
        parts += [part for part in inner if isinstance(part, Operator)]
    return parts


def _is_constant(operation: Operator) -> bool:
    tensors = [value for value in operation.data if isinstance(value, Tensor)]
    return operation.batch_size is None and not any(t.requires_grad or is_wrapped(t) for t in tensors)


def rebound(circuit: Structure, *leaves: Sequence[Any]) -> list[Operator]:
    """The operations with new numbers as leaves; the numbers may come in several lists."""
    numbers = itertools.chain(*leaves)
    pairs = zip(circuit.operations, circuit.shapes, strict=True)
    return [with_numbers(each, [next(numbers) for _ in shapes]) if shapes else each for each, shapes in pairs]


def check(qnode: qp.QNode, circuit: Structure) -> None:
    """Checks that PennyLane would run such a circuit, with the numbers of the first sample.

    Raises:
        NotFusable: PennyLane would raise an error.
    """
    pairs = zip(circuit.leaves, circuit.batched, strict=True)
    first = [leaf[0] if isinstance(leaf, Tensor) and is_batched else leaf for leaf, is_batched in pairs]
    # Inside torch.func some devices cannot read numbers: arrays of norm 1 replace them.
    wrapped = [isinstance(leaf, Tensor) and is_wrapped(leaf) for leaf in first]
    first = [np.full(x.shape, x.numel() ** -0.5) if w else x for x, w in zip(first, wrapped, strict=True)]
    result = list(circuit.measurements) if len(circuit.measurements) > 1 else circuit.measurements[0]
    with qp.QueuingManager.stop_recording(), torch.enable_grad():
        one = qp.tape.QuantumScript(rebound(circuit, first), circuit.measurements)
        twin = replayed(qnode, one, result)
        twin._compile_pipeline = qp.CompilePipeline()  # already applied
        try:
            qp.workflow.construct_batch(twin, level="device")()
        except Exception as error:  # PennyLane then raises it itself
            raise NotFusable(f"PennyLane raises {type(error).__name__}") from error


# --- keys -----------------------------------------------------------------------------------------


class Unkeyable(Exception):
    """The content of a value cannot be read."""


def value_key(value: Any) -> Hashable:
    """A key of a value by its content; types count, so that 1, 1.0 and True differ."""
    kind = type(value)
    if kind in BY_ITSELF or isinstance(value, type):
        return kind, value
    if kind is float:
        return kind, repr(value)
    if kind in (tuple, list, qp.wires.Wires):
        return kind, *map(value_key, value)
    if kind is dict:
        return kind, *((value_key(k), value_key(v)) for k, v in value.items())
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Tensor):
        return _tensor_key(value)
    if isinstance(value, Operator):
        leaves: list[Any] = []
        return operator_key(value, leaves), *map(value_key, leaves)
    raise Unkeyable(f"a {kind.__name__}")


def _tensor_key(value: Tensor) -> Hashable:
    """A key of a constant tensor by its numbers."""
    if value.requires_grad:
        raise NotFusable("one of its constants requires a gradient")
    if type(value) not in (Tensor, torch.nn.Parameter) or is_wrapped(value):
        raise Unkeyable("a tensor without numbers")
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return value.dtype, tuple(value.shape), plain.view(torch.uint8).numpy().tobytes()


def operator_key(operation: Operator, leaves: list[Any]) -> Hashable:
    """A key of an operator without its numbers, which are appended to `leaves` as in `operation.data`."""
    data, metadata = operation._flatten()
    return type(operation), value_key(metadata), *(_part_key(part, leaves) for part in data)


def _part_key(part: Any, leaves: list[Any]) -> Hashable:
    if isinstance(part, Operator):
        return operator_key(part, leaves)
    if isinstance(part, tuple | list):
        return tuple(_part_key(each, leaves) for each in part)
    leaves.append(part)
    return None


def measurement_key(measurement: MeasurementProcess) -> Hashable:
    """A key of a measurement, including the numbers of its observable."""
    observable = measurement.obs
    if getattr(measurement, "mv", None) is not None:
        raise NotFusable("it has mid-circuit measurements")
    if observable is not None and type(observable) in PLAIN_OBSERVABLES:
        return type(measurement), type(observable), observable.wires.labels
    keys = value_key(observable), value_key(getattr(measurement, "_eigvals", None))
    return type(measurement), *keys, measurement.wires.labels


# --- PennyLane's classes, unless their methods were replaced ----------------------------------------


def is_pennylanes(kind: type) -> bool:
    """Whether a class and the methods that determine what it computes are PennyLane's own."""
    if not kind.__module__.startswith("pennylane"):
        return False
    modules = (getattr(getattr(kind, name, None), "__module__", None) for name in METHODS)
    return all(module is None or module.startswith(("pennylane", "builtins")) for module in modules)


_is_pennylanes = functools.cache(is_pennylanes)


def is_changed(kind: type) -> bool:
    """Whether such a method of one of PennyLane's classes was replaced."""
    return kind.__module__.startswith("pennylane") and not is_pennylanes(kind)


class Methods:
    """The methods of some classes, as they are at present.

    Args:
        kinds: The classes.
    """

    def __init__(self, kinds: Iterable[type]):
        self.kinds = list(set(kinds))
        names_of = ([name for name in METHODS if hasattr(kind, name)] for kind in self.kinds)
        self.getters = [operator.attrgetter("__class__", *names) for names in names_of]
        # Methods of classes that are not PennyLane's never hold.
        self.methods = [is_pennylanes(k) and get(k) for get, k in zip(self.getters, self.kinds, strict=True)]

    def hold(self) -> bool:
        """Whether none of the methods was replaced; takes about a microsecond."""
        return list(map(operator.call, self.getters, self.kinds)) == self.methods

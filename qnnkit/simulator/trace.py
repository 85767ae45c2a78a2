"""A user's QNode, whatever its Python, as a fixed list of gates and a graph of their angles."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pennylane as qp
import scipy.special
import torch
from torch import Tensor

from qnnkit import words
from qnnkit.simulator import gates as forms
from qnnkit.simulator.graph import INPUTS, WEIGHTS, Graph, Node, NotFusable, Recorder, Traced, aten, merge
from qnnkit.simulator.readout import Readout, readout

T = TypeVar("T")
_ONE_AT_A_TIME = threading.Lock()
EXACT_METHODS = ("best", "backprop", "adjoint", "parameter-shift", "hadamard", "device")
"""Those that give the gradient itself."""
STATE_NORM = 1e-5 + 1e-10
"""PennyLane leaves a state as it is whose norm is that close to 1."""


@dataclass(frozen=True)
class Gate:
    """An operation with at most one angle."""

    operation: qp.operation.Operator
    """As it was queued; its matrix is asked for again at other angles."""
    wires: tuple[int, ...]
    """Positions of its wires, most significant first."""
    angle: Node | None
    """None for a constant gate."""

    @property
    def on_inputs(self) -> bool:
        """Whether the angle differs from sample to sample."""
        return self.angle is not None and (bool(self.angle.sources & INPUTS) or self.angle.axis is not None)


@dataclass(frozen=True)
class Prepared:
    """The state that a circuit begins with, as amplitudes of some wires; the others are |0>."""

    wires: tuple[int, ...]
    amplitudes: Node | np.ndarray
    """Of shape (batch, 2**n) if it depends on inputs, else (2**n,)."""

    @property
    def is_complex(self) -> bool:
        if isinstance(self.amplitudes, Node):
            return self.amplitudes.shadow.is_complex()
        return bool(np.iscomplexobj(self.amplitudes))


@dataclass(frozen=True)
class Trace:
    """What a QNode does for inputs of one form."""

    prepared: Prepared | None
    gates: tuple[Gate, ...]
    readout: Readout
    wires: tuple[Any, ...]
    """The QNode's wire labels by position; position 0 is the most significant bit."""
    as_list: bool
    """Whether the QNode returns several measurements, as a list or a tuple."""
    nodes: list[Node]
    """All recorded operations, the arguments first."""
    n_arguments: int
    signature: tuple
    """Equal for two traces that are the same program."""

    def graph(self, wanted: list[Node]) -> Graph:
        return Graph(self.nodes, self.n_arguments, wanted)


def apart(make: Callable[[], T]) -> T:
    """What `make` gives in a thread of its own: no autocast or transform of the caller holds there.

    Raises:
        NotFusable: It raised that, or anything else.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            return thread.submit(contextvars.copy_context().run, make).result()
        except NotFusable:
            raise
        except Exception as error:
            raise NotFusable(
                f"its Python could not be followed without values ({words.error_line(error)})"
            ) from error


def trace(
    qnode: qp.QNode,
    inputs_shape: tuple[int, ...],
    weight_shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype = torch.float32,
    input_name: str = "inputs",
    device: torch.device | str = "cpu",
    changed: Callable[[], bool] = lambda: False,
) -> Trace:
    """Runs the QNode's Python on tensors without values, at two sizes of batch, and compares.

    Args:
        qnode: Takes `input_name` and the names of `weight_shapes`.
        inputs_shape: (batch, n_features), or (n_features,).
        weight_shapes: Shapes by name, in the order in which the graph takes the weights.
        dtype: Of inputs and weights.
        input_name: Name of the argument that takes the data.
        device: Of inputs and weights.
        changed: Whether the Python has changed what it reads; asked after the first run.

    Raises:
        NotFusable: The circuit depends on values or on the batch as a whole, or holds what no unitary
            program can express.
    """
    batch = inputs_shape[0] if len(inputs_shape) == 2 else 1
    sizes = batch, batch if batch == 1 else 2 if batch > 2 else 3
    records, n = [], len(inputs_shape) - 1
    with _quietly():
        for i, size in enumerate(sizes):
            if i and changed():
                raise NotFusable("its Python changes what it reads")
            text = _other_text() if i else contextlib.nullcontext()
            with text, Recorder(torch.device(device)) as recorder:  # the graph takes the inputs first
                shape = (size,) * n + inputs_shape[n:]
                inputs = recorder.argument(shape, dtype, INPUTS, 0 if batch > 1 else None)
                shapes = weight_shapes.items()
                weights = {name: recorder.argument(shape, dtype, WEIGHTS) for name, shape in shapes}
                found = _circuit(qnode, {input_name: inputs, **weights}, recorder)
            records.append((recorder.nodes, *found))
    (nodes, tape, as_list), (others, again, _) = records
    merge(nodes, others, sizes)
    wires = _wires(qnode, tape)
    measured = readout(tuple(tape.measurements), wires)
    signature = _signature(tape, nodes, measured)
    if signature != _signature(again, others, readout(tuple(again.measurements), wires)):
        raise NotFusable(
            "its Python makes another circuit each time it runs, for another size of the batch, "
            "or where numbers are printed in another way"
        )
    computed = [(str(node.func), _plain(node.leaves, nodes)) for node in nodes]
    whole = signature, as_list, computed, wires
    return Trace(*_assembled(tape, wires, nodes), measured, wires, as_list, nodes, len(weights) + 1, whole)


def _circuit(qnode: qp.QNode, arguments: dict[str, Any], recorder: Recorder) -> tuple[Any, bool]:
    """The tape of elementary gates for traced arguments, and whether the QNode returns a list."""
    if qnode.diff_method not in EXACT_METHODS:
        raise NotFusable(f"its gradients are asked for by diff_method={qnode.diff_method}")
    try:
        with qp.queuing.AnnotatedQueue() as queue:
            result = qnode.func(**arguments)
        tape = qp.tape.QuantumScript.from_queue(queue, qnode.shots)
    except NotFusable:
        raise
    except Exception:
        if recorder.refusal is not None:  # somebody made another error of it
            raise NotFusable(recorder.refusal) from None
        raise
    pipeline = qnode.compile_pipeline
    returned = list(result) if isinstance(result, list | tuple) else [result]
    if [id(each) for each in returned] != [id(each) for each in tape.measurements]:
        raise NotFusable("it returns something else than its measurements, in their order")
    if pipeline.has_final_transform or pipeline.is_informative:
        raise NotFusable("a transform of it returns something else than its measurements")
    mark = object()
    tapes, finish = pipeline((tape,)) if pipeline else ((tape,), lambda results: results[0])
    if len(tapes) != 1 or _of(finish, mark) is not mark:
        raise NotFusable("a transform of it computes with the measured values")
    [tape], _ = qp.transforms.decompose(tapes[0], stopping_condition=is_elementary)
    if recorder.refusal is not None:
        raise NotFusable(recorder.refusal)
    if tape.shots or qnode.shots:
        raise NotFusable("it has a finite number of shots")
    return tape, isinstance(result, list | tuple)


def _of(finish: Callable[..., Any], mark: object) -> Any:
    """What a transform makes of a result that is no number; None where it computes with it."""
    try:
        found = finish((mark,))
    except Exception:
        return None
    return found[0] if isinstance(found, list | tuple) and len(found) == 1 else found


def _wires(qnode: qp.QNode, tape: Any) -> tuple[Any, ...]:
    """The labels in the order of the state's bits."""
    if qnode.device.wires is not None:
        label = list(qnode.device.wires)
        return (*label, *(wire for wire in tape.wires if wire not in label))
    on_order = any(
        isinstance(each, qp.measurements.ProbabilityMP | qp.measurements.StateMP)
        and each.obs is None
        and not each.wires
        for each in tape.measurements
    )
    used = qp.wires.Wires.all_wires([operation.wires for operation in tape.operations])
    standard = set(tape.wires) == set(range(len(tape.wires))) and set(used) == set(range(len(used)))
    if on_order and not standard:
        raise NotFusable(
            "its device has no wires, and their labels are not 0, 1, 2, ...: give the device its wires"
        )
    return tuple(sorted(tape.wires)) if standard else tuple(tape.wires)


def _assembled(tape: Any, wires: tuple[Any, ...], nodes: list[Node]) -> tuple[Any, tuple[Gate, ...]]:
    """The state that a tape begins with, and its gates."""
    place = {wire: i for i, wire in enumerate(wires)}

    def require_shape(value: Traced, operation: qp.operation.Operator, shape: tuple[int, ...]) -> Node:
        node = value.node
        alone = nodes[0].shadow.ndim == 1  # PennyLane would take one row for a batch
        one = [shape] if alone else [shape, (1, *shape)]
        expected = one if node.axis is None else [(value.shape[0], *shape)]
        if tuple(value.shape) not in expected or node.axis not in (None, 0):
            raise NotFusable(f"what {operation.name} takes is no single number for each sample")
        return node

    prepared, operations, gates = None, list(tape.operations), []
    if operations and isinstance(operations[0], qp.StatePrep):
        operation = operations.pop(0)
        [value], settings = operation.data, operation.hyperparameters
        if not isinstance(value, Traced):
            value = np.asarray(operation.state_vector()).ravel()
        elif settings["validate_norm"] and not settings["normalize"] and settings["pad_with"] is None:
            raise NotFusable("PennyLane checks the norm of its states; normalize=True needs no check")
        else:
            value = require_shape(value, operation, (2 ** len(operation.wires),))
        prepared = Prepared(tuple(place[wire] for wire in operation.wires), value)
    for operation in operations:
        _require_unitary(operation)
        traced = [value for value in operation.data if isinstance(value, Traced)]
        angle = require_shape(traced[0], operation, ()) if traced else None
        gates.append(Gate(operation, tuple(place[wire] for wire in operation.wires), angle))
    return prepared, tuple(gates)


# --- what makes two traces the same program ---------------------------------------------------------


def _signature(tape: Any, nodes: list[Node], measured: Readout) -> tuple:
    operations = []
    for operation in tape.operations:
        matrix = None
        if operation.has_matrix and not isinstance(operation, qp.operation.StatePrepBase):
            traced = any(isinstance(value, Traced) for value in operation.data)
            matrix = forms.at(operation, 0.7) if traced else forms.constant(operation)
        operations.append((operation.name, tuple(operation.wires), *_plain([*operation.data, matrix], nodes)))
    tables = _plain([part for flip in sorted(measured.flips.items()) for part in flip], nodes)
    return tuple(operations), tables, tuple(measured.shapes)


def _plain(leaves: list[Any], nodes: list[Node]) -> tuple:
    """What can be compared: arrays by their bytes, nodes by their places."""

    def plain(leaf: Any) -> Any:
        leaf = leaf.node if isinstance(leaf, Traced) else leaf
        if isinstance(leaf, Node):  # a column of ones, such as, stands in no list
            place = next((i for i, node in enumerate(nodes) if node is leaf), None)
            return (str(leaf.func), _plain(leaf.leaves, nodes)) if place is None else place
        if isinstance(leaf, Tensor):
            return leaf.dtype, leaf.shape, leaf.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return leaf.tobytes() if isinstance(leaf, np.ndarray | np.generic) else repr(leaf)

    return tuple(map(plain, leaves))


# --- gates ----------------------------------------------------------------------------------------


def is_elementary(operation: qp.operation.Operator) -> bool:
    """Whether a gate is taken as it is: a matrix on few wires, with at most one number as its angle."""
    template = type(operation).__module__.startswith("pennylane.templates")
    if isinstance(operation, qp.BasisState) and isinstance(operation.data[0], Traced):
        raise NotFusable("PennyLane looks at the bits that it prepares")
    if isinstance(operation, qp.StatePrep | qp.GlobalPhase):
        return True  # a global phase would be decomposed into nothing
    if not operation.has_matrix or template:
        return not operation.has_decomposition
    if len(operation.wires) > 4 and operation.has_decomposition:
        return False
    numbers = [getattr(value, "ndim", 0) <= isinstance(value, Tensor) for value in operation.data]
    return operation.num_params == len(numbers) < 2 and all(numbers)


def _require_unitary(operation: qp.operation.Operator) -> None:
    if isinstance(operation, qp.measurements.MeasurementProcess | qp.operation.Channel):
        raise NotFusable(f"{operation.name} is no unitary gate")
    if not operation.has_matrix or isinstance(operation, qp.operation.StatePrepBase):
        raise NotFusable(f"{operation.name} has no matrix")
    if any(isinstance(value, Traced) for value in operation.data) and operation.num_params != 1:
        raise NotFusable(f"{operation.name} cannot be taken apart into gates of one angle")


# --- around a trace -------------------------------------------------------------------------------


@contextlib.contextmanager
def _other_text() -> Iterator[None]:
    """Arrays and tensors are printed in another way, so that a circuit which depends on that is another."""
    of_arrays = {"formatter": {"all": lambda number: f"~{number}"}, "legacy": "1.13"}
    of_tensors = {"precision": 1, "threshold": 0, "edgeitems": 1, "linewidth": 9, "sci_mode": True}
    with np.printoptions(**of_arrays), torch._tensor_str.printoptions(**of_tensors):
        yield


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Records no gradients, shows no warnings, draws nothing; traced tensors have no values for PennyLane.

    What NumPy and SciPy do about a division by zero and the like is the user's setting: here it is an error.
    """
    known = qp.math.is_abstract

    def is_abstract(tensor: Any, like: Any = None) -> bool:
        if not isinstance(tensor, Traced):
            return known(tensor, like)
        caller = sys._getframe(1)
        if caller.f_globals["__name__"] == "pennylane.ops.functions.equal":
            raise tensor.recorder.refuse("its Python asks whether two operators are equal")
        # by this norm a state is about to be divided
        is_preparing = caller.f_code is qp.StatePrep._preprocess.__code__
        if is_preparing and tensor.node.func is aten.linalg_vector_norm.default:
            tensor.node.instead = norm_or_one
        return True

    errors = np.errstate(all="raise"), scipy.special.errstate(all="raise")
    with torch.no_grad(), warnings.catch_warnings(), _ONE_AT_A_TIME, errors[0], errors[1]:
        warnings.simplefilter("ignore")
        qp.math.is_abstract, state = is_abstract, np.random.get_state()  # noqa: NPY002
        try:
            yield
        finally:
            qp.math.is_abstract = known
            np.random.set_state(state)  # noqa: NPY002  # RandomLayers seeds it


def norm_or_one(states: Tensor, *given: Any, **named: Any) -> Tensor:
    """What PennyLane divides states by: their norms, or 1 where all of them are normalised already."""
    norm = aten.linalg_vector_norm.default(states, *given, **named)
    return torch.where(((norm - 1).abs() <= STATE_NORM).all(), torch.ones_like(norm), norm)

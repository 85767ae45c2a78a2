"""A user's QNode, whatever its Python, as a fixed list of gates and a torch graph of their angles."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pennylane as qp
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

_TRACING_ONE_AT_A_TIME = threading.Lock()
T = TypeVar("T")
UNLIKELY = 100_003
"""Length of a batch that no axis of weights or features has by chance."""


class NotFusable(Exception):
    """Why a circuit has no fused program, in words that complete "because ..."."""


def apart(make: Callable[[], T]) -> T:
    """What `make` gives in a thread of its own: no autocast or transform of the caller holds there.

    Raises:
        NotFusable: It raised that, or anything else.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            return thread.submit(make).result()
        except NotFusable:
            raise
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise NotFusable(f"it could not be compiled ({type(error).__name__}: {reason})") from error


@dataclass(frozen=True)
class Gate:
    """An operation with at most one angle."""

    operation: qp.operation.Operator
    """As it was queued; its matrix is asked for again at other angles."""
    wires: tuple[int, ...]
    """Positions of its wires, most significant first."""
    angle: int | None
    """Index into the angles that the graph gives; None for a constant gate."""
    on_inputs: bool
    """Whether the angle depends on the inputs, and so differs from sample to sample."""


@dataclass(frozen=True)
class Prepared:
    """The state that a circuit begins with, as amplitudes of some wires; the others are |0>."""

    wires: tuple[int, ...]
    output: int
    """Which output of the graph it is, of shape (batch, 2**n) if it depends on inputs, else (2**n,)."""
    on_inputs: bool
    is_complex: bool


@dataclass(frozen=True)
class Trace:
    """What a QNode does for inputs of one form."""

    prepared: Prepared | None
    gates: tuple[Gate, ...]
    measurements: tuple[Any, ...]
    wires: tuple[Any, ...]
    """The QNode's wire labels by position; position 0 is the most significant bit."""
    as_list: bool
    """Whether the QNode returns several measurements, as a list or a tuple."""
    graph: fx.GraphModule
    """(inputs, *weights) -> angles, of shape (batch,) if they depend on inputs, else ()."""

    @property
    def batched(self) -> bool:
        """Whether the inputs it takes are of shape (batch, n_features)."""
        return next(iter(self.graph.graph.nodes)).meta["val"].ndim == 2


def trace(qnode: qp.QNode, inputs: Tensor, weights: dict[str, Tensor], input_name: str = "inputs") -> Trace:
    """Runs the QNode's Python once on symbolic tensors.

    Args:
        qnode: Takes `input_name` and the names of `weights`.
        inputs: Example of shape (batch, n_features), or (n_features,).
        weights: Examples, by name.

    Raises:
        NotFusable: The circuit depends on values, or holds what no unitary program can express.
    """
    names, seen = list(weights), {}

    @functools.wraps(qnode.func)
    def function(*given: Any, **named: Any) -> Any:
        seen["result"] = qnode.func(*given, **named)  # a list, or a single measurement: no tape tells
        return seen["result"]

    watched = copy.copy(qnode)  # with the transforms that were applied to it
    watched.func = function

    def run(inputs: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        tape = qp.workflow.construct_tape(watched, level="user")(
            **{input_name: inputs}, **dict(zip(names, weights, strict=True))
        )
        [tape], _ = qp.transforms.decompose(tape, stopping_condition=is_elementary)
        angles, gates, operations = [], [], list(tape.operations)
        if operations and isinstance(operations[0], qp.StatePrep):
            angles.append(_amplitudes(seen.setdefault("prepared", operations.pop(0))))
        elif operations and _is_traced_basis_state(operations[0]):
            operations[:1] = _flips(operations[0], inputs.dtype)
        for operation in operations:
            angle = None
            _require_unitary(operation)
            traced = [value for value in operation.data if isinstance(value, Tensor)]
            if traced:
                angle = len(angles)
                angles.append(traced[0])
            gates.append((operation, angle))
        seen.update(tape=tape, gates=gates, as_list=isinstance(seen.pop("result"), list | tuple))
        return tuple(angles)

    if inputs.ndim == 2:  # no other axis may have its length: equal lengths would share a symbol
        inputs = inputs.new_full((UNLIKELY, inputs.shape[1]), 0.1)
    try:
        with _quietly():
            mode = "symbolic" if inputs.ndim == 2 else "fake"  # without a batch no length varies
            graph = make_fx(run, tracing_mode=mode, _allow_non_fake_inputs=True)(inputs, *weights.values())
    except NotFusable:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise NotFusable(
            f"its Python could not be followed without values ({type(error).__name__}: {reason})"
        ) from error
    first = next(iter(graph.graph.nodes)).meta["val"]
    if inputs.ndim == 2:
        guards = first.fake_mode.shape_env.guards
        if any(first.shape[0].node.expr in guard.expr.free_symbols for guard in guards):
            raise NotFusable("its Python depends on the size of the batch")
    for node in graph.graph.nodes:  # a constant made in the QNode is lifted; one from outside is not
        lifted = all("lift_fresh" in str(user.target) for user in node.users)
        if node.op == "get_attr" and not lifted:
            raise NotFusable("it uses a tensor from outside, which may change or ask for a gradient")
    return _assemble(qnode, graph, seen, inputs.ndim == 2)


def _assemble(qnode: qp.QNode, graph: fx.GraphModule, seen: dict[str, Any], batched: bool) -> Trace:
    tape = seen["tape"]
    if tape.shots:
        raise NotFusable("it has a finite number of shots")
    label = list(qnode.device.wires or tape.wires)
    label += [wire for wire in tape.wires if wire not in label]
    place = {wire: i for i, wire in enumerate(label)}
    on_inputs = _depends_on_inputs(graph)
    [output] = [node for node in graph.graph.nodes if node.op == "output"]

    def require_shape(index: int, operation: qp.operation.Operator, shape: tuple[int, ...]) -> None:
        expected = (UNLIKELY, *shape) if batched and on_inputs[index] else shape
        if tuple(int(length) for length in output.args[0][index].meta["val"].shape) != expected:
            raise NotFusable(f"what {operation.name} takes is no single number for each sample")

    prepared, gates = None, []
    if (operation := seen.get("prepared")) is not None:
        wires = tuple(place[wire] for wire in operation.wires)
        require_shape(0, operation, (2 ** len(wires),))
        is_complex = output.args[0][0].meta["val"].is_complex()
        prepared = Prepared(wires, 0, on_inputs[0], is_complex)
    for operation, angle in seen["gates"]:
        if angle is not None:
            require_shape(angle, operation, ())
        wires = tuple(place[wire] for wire in operation.wires)
        gates.append(Gate(operation, wires, angle, angle is not None and on_inputs[angle]))
    return Trace(prepared, tuple(gates), tuple(tape.measurements), tuple(label), seen["as_list"], graph)


def _depends_on_inputs(graph: fx.GraphModule) -> list[bool]:
    """For each angle, whether the first placeholder reaches it."""
    reached, first = set(), True
    outputs: list[bool] = []
    for node in graph.graph.nodes:
        if node.op == "placeholder" and first:
            reached.add(node)
            first = False
        elif node.op == "output":
            outputs = [angle in reached for angle in node.args[0]]
        elif any(argument in reached for argument in node.all_input_nodes) and _is_value(node):
            reached.add(node)
    return outputs


def _is_value(node: fx.Node) -> bool:
    """False for sizes: a tensor made in the size of the batch does not depend on what is in it."""
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(part, Tensor) for part in parts)


def is_elementary(operation: qp.operation.Operator) -> bool:
    """Whether a gate is taken as it is: a matrix on few wires, with at most one number as its angle."""
    template = type(operation).__module__.startswith("pennylane.templates")
    if isinstance(operation, qp.StatePrep | qp.GlobalPhase) or _is_traced_basis_state(operation):
        return True  # a global phase would be decomposed into nothing
    if not operation.has_matrix or template:
        return not operation.has_decomposition
    if len(operation.wires) > 4 and operation.has_decomposition:
        return False
    return operation.num_params == 0 or (operation.num_params == 1 and _is_scalar(operation.data[0]))


def _is_scalar(value: Any) -> bool:
    return getattr(value, "ndim", 0) <= 1 and not (
        hasattr(value, "ndim") and value.ndim == 1 and not isinstance(value, Tensor)
    )


def _require_unitary(operation: qp.operation.Operator) -> None:
    if isinstance(operation, qp.measurements.MeasurementProcess | qp.operation.Channel):
        raise NotFusable(f"{operation.name} is no unitary gate")
    if not operation.has_matrix or isinstance(operation, qp.operation.StatePrepBase):
        raise NotFusable(f"{operation.name} has no matrix")
    if any(isinstance(value, Tensor) for value in operation.data) and operation.num_params != 1:
        raise NotFusable(f"{operation.name} cannot be taken apart into gates of one angle")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Tracing is nobody's concern: no gradients are recorded, no warnings shown."""
    with torch.no_grad(), warnings.catch_warnings(), _states_unseen():
        warnings.simplefilter("ignore")
        yield


# --- states that the circuit begins with ----------------------------------------------------------


@contextlib.contextmanager
def _states_unseen() -> Iterator[None]:
    """Lets state preparations take tensors without values, at whose values PennyLane would look."""
    state, basis = qp.StatePrep.__dict__["_preprocess"], qp.BasisState.__init__

    def preprocess(values: Any, wires: Any, pad_with: Any, normalize: bool, validate_norm: bool) -> Any:
        if not isinstance(values, FakeTensor):
            return state.__func__(values, wires, pad_with, normalize, validate_norm)
        if not normalize and pad_with is None:
            raise NotFusable("PennyLane checks the norm of its states; normalize=True needs no check")
        missing = 2 ** len(qp.wires.Wires(wires)) - values.shape[-1]
        if missing and (pad_with is None or missing < 0):
            raise NotFusable("PennyLane refuses the number of its amplitudes")
        values = torch.nn.functional.pad(values, (0, missing), value=pad_with) if missing else values
        return values / torch.linalg.vector_norm(values, dim=-1, keepdim=True)

    def init(self: Any, state: Any, wires: Any, id: Any = None) -> None:
        if isinstance(state, FakeTensor) and state.ndim:
            qp.operation.Operation.__init__(self, state, wires=wires, id=id)
        else:
            basis(self, state, wires, id=id)

    with _TRACING_ONE_AT_A_TIME:
        qp.StatePrep._preprocess, qp.BasisState.__init__ = staticmethod(preprocess), init
        try:
            yield
        finally:
            qp.StatePrep._preprocess, qp.BasisState.__init__ = state, basis


def _amplitudes(operation: qp.operation.Operator) -> Tensor:
    if isinstance(operation.data[0], Tensor):
        return operation.data[0]
    return torch.tensor(np.asarray(operation.state_vector()).ravel().tolist(), dtype=torch.complex128)


def _is_traced_basis_state(operation: qp.operation.Operator) -> bool:
    return isinstance(operation, qp.BasisState) and isinstance(operation.data[0], Tensor)


def _flips(operation: qp.operation.Operator, dtype: torch.dtype) -> list[qp.operation.Operator]:
    """Bits as rotations of |0> by 0 or pi; what is no bit, at which PennyLane stops, becomes NaN."""
    bits = operation.data[0].unbind(-1)
    if len(bits) != len(operation.wires):
        raise NotFusable("PennyLane refuses the number of its bits")
    flips = []
    for bit, wire in zip(bits, operation.wires, strict=True):
        angle = (bit == 1).to(dtype) * torch.pi
        flips.append(qp.RY(torch.where((bit == 0) | (bit == 1), angle, torch.nan), wires=wire))
    return flips

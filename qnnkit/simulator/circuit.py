"""A circuit as a fixed list of gates, whose angles are an affine map of the numbers that it takes."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pennylane as qp
import torch
from pennylane.operation import Operator
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from qnnkit.simulator.gates import EXACT, Gate, NotFusable, TakeApart, constant, is_unitary, is_wrapped, turn
from qnnkit.simulator.queueing import is_changed, is_pennylanes, within
from qnnkit.simulator.readout import Readout, readout

ONE_AT_A_TIME = threading.RLock()
SAMPLES = 1021
"""Samples of the batch that a function for batches of any size runs on: more than it takes by number, as in
`inputs[:8]`."""
MOST_WIRES = 24
"""Most wires for which `backend="auto"` runs the program; wider circuits run on the QNode's own device.

No PennyLane device was measured to be faster below. Forward and backward on two x86 cores (2026-11-23),
`lightning.qubit` (adjoint) took 6 times as long as the program at 12 wires, 14 at 18, 10 at 20 (batch 1, 3
layers), 24 at 22 and 12 at 24 (batch 1, 1 layer), and 25 to 65 times as long at batch 64 and 12 to 18 wires.
"""


@dataclass(frozen=True)
class Prepared:
    """The state that a circuit begins with, as amplitudes of some wires; the others are |0>."""

    wires: tuple[int, ...]
    amplitudes: np.ndarray | None
    """Shape (2**n,); None if the amplitudes are the circuit's first argument."""
    is_complex: bool


@dataclass(frozen=True)
class Circuit:
    """A circuit as a function of its numbers: angles = matrix @ numbers + offset."""

    prepared: Prepared | None
    gates: tuple[Gate, ...]
    matrix: np.ndarray
    """Shape (n_angles, n_numbers)."""
    offset: np.ndarray
    readout: Readout
    wires: tuple[Any, ...]
    """The circuit's wire labels by position; position 0 is the most significant bit."""
    kinds: frozenset[type]
    """Classes of all operators and measurements that the circuit was built from."""


def circuit(
    record: Callable[[Sequence[Tensor]], Sequence[Operator]],
    shapes: Sequence[tuple[int, ...]],
    measurements: Sequence[Any],
    device_wires: Any,
    batch: int | None = None,
) -> Circuit:
    """The circuit of the queued operators, as a function of the arguments. Call it inside `apart`.

    Args:
        record: Returns the operators that are queued for arguments in float64.
        shapes: Shapes of the arguments for one sample.
        measurements: The circuit's measurements.
        device_wires: Wires of the PennyLane device, or None.
        batch: Number of samples, if the first argument has a batch axis.

    Raises:
        NotFusable: No unitary program can express the circuit, its angles are not affine in the arguments, or
            it mixes the samples of a batch. `TakeApart` if decomposing an operator may help.
    """
    kinds, owners, generator = set(), [], torch.Generator().manual_seed(1)

    def of_one(vector: Tensor) -> Tensor:
        arguments = cut(vector, shapes)
        if batch is not None:
            arguments[0] = arguments[0][None]
        gates = parts(record(arguments), kinds)
        owners[:] = [name for name, gate in gates if turns(gate)]
        return angles([gate for _, gate in gates]).reshape(-1)

    matrix, offset, is_affine = affine(of_one, sum(map(math.prod, shapes)))
    if not is_affine.all():
        raise TakeApart(owners[int(np.argmin(is_affine))], NOT_AFFINE)
    sizes = [(batch, *shape) if batch and i == 0 else shape for i, shape in enumerate(shapes)]
    arguments = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    before = [each.clone() for each in arguments]
    gates = parts(record(arguments), kinds)
    if not all(map(torch.equal, arguments, before)):
        raise NotFusable("its Python changes its arguments in place")
    together = angles([gate for _, gate in gates], batch or 1)
    each = [a.reshape(len(a) if batch and i == 0 else 1, -1) for i, a in enumerate(arguments)]
    flat = torch.cat([together[:, :0], *(a.expand(batch or 1, -1) for a in each)], 1)
    alone = flat @ torch.from_numpy(matrix.T) + torch.from_numpy(offset)
    if together.shape[1] != len(offset) or not torch.allclose(together, alone, SAME, SAME):
        raise NotFusable("its Python mixes samples of the batch, or depends on its size")
    result = assembled(gates, measurements, device_wires, kinds)
    return dataclasses.replace(result, matrix=matrix, offset=offset)


def cut(vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Splits a vector into consecutive arrays of the given shapes."""
    parts = vector.split([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def parts(operations: Sequence[Operator], kinds: set[type]) -> list[tuple[str, Operator]]:
    """The elementary gates of some operators, each with the name of its operator.

    Args:
        operations: The operators.
        kinds: Receives the classes of the operators and of everything in their decompositions.
    """
    operators: list[tuple[str, Operator]] = []
    for operation in operations:
        name, met = operation.name, set()
        try:
            operators += [(name, each) for each in elementary(operation, met)]
        except Exception as error:
            if type(error) is NotFusable:
                raise
            raise TakeApart(name, f"{name} reads the values of its numbers") from error
        if not all(map(is_pennylanes, met)):
            raise TakeApart(name, f"{name} is not an unmodified PennyLane operator")
        kinds |= met
    return operators


def turns(gate: Operator) -> bool:
    """Whether a gate takes an angle, that is, a number that is not constant."""
    has_numbers = not isinstance(gate, qp.StatePrep) and any(isinstance(n, Tensor) for n in gate.data)
    if has_numbers and gate.num_params != 1:
        raise NotFusable(f"{gate.name} cannot be decomposed into gates of one angle")
    return has_numbers


def angles(gates: Sequence[Operator], batch: int = 1) -> Tensor:
    """Angles of shape (batch, n_angles), in the order of the gates."""
    turned = [gate.data[0].reshape(-1).expand(batch) for gate in gates if turns(gate)]
    return torch.stack(turned, -1) if turned else torch.zeros(batch, 0, dtype=torch.float64)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """A context in which no transform, mode, autocast, gradient or recording of the caller is active.

    Raises:
        NotFusable: The code inside raised an error, of whatever class.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(ONE_AT_A_TIME)
        stack.enter_context(temporarily_clear_interpreter_stack())
        for _ in range(torch._C._len_torch_function_stack()):  # else torch.export records these
            stack.enter_context(_pop_mode_temporarily())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.no_grad())
        stack.enter_context(qp.QueuingManager.stop_recording())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if (traced := torch._C._get_tracing_state()) is not None:  # under torch.jit
            torch._C._set_tracing_state(None)
            stack.callback(torch._C._set_tracing_state, traced)
        try:
            yield
        except NotFusable:
            raise
        except Exception as error:
            reason = f"its Python cannot be traced for arbitrary numbers ({type(error).__name__}: {error})"
            raise NotFusable(reason.splitlines()[0]) from error


# --- gates ----------------------------------------------------------------------------------------


def is_elementary(operation: Operator) -> bool:
    """Whether a gate is used undecomposed: a matrix on few wires, with at most one number as its angle."""
    template = type(operation).__module__.startswith("pennylane.templates")
    if isinstance(operation, qp.StatePrep | qp.GlobalPhase | qp.QubitUnitary | qp.DiagonalQubitUnitary):
        return True  # a global phase would be decomposed into nothing
    if not operation.has_matrix or template:
        return not operation.has_decomposition
    if len(operation.wires) > 4 and operation.has_decomposition:
        return False
    numbers = [value for value in operation.data if isinstance(value, torch.Tensor)]
    return not numbers or (operation.num_params == 1 and numbers[0].ndim < 2)


def elementary(operation: Operator, kinds: set[type]) -> Iterator[Operator]:
    """The elementary gates of an operator; adds the classes in its decomposition to `kinds`."""
    kinds.update(map(type, within(operation)))
    if is_elementary(operation):
        yield operation
        return
    for each in operation.decomposition():
        yield from elementary(each, kinds)


def _wires(device_wires: Any, operations: Sequence[Operator], measurements: Sequence[Any]) -> tuple[Any, ...]:
    """The wire labels in the order of the state's bits."""
    used = qp.wires.Wires.all_wires([operation.wires for operation in operations])
    every = qp.wires.Wires.all_wires([used, *(measurement.wires for measurement in measurements)])
    kinds = qp.measurements.ProbabilityMP | qp.measurements.StateMP
    on_order = any(isinstance(each, kinds) and each.obs is None and not each.wires for each in measurements)
    if device_wires is not None:
        return tuple(wire for wire in device_wires if on_order or wire in every)
    standard = set(every) == set(range(len(every))) and set(used) == set(range(len(used)))
    if on_order and not standard:
        reason = "its device lists no wires and the labels are not 0, 1, 2, ...: give the device its wires"
        raise NotFusable(reason)
    return tuple(sorted(every)) if standard else tuple(every)


def assembled(
    gates: Sequence[tuple[str, Operator]], measurements: Sequence[Any], device_wires: Any, kinds: set[type]
) -> Circuit:
    """The circuit that consists of elementary gates; its numbers are their angles."""
    operations, applied, n = [gate for _, gate in gates], [], 0
    wires = _wires(device_wires, operations, measurements)
    if len(wires) > MOST_WIRES:
        raise NotFusable(f"a state of {len(wires)} wires takes {2.0 ** (len(wires) - 27)} GiB per sample")
    prepared = None
    if operations and isinstance(operations[0], qp.StatePrep):
        prepared, gates = _prepared(operations[0], wires), gates[1:]
    for name, operation in gates:
        if not operation.wires and isinstance(operation, qp.GlobalPhase):  # acts the same on any wire
            operation = qp.GlobalPhase(*operation.data, wires=wires[0])
        on = tuple(wires.index(wire) for wire in operation.wires)
        if not operation.has_matrix or isinstance(operation, qp.operation.StatePrepBase):
            raise NotFusable(f"{operation.name} is not a unitary gate")
        if not turns(operation):
            matrix = constant(operation)
            if not is_unitary(matrix):
                raise NotFusable(f"the matrix of {operation.name} is not unitary")
            applied += [Gate(on, matrix)] if on else []
            continue
        try:
            form = turn(operation)
        except NotFusable as error:
            raise TakeApart(name, str(error)) from error
        if np.abs(form.start - np.eye(len(form.start))).max() > EXACT:  # as in PSWAP
            applied.append(Gate(on, form.start))
        applied.append(Gate(on, form, n))
        n += 1
    observables = [each for m in measurements if m.obs is not None for each in within(m.obs)]
    measuring = {*map(type, measurements)}
    if not all(map(is_pennylanes, measuring)) or any(is_changed(type(each)) for each in observables):
        raise NotFusable("it measures something that is not an unmodified PennyLane measurement")
    kinds = {*kinds, *measuring, *map(type, observables)}
    measured = readout(tuple(measurements), wires)
    return Circuit(prepared, tuple(applied), np.eye(n), np.zeros(n), measured, wires, frozenset(kinds))


def _prepared(operation: Operator, wires: tuple[Any, ...]) -> Prepared:
    """The state that a circuit begins with; it is an argument if its amplitudes are a tensor."""
    on = tuple(wires.index(wire) for wire in operation.wires)
    data: Any = operation.data[0]
    if not isinstance(data, Tensor):
        state = np.asarray(operation.state_vector()).ravel()
        return Prepared(on, state, np.iscomplexobj(state))
    return Prepared(on, None, data.is_complex())


# --- affine maps ----------------------------------------------------------------------------------

# The Python runs under `torch.vmap`, where reading a value raises an error. Its results are compared with an
# affine map at random points of many sizes, which reveals curves, steps and wrap-around in between.


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


COMPARISONS = names("eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__")
NOT_AFFINE = "its angles are not an affine function of inputs and weights"
SIZES = torch.logspace(-2, 4, 96, dtype=torch.float64)[:, None]
"""Sizes of the numbers at which a function is checked."""
SAME = 1e-9
"""Largest deviation that counts as rounding."""


class _Blind(TorchFunctionMode):
    """Raises on comparisons: random points would miss the one value that is treated differently."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in COMPARISONS and any(isinstance(a, Tensor) and is_wrapped(a) for a in args):
            raise TakeApart(func.__name__, f"{NOT_AFFINE} (`{func.__name__}`)")
        return func(*args, **(kwargs or {}))


def affine(function: Callable[[Tensor], Tensor], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The affine map that agrees with a function at 0 and the unit vectors, and which results are affine.

    Args:
        function: Maps a vector in float64 to another.
        n: Length of the vector.

    Returns:
        Matrix (n_results, n), offset (n_results,), and a mask (n_results,) of the results that are affine.

    Raises:
        TakeApart: The function compares its numbers.
    """
    generator = torch.Generator().manual_seed(0)
    random = SIZES * torch.randn(len(SIZES), n, generator=generator, dtype=torch.float64)
    points = torch.cat([torch.eye(n + 1, dtype=torch.float64)[:, 1:], random])  # 0 comes first
    with _Blind():
        values = torch.func.vmap(function)(points)
    offset, matrix = values[0], (values[1 : n + 1] - values[0]).T
    is_affine = torch.isclose(random @ matrix.T + offset, values[n + 1 :], SAME, SAME).all(0)
    return matrix.numpy(), offset.numpy(), is_affine.numpy()

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
import scipy.linalg
import torch
from pennylane.operation import Operator
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from qnnkit.simulator.affine import EXACT, affine
from qnnkit.simulator.array_api import as_outside
from qnnkit.simulator.gates import EXACT as ROUNDING
from qnnkit.simulator.gates import Gate, NotFusable, constant, is_unitary, turn, with_numbers
from qnnkit.simulator.queueing import Structure, within
from qnnkit.simulator.readout import Readout, readout
from qnnkit.simulator.structure import is_pennylanes

ONE_AT_A_TIME = threading.RLock()
MOST_WIRES = 24
"""Up to here `backend="auto"` runs the program; the QNode's own device beyond.

No PennyLane device was measured to win below. Forward and backward on 2 cores, `lightning.qubit` (adjoint)
took 6 times as long as the program at 12 wires, 14 at 18, 10 at 20 (batch 1, 3 layers), 24 at 22 and 12 at 24
(batch 1, 1 layer), and 25 to 65 times as long at batch 64 and 12 to 18 wires.
"""


@dataclass(frozen=True)
class Prepared:
    """The state that a circuit begins with, as amplitudes of some wires; the others are |0>."""

    wires: tuple[int, ...]
    amplitudes: np.ndarray | None
    """Of shape (2**n,); None where they are an argument, the first."""
    is_complex: bool


@dataclass(frozen=True)
class Circuit:
    """What a circuit does with its numbers: angles = matrix @ numbers + offset."""

    prepared: Prepared | None
    gates: tuple[Gate, ...]
    matrix: np.ndarray
    """Of shape (n_angles, n_numbers)."""
    offset: np.ndarray
    readout: Readout
    wires: tuple[Any, ...]
    """The circuit's wire labels by position; position 0 is the most significant bit."""
    kinds: frozenset[type]
    """Classes of the operators and measurements that were met on the way."""


class TakeApart(NotFusable):
    """An operator has to be decomposed with the numbers of each call.

    Args:
        kind: Its class.
    """

    def __init__(self, kind: type):
        super().__init__(f"{kind.__name__} looks at its numbers, or is not as PennyLane made it")
        self.kind = kind


def circuit(made: Structure, device_wires: Any) -> Circuit:
    """The gates of what was queued, as a function of its leaves.

    Args:
        made: The structure.
        device_wires: Wires of the PennyLane device, or None.

    Raises:
        NotFusable: It holds what no unitary program can express; `TakeApart`, if it may be had in parts.
    """
    with apart():
        operations: list[tuple[Operator, bool]] = []
        maps: list[tuple[np.ndarray, np.ndarray]] = []
        kinds: set[type] = set()
        for operation, shapes in zip(made.operations, made.shapes, strict=True):
            met: set[type] = set()
            if not shapes:
                parts = [(each, False) for each in elementary(operation, met)]
            elif isinstance(operation, qp.StatePrep) or (shapes == [()] and is_elementary(operation)):
                parts = [(each, True) for each in elementary(operation, met)]
                maps += [] if isinstance(operation, qp.StatePrep) else [(np.eye(1), np.zeros(1))]
            else:
                parts, found = _parts(operation, shapes, met)
                maps.append(found)
            if not all(map(is_pennylanes, met)):
                raise TakeApart(type(operation))
            operations += parts
            kinds |= met
        wires = _wires(device_wires, [each for each, _ in operations], made.measurements)
        if len(wires) > MOST_WIRES:
            gib = 2 ** (len(wires) + 3) / 2**30
            raise NotFusable(f"a state of {len(wires)} wires takes {gib:.3g} GiB for every sample")
        prepared, gates = _assembled(operations, wires)
        measured = readout(tuple(made.measurements), wires)
    kinds |= {type(each) for each in made.measurements}
    kinds |= {type(each.obs) for each in made.measurements if each.obs is not None}
    matrix = scipy.linalg.block_diag(*(matrix for matrix, _ in maps)) if maps else np.zeros((0, 0))
    offset = np.concatenate([np.zeros(0), *(offset for _, offset in maps)])
    return Circuit(prepared, gates, matrix, offset, measured, wires, frozenset(kinds))


def taken(
    queued: Callable[[], Structure], in_parts: set[type], device_wires: Any
) -> tuple[Structure, Circuit]:
    """What is queued as a structure and a circuit; classes that do not serve as a whole join `in_parts`.

    Raises:
        NotFusable: It holds what no unitary program can express.
    """
    while True:
        made = queued()
        try:
            return made, circuit(made, device_wires)
        except TakeApart as reason:
            if reason.kind in in_parts:
                raise
            in_parts.add(reason.kind)


def _parts(
    operation: Operator, shapes: Sequence[tuple[int, ...]], kinds: set[type]
) -> tuple[list[tuple[Operator, bool]], tuple[np.ndarray, np.ndarray]]:
    """The elementary gates of an operator, and their angles as an affine map of its numbers."""
    sizes, held = [math.prod(shape) for shape in shapes], []

    def angles(vector: Tensor) -> Tensor:
        numbers = [part.reshape(shape) for part, shape in zip(vector.split(sizes), shapes, strict=True)]
        parts = list(elementary(with_numbers(operation, numbers), kinds))
        found = [angle for part in parts if (angle := _angle(part)) is not None]
        held[:] = [(part, _angle(part) is not None) for part in parts]
        return torch.stack([angle.reshape(()) for angle in found]) if found else vector[:0]

    try:
        found = affine(angles, sum(sizes))
    except Exception as error:
        raise TakeApart(type(operation)) from error
    return [(with_numbers(each, [0.0]) if turns else each, turns) for each, turns in held], found


def _angle(operation: Operator) -> Tensor | None:
    """The number that a gate takes, if it is no constant."""
    numbers = [value for value in operation.data if isinstance(value, Tensor)]
    if numbers and operation.num_params != 1:
        raise NotFusable(f"{operation.name} cannot be taken apart into gates of one angle")
    return numbers[0] if numbers else None


def composed(
    made: Circuit,
    key: tuple,
    record: Callable[[Sequence[Tensor]], Structure],
    shapes: Sequence[tuple[int, ...]],
) -> Circuit:
    """The same circuit as a function of the arguments from which its numbers are computed.

    Args:
        made: The circuit as a function of its own numbers.
        key: Of its structure.
        record: What is queued for arguments in float64.
        shapes: Of the arguments; if the first has two axes, the first of these counts the samples.

    Raises:
        NotFusable: Its numbers are not affine in the arguments, or it mixes the samples of a batch.
    """
    if made.prepared is not None and made.prepared.amplitudes is None:
        raise NotFusable("its first state depends on its arguments")
    batch = shapes[0][0] if len(shapes[0]) == 2 else 1
    one = [(1, *shapes[0][1:]) if len(shapes[0]) == 2 else shapes[0], *shapes[1:]]
    sizes = [math.prod(shape) for shape in one]

    def numbers(arguments: Sequence[Tensor], rows: int) -> Tensor:
        found = record(arguments)
        if found.key[:2] != key[:2]:
            raise NotFusable("its Python makes another circuit of other numbers")
        columns = [torch.as_tensor(leaf, dtype=torch.float64) for leaf in found.leaves]
        pairs = zip(columns, found.batched, strict=True)
        return torch.cat(
            [c.reshape(rows if b else 1, -1).expand(rows, -1) for c, b in pairs] or [torch.zeros(rows, 0)], 1
        )

    def of_one(vector: Tensor) -> Tensor:
        return numbers(
            [part.reshape(shape) for part, shape in zip(vector.split(sizes), one, strict=True)], 1
        )[0]

    with apart():
        matrix, offset = affine(of_one, sum(sizes))
        generator = torch.Generator().manual_seed(1)
        rows, *rest = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        flat = torch.cat(
            [rows.reshape(batch, -1), *(each.reshape(1, -1).expand(batch, -1) for each in rest)], 1
        )
        found = flat @ torch.from_numpy(matrix.T) + torch.from_numpy(offset)  # NumPy would wake threads
        if not torch.allclose(numbers([rows, *rest], batch), found, EXACT, EXACT):
            raise NotFusable("its Python mixes samples of the batch, or depends on its size")
        both = (torch.from_numpy(made.matrix) @ torch.from_numpy(matrix)).numpy()
    return dataclasses.replace(made, matrix=both, offset=made.matrix @ offset + made.offset)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """No transform, mode, autocast, gradient or recording of the caller holds inside.

    Raises:
        NotFusable: Something inside raised that, or anything else.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(ONE_AT_A_TIME)
        stack.enter_context(temporarily_clear_interpreter_stack())
        for _ in range(torch._C._len_torch_function_stack()):  # torch.export would record what is done here
            stack.enter_context(_pop_mode_temporarily())
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
            reason = f"its Python cannot be run on numbers in general ({type(error).__name__}: {error})"
            raise NotFusable(reason.splitlines()[0]) from error
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
    kinds.update(map(type, within(operation)))
    if is_elementary(operation):
        yield operation
        return
    if isinstance(operation, qp.QubitUnitary | qp.DiagonalQubitUnitary) and not is_unitary(
        constant(operation)
    ):
        raise NotFusable(f"the matrix of {operation.name} is not unitary")
    for each in operation.decomposition():
        yield from elementary(each, kinds)


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
    operations: Sequence[tuple[Operator, bool]], wires: tuple[Any, ...]
) -> tuple[Prepared | None, tuple[Gate, ...]]:
    """The state that a circuit begins with, and its gates; true are those that take a number."""
    prepared, gates, n_angles = None, [], 0
    for i, (operation, turns) in enumerate(operations):
        on = tuple(wires.index(wire) for wire in operation.wires)
        if i == 0 and isinstance(operation, qp.StatePrep):
            state = None if turns else np.asarray(operation.state_vector()).ravel()
            kind: Any = operation.data[0] if turns else state
            if turns and kind.shape[-1] != 2 ** len(on):
                raise NotFusable("its amplitudes are not those of all its wires' states")
            prepared = Prepared(on, state, kind.is_complex() if turns else np.iscomplexobj(kind))
            continue
        if not operation.has_matrix or isinstance(operation, qp.operation.StatePrepBase):
            raise NotFusable(f"{operation.name} is no unitary gate")
        if not turns:
            matrix = constant(operation)
            if not is_unitary(matrix):
                raise NotFusable(f"the matrix of {operation.name} is not unitary")
            gates.append(Gate(on or (0,), matrix if on else np.kron(matrix, np.eye(2))))
            continue
        form = turn(operation)
        form = form if on else form.on_one_more()  # a global phase acts anywhere
        if np.abs(form.start - np.eye(len(form.start))).max() > ROUNDING:  # such as a swap with a phase
            gates.append(Gate(on or (0,), form.start))
        gates.append(Gate(on or (0,), form, n_angles))
        n_angles += 1
    return prepared, tuple(gates)

"""The fused programs of a QNode: from inputs and weights to a program and its arguments."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pennylane as qp
import torch
from torch import Tensor

from qnnkit.simulator import queueing
from qnnkit.simulator.circuit import ONE_AT_A_TIME, SAMPLES, apart, circuit
from qnnkit.simulator.fused import Fused, reduced
from qnnkit.simulator.gates import NotFusable, TakeApart
from qnnkit.simulator.pure import Names, NotPure
from qnnkit.simulator.shots import METHODS, Sampled, diagonal

EXACT_DEVICES = ("default.qubit", "lightning.qubit", "lightning.gpu", "lightning.kokkos")
"""PennyLane devices whose exact results the programs reproduce."""
EXACT_METHODS = ("best", "backprop", "adjoint", "parameter-shift", "device")
"""Values of `diff_method` that give the exact gradient; "hadamard" needs a free wire."""
SPEED = ("grad_on_execution", "cache", "cachesize", "max_diff", "device_vjp", "executor_backend")
"""Options of a QNode that affect its speed, not its results."""
MOST_NEW, MOST_PROGRAMS = 8, 32
"""MOST_NEW structures become programs at once; later ones become programs when they occur again.
The MOST_PROGRAMS structures used last are remembered, and a pure function is traced for as many forms of
inputs."""


@dataclass
class Call:
    """Programs with their arguments, and how their values become the QNode's results.

    Attributes:
        parts: (program, arguments, batch size or None) for each part.
        as_list: Whether the QNode returns a list or a tuple.
        finish: Maps the results of all parts, as PennyLane's devices return them, to the QNode's result.
    """

    parts: list[tuple[Fused | Sampled, Sequence[Tensor | None], int | None]]
    as_list: bool
    finish: Callable[[Any], Any] | None = None


class Programs:
    """The programs of a QNode, looked up at every call.

    Args:
        qnode: A QNode of `input_name` and the weights, by name.
        input_name: Name of the argument that takes the data.
    """

    def __init__(self, qnode: qp.QNode, input_name: str):
        self.qnode, self.input_name = qnode, input_name
        self.last: Fused | Sampled | str | None = None
        """The program that ran last, or why none did."""
        self.generator: torch.Generator | Literal["torch"] | None = None
        """Draws all shots, if set; "torch" is torch's own generator."""
        self.why_queued = ""
        self._looked_at, self._names = None, None
        self._pure: dict[tuple, Fused | None] = {}
        self._fused: OrderedDict[tuple, Fused | str | None] = OrderedDict()
        self._in_parts: set[str] = set()
        self._methods = queueing.Methods([type(qnode.device)])

    def program_for(self, rows: Tensor, weights: Mapping[str, Tensor]) -> Call | qp.QNode:
        """The programs for a call, or the QNode if its own device must run it; `last` then holds the reason.

        Args:
            rows: Inputs of shape (batch, n_features) or (n_features,).
            weights: Weights by name, with the dtype and device of `rows`.
        """
        reason = own_device(self.qnode) if self._methods.hold() else "it has no unmodified PennyLane device"
        if reason is None and self.qnode.shots and not self._samples(rows):
            reason = "it has a finite number of shots"
        if reason is not None:
            self.last = reason
            return self.qnode
        if not self.qnode.shots and (call := self._of_pure(rows, weights)):
            return call
        with ONE_AT_A_TIME:  # all threads share PennyLane's recording
            return self._queued(rows, weights)

    def _samples(self, rows: Tensor) -> bool:
        """Whether qnnkit draws the shots: on request, or if PennyLane has no gradient."""
        has_no_gradient = torch.is_grad_enabled() and rows.requires_grad and rows.ndim == 2
        is_plain = not self.qnode.shots.has_partitioned_shots and self.qnode.diff_method in METHODS
        return is_plain and (has_no_gradient or self.generator is not None)

    @property
    def how(self) -> str:
        """How often the QNode's Python runs, and why."""
        if self._names is not None and self.last in self._pure.values():
            return "its Python reads only its arguments and constants, and ran once"
        many = f", and queues different circuits, {len(self._fused)} so far" if len(self._fused) > 1 else ""
        why = f", since {self.why_queued}" if self.why_queued else ""
        return f"its Python runs at every call{why}{many}"

    # --- pure ---------------------------------------------------------------------------------------

    def _is_pure(self) -> bool:
        """Whether the Python reads only its arguments and constants, none of which has changed."""
        if self._looked_at != (now := (self.qnode.func, *self.qnode.compile_pipeline)):
            self._looked_at, self._pure = now, {}
            try:
                self._names = Names(self.qnode.func, self.qnode.compile_pipeline)
            except NotPure as reason:
                self._names, self.why_queued = None, f"it uses {reason}"
        elif self._names is not None and not self._names.hold():
            self._names, self.why_queued = None, "what it reads has changed"
        return self._names is not None

    def _of_pure(self, rows: Tensor, weights: Mapping[str, Tensor]) -> Call | None:
        """The call of a pure function, if it was traced for rows and weights of this form.

        None also if sums of large angles would lose digits: PennyLane reduces each angle by itself.
        """
        program = self._pure.get(form := self._form(rows, weights)) if self._is_pure() else None
        if program is None:
            return None
        if not program.methods.hold():
            self._pure.pop(form, None)
            return None
        vector = _piled([*weights.values()], ())
        if not program.keeps_digits(rows, vector):
            return None
        self.last = program
        batch = len(rows) if rows.ndim == 2 and len(program.row_angles[1]) else None
        return Call([(program, (rows if rows.ndim == 2 else rows[None], vector), batch)], program.as_list)

    def _form(self, rows: Tensor, weights: Mapping[str, Tensor]) -> tuple:
        """What a program of a pure function is for, beginning with the size of the batch to trace."""
        batch = len(rows) if rows.ndim == 2 else None
        if batch not in (None, 1) and not (self._names is not None and self._names.reads_sizes):
            batch = max(3, min(SAMPLES, 2**20 // rows.shape[-1]))  # of many features, to bound the memory
        shapes = *((name, each.shape) for name, each in weights.items()), rows.shape[-1]
        return batch, shapes, rows.dtype, rows.device, self.qnode.device.wires

    def _trace(self, tape: Any, rows: Tensor, weights: Mapping[str, Tensor], as_list: bool) -> None:
        """Builds the program of a pure function for rows of this form, unless that was tried before.

        Args:
            tape: The tape that this call queued.
            rows: Inputs.
            weights: Weights by name.
            as_list: Whether the function returns a list or a tuple.
        """
        form, named = self._form(rows, weights), (self.input_name, *weights)
        if form in self._pure or len(self._pure) >= MOST_PROGRAMS:  # tried before, or angles are large
            return

        def record(arguments: Sequence[Tensor]) -> Sequence[Any]:
            again = queueing.single(self.qnode, dict(zip(named, arguments, strict=True)))
            if tuple(map(queueing.measurement_key, again.measurements)) != split.key[1]:
                raise NotFusable("what it measures depends on its arguments")
            return again.operations

        self._pure[form] = None
        try:
            queueing.check(self.qnode, split := queueing.structure(tape, self._in_parts))
            shapes = [tuple(rows.shape[-1:]), *(tuple(each.shape) for each in weights.values())]
            on_rows = [True, *(False for _ in weights)]
            program = self._program(record, shapes, on_rows, tape.measurements, rows, form[0])
            if program.is_given:
                raise NotFusable("its first state depends on its arguments")
        except (NotFusable, queueing.Unkeyable) as reason:
            self.why_queued = str(reason)
            return
        program.as_list, self._pure[form] = as_list, program

    def _program(
        self, record: Any, shapes: Any, on_rows: Any, measured: Any, rows: Tensor, batch: int | None = None
    ) -> Fused:
        """The program of what `record` queues for these shapes; `on_rows` marks per-sample arguments."""
        sizes = [math.prod(map(int, shape)) for shape in shapes]
        with apart():
            traced = circuit(record, shapes, measured, self.qnode.device.wires, batch)
            return Fused(traced, np.repeat(on_rows, sizes), rows.dtype, rows.device)

    # --- queued -------------------------------------------------------------------------------------

    def _queued(self, rows: Tensor, weights: Mapping[str, Tensor]) -> Call | qp.QNode:
        """Runs the Python and finds a program for each tape that it and its transforms make."""
        tape, result = queueing.queue(self.qnode, {self.input_name: rows, **weights})
        try:
            as_list = type(result) in (list, tuple)
            returned = [id(each) for each in (result if as_list else [result])]
            if not returned or returned != [id(each) for each in tape.measurements]:
                raise NotFusable("it returns something other than its measurements, in their order")
            tapes, finish = queueing.transformed(self.qnode, tape)
            if self.qnode.shots:
                return self._sampled(tapes, finish, rows, as_list)
            if finish is None and self._is_pure():
                self._trace(tapes[0], rows, weights, as_list)
                if call := self._of_pure(rows, weights):
                    return call
            parts: list[Any] = [self._part(each, rows) for each in tapes]
        except (NotFusable, queueing.Unkeyable) as reason:
            self.last = str(reason) if isinstance(reason, NotFusable) else f"it holds {reason}"
            return queueing.replayed(self.qnode, tape, result)
        self.last = parts[0][0]
        return Call(parts, as_list, finish)

    def _sampled(self, tapes: Sequence[Any], finish: Any, rows: Tensor, as_list: bool) -> Call:
        """Sampled programs of a tape, one for each group of commuting measurements."""
        if len(tapes) > 1:
            raise NotFusable("its transforms make several circuits with a finite number of shots")
        groups, recombine = diagonal(tapes[0], self.qnode.device)
        parts, shots = [], self.qnode.shots.total_shots
        for exact, measurements in groups:
            program, given, batch = self._part(exact, rows)
            key = tuple(map(queueing.measurement_key, measurements)), shots
            if key not in program.sampled:
                program.sampled[key] = Sampled(program, measurements, shots)
            self.last = sampled = program.sampled[key]
            sampled.generator = None if self.generator == "torch" else self.generator
            parts.append((sampled, given, batch))
        return Call(parts, as_list, recombine if finish is None else lambda each: finish((recombine(each),)))

    def _part(self, tape: Any, rows: Tensor) -> tuple[Fused, Sequence[Tensor | None], int | None]:
        """The program of a tape, its arguments at this call, and the batch size.

        Raises:
            NotFusable: The tape has no program.
        """
        structure = queueing.structure(tape, self._in_parts)
        key, is_early = self._key(structure, rows), len(self._fused) < MOST_NEW
        is_known, fused = key in self._fused, self._fused.pop(key, None)
        if isinstance(fused, Fused) and not fused.methods.hold():
            fused = None
        if fused is None and (is_known or is_early):
            try:
                queueing.check(self.qnode, structure)
                structure, fused = self._of_leaves(tape, rows)
                key = self._key(structure, rows)
            except NotFusable as reason:
                fused = str(reason)
        self._fused[key] = fused
        if len(self._fused) > MOST_PROGRAMS:
            self._fused.popitem(last=False)
        if not isinstance(fused, Fused):
            raise NotFusable(fused or "its Python queues a different circuit at nearly every call")
        return fused, arguments(fused, structure, rows), structure.batch

    def turned(self, rows: Tensor, weights: Mapping[str, Tensor]) -> tuple[Fused, Tensor]:
        """The program of the queued circuit, and each sample's contribution to the angles, (batch, n_angles).

        Noise channels are skipped: they change the results, not the angles.
        """
        with ONE_AT_A_TIME:
            tape = queueing.single(self.qnode, {self.input_name: rows, **weights})
            exact = [each for each in tape.operations if not isinstance(each, qp.operation.Channel)]
            program, (numbers, *_), _ = self._part(qp.tape.QuantumScript(exact, tape.measurements), rows)
            if program.is_given:
                raise NotFusable("its first state depends on the inputs")
        numbers = rows.new_zeros(len(rows), 0) if numbers is None else numbers
        return program, numbers @ torch.from_numpy(program.circuit.matrix[:, program.on_rows].T).to(numbers)

    def _of_leaves(self, tape: Any, rows: Tensor) -> tuple[queueing.Structure, Fused]:
        """A tape's structure, and its program as a function of its leaves.

        Operators that cannot be used undecomposed are decomposed with the numbers of each call from now on.
        """
        while True:
            split = queueing.structure(tape, self._in_parts)
            n = int(isinstance(next(itertools.compress(split.operations, split.shapes), None), qp.StatePrep))
            shapes = [*itertools.chain(*split.shapes)][n:]
            record = functools.partial(queueing.rebound, split, split.leaves[:n])
            try:
                return split, self._program(record, shapes, split.batched[n:], split.measurements, rows)
            except TakeApart as reason:
                if reason.name in self._in_parts:
                    raise
                self._in_parts.add(reason.name)

    def _key(self, structure: queueing.Structure, rows: Tensor) -> tuple:
        return structure.key, rows.dtype, rows.device, self.qnode.device.wires


def arguments(program: Fused, structure: queueing.Structure, rows: Tensor) -> tuple[Tensor | None, ...]:
    """A program's arguments from the leaves of a structure, in the dtype and on the device of the rows."""
    numbers = [leaf for leaf in structure.leaves if not isinstance(leaf, Tensor)]  # all in one copy
    numbers = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    plain = iter(_narrowed(numbers, program.periods[0], rows).unbind())
    leaves: list[Tensor] = []
    for leaf, on_rows in zip(structure.leaves, structure.batched, strict=True):
        period = program.periods[on_rows] if len(leaves) >= program.is_given else None  # amplitudes stay
        leaves.append(_narrowed(leaf, period, rows) if isinstance(leaf, Tensor) else next(plain))
    pairs = list(zip(leaves, structure.batched, strict=True))[program.is_given :]
    per_sample, shared = ([leaf for leaf, on_rows in pairs if on_rows is wanted] for wanted in (True, False))
    return _piled(per_sample, (structure.batch or 1,)), _piled(shared, ()), *leaves[: program.is_given]


def _narrowed(angles: Tensor, period: float | None, like: Tensor) -> Tensor:
    """Angles in the dtype and on the device of a tensor; from float64 to float32 within one period."""
    if angles.dtype == torch.float64 != like.dtype:  # PennyLane computes in float64 with them
        angles = reduced(angles, period)
    return angles.to(like.device, like.dtype.to_complex() if angles.is_complex() else like.dtype)


def _piled(arrays: list[Tensor], shape: tuple[int, ...]) -> Any:
    """Arrays of shape (*shape, ...) joined to (*shape, n); a single shared one unchanged, None for none."""
    if not arrays or (len(arrays) == 1 and not shape):
        return arrays[0] if arrays else None
    if all(each.shape == shape for each in arrays):
        return torch.stack(arrays, -1)
    arrays = [each if each.ndim == len(shape) + 1 else each.reshape(*shape, -1) for each in arrays]
    return arrays[0] if len(arrays) == 1 else torch.cat(arrays, -1)


def own_device(qnode: qp.QNode) -> str | None:
    """Why a QNode runs on its own device, whatever it queues; None if a program may run."""
    device, attributes = qnode.device, vars(qnode)
    if qp.capture.enabled():
        return "program capture is enabled"
    if device.name not in EXACT_DEVICES:
        return f"the fused program supports only {', '.join(EXACT_DEVICES)}"
    changed = not _methods_of(type(device)).isdisjoint(vars(device))
    if changed or type(qnode) is not qp.QNode or "construct" in attributes or "_impl_call" in attributes:
        return "the QNode or its device was customised"
    if qnode.diff_method not in EXACT_METHODS:
        return f"it sets diff_method={qnode.diff_method}"
    if qnode.gradient_kwargs and qnode.diff_method not in ("backprop", "adjoint"):
        return f"it sets gradient_kwargs={qnode.gradient_kwargs}"
    if qnode.diff_method == "parameter-shift" and qnode.execute_kwargs.get("grad_on_execution") is True:
        return "PennyLane has no parameter-shift with grad_on_execution=True"
    if any(map(qnode.execute_kwargs.get, options := qnode.execute_kwargs.keys() - SPEED)):
        return f"it sets the options { {name: qnode.execute_kwargs[name] for name in options} }"
    return None


@functools.cache
def _methods_of(kind: type) -> frozenset[str]:
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name)))

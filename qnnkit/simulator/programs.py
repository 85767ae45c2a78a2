"""The fused programs of a QNode: from inputs and weights to a program and what it takes."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pennylane as qp
import torch
from torch import Tensor

from qnnkit.simulator.circuit import ONE_AT_A_TIME, Circuit, apart, composed, taken
from qnnkit.simulator.fused import Argument, Fused
from qnnkit.simulator.gates import NotFusable
from qnnkit.simulator.pure import Names, NotPure
from qnnkit.simulator.queueing import (
    ALWAYS_IN_PARTS,
    Structure,
    check,
    queue,
    replayed,
    structure,
    transformed,
)
from qnnkit.simulator.shots import METHODS, Sampled, diagonal
from qnnkit.simulator.structure import Methods, Unkeyable, measurement_key

EXACT_DEVICES = ("default.qubit", "lightning.qubit", "lightning.gpu", "lightning.kokkos")
"""PennyLane devices whose exact results the programs give as well."""
EXACT_METHODS = ("best", "backprop", "adjoint", "parameter-shift", "hadamard", "device")
"""Ways of differentiating that give the gradient itself."""
SPEED = ("grad_on_execution", "cache", "cachesize", "max_diff", "device_vjp", "executor_backend")
"""Options of a QNode that decide how fast it runs, not what it computes."""
MOST_PROGRAMS = 16
"""So many are kept, those used last."""
MOST_NEW, REMEMBERED = 8, 256
"""After so many new structures one after the other, only those are made into programs that come back."""
MOST_FORMS = 32
"""A pure function is traced for so many forms of inputs; sizes of the batch count if it reads them."""


@dataclass
class Call:
    """Programs with what they take, and how their values become those of the QNode."""

    parts: list[tuple[Fused | Sampled, Sequence[Tensor], int | None]]
    """(program, arguments, batch or None)."""
    as_list: bool
    finish: Callable[[Any], Any] | None = None
    """From the results of all parts, as PennyLane's devices give them, to the QNode's."""


class Programs:
    """The programs of a QNode, found anew at every call.

    Args:
        qnode: Takes `input_name` and the weights by name.
        input_name: Name of the argument that takes the data.
    """

    def __init__(self, qnode: qp.QNode, input_name: str):
        self.qnode, self.input_name = qnode, input_name
        self.last: Fused | Sampled | str | None = None
        """What ran last, or why it did not."""
        self.generator: torch.Generator | None = None
        """Draws the shots; where it is given, all of them."""
        self.tape: Any = None
        """What the Python queued at the last call, if it ran here."""
        self.names: Names | None = None
        """Of a pure function."""
        self._pure: dict[tuple, Fused | None] = {}
        self._fused: OrderedDict[tuple, Fused | str] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self.why_queued = ""
        self._new, self._in_parts, self._impure = 0, set(ALWAYS_IN_PARTS), None
        self._methods = Methods([type(qnode.device)])

    def program_for(self, rows: Tensor, weights: Mapping[str, Tensor]) -> Call | qp.QNode:
        """The program for a call; or the QNode, to be called on its own device, as `last` says why.

        Args:
            rows: Inputs of shape (batch, n_features) or (n_features,).
            weights: By name; of the dtype and device of `rows`.
        """
        if (tracing := torch._C._get_tracing_state()) is not None:
            torch._C._set_tracing_state(None)  # torch.jit compares with a second trace
            try:
                self.program_for(rows, weights)
            finally:
                torch._C._set_tracing_state(tracing)
        reason = own_device(self.qnode) if self._methods.hold() else "its device was changed"
        if reason is None and self.qnode.shots and not self._samples(rows):
            reason = "it has a finite number of shots"
        if reason is not None:
            self.last = reason
            return self.qnode
        program = None if self.qnode.shots else self._traced(rows)
        if program is not None and (call := self._of_pure(program, rows, weights)):
            return call
        with ONE_AT_A_TIME:  # PennyLane's recording is one for all threads
            return self._queued(rows, weights)

    def _samples(self, rows: Tensor) -> bool:
        """Whether shots are drawn here: on request, and where PennyLane has no gradient."""
        has_no_gradient = torch.is_grad_enabled() and rows.requires_grad and rows.ndim == 2
        is_plain = not self.qnode.shots.has_partitioned_shots and self.qnode.diff_method in METHODS
        return is_plain and (has_no_gradient or self.generator is not None)

    @property
    def how(self) -> str:
        """How often the QNode's Python runs, and why."""
        if self.names is not None and self.last in self._pure.values():
            return "its Python reads only its arguments and constants, and ran once"
        many = f", and has queued {len(self._seen)} different circuits so far" if len(self._seen) > 1 else ""
        why = f", since {self.why_queued}" if self.why_queued else ""
        return f"its Python runs at every call{why}{many}"

    # --- pure ---------------------------------------------------------------------------------------

    def _traced(self, rows: Tensor) -> Fused | None:
        """The program of a pure function for rows of this form, if it has one already."""
        if self.names is None:
            return None
        if not self.names.hold() or self._impure is not self.qnode.func:
            self.names, self._impure = None, None
            self._pure.clear()
            return None
        form = self._form(rows)
        program = self._pure.get(form)
        if program is not None and not program.methods.hold():
            del self._pure[form]
            return None
        return program

    def _of_pure(self, program: Fused, rows: Tensor, weights: Mapping[str, Tensor]) -> Call | None:
        """The call, unless sums of its large angles would lose digits: PennyLane reduces each alone."""
        arguments, batch = [rows, *weights.values()], _batch(rows)
        if not program.keeps_digits(arguments, batch or 1):
            return None
        self.last = program
        return Call([(program, arguments, batch)], program.as_list)

    def _form(self, rows: Tensor) -> tuple:
        sizes = rows.shape if self.names is not None and self.names.reads_sizes else rows.shape[1:]
        return rows.ndim, _batch(rows) == 1, sizes, rows.dtype, rows.device, self.qnode.device.wires

    def _trace(self, tape: Any, rows: Tensor, weights: Mapping[str, Tensor], as_list: bool) -> Fused | None:
        """The program of a pure function for rows of this form: traced, unless that failed before.

        Args:
            tape: What it queued at this call.
            rows: Inputs.
            weights: By name.
            as_list: Whether it returns a list or a tuple.
        """
        if self._impure is not self.qnode.func:  # not looked at yet
            self._impure = self.qnode.func
            try:
                self.names = Names(self.qnode.func)
            except NotPure as reason:
                self.names, self.why_queued = None, f"it holds {reason}"
        if self.names is None or not self.names.hold():
            return None
        form, named = self._form(rows), (self.input_name, *weights)
        if form in self._pure or len(self._pure) >= MOST_FORMS:  # in vain, or its angles are large now
            return None

        def record(arguments: Sequence[Tensor]) -> Structure:
            tape, _ = queue(self.qnode, dict(zip(named, arguments, strict=True)))
            return structure(transformed(self.qnode, tape)[0][0], self._in_parts)

        self._pure[form] = None
        try:
            made, of_numbers = self._taken(tape)
            shapes = [tuple(each.shape) for each in (rows, *weights.values())]
            own = composed(of_numbers, made.key, record, shapes)
        except (NotFusable, Unkeyable) as reason:
            self.why_queued = str(reason)
            return None
        arguments = [Argument(rows.shape[-1], True), *(Argument(w.numel(), False) for w in weights.values())]
        program = self._pure[form] = self._program(own, arguments, rows)
        program.as_list = as_list
        return program

    def _taken(self, tape: Any) -> tuple[Structure, Circuit]:
        """The structure and the circuit of a tape, which PennyLane would run."""
        made, found = taken(lambda: structure(tape, self._in_parts), self._in_parts, self.qnode.device.wires)
        with qp.QueuingManager.stop_recording():
            check(self.qnode, made)
        return made, found

    def _program(self, circuit: Circuit, arguments: Sequence[Argument], rows: Tensor) -> Fused:
        with apart():
            program = Fused(circuit, arguments, rows.dtype, rows.device)
        program.methods = Methods([*circuit.kinds, type(self.qnode.device)])
        return program

    # --- queued -------------------------------------------------------------------------------------

    def _queued(self, rows: Tensor, weights: Mapping[str, Tensor]) -> Call | qp.QNode:
        """Runs the Python, and finds a program for each tape that it and its transforms make."""
        tape, result = queue(self.qnode, {self.input_name: rows, **weights})
        self.tape, twin = tape, replayed(self.qnode, tape, result)
        try:
            returned = list(result) if isinstance(result, list | tuple) else [result]
            if [id(each) for each in returned] != [id(each) for each in tape.measurements]:
                raise NotFusable("it returns something else than its measurements, in their order")
            tapes, finish = transformed(self.qnode, tape)
            as_list = isinstance(result, list | tuple)
            if self.qnode.shots:
                return self._sampled(tapes, finish, rows, as_list)
            program = self._trace(tapes[0], rows, weights, as_list) if finish is None else None
            if program is not None and (call := self._of_pure(program, rows, weights)):
                return call
            parts: list[Any] = [self._part(each, rows) for each in tapes]
        except (NotFusable, Unkeyable) as reason:
            self.last = str(reason) if isinstance(reason, NotFusable) else f"it holds {reason}"
            return twin
        self.last = parts[0][0]
        return Call(parts, as_list, finish)

    def _sampled(self, tapes: Sequence[Any], finish: Any, rows: Tensor, as_list: bool) -> Call:
        """Programs for the exact distributions of the tapes, and shots of them."""
        parts, finishes = [], []
        for tape in tapes:
            exact, measurements, recombine = diagonal(tape)
            program, arguments, batch = self._part(exact, rows)
            key = tuple(map(measurement_key, measurements)), self.qnode.shots.total_shots
            if key not in program.sampled:
                program.sampled[key] = Sampled(program, measurements, self.qnode.shots.total_shots)
            program.sampled[key].generator = self.generator
            parts.append((program.sampled[key], arguments, batch))
            finishes.append(recombine)
        self.last = parts[0][0]

        def results(found: Sequence[Any]) -> Any:
            found = tuple(recombine(each) for recombine, each in zip(finishes, found, strict=True))
            return found[0] if finish is None else finish(found)

        return Call(parts, as_list, results)

    def _part(self, tape: Any, rows: Tensor) -> tuple[Fused, Sequence[Tensor], int | None]:
        """The program of a tape, and what it takes at this call.

        Raises:
            NotFusable: It has none.
        """
        made = structure(tape, self._in_parts)
        found = self._fused.get(self._key(made, rows))
        if found is None or (isinstance(found, Fused) and not found.methods.hold()):
            made, found = self._fuse(made, tape, rows)
            self._fused[self._key(made, rows)] = found
            if len(self._fused) > MOST_PROGRAMS:
                self._fused.popitem(last=False)
        else:
            self._fused.move_to_end(self._key(made, rows))
            self._new = max(0, self._new - 1)
        if isinstance(found, str):
            raise NotFusable(found)
        return found, _tensors(made.leaves, rows), made.batch

    def _key(self, made: Structure, rows: Tensor) -> tuple:
        return made.key, rows.dtype, rows.device, self.qnode.device.wires

    def _fuse(self, made: Structure, tape: Any, rows: Tensor) -> tuple[Structure, Fused | str]:
        """The program of a tape, or why it has none; and its structure, of which more may be in parts now."""
        key = hash(self._key(made, rows))
        seen = key in self._seen
        self._seen[key] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        self._new += 1
        if self._new > MOST_NEW and not seen:
            raise NotFusable("its Python makes another circuit at nearly every call")
        try:
            made, circuit = self._taken(tape)
            pairs = zip(made.leaves, made.batched, strict=True)
            arguments = [
                Argument(math.prod(np.shape(leaf)[is_batched:]), is_batched) for leaf, is_batched in pairs
            ]
            return made, self._program(circuit, arguments, rows)
        except NotFusable as reason:
            return made, str(reason)


def _batch(rows: Tensor) -> int | None:
    return len(rows) if rows.ndim == 2 else None


def _dtype(leaf: Any, rows: Tensor) -> torch.dtype:
    is_complex = isinstance(leaf, Tensor) and leaf.is_complex()
    return rows.dtype.to_complex() if is_complex else rows.dtype


def _tensors(leaves: Sequence[Any], rows: Tensor) -> list[Tensor]:
    """The leaves in the dtype and on the device of the rows; all plain numbers in one copy."""
    numbers = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    plain = iter(torch.tensor(numbers, dtype=rows.dtype, device=rows.device).unbind() if numbers else ())
    return [
        leaf.to(rows.device, _dtype(leaf, rows)) if isinstance(leaf, Tensor) else next(plain)
        for leaf in leaves
    ]


def own_device(qnode: qp.QNode) -> str | None:
    """Why a QNode runs on its own device, whatever it queues; None where a program may run."""
    device = qnode.device
    if qp.capture.enabled():
        return "program capture is enabled"
    if device.name not in EXACT_DEVICES:
        return "only that device knows what it computes"
    if type(qnode) is not qp.QNode or {"construct", "_impl_call"} & vars(qnode).keys():
        return "the QNode was customised"
    if type(device).__name__ not in DEVICE_CLASSES or any(
        callable(getattr(type(device), name, None)) for name in vars(device)
    ):
        return "the device was customised"
    if qnode.diff_method not in EXACT_METHODS:
        return f"its gradients are asked for by diff_method={qnode.diff_method}"
    if qnode.gradient_kwargs and qnode.diff_method not in ("backprop", "adjoint"):
        return f"it has gradient_kwargs={qnode.gradient_kwargs}"
    if other := {k: v for k, v in qnode.execute_kwargs.items() if k not in SPEED and v is not None}:
        return f"it has the options {other}"
    return None


DEVICE_CLASSES = ("DefaultQubit", "LightningQubit", "LightningGPU", "LightningKokkos")

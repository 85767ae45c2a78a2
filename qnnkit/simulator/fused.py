"""The fused program: runs a traced circuit on a whole batch, in real arithmetic, by a few matrix products."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit.simulator import program, steps
from qnnkit.simulator.angles import Angles, only, replay
from qnnkit.simulator.execute import Compiled
from qnnkit.simulator.matrices import Matrices
from qnnkit.simulator.readout import readout
from qnnkit.simulator.trace import NotFusable, Trace

MOST_WIRES = 24
MOST_DENSE = 32
"""A step takes all columns up to here, and picks those that it needs only beyond."""


class Fused:
    """A circuit as a program of torch operations, differentiable by autograd in inputs and weights.

    Args:
        trace: What the circuit does.
        inputs: Example, of shape (batch, n_features) or (n_features,).
        weights: Examples, in the order of the trace.

    Raises:
        NotFusable: Something in it has no fused form.
    """

    angles_of = Angles
    """How angles follow from inputs and weights."""

    def __init__(self, trace: Trace, inputs: Tensor, weights: Sequence[Tensor]):
        self.trace, self.n_wires = trace, len(trace.wires)
        if self.n_wires > MOST_WIRES:
            gib = 2 ** (self.n_wires + 3) / 2**30
            raise NotFusable(f"a state of {self.n_wires} wires takes {gib:.3g} GiB for every sample")
        items, on_weights, on_inputs = program.items(trace)
        self.readout = readout(trace.measurements, trace.wires)
        example, examples = inputs.double(), [weight.double() for weight in weights]
        self.weight_angles = Angles(trace.graph, on_weights, example, examples, on_inputs=False)
        self.input_angles = self.angles_of(trace.graph, on_inputs, example, examples, on_inputs=True)
        self.prepared = trace.prepared
        self.amplitudes = None if self.prepared is None else only(trace.graph, [self.prepared.output])
        given = self.prepared is not None
        self.plan = program.plan(items, self.n_wires, self.input_angles.size, given=given)
        self.matrices = Matrices(self.plan.blocks, *self.weight_angles.affine_form())
        self._compiled: dict[tuple[torch.device, torch.dtype], Compiled] = {}
        self.wants_compiler = False
        """Whether the next batch is compiled for: some seconds once, then a fifth to a third less a step."""
        self.no_compiler: str | None = None
        """Why that was not possible."""

    def __call__(self, inputs: Tensor, weights: Sequence[Tensor], *, keep: bool = True) -> Tensor:
        """Measured values, shaped as `TorchLayer` shapes them for lists.

        Args:
            inputs: Of shape (batch, n_features), or (n_features,).
            weights: In the order of the trace; the same dtype and device as `inputs`.
            keep: Whether states may be kept for the way back; else they are computed again there.
        """
        vector = self.vector(inputs, weights)
        columns = inputs.new_zeros(0, 1)  # where nothing depends on the inputs
        if self.input_angles.affine:
            columns = (inputs if inputs.ndim == 2 else inputs.unsqueeze(0)).t()  # (n_features, batch)
        elif self.input_angles.size:
            columns = self.input_angles.by_graph(inputs, weights).to(inputs.dtype)
        if self.amplitudes is not None:
            columns = self._with_amplitudes(columns, inputs, weights)
        compiled = self.compiled(inputs.device, inputs.dtype)
        if self.wants_compiler and compiled.fast is None and inputs.ndim == 2:
            self._speed_up(compiled, columns, vector)
        values = self._shape(compiled(columns, vector, keep=keep))
        if inputs.ndim == 1:
            return values[0]
        return values if len(values) == len(inputs) else values.expand(len(inputs), *values.shape[1:])

    def vector(self, inputs: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The weights, or their angles where these are not affine, as the matrices take them."""
        if self.weight_angles.affine:
            return torch.cat([weight.reshape(-1) for weight in weights])
        if self.weight_angles.size:
            return self.weight_angles.by_graph(inputs, weights).to(inputs.dtype)
        return inputs.new_zeros(0)

    def _speed_up(self, compiled: Compiled, columns: Tensor, vector: Tensor) -> None:
        try:
            compiled.speed_up(columns, vector)
        except Exception as error:  # whatever a compiler may raise, the program as it is gives the answer
            reason = str(error).strip().split("\n")[0]
            self.wants_compiler, self.no_compiler = False, f"{type(error).__name__}: {reason}"

    def _with_amplitudes(self, columns: Tensor, inputs: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The columns, and below them the amplitudes of the first state."""
        assert self.amplitudes is not None and self.prepared is not None
        [state] = replay(self.amplitudes, inputs, weights)
        of_samples = self.prepared.on_inputs and inputs.ndim == 2
        return self._below(columns, state[: len(inputs)].t() if of_samples else state.unsqueeze(1))

    def _below(self, columns: Tensor, rows: Tensor) -> Tensor:
        """The columns, and below them the amplitudes of shape (n_amplitudes, batch or 1)."""
        assert self.prepared is not None
        if self.prepared.is_complex:
            rows = torch.cat([rows.real, rows.imag])
        width = max(columns.shape[1], rows.shape[1])
        return torch.cat([columns.expand(-1, width), rows.to(columns.dtype).expand(-1, width)])

    def _shape(self, values: Tensor) -> Tensor:
        """Columns of numbers, (n_columns, batch), or states, (2, 2**n_wires, batch): now batch first."""
        kinds = {kind for kind, _, _ in self.readout.shapes}
        if kinds == {"state"}:
            return torch.complex(*values).t()
        values = values.t()
        if "var" in kinds:  # <O^2> - <O>^2
            parts = [values[:, first : first + n].split(1, 1) for _, first, n in self.readout.shapes]
            pairs = zip(self.readout.shapes, parts, strict=True)
            values = torch.cat(
                [of[1] - of[0] ** 2 if k == "var" else torch.cat(of, 1) for (k, _, _), of in pairs], 1
            )
        return values if self.trace.as_list or kinds == {"probs"} else values[:, 0]

    @property
    def n_values(self) -> int | None:
        """Length of the values' last axis; None where it has none, or they are a state."""
        kinds = {kind for kind, _, _ in self.readout.shapes}
        if "state" in kinds or not (self.trace.as_list or kinds == {"probs"}):
            return None
        return sum(1 if kind == "var" else n for kind, _, n in self.readout.shapes)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything that decides what the program computes, weights and inputs aside."""
        digest = hashlib.sha256()
        graphs = [self.weight_angles, self.input_angles]
        codes = [angles.graph.code for angles in graphs if angles.size and not angles.affine]
        codes += [] if self.amplitudes is None else [self.amplitudes.code]
        tables = [*self.weight_angles.affine_form(), *self.input_angles.affine_form(), self.matrices.rates]
        tables += [array for group in self.matrices.groups for array in group]
        tables += [] if self.plan.half is None else [self.plan.half]
        for step in self.plan.steps:
            if isinstance(step, program.Phases):
                tables.append(step.table(range(self.n_wires), range(self.input_angles.size)))
            elif isinstance(step, program.Permutation):
                tables += step.arrays()
        tables += [table for _, table in sorted(self.readout.flips.items())]
        names = (codes, self.n_wires, self.prepared, sorted(self.readout.flips), self.readout.shapes)
        digest.update(repr((names, self.trace.as_list, self.matrices.places)).encode())
        for table in tables:
            digest.update(repr((table.shape, table.dtype)).encode() + np.ascontiguousarray(table).tobytes())
        return digest.hexdigest()

    # --- constants --------------------------------------------------------------------------------

    def compiled(self, device: torch.device, dtype: torch.dtype) -> Compiled:
        """The program for one device and dtype, made when it is first asked for."""
        if (device, dtype) not in self._compiled:
            with torch.inference_mode(False), torch.no_grad():  # it outlives the caller's mode
                self._compiled[device, dtype] = self._compile(device, dtype)
        return self._compiled[device, dtype]

    def _compile(self, device: torch.device, dtype: torch.dtype) -> Compiled:
        def put(array: Any) -> Tensor:
            array = torch.as_tensor(np.ascontiguousarray(array))
            return (array.to(dtype) if array.is_floating_point() else array).to(device)  # MPS has no float64

        matrix, offset = self.input_angles.affine_form()

        n_amplitudes = 0
        if self.prepared is not None:
            n_amplitudes = 2 ** len(self.prepared.wires) * (1 + self.prepared.is_complex)

        def on_inputs(table: np.ndarray, used: Sequence[int]) -> steps.Affine:
            """The angles that a step turns by, from its rates of those that are used, a column for each."""
            rows = np.flatnonzero(matrix[:, used].any(axis=1))
            of_rows, constant = table @ matrix[rows][:, used].T, put((table @ offset[used])[:, None])
            if 2 * len(rows) <= len(matrix) > MOST_DENSE:  # a table of all columns would be mostly zeros
                return steps.Affine(put(of_rows), constant, put(rows))
            table_of_columns = np.zeros((len(table), len(matrix) + n_amplitudes))
            table_of_columns[:, rows] = of_rows
            return steps.Affine(put(table_of_columns), constant)

        places = iter(self.matrices.places)
        plan, made = self.plan, []
        start = [next(places) for _ in plan.start]
        if self.prepared is not None:
            states = program.states_of(self.prepared.wires, self.n_wires)
            first = len(matrix) if self.input_angles.size else 0
            made.append(steps.Given(first, put(states), 2**self.n_wires, self.prepared.is_complex))
        elif plan.half is None:
            made.append(steps.Start(None, plan.embedded, start))
        else:
            of = steps.StartOfOneCell if len(start) == 1 else steps.Start
            made.append(of(on_inputs(plan.half, range(len(offset))), plan.embedded, start))
        for step in plan.steps:
            if isinstance(step, program.Block):
                whole = len(step.wires) == self.n_wires
                made.append(steps.Block(next(places), 2 ** step.wires[0], whole=whole))
            elif isinstance(step, program.Permutation):
                index, phases = step.arrays()
                turns = None if np.allclose(phases, 1) else put(-np.angle(phases)[:, None])
                made.append(steps.Permutation(put(index), put(np.argsort(index)), turns))
            else:
                used = step.angles
                made.append(steps.Phases(on_inputs(step.table(range(self.n_wires), used), used)))
        made += self._reading(put, made)
        return Compiled(
            self.matrices.constants(put), made, 2 ** (self.n_wires + 1) * put(np.zeros(0)).element_size()
        )

    def _reading(self, put: Callable[[Any], Tensor], made: list[steps.Step]) -> list[steps.Step]:
        """The step that measures; none where the state itself is asked for."""
        flips = self.readout.flips
        if self.readout.shapes[0][0] == "state":
            return []
        if set(flips) != {0}:
            states = np.arange(2**self.n_wires)
            return [
                steps.Correlate(
                    [
                        (flip, put(np.real(table).T), put(np.imag(table).T), put(states ^ flip))
                        for flip, table in flips.items()
                    ]
                )
            ]
        table = np.real(flips[0]).T
        last = made[-1]
        if isinstance(last, steps.Permutation):  # it only renames what is weighed
            made.remove(last)
            table = table[:, last.inverse.cpu().numpy()]
        return [steps.Weigh(put(table))]

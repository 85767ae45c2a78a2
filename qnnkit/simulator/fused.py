"""The fused program: runs a traced circuit on a whole batch, in real arithmetic, by a few matrix products."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit.simulator import array_api, fusion, steps
from qnnkit.simulator.array_api import Array, exactly, in_numpy
from qnnkit.simulator.by_hand import Run, autograd_must, in_chunks, joined, samples_of, tensor_of
from qnnkit.simulator.circuit import Circuit
from qnnkit.simulator.gates import EXACT
from qnnkit.simulator.matrices import Matrices
from qnnkit.simulator.queueing import Methods

CACHE_BYTES = 2**20
"""Bytes of state per thread in one part of a batch on a CPU: what a core's own cache holds."""
FEWEST_COLUMNS = 16
"""Fewest samples of a part: thinner matrix products are slow."""
FEWEST_CHUNKS = 16
"""Fewest chunks that a part is cut into on a CPU, if its steps take chunks.

torch distributes whole chunks over its threads, in every operation alike, so each core finds its previous
results in its own cache. Otherwise torch splits matrix products by columns and all other operations by rows.
On a machine whose cores exchange data slowly (two x86 cores, 2026-11-25), W1 took 2.9 ms without chunks
and 1.9 ms with them, W2 12.4 ms and 6.
"""
SMALL_BYTES = 2**19
"""Most bytes of states that a CPU runs on NumPy arrays; for more, torch's threads and caches win."""
ONE_THREAD = 2**18
"""Most multiplications of a matrix product that OpenBLAS, NumPy's library, computes on one thread.

For larger products it starts its own threads, which stay awake for a while. Next to torch's threads, they
made every step of a net with a circuit four times as long on two cores.
"""
KEPT_BYTES, KEPT_ELSEWHERE = 2**27, 2**31
"""Bytes of states kept for the backward pass, on a CPU and elsewhere; other parts run forward again."""
LARGE = 8 * np.pi
"""An angle in radians. Sums of larger angles lose digits, so these are first reduced to one period."""
PART_BYTES = 2**30
"""Bytes of states, over all steps, in one part of a batch on devices other than a CPU."""


class Fused:
    """A circuit as a program of torch operations, differentiable by autograd in its arguments.

    Args:
        circuit: The circuit, as a function of its numbers.
        on_rows: Mask of the numbers that differ between samples, shape (n_numbers,).
        dtype: dtype of arguments and constants, float32 or float64.
        device: Device of arguments and constants.

    Raises:
        NotFusable: Something in the circuit has no fused form.
    """

    def __init__(self, circuit: Circuit, on_rows: Any, dtype: torch.dtype, device: Any = "cpu"):
        self.circuit, self.readout, self.n_wires = circuit, circuit.readout, len(circuit.wires)
        self.on_rows, self.dtype, self.device = np.array(on_rows, dtype=bool), dtype, torch.device(device)
        self.kinds = {kind for kind, _, _ in self.readout.shapes}
        self.weighs = set(self.readout.flips) == {0} and "state" not in self.kinds
        self.methods = Methods(circuit.kinds)
        """The methods it was built from; if one is replaced, the program no longer represents the QNode."""
        self.as_list = True
        """Whether the QNode returns a list or a tuple; used if this program is the whole QNode."""
        self.prepared = circuit.prepared
        self.is_given = self.prepared is not None and self.prepared.amplitudes is None
        """Whether the initial state is an argument."""
        if self.prepared is not None and not self.is_given:
            self.fixed = self._put(self.prepared.amplitudes)
        items, self.shared_angles, self.row_angles = fusion.items(circuit, self.on_rows)
        self.sampled: dict[tuple, Any] = {}
        """The same circuit with a finite number of shots, by measurements and shots."""
        self.plan = fusion.plan(items, self.n_wires, len(self.row_angles[1]), given=self.prepared is not None)
        self.state_bytes = 2 ** (self.n_wires + 1) * dtype.itemsize
        """Bytes of one sample's state."""
        self._rates: list[np.ndarray] = []
        with torch.inference_mode(False), torch.no_grad():  # constants outlive the caller's mode
            self.matrices = Matrices(self.plan.blocks, *self.shared_angles, self._put)
            self.steps = self._steps()
        both = self.shared_angles, self.row_angles
        sizes = [(np.abs(m).sum(0).max(initial=1), np.abs(offset).max(initial=0)) for m, offset in both]
        self.limits = [LARGE / float(most) if offset < LARGE else 0.0 for most, offset in sizes]
        """Bounds for the vector's and a row's numbers; below them no angle is large."""
        pairs = zip(([self.matrices.by_vector], self._rates), self.limits, strict=True)
        self.periods = [self._period(*pair) for pair in pairs]
        """Periods of the vector and of a row, in radians; None if there is none."""
        self.none: Tensor = self.matrices.offset.new_zeros(1, 0)
        """Stands for missing rows or a missing vector."""
        self.far, self.mixed, self.near = (self.matrices, self.steps), None, None
        """Matrices and steps for a batch: all in torch; matrices in NumPy; all in NumPy (small batches)."""
        if self.device.type == "cpu":
            array_api.keep_freed_memory()
            largest = max((2 ** (len(block.wires) + 1) for block in self.plan.blocks), default=1)
            if largest**3 <= ONE_THREAD:
                in_arrays = in_numpy(self.matrices)
                self.mixed = in_arrays, self.steps
                if all(step.by_hand for step in self.steps):
                    self.near = in_arrays, in_numpy(self.steps)

    @functools.cached_property
    def double(self) -> Fused:
        """The same program in float64."""
        return Fused(self.circuit, self.on_rows, torch.float64, self.device)

    @staticmethod
    def _period(rates: Sequence[np.ndarray], limit: float) -> float | None:
        """The common period of all angles in the numbers that they are computed from, if it is small."""
        flat = np.concatenate([np.zeros(0), *(each.ravel() for each in rates)])
        multiples = (k for k in (1, 2, 4, 8) if np.all(np.abs((k * flat).round() - k * flat) < EXACT))
        return next((2 * np.pi * k for k in multiples if np.pi * k <= limit), None)

    # --- constants --------------------------------------------------------------------------------

    def _put(self, array: Any) -> Tensor:
        array = torch.as_tensor(np.ascontiguousarray(array))
        real = self.dtype if array.is_floating_point() else array.dtype
        dtype = self.dtype.to_complex() if array.is_complex() else real
        return array.to(dtype).to(self.device)  # MPS has no float64

    def _affine(self, table: np.ndarray, used: Sequence[int]) -> steps.Affine:
        """The angles of a step, as an affine map of the columns.

        Args:
            table: Rates of the angles in `used`, one column each.
            used: Indices of the angles that the step depends on.
        """
        matrix, offset = self.row_angles
        rows = np.flatnonzero(matrix[:, used].any(axis=1))
        self._rates.append(table @ matrix[rows][:, used].T)
        reads_all = len(rows) == len(matrix) and self.prepared is None  # else columns also hold amplitudes
        put, constant = self._put, (table @ offset[used])[:, None]
        return steps.Affine(put(self._rates[-1]), put(constant), None if reads_all else put(rows))

    def _steps(self) -> list[steps.Step]:
        plan_, put, result = self.plan, self._put, []
        n_states, block = 2**self.n_wires, len(plan_.start)
        if self.prepared is not None:
            index = fusion.states_of(self.prepared.wires, self.n_wires)
            self.n_amplitudes = len(index)
            index = np.concatenate([index, n_states + index]) if self.prepared.is_complex else index
            result.append(steps.Given(put(index), 2 * n_states))
        elif plan_.waves is None:
            result.append(steps.Start(None, plan_.n_waves))
        else:
            waves = self._affine(plan_.waves, range(len(self.row_angles[1])))
            result.append((steps.StartOfOneCell if block == 1 else steps.Start)(waves, plan_.n_waves))
        states = np.arange(n_states)
        for step in plan_.steps:
            if isinstance(step, fusion.Block):
                whole, before = len(step.wires) == self.n_wires, 2 ** step.wires[0]
                result.append(steps.Block(block, before, 2 ** len(step.wires), whole=whole))
                block += 1
            elif isinstance(step, fusion.Permutation):
                index, phases = step.arrays()
                if self.weighs and step is plan_.steps[-1]:  # it only reorders the weighted states
                    states = np.argsort(index)
                    continue
                turns = None if np.allclose(phases, 1) else put(-np.angle(phases)[:, None])
                both = np.concatenate([index, n_states + index])
                result.append(steps.Permutation(put(both), put(np.argsort(both)), turns))
            else:
                table = step.table(range(self.n_wires), step.angles)
                result.append(steps.Phases(self._affine(table, step.angles)))
        if self.weighs:
            result.append(steps.Weigh(put(np.real(self.readout.flips[0]).T[:, states])))
        elif "state" not in self.kinds:
            flips: Any = self.readout.flips.items()
            tables = [(put(t.real.T), put(t.imag.T), put(states ^ flip)) for flip, t in flips]
            result.append(steps.Correlate(tables))
        return result

    # --- forward ----------------------------------------------------------------------------------

    def __call__(self, rows: Any, vector: Any, amplitudes: Any = None, *, keep: bool = True) -> Tensor:
        """Values of shape (batch, n_columns), or states of shape (batch, 2 * 2**n_wires).

        All arguments have the program's dtype and device; None stands for no numbers.

        Args:
            rows: The numbers of each sample, of shape (batch, n).
            vector: The n numbers that all samples share, in any shape.
            amplitudes: The initial state, of shape (batch, n) or (n,), if it is an argument.
            keep: Whether states may be kept for the backward pass, which otherwise computes them again.
        """
        rows = self.none if rows is None else rows
        vector = self.none[0] if vector is None else vector
        if self.prepared is not None:
            a = (amplitudes if self.is_given else self.fixed).reshape(-1, self.n_amplitudes)
            a = torch.cat([a.real, a.imag], 1) if a.is_complex() else a
            height = max(len(rows), len(a))
            rows = torch.cat([rows.expand(height, -1), a.to(rows.dtype).expand(height, -1)], 1)
        if autograd_must():
            return self.plain(rows, vector)
        if torch.is_grad_enabled() and (rows.requires_grad or vector.requires_grad):
            rows = rows if rows.requires_grad else rows.clone()  # the caller may overwrite it
            return Run.apply(self, self.given(rows, vector), keep, rows, vector)
        return tensor_of(self.compute(*self.given(rows, vector), None)[0])

    def keeps_digits(self, rows: Tensor, vector: Tensor | None) -> bool:
        """Whether sums of angles keep their digits: angles are small, or can be reduced to one period."""
        vector = self.none[0] if vector is None else vector
        if None not in self.periods or not self._is_plain(rows, vector):
            return True
        return not self._is_large(rows.detach().numpy(), vector.detach().numpy())

    def _is_plain(self, rows: Tensor, vector: Tensor) -> bool:
        """Whether NumPy can read the numbers, and nothing traces torch's operations, as fake tensors do."""
        kinds = Tensor, torch.nn.Parameter
        is_own = type(rows) in kinds and type(vector) in kinds and not (rows.is_neg() or vector.is_neg())
        return self.device.type == "cpu" and is_own and not torch._C._len_torch_dispatch_stack()

    def _is_large(self, rows: np.ndarray, vector: np.ndarray) -> bool:
        """Whether some angle may be large, judged by the numbers that it is computed from."""
        angles = rows if self.prepared is None else rows[:, : len(self.row_angles[0])]
        for numbers, limit in zip((vector.ravel(), angles.ravel()), self.limits, strict=True):
            if not (numbers.dot(numbers) <= limit**2 or np.abs(numbers).max() <= limit):  # quick test first
                return True
        return False

    def _reduced(self, rows: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The same rows and vector with angles reduced to one period; amplitudes after them stay."""
        angles, amplitudes = rows.tensor_split([len(self.row_angles[0])], dim=1)
        angles, vector = reduced(angles, self.periods[1]), reduced(vector, self.periods[0])
        return torch.cat([angles, amplitudes], 1) if amplitudes.shape[1] else angles, vector

    def shaped(self, values: Tensor, *, as_list: bool = True) -> Tensor:
        """Values of shape (batch, n_columns), or states of shape (batch, 2**n_wires), as in TorchLayer.

        Args:
            values: Computed values of shape (batch, n_columns), or (batch, 2 * 2**n_wires) for states.
            as_list: Whether the QNode returns a list or a tuple.
        """
        if "state" in self.kinds:
            return torch.complex(*values.chunk(2, 1))
        if "var" in self.kinds:  # <O^2> - <O>^2
            parts = [(kind, values[:, first : first + n]) for kind, first, n in self.readout.shapes]
            values = torch.cat([v[:, 1:] - v[:, :1] ** 2 if kind == "var" else v for kind, v in parts], 1)
        return values if as_list or self.kinds == {"probs"} else values[:, 0]

    def measured(self, values: Tensor) -> Any:
        """One tensor per measurement, as PennyLane returns them, from shaped values (..., n_columns)."""
        if "state" in self.kinds:
            return values
        widths = [1 if kind == "var" else n for kind, _, n in self.readout.shapes]
        parts = zip(values.split(widths, -1), self.readout.shapes, strict=True)
        each: list[Tensor] = list(part if kind == "probs" else part[..., 0] for part, (kind, _, _) in parts)
        return tuple(each) if len(each) > 1 else each[0]

    def given(self, rows: Tensor, vector: Tensor) -> tuple[Any, Sequence[Array], Array]:
        """The arguments of `compute` for a batch: `far`, `mixed` or `near`; its parts in columns; the vector.

        Large angles are reduced. A part fits the cache (CPU) or a share of the memory (elsewhere), and has
        shape (n, samples) or (chunks, n, samples).
        """
        rows, vector = rows.detach(), vector.detach().reshape(-1)
        n, is_plain = rows.shape[0], self._is_plain(rows, vector)
        way = (self.near or self.mixed or self.far) if is_plain else self.far
        if not is_plain or self._is_large(numbers := rows.numpy(), shared := vector.numpy()):
            rows, vector = self._reduced(rows, vector)
        elif way is self.near and n * self.state_bytes <= SMALL_BYTES:
            most = ONE_THREAD // 4 ** (self.n_wires + 1)
            if n_chunks := 1 if n <= most else chunks(n, -(-n // most)):
                return way, (in_chunks(numbers.T, n_chunks),), shared.copy()
        vector, threads = vector.clone(), torch.get_num_threads()  # it may change before backward
        size, fewest = CACHE_BYTES * threads, FEWEST_COLUMNS
        if self.device.type != "cpu":
            size, fewest = PART_BYTES // len(self.steps), 1
        parts = rows.t().split(max(fewest, size // self.state_bytes), dim=1)
        if way is self.near and threads > 1:
            least = max(FEWEST_CHUNKS, 2 * threads)
            parts = [in_chunks(part, chunks(part.shape[1], least, threads) or 1) for part in parts]
        return (self.far, parts, vector) if way is self.far else (self.mixed, parts, vector.numpy())

    def plain(self, rows: Tensor, vector: Tensor) -> Tensor:
        """The same computation in plain torch, which autograd can differentiate."""
        rows, vector = self._reduced(rows, vector.reshape(-1))
        (matrices, _), state = self.matrices.forward(vector), None
        for step in self.steps:
            state = step.run(state, rows.t(), matrices)
        assert state is not None  # a program has steps
        return state.t()

    def compute(
        self, way: Any, parts: Sequence[Array], vector: Array, tapes: list | None
    ) -> tuple[Array, Any]:
        """Values of shape (batch, n_columns), and what `built` returns; records no graph.

        Args:
            way: Matrices and steps: `far`, `mixed` or `near`.
            parts: Parts of the batch, of shape (n, samples) or (chunks, n, samples).
            vector: Vector of all weights.
            tapes: Receives one tape per part, with what the backward pass needs.
        """
        with exactly(self.device.type, way is self.near):
            built, values = self.built(way, vector), []
            left = KEPT_BYTES if self.device.type == "cpu" else KEPT_ELSEWHERE
            for part in parts:
                left -= samples_of(part) * self.state_bytes * len(self.steps)
                tape = None if tapes is None or left < 0 else []
                values.append(self.forward(way, part, built[0], tape))
                if tapes is not None:
                    tapes.append(tape)
            return joined(values), built

    def built(self, way: Any, vector: Array) -> tuple[Sequence[Array], Any]:
        """The blocks' matrices, as the steps take them, and the factors and products behind them."""
        results, saved = way[0].forward(vector)
        return [tensor_of(each) for each in results] if way is self.mixed else results, saved

    def forward(self, way: Any, columns: Array, matrices: Sequence[Array], tape: list[Any] | None) -> Array:
        """Values from columns and matrices; records on the tape what the backward pass needs."""
        state: Any = None
        for step in way[1]:
            state, saved = step.forward(state, columns, matrices)
            if tape is not None:
                tape.append(saved)
        return state


def reduced(angles: Tensor, period: float | None) -> Tensor:
    """The angles reduced to one period, accurate to the last digit: cos and sin take angles of any size."""
    if period is None or not angles.numel():
        return angles
    turns = angles * (2 * np.pi / period)
    return torch.atan2(turns.sin(), turns.cos()) * (period / (2 * np.pi))


@functools.cache
def chunks(samples: int, fewest: int, threads: int = 1) -> int:
    """The smallest number of equal chunks, if possible a multiple of `threads`; 0 if there is none."""
    few = range(fewest, samples // FEWEST_COLUMNS + 1)
    return min((n for n in few if samples % n == 0), key=lambda n: (n % threads != 0, n), default=0)

"""The fused program: runs a traced circuit on a whole batch, in real arithmetic, by a few matrix products."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit.device import machine
from qnnkit.simulator import array_api, fusion, steps
from qnnkit.simulator.array_api import Array, autocasts, full_precision, in_numpy, rounds, without_periods, xp
from qnnkit.simulator.gates import EXACT
from qnnkit.simulator.graph import Angles, Graph, Node, NotFusable
from qnnkit.simulator.matrices import Matrices, OverArrays
from qnnkit.simulator.trace import Trace

MOST_WIRES = 24
"""Up to here `backend="auto"` runs the program; the QNode's own device beyond.

No PennyLane device was measured to win below. Forward and backward on 2 cores, `lightning.qubit` (adjoint)
took 6 times as long as the program at 12 wires, 14 at 18, 10 at 20 (batch 1, 3 layers), 24 at 22 and 12 at 24
(batch 1, 1 layer), and 25 to 65 times as long at batch 64 and 12 to 18 wires.
"""
CACHE_BYTES = 2**20
"""On a CPU, a batch is run in parts whose state takes this much for each thread: what its own cache holds."""
FEWEST_COLUMNS = 16
"""No part has fewer samples than this: thinner matrix products are slow."""
FEWEST_CHUNKS = 16
"""On a CPU, a part is cut into so many chunks at least, if its steps take them.

torch shares whole chunks out to its threads, in every operation alike, so that each core finds in its own
cache what it left there. Else matrix products are shared out by columns, and all others by rows: where the
cores of a machine exchange data slowly, W1 took 2.9 ms for 1.9, and W2 12.4 for 6.
"""
SMALL_BYTES = 2**19
"""Up to so many bytes of states a CPU runs on NumPy arrays: beyond, torch's threads and caches win."""
ONE_THREAD = 2**18
"""Multiplications of a product that OpenBLAS, NumPy's library, does on one thread.

For larger ones it has threads of its own, which stay awake for a while: beside torch's own they made every
step of a net with a circuit four times as long on two cores.
"""
ALWAYS_KEPT = 2**27
"""Bytes of states that are kept for the way back, whatever is free."""
KEPT_SHARE = {"cpu": 1 / 128}
"""Share of the free memory that may be kept, a quarter on other devices; parts beyond run forward again."""
PART_SHARE = 0.05
"""Other devices than a CPU run a batch in parts whose states take this share of all their memory."""


class Fused:
    """A circuit as a program of torch operations, differentiable by autograd in inputs and weights.

    Args:
        trace: What the circuit does.
        inputs_shape: As traced, (batch, n_features) or (n_features,).
        weight_shapes: In the order of the trace.
        dtype: float32 or float64, of inputs, weights and constants.
        device: Likewise.

    Raises:
        NotFusable: Something in it has no fused form.
    """

    def __init__(
        self,
        trace: Trace,
        inputs_shape: tuple[int, ...],
        weight_shapes: Sequence[tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device | str,
    ):
        self.trace, self.readout, self.n_wires = trace, trace.readout, len(trace.wires)
        self.shapes = inputs_shape, weight_shapes
        self.dtype, self.device = dtype, torch.device(device)
        if self.n_wires > MOST_WIRES:
            gib = 2 ** (self.n_wires + 3) / 2**30
            raise NotFusable(f"a state of {self.n_wires} wires takes {gib:.3g} GiB for every sample")
        self.kinds = {kind for kind, _, _ in self.readout.shapes}
        self.weighs = set(self.readout.flips) == {0} and "state" not in self.kinds
        items, on_weights, on_inputs = fusion.items(trace)
        shapes = [(1, *inputs_shape[1:]) if len(inputs_shape) == 2 else inputs_shape, *weight_shapes]
        self.weight_angles = Angles(trace.graph(on_weights), shapes, None)
        self.input_angles = Angles(trace.graph(on_inputs), shapes, 0)
        self.used = None
        """Features that some angle depends on, where not all do: what is not read may be NaN."""
        used = self.input_angles.matrix.any(axis=1)
        if self.input_angles.affine and type(self) is Fused and not used.all():
            self.used = self._put(np.flatnonzero(used))
            self.input_angles.matrix = self.input_angles.matrix[used]
        self.prepared, self.amplitudes = trace.prepared, None
        if self.prepared is not None and isinstance(self.prepared.amplitudes, Node):
            self.amplitudes = trace.graph([self.prepared.amplitudes])
        elif self.prepared is not None:
            self.fixed = self._put(self.prepared.amplitudes)
        items, is_given = fusion.seen(items) if self.weighs else items, self.prepared is not None
        self.plan = fusion.plan(items, self.n_wires, self.input_angles.size, given=is_given)
        self.state_bytes = 2 ** (self.n_wires + 1) * dtype.itemsize
        """Of one sample."""
        self._rates: list[np.ndarray] = []
        with torch.inference_mode(False), torch.no_grad():  # constants outlive the caller's mode
            self.matrices = Matrices(
                self.plan.blocks, self.weight_angles.matrix, self.weight_angles.offset, self._put
            )
            self.steps = self._steps()
        rates = np.concatenate([each.ravel() for each in self._rates or [np.full(1, np.nan)]])
        whole = (k for k in (1, 2, 4, 8) if np.all(np.abs((k * rates).round() - k * rates) < EXACT))
        self.period = next((2 * np.pi * k for k in whole), None)
        """Of all angles in each column, if there is one, in radians."""
        self.far, self.mixed, self.near = (self.matrices, self.steps), None, None
        """What runs a batch; on a CPU over torch's states alone, or, of small ones, over NumPy arrays."""
        if self.device.type == "cpu":
            array_api.keep_freed_memory()
            largest = max((2 ** (len(block.wires) + 1) for block in self.plan.blocks), default=1)
            if largest**3 <= ONE_THREAD:
                in_arrays = in_numpy(self.matrices)
                self.mixed = OverArrays(in_arrays), self.steps
                if all(step.by_hand for step in self.steps):
                    self.near = in_arrays, in_numpy(self.steps)

    @functools.cached_property
    def double(self) -> Fused:
        """The same in float64."""
        return Fused(self.trace, *self.shapes, torch.float64, self.device)

    # --- constants --------------------------------------------------------------------------------

    def _put(self, array: Any) -> Tensor:
        array = torch.as_tensor(np.ascontiguousarray(array))
        real = self.dtype if array.is_floating_point() else array.dtype
        dtype = self.dtype.to_complex() if array.is_complex() else real
        return array.to(dtype).to(self.device)  # MPS has no float64

    def _affine(self, table: np.ndarray, used: Sequence[int]) -> steps.Affine:
        """The angles that a step turns by, from its rates of those that are used, a column for each."""
        matrix, offset = self.input_angles.matrix, self.input_angles.offset
        rows = np.flatnonzero(matrix[:, used].any(axis=1))
        self._rates.append(table @ matrix[rows][:, used].T)
        reads_all = len(rows) == len(matrix) and self.prepared is None  # whose columns hold amplitudes, too
        put, constant = self._put, (table @ offset[used])[:, None]
        return steps.Affine(put(self._rates[-1]), put(constant), None if reads_all else put(rows))

    def _steps(self) -> list[steps.Step]:
        plan_, put, made = self.plan, self._put, []
        n_states, block = 2**self.n_wires, len(plan_.start)
        if self.prepared is not None:
            index = fusion.states_of(self.prepared.wires, self.n_wires)
            self.n_amplitudes = len(index)
            index = np.concatenate([index, n_states + index]) if self.prepared.is_complex else index
            made.append(steps.Given(put(index), 2 * n_states))
        elif plan_.waves is None:
            made.append(steps.Start(None, plan_.n_waves))
        else:
            waves = self._affine(plan_.waves, range(self.input_angles.size))
            made.append((steps.StartOfOneCell if block == 1 else steps.Start)(waves, plan_.n_waves))
        renamed = np.arange(n_states)
        for step in plan_.steps:
            if isinstance(step, fusion.Block):
                whole, before = len(step.wires) == self.n_wires, 2 ** step.wires[0]
                made.append(steps.Block(block, before, 2 ** len(step.wires), whole=whole))
                block += 1
            elif isinstance(step, fusion.Permutation):
                index, phases = step.arrays()
                if self.weighs and step is plan_.steps[-1]:  # it only renames what is weighed
                    renamed = np.argsort(index)
                    continue
                turns = None if np.allclose(phases, 1) else put(-np.angle(phases)[:, None])
                both = np.concatenate([index, n_states + index])
                made.append(steps.Permutation(put(both), put(np.argsort(both)), turns))
            else:
                table = step.table(range(self.n_wires), step.angles)
                made.append(steps.Phases(self._affine(table, step.angles)))
        if self.weighs:
            table = np.real(self.readout.flips[0]).T[:, renamed]
            made.append(steps.Weigh(put(np.tile(table, (1, 2)))))
        elif "state" not in self.kinds:
            flips: Any = self.readout.flips.items()
            states = np.arange(n_states)
            tables = [(flip, put(t.real.T), put(t.imag.T), put(states ^ flip)) for flip, t in flips]
            made.append(steps.Correlate(tables))
        return made

    # --- the way forward --------------------------------------------------------------------------

    def __call__(self, inputs: Tensor, weights: Sequence[Tensor], *, keep: bool = True) -> Tensor:
        """Measured values, shaped as `TorchLayer` shapes them for lists.

        Args:
            inputs: Of shape (batch, n_features), or (n_features,).
            weights: In the order of the trace; the same dtype and device as `inputs`.
            keep: Whether states may be kept for the way back; else they are computed again there.
        """
        values = self.shaped(self.run(*self.arguments(inputs, weights), keep=keep))
        if inputs.ndim == 1:
            return values[0]
        return values if len(values) == len(inputs) else values.expand(len(inputs), *values.shape[1:])

    def arguments(self, inputs: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """What `run` takes: rows of inputs or of their angles, and weights or their angles."""
        vectors = weights
        if not self.weight_angles.affine:
            angles = self.weight_angles.graph(inputs, weights)
            vectors = [angle.to(inputs.dtype) for angle in angles]
        rows = inputs if inputs.ndim == 2 else inputs.unsqueeze(0)
        if self.used is not None:
            rows = rows.index_select(1, self.used)
        if not self.input_angles.affine:
            angles = self.results(self.input_angles.graph, inputs, weights)
            columns = [angle.expand(len(rows)).to(inputs.dtype) for angle in angles]
            rows = torch.stack(columns, 1) if columns else inputs.new_zeros(1, 0)
        if self.prepared is not None:
            [a] = [self.fixed] if self.amplitudes is None else self.results(self.amplitudes, inputs, weights)
            a = a.reshape(-1, self.n_amplitudes)
            a = torch.cat([a.real, a.imag], 1) if a.is_complex() else a
            height = max(len(rows), len(a))
            rows = torch.cat([rows.expand(height, -1), a.to(rows.dtype).expand(height, -1)], 1)
        return rows, vectors

    def results(self, graph: Graph, inputs: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """What a graph gives, of shape (batch or 1, ...) each, or of one sample."""
        return graph(inputs, weights)

    def shaped(self, values: Tensor) -> Tensor:
        """Numbers of shape (batch, n_columns), or states, (batch, 2 * 2**n_wires), as TorchLayer has them."""
        if "state" in self.kinds:
            return torch.complex(*values.chunk(2, 1))
        if "var" in self.kinds:  # <O^2> - <O>^2
            of = [(kind, values[:, first : first + n]) for kind, first, n in self.readout.shapes]
            values = torch.cat([v[:, 1:] - v[:, :1] ** 2 if kind == "var" else v for kind, v in of], 1)
        return values if self.trace.as_list or self.kinds == {"probs"} else values[:, 0]

    def run(self, rows: Tensor, vectors: Sequence[Tensor], *, keep: bool = True) -> Tensor:
        """Values of shape (batch, n_columns), or states of shape (batch, 2 * 2**n_wires).

        Args:
            rows: Inputs or their angles, of shape (batch, n); batch 1 if nothing depends on them.
            vectors: Weights, or their angles.
            keep: Whether states may be kept for the way back; else they are computed again there.
        """
        if autograd_must():
            return self.plain(rows, vectors)
        if torch.is_grad_enabled():
            return _Run.apply(self, keep, rows, *vectors)
        return torch.as_tensor(self.compute(*self.given(rows, vectors), None)[0])

    def given(self, rows: Tensor, vectors: Sequence[Tensor]) -> tuple[Any, Sequence[Array], Array]:
        """What runs a batch; its parts, in columns, and one vector of all weights, as that takes them."""
        columns, vector = rows.detach().t(), self.flat(vectors).detach()
        way, is_seen = self._way(rows, vector), self.device.type == "cpu" and _is_plain(rows)
        columns = self._reduced(columns.numpy() if way is self.near else columns, is_seen)
        return way, self.parts(way, columns), vector.numpy() if way is self.near else vector

    def _way(self, rows: Tensor, vector: Tensor) -> Any:
        """What runs a batch: `far`, `mixed` or `near`."""
        if self.mixed is None or not (_is_plain(rows) and _is_plain(vector)):
            return self.far
        is_small = self.near is not None and len(rows) * self.state_bytes <= SMALL_BYTES
        return self.near if is_small and self._n_chunks(len(rows)) else self.mixed

    def plain(self, rows: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """The same in plain torch, which autograd can follow."""
        (matrices, _), state = self.matrices.forward(self.flat(vectors)), None
        columns = self._reduced(rows.t(), seen=False)
        for step in self.steps:
            state = step.run(state, columns, matrices)
        assert state is not None  # a program has steps
        return state.t()

    def _reduced(self, columns: Array, seen: bool) -> Array:
        """The columns with angles in one period, so that their sums keep their digits.

        Args:
            columns: Of shape (n, batch); what follows the angles is left as it is.
            seen: Whether to look at their numbers first: most lie within one period anyway.
        """
        n = len(self.input_angles.matrix)
        if self.period is None or not n:
            return columns
        if seen:
            if isinstance(columns, Tensor):  # along memory, which is ten times faster
                least, most = (columns if columns.is_contiguous() else columns.t()).aminmax()
            else:
                least, most = 0, np.abs(columns).max()
            if -self.period <= least and most <= self.period:
                return columns
        with np.errstate(all="ignore"):
            angles = without_periods(columns if n == len(columns) else columns[:n], self.period)
        return angles if n == len(columns) else xp(columns).concatenate([angles, columns[n:]])

    def flat(self, vectors: Sequence[Tensor]) -> Tensor:
        if len(vectors) == 1:
            return vectors[0].reshape(-1)
        return torch.cat([v.reshape(-1) for v in vectors]) if vectors else self.matrices.offset.new_zeros(0)

    def compute(
        self, way: Any, parts: Sequence[Array], vector: Array, tapes: list | None
    ) -> tuple[Array, Any]:
        """Values, (batch, n_columns), and the blocks' matrices with what they were made of; no graph.

        Args:
            way: Matrices and steps: `far`, `mixed` or `near`.
            parts: Of the batch, of shape (n, samples) or (chunks, n, samples).
            vector: Of all weights.
            tapes: Gets one for each part of the batch, with what the way back needs.
        """
        with full_precision(self.device.type), np.errstate(all="ignore"):  # what is not finite stays so
            built, values = way[0].forward(vector), []
            left = 0 if tapes is None else self.kept_bytes(sum(map(_samples, parts)))
            for part in parts:
                left -= _samples(part) * self.state_bytes * len(self.steps)
                tape = None if tapes is None or left < 0 else []
                values.append(self.forward(way, part, built[0], tape))
                if tapes is not None:
                    tapes.append(tape)
            return _rows(values), built

    def forward(self, way: Any, columns: Array, matrices: Sequence[Array], tape: list[Any] | None) -> Array:
        """From columns and matrices to values; what the way back needs goes on the tape."""
        state: Any = None
        for step in way[1]:
            state, saved = step.forward(state, columns, matrices)
            if tape is not None:
                tape.append(saved)
        return state

    def parts(self, way: Any, columns: Array) -> tuple[Array, ...]:
        """The batch in parts that fit the cache (CPU), or a share of the memory (elsewhere).

        Each is of shape (n, samples), or (chunks, n, samples).
        """
        if way is self.near:
            return (_in_chunks(columns, self._n_chunks(columns.shape[1])),)
        size, fewest = CACHE_BYTES * torch.get_num_threads(), FEWEST_COLUMNS
        if self.device.type != "cpu":
            size, fewest = int(PART_SHARE * memory(self.device)[0]) // len(self.steps), 1
        most = max(fewest, size // self.state_bytes)
        parts = (columns,) if columns.shape[1] <= most else columns.split(most, dim=1)
        if way is not self.mixed or self.near is None:  # somebody counts operations, or steps take no chunks
            return parts
        return tuple(_in_chunks(part, chunks(part.shape[1], torch.get_num_threads())) for part in parts)

    def _n_chunks(self, samples: int) -> int:
        """In how many chunks NumPy takes a batch, so that its products stay on one thread; 0 for none."""
        most = ONE_THREAD // 4 ** (self.n_wires + 1)
        return 1 if samples <= most else even(samples, -(-samples // most))

    def kept_bytes(self, n_columns: int) -> float:
        """How much of the states of a batch may be kept for the way back."""
        if n_columns * self.state_bytes * len(self.steps) <= ALWAYS_KEPT:
            return ALWAYS_KEPT
        return max(ALWAYS_KEPT, KEPT_SHARE.get(self.device.type, 0.25) * memory(self.device)[1])


@functools.cache
def chunks(samples: int, threads: int) -> int:
    """In how many a part of a batch is cut: the same number of samples in each; 1 where that cannot be."""
    few = range(max(FEWEST_CHUNKS, 2 * threads), samples // FEWEST_COLUMNS + 1) if threads > 1 else ()
    return min((n for n in few if samples % n == 0), key=lambda n: (n % threads != 0, n), default=1)


@functools.cache
def even(samples: int, fewest: int) -> int:
    """The fewest chunks, of as many samples each; 0 where they would be too small."""
    return next((n for n in range(fewest, samples // FEWEST_COLUMNS + 1) if samples % n == 0), 0)


def _in_chunks(columns: Array, n: int) -> Array:
    return columns if n == 1 else columns.reshape(len(columns), n, -1).swapaxes(0, 1)


def _rows(parts: Sequence[Array]) -> Array:
    """Of shape (batch, n), from parts of the batch, each of shape (n, samples) or (chunks, n, samples)."""
    if len(parts) == 1:
        [part] = parts
        return part.T if part.ndim == 2 else part.swapaxes(1, 2).reshape(-1, part.shape[1])
    if all(part.ndim == 2 for part in parts):
        return torch.cat(list(parts), 1).T
    return torch.cat([_rows([part]) for part in parts])


def _samples(columns: Array) -> int:
    return columns.shape[-1] * (len(columns) if columns.ndim == 3 else 1)


def _is_plain(tensor: Tensor) -> bool:
    """Whether its memory holds its numbers, and nobody follows torch's operations, as fake tensors do."""
    is_own = type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_neg()
    return is_own and not torch._C._len_torch_dispatch_stack()


def memory(device: torch.device) -> tuple[int, int]:
    """Bytes of a device: all, and those that are free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    total, free = machine.memory()
    if device.type == "mps":
        total = torch.mps.recommended_max_memory()
        free = min(free, total - torch.mps.driver_allocated_memory())
    return total, free


def autograd_must() -> bool:
    """Whether the gradients by hand do not serve: under functional transforms, forward mode, a compiler."""
    # Neither has a public name; autograd.Function itself asks the first.
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


class _Run(torch.autograd.Function):
    """Rows and weights -> values; see `Fused.run`."""

    @staticmethod
    def forward(ctx: Any, program: Fused, keep: bool, rows: Tensor, *vectors: Tensor) -> Tensor:
        ctx.program, ctx.tapes, ctx.given = program, [] if keep else None, program.given(rows, vectors)
        values, ctx.built = program.compute(*ctx.given, ctx.tapes)
        ctx.save_for_backward(rows, *vectors)
        # a state may be on the tape itself: no cycle through this node
        return torch.as_tensor(values).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        kind = gradient.device.type
        if torch.is_grad_enabled() or autograd_must():
            return _Run._again(ctx, gradient)
        uncast = torch.autocast(kind, enabled=False) if autocasts(kind) else contextlib.nullcontext()
        with full_precision(kind), np.errstate(all="ignore"), uncast:
            return _Run._backward(ctx, gradient)

    @staticmethod
    def _again(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradients so that they can be differentiated again: by autograd, through plain torch."""
        needed, given = ctx.needs_input_grad[2:], ctx.saved_tensors
        # torch itself goes back, and would round
        program = ctx.program.double if rounds(gradient.device.type) else ctx.program
        with torch.enable_grad():
            rows, *vectors = (each.to(program.dtype) for each in given)
            values = program.plain(rows, vectors).to(gradient.dtype)
        wanted = [each for each, needs in zip(given, needed, strict=True) if needs]
        found = iter(torch.autograd.grad(values, wanted, gradient, create_graph=True, allow_unused=True))
        return (None, None, *(next(found) if needs else None for needs in needed))

    @staticmethod
    def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        program, needed, vectors = ctx.program, ctx.needs_input_grad[2:], ctx.saved_tensors[1:]
        # What the forward pass kept goes with the first backward pass, as autograd's does.
        built, tapes, (way, parts, vector) = ctx.built, ctx.tapes, ctx.given
        ctx.built, ctx.tapes, (matrices, steps_) = None, None, way
        gradients: Any = gradient.t().numpy() if way is program.near else gradient.t()
        built = built or matrices.forward(vector)
        first, to_rows, to_matrices = 0, [], [None] * len(built[0]) if any(needed[1:]) else None
        for i, part in enumerate(parts):
            flowing = gradients[:, first : (first := first + _samples(part))]
            flowing = _in_chunks(flowing, len(part) if part.ndim == 3 else 1)
            tape = None
            if tapes:
                tape, tapes[i] = tapes[i], None
            if tape is None:
                program.forward(way, part, built[0], tape := [])
            to = steps.Gradients(part if needed[0] else None, to_matrices)
            for step in reversed(steps_):
                flowing = step.backward(flowing, tape.pop(), built[0], to)
            to_rows.append(0 * part if to.columns is None else to.columns)
        found: list[Any] = [torch.as_tensor(_rows(to_rows))]
        if to_matrices is None:
            return (None, None, *found, *[None] * len(vectors))
        to_vector = torch.as_tensor(matrices.backward(to_matrices, built[1]))
        each = to_vector.split([v.numel() for v in vectors]) if len(vectors) > 1 else [to_vector]
        found += [part.view(v.shape) for part, v in zip(each, vectors, strict=True)]
        return (None, None, *(part if needs else None for part, needs in zip(found, needed, strict=True)))

"""Training with a finite number of shots: measurements drawn from the exact distribution of every circuit.

PennyLane cannot differentiate a batch of circuits by the parameter-shift rule (its issues 4462 and 6078).
Here all shifted circuits of a batch are one program, in which every row has its own angles. Each row is
measured `shots` times, as a device would measure it.

For a gate exp(-i t G) the rule is f'(t) = sum_k c_k f(t + s_k), with (c_k, s_k) from the differences of G's
eigenvalues. Every f is estimated by separate shots, so the gradient of expectation values and probabilities
is unbiased. A variance is <O^2> - <O>^2 of the same shots.

Reference: Schuld et al. (2019), arXiv:1811.11184; Wierichs et al. (2022), arXiv:2107.12390, for the rule.
"""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pennylane as qp
import torch
from torch import Tensor

from qnnkit.simulator.fused import Fused
from qnnkit.simulator.gates import NotFusable, Turn, local_states

METHODS = ("best", "parameter-shift")
"""Values of `diff_method` that mean the parameter-shift rule if there are shots."""
AT_ONCE = 2**22
"""Most amplitudes of shifted circuits that are computed at once."""


def diagonal(tape: Any, device: Any) -> tuple[list[tuple[Any, Any]], Callable[[Any], Any]]:
    """The tape in the eigenbasis of its measurements, once for each group of commuting observables.

    Returns:
        For each group, the exact tape that measures the probabilities of all basis states, and the
        measurements, each of one observable; and a function from all results to those of the given tape.

    Raises:
        NotFusable: The tape measures something other than expval, var and probs.
    """
    kinds = qp.measurements.ExpectationMP, qp.measurements.VarianceMP, qp.measurements.ProbabilityMP
    if any(type(each) not in kinds or getattr(each, "mv", None) is not None for each in tape.measurements):
        raise NotFusable("it measures something other than expectation values, variances and probabilities")
    with qp.QueuingManager.stop_recording():
        wired: Any = qp.devices.preprocess.validate_device_wires  # probs() is of all the device's wires
        [tape], _ = wired(tape, device.wires, device.name)
        try:
            tapes, finish = qp.transforms.split_non_commuting(tape, grouping_strategy="qwc")
        except RuntimeError as error:  # the variance of a sum
            raise NotFusable("PennyLane cannot split what it measures into single terms") from error
        groups = []
        for each in tapes:
            every = qp.wires.Wires.all_wires([tape.wires, *(one.wires for one in each.measurements)])
            operations = [*each.operations, *each.diagonalizing_gates]
            groups.append((qp.tape.QuantumScript(operations, [qp.probs(wires=every)]), each.measurements))
    return groups, finish


def results_of(values: Tensor, measurements: Sequence[Any], wires: Sequence[Any]) -> Any:
    """The results of diagonal measurements, from probabilities of all basis states of the wires."""
    results = []
    for each in measurements:
        on = each.wires or qp.wires.Wires(wires)
        states = torch.from_numpy(local_states(tuple(on), wires)).to(values.device)
        if isinstance(each, qp.measurements.ProbabilityMP):
            estimate = values.new_zeros(*values.shape[:-1], 2 ** len(on)).index_add(-1, states, values)
        else:
            value = torch.as_tensor(np.real(each.eigvals())).to(values.dtype).to(values.device)[states]
            estimate = values @ value
            if isinstance(each, qp.measurements.VarianceMP):
                estimate = values @ value**2 - estimate**2
        results.append(estimate)
    return tuple(results) if len(results) > 1 else results[0]


class Sampled:
    """A circuit measured a finite number of times, differentiable by the parameter-shift rule.

    Args:
        program: Program that computes the probabilities of all basis states.
        measurements: Measurements that are diagonal in that basis.
        shots: Number of shots of every circuit.
        generator: Draws the shots; torch's own generator if None.
    """

    def __init__(self, program: Fused, measurements: Sequence[Any], shots: int, generator: Any = None):
        self.program, self.measurements, self.shots, self.generator = program, measurements, shots, generator
        circuit = program.circuit
        if program.is_given:
            raise NotFusable("its first state depends on the inputs")
        self.rules = [_rule(gate.form.rates) for gate in circuit.gates if isinstance(gate.form, Turn)]
        n = len(circuit.offset)
        of_angles = dataclasses.replace(circuit, matrix=np.eye(n), offset=np.zeros(n))
        self.by_row = Fused(of_angles, np.ones(n), program.dtype, program.device)

    def __call__(self, rows: Any, vector: Any, amplitudes: Any = None, *, keep: bool = True) -> Tensor:
        """Frequencies of all basis states, of shape (batch, 2**n_wires)."""
        circuit, on_rows = self.program.circuit, self.program.on_rows
        dtype = torch.float32 if self.program.device.type == "mps" else torch.float64  # never rounded
        put = functools.partial(torch.as_tensor, dtype=dtype, device=self.program.device)
        angles, wanted = put(circuit.offset)[None], np.zeros(len(circuit.offset), dtype=bool)
        flat = None if vector is None else vector.reshape(-1)
        for numbers, matrix in ((rows, circuit.matrix[:, on_rows]), (flat, circuit.matrix[:, ~on_rows])):
            if numbers is not None:
                angles = angles + numbers.to(dtype) @ put(matrix.T)
                wanted |= matrix.any(1) & numbers.requires_grad
        return _Shots.apply(self, wanted.tolist(), angles.to(self.program.dtype))

    def frequencies(self, angles: Tensor) -> Tensor:
        """Measures each row, of shape (n, n_angles), `shots` times."""
        parts = []
        for part in angles.split(max(1, AT_ONCE >> (self.program.n_wires + 1))):
            probabilities = self.by_row(part, None).clamp(min=0).expand(len(part), -1)
            parts.append(self._drawn(probabilities.double()).to(angles.dtype) / self.shots)
        return torch.cat(parts)

    def _drawn(self, probabilities: Tensor) -> Tensor:
        """Counts of each outcome, by repeated halving: each first half gets a binomial share."""
        counts = probabilities.new_full((len(probabilities), 1), float(self.shots))
        for level in range(self.program.n_wires):
            halves = probabilities.reshape(len(probabilities), 2 ** (level + 1), -1).sum(-1)
            first, second = halves[:, ::2], halves[:, 1::2]
            share = (first / (first + second)).nan_to_num(0.5).clamp(0, 1)
            left = torch.binomial(counts, share, generator=self.generator)
            counts = torch.stack([left, counts - left], -1).flatten(1)
        return counts

    def shaped(self, values: Tensor, *, as_list: bool = True) -> Tensor:
        """The frequencies, unchanged; `measured` makes results of them."""
        return values

    def measured(self, values: Tensor) -> Any:
        """The results as PennyLane's devices return them, from frequencies of shape (..., 2**n_wires)."""
        return results_of(values, self.measurements, self.program.circuit.wires)


class _Shots(torch.autograd.Function):
    """Computes frequencies from angles of shape (batch, n_angles); see `Sampled`."""

    @staticmethod
    def forward(ctx: Any, sampled: Sampled, wanted: list[bool], angles: Tensor) -> Tensor:
        ctx.sampled, ctx.wanted = sampled, wanted
        ctx.save_for_backward(angles)
        return sampled.frequencies(angles)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        [angles] = ctx.saved_tensors
        to_angles, pairs = torch.zeros_like(angles), zip(ctx.sampled.rules, ctx.wanted, strict=True)
        shifts = [(j, *each) for j, (rule, wanted) in enumerate(pairs) if wanted for each in rule]
        if shifts:
            moved = angles.repeat(len(shifts), 1, 1)  # (n_shifts, batch, n_angles)
            for k, (j, _, shift) in enumerate(shifts):
                moved[k, :, j] += shift
            measured = ctx.sampled.frequencies(moved.flatten(0, 1)).reshape(len(shifts), *gradient.shape)
            slopes = (measured * gradient).sum(-1)  # (n_shifts, batch)
            for k, (j, coefficient, _) in enumerate(shifts):
                to_angles[:, j] += coefficient * slopes[k]
        return None, None, to_angles


def _rule(rates: np.ndarray) -> list[tuple[float, float]]:
    """Pairs (c, s) of a gate's parameter-shift rule, from the eigenvalues of its generator."""
    frequencies = qp.gradients.eigvals_to_frequencies(tuple(rates))
    if not frequencies:
        return []
    return [(float(c), float(s)) for c, s in qp.gradients.generate_shift_rule(frequencies)]

"""The trigonometric features of a circuit that embeds its inputs as angles: its classical twin.

A gate exp(-i t G) multiplies the state by phases exp(-i t g), one for each eigenvalue g of G. A measured
value therefore depends on t only through cos(d t) and sin(d t), where d runs over the differences of G's
eigenvalues: -1, 0 and 1 for a Pauli rotation. A circuit whose gates turn by the angles t_1(x), ..., t_k(x)
is a linear map of cos(d . t(x)) and sin(d . t(x)) over all combinations d of such differences. Training
changes the map, never the features.

Reference: Schuld, Sweke and Meyer 2021 (arXiv:2008.08605); Landman et al. 2022 (arXiv:2210.13200); Sweke et
al. 2023 (arXiv:2309.11647).
"""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.layers.quantum import QuantumLayer

MAX_FEATURES = 6561
"""Features of one FourierLayer at most; eight wires with one rotation each have as many. A circuit with more
gets a random sample of them."""
MEASURED = (qp.measurements.ExpectationMP, qp.measurements.ProbabilityMP)
"""Measurements that are linear in the state."""


def seeded_linear(n_inputs: int, n_outputs: int, generator: torch.Generator, **options: Any) -> nn.Linear:
    """A linear layer as torch begins it, with numbers from `generator` in place of torch's own."""
    linear = nn.Linear(n_inputs, n_outputs, device="meta", **options).to_empty(device="cpu")
    for weight in linear.parameters():
        nn.init.uniform_(weight, -1 / math.sqrt(n_inputs), 1 / math.sqrt(n_inputs), generator=generator)
    return linear


class FourierLayer(nn.Module):
    """A trained linear map of a circuit's own trigonometric features, in the circuit's place.

    Args:
        layer: A `QuantumLayer` that has run once. Its circuit embeds the inputs as angles of gates; an angle
            may be any function of the inputs, plus any function of the weights.
        random: Whether frequencies are drawn from a normal distribution instead, as many as the circuit has
            and with the same mean square for each angle.
        seed: Fixes the weights' start, and the frequencies that are drawn at random.

    Attributes:
        frequencies: Of shape (n_frequencies, n_features), or (n_frequencies, n_angles) where an angle is no
            linear function of the inputs; 0 comes first, and one of each pair d, -d.
        linear: The map, from 2 * n_frequencies - 1 features to the circuit's outputs.
        is_sampled: Whether the circuit has more than `MAX_FEATURES` features, of which these are a sample.

    Raises:
        NotImplementedError: The circuit is no map of a fixed set of such features; the message says why.

    Example:
        >>> from qnnkit import circuits
        >>> circuit = QuantumLayer(*circuits.build("strongly_entangling", n_qubits=3, n_layers=2))
        >>> _ = circuit(torch.zeros(1, 3))
        >>> FourierLayer(circuit).linear
        Linear(in_features=27, out_features=3, bias=False)
    """

    frequencies: Tensor

    def __init__(self, layer: QuantumLayer, *, random: bool = False, seed: int = 0):
        super().__init__()
        self.encoding = _Encoding(layer)
        generator = torch.Generator().manual_seed(2**32 + seed)
        combinations, self.is_sampled = _combinations(self.encoding, generator)
        frequencies = combinations
        if self.encoding.slopes is not None:  # (n_frequencies, n_angles) @ (n_angles, n_features)
            frequencies = combinations @ self.encoding.slopes
        if random:
            spread = frequencies.square().mean(0).sqrt()
            drawn = torch.randn(frequencies[1:].shape, generator=generator, dtype=torch.float64)
            frequencies = torch.cat([frequencies[:1], drawn * spread])
        dtype = next((weight.dtype for weight in layer.parameters()), torch.float32)
        self.register_buffer("frequencies", frequencies.to(dtype), persistent=False)
        sizes = 2 * len(frequencies) - 1, int(layer.n_outputs or 0)
        self.linear = seeded_linear(*sizes, generator, bias=False, dtype=dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """Of shape (..., n_outputs) for features of shape (..., n_features), in radians."""
        step = "Give as many features as the layer has."
        checks.last_axis("inputs", inputs, self.encoding.n_features, step)
        return self.linear(self.features(inputs))

    def features(self, inputs: Tensor) -> Tensor:
        """cos and sin of shape (..., 2 * n_frequencies - 1), the constant 1 first."""
        rows = inputs.reshape(-1, inputs.shape[-1]).to(self.frequencies.dtype)
        angles = rows if self.encoding.slopes is not None else torch.stack(self.encoding.angles(rows), -1)
        phases = angles @ self.frequencies.T
        return torch.cat([phases.cos(), phases[:, 1:].sin()], -1).reshape(*inputs.shape[:-1], -1)


def fourier_fit(
    layer: QuantumLayer, inputs: Tensor | None = None, *, seed: int = 0
) -> tuple[FourierLayer, float]:
    """The map of its features that agrees best with a circuit, and the largest difference between the two.

    The map is the least-squares solution at all inputs but the first 256, in float64; the difference is the
    largest one at these 256.

    Args:
        layer: As in `FourierLayer`.
        inputs: Of shape (batch, n_features), a quarter more than there are features, and 256. By default
            uniform over a whole period, or in (-1, 1) where an angle is no linear function of the inputs.
        seed: Fixes the inputs that are drawn.

    Raises:
        NotImplementedError: As `FourierLayer`, or the circuit has more than `MAX_FEATURES` features.
    """
    exact = copy.deepcopy(layer).double().cpu()
    twin = FourierLayer(exact, seed=seed)
    if twin.is_sampled:
        rule, step = f"have at most {MAX_FEATURES:,} Fourier features", "Train the `fourier` control instead."
        raise NotImplementedError(checks.message("layer", rule, "a circuit with more", step))
    if inputs is None:
        slopes, n_features = twin.encoding.slopes, twin.linear.in_features
        widths = torch.ones(twin.encoding.n_features)
        if slopes is not None:  # half the longest period of each feature
            widths = math.pi / slopes.abs().where(slopes.abs() > 1e-9, torch.inf).amin(0).clamp(max=1e9)
        n_rows, generator = n_features + n_features // 4 + 320, torch.Generator().manual_seed(seed)
        inputs = torch.mul(2 * torch.rand((n_rows, len(widths)), generator=generator) - 1, widths)
    rows = inputs.detach().double().cpu()
    with torch.no_grad():
        values, features = exact.forward(rows), twin.features(rows)
        # gelsd cuts small singular values; the default driver is wrong where features depend on each other.
        fitted = torch.linalg.lstsq(features[256:], values[256:], driver="gelsd").solution
        twin.linear.weight.copy_(fitted.T)
        difference = (twin(rows[:256]) - values[:256]).abs().max().item()
    return twin.to(next(iter(layer.parameters()), torch.zeros(()))), difference


class _Encoding:
    """Which angles a circuit's inputs turn gates by.

    Attributes:
        differences: Of each angle, the positive differences of eigenvalues of the generator of its gate.
        slopes: Of shape (n_angles, n_features): the angles as a linear map; None where they are none.
        phases: Of shape (n_angles, 3): the angles at three random inputs, less those at a fourth.
    """

    def __init__(self, layer: QuantumLayer):
        if layer.n_features is None or layer.n_outputs is None:
            rule, step = "have run once and return a list", "Call the layer on one batch, then ask again."
            raise NotImplementedError(checks.message("layer", rule, "a layer that does not", step))
        self.n_features, self.layer = layer.n_features, layer  # which is copied and pickled as layers are
        self.shapes = {name: tuple(weight.shape) for name, weight in layer._weights().items()}
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        weights = [{name: normal(*shape) for name, shape in self.shapes.items()} for _ in range(3)]
        small = normal(4, self.n_features).tanh()  # where arccos has a value
        rows = torch.cat([small, 30 * normal(5, self.n_features)]).requires_grad_()
        seen = [self._gates(rows, each) for each in weights]
        others = self._gates(0.01 - 0.9 * rows, weights[0])
        if len({tuple(name for name, *_ in gates) for gates in (*seen, others)}) > 1:
            raise _outside("its list of gates depends on the values of inputs or weights")
        self.chosen, self.differences = [], []
        for i, (name, angles, differences) in enumerate(seen[0]):
            if torch.allclose(angles, others[i][1], equal_nan=True):  # the inputs do not change it
                continue
            if differences is None or angles.shape != (len(rows),):
                raise _outside(f"{name} reads the inputs, but is no rotation by one angle for each sample")
            turns = [gates[i][1] - gates[i][1][0] for gates in seen]  # without what the weights add
            if not all(torch.allclose(each, turns[0], equal_nan=True) for each in turns):
                raise _outside(f"weights multiply the inputs in {name}")
            self.chosen.append(i)
            self.differences.append(differences)
        if not self.chosen:
            raise _outside("no gate reads the inputs")
        rows = rows.detach()
        basis = torch.cat([torch.zeros(1, self.n_features), torch.eye(self.n_features)]).double()
        at_basis, at_rows = torch.stack(self.angles(basis)), torch.stack(self.angles(rows))
        slopes = at_basis[:, 1:] - at_basis[:, :1]
        is_affine = torch.allclose(slopes @ rows.T + at_basis[:, :1], at_rows)
        self.slopes = slopes if is_affine else None
        self.phases = at_rows[:, 1:4] - at_rows[:, :1]

    def angles(self, rows: Tensor) -> list[Tensor]:
        """The angles that the inputs turn gates by, each of shape (batch,), at weights of 0."""
        gates = self._gates(rows, {name: rows.new_zeros(shape) for name, shape in self.shapes.items()})
        return [gates[i][1].expand(len(rows)) for i in self.chosen]

    def _gates(self, rows: Tensor, weights: dict[str, Tensor]) -> list[tuple[str, Tensor, Any]]:
        """Name, numbers of shape (batch or 1, ...) and differences of each parameter of each gate."""
        try:
            queue = qp.workflow.construct_tape(self.layer.qnode, level="user")
            tape = queue(**{self.layer.input_arg: rows, **weights})
            gates = list(_parameters(tape.operations))
        except NotImplementedError:
            raise
        except Exception as error:
            raise _outside(f"PennyLane cannot list its gates ({error})") from error
        for measurement in tape.measurements:
            if not isinstance(measurement, MEASURED):
                raise _outside(f"{type(measurement).__name__} is not linear in the state")
            if any(map(qp.math.requires_grad, getattr(measurement.obs, "data", ()))):
                raise _outside("an observable reads the inputs")
        return [(name, torch.as_tensor(number).to(rows), differences) for name, number, differences in gates]


def _parameters(operations: Iterable[Any]) -> Iterator[tuple[str, Any, tuple[float, ...] | None]]:
    """Name, value and differences of eigenvalues of every parameter; None for what is no rotation."""
    for operation in operations:
        if isinstance(operation, qp.ops.MidMeasure) and operation.postselect is not None:
            raise _outside("it selects samples by a measurement")
        if isinstance(operation, qp.ops.Conditional):
            operation = operation.base  # whether it is applied does not change how it turns
        if not operation.num_params or isinstance(operation, qp.GlobalPhase):
            continue
        try:
            differences = operation.parameter_frequencies
        except (qp.exceptions.ParameterFrequenciesUndefinedError, RuntimeError, ImportError):
            if operation.has_decomposition and not isinstance(operation, qp.operation.StatePrepBase):
                yield from _parameters(operation.decomposition())
                continue
            differences = [None] * operation.num_params
        for value, found in zip(operation.data, differences, strict=True):
            yield operation.name, value, found and tuple(float(each) for each in found)


def _combinations(encoding: _Encoding, generator: torch.Generator) -> tuple[Tensor, bool]:
    """Of shape (n_frequencies, n_angles): 0 and one of each pair d, -d; and whether they are a sample."""
    choices = [
        torch.tensor([0.0, *each, *(-one for one in each)], dtype=torch.float64)
        for each in encoding.differences
    ]
    found = torch.zeros(1, 0, dtype=torch.float64)
    for i, each in enumerate(choices, 1):
        found = torch.cat([found.repeat_interleave(len(each), 0), each.repeat(len(found)).unsqueeze(-1)], -1)
        found = _distinct(found, encoding.phases[:i])
        if len(found) > MAX_FEATURES:
            drawn = [one[torch.randint(len(one), (MAX_FEATURES,), generator=generator)] for one in choices]
            drawn = torch.stack([torch.cat([one.new_zeros(1), one]) for one in drawn], -1)
            return _half(drawn, encoding.phases)[: MAX_FEATURES // 2 + 1], True
    return _half(found, encoding.phases), False


def _distinct(combinations: Tensor, phases: Tensor) -> Tensor:
    """Those that are different functions of the inputs, by their values at random inputs; in order."""
    values = (combinations @ phases / 1e-6).round()
    _, position = torch.unique(values, dim=0, return_inverse=True)
    first = torch.full((int(position.max()) + 1,), len(position))
    first.scatter_reduce_(0, position, torch.arange(len(position)), "amin")
    return combinations[first.sort().values]


def _half(combinations: Tensor, phases: Tensor) -> Tensor:
    """0 and one of each pair d, -d: cos and sin of both are the same functions, but for a sign."""
    signs = (combinations @ phases[:, :1]).sign()
    return _distinct(torch.cat([0 * combinations[:1], combinations * signs]), phases)


def _outside(reason: str) -> NotImplementedError:
    rule, step = "embed its inputs as angles of gates", "Leave the controls fourier and fourier_random out."
    return NotImplementedError(checks.message("layer", rule, f"a circuit where {reason}", step))

"""The trigonometric features of a circuit that embeds its inputs as angles: its classical equivalent.

A gate exp(-i t G) multiplies the state by phases exp(-i t g), one for each eigenvalue g of G. A measured
value therefore depends on t only through cos(d t) and sin(d t), where d runs over the differences of G's
eigenvalues: -1, 0 and 1 for a Pauli rotation. A circuit whose gates have the angles t_1(x), ..., t_k(x) is a
linear map of cos(d . t(x)) and sin(d . t(x)) over all combinations d of such differences. Training changes
the map, never the features.

Reference: Schuld, Sweke and Meyer 2021 (arXiv:2008.08605); Landman et al. 2022 (arXiv:2210.13200); Sweke et
al. 2023 (arXiv:2309.11647).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks, words
from qnnkit.layers.quantum import QuantumLayer
from qnnkit.simulator import Fused

MAX_FEATURES = 6561
"""Most features of one FourierLayer, the number of eight wires with one rotation each. A circuit with more
gets a random sample of its features."""
MEASURED = {"expval", "probs"}
"""Measurements that are linear in the state."""


def seeded_linear(n_inputs: int, n_outputs: int, generator: torch.Generator, **options: Any) -> nn.Linear:
    """A linear layer with torch's initialisation, drawn from `generator` instead of torch's own."""
    linear = nn.Linear(n_inputs, n_outputs, device="meta", **options).to_empty(device="cpu")
    for weight in linear.parameters():
        nn.init.uniform_(weight, -1 / math.sqrt(n_inputs), 1 / math.sqrt(n_inputs), generator=generator)
    return linear


def sizes_of(layer: QuantumLayer) -> tuple[int, int]:
    """Lengths of the last axes of a layer's inputs and outputs; of a single value 1."""
    if layer.n_features is None or layer.n_outputs is None:
        rule, value, step = "have run once", "a new one", "Call the model on a batch."
        if layer.n_features is not None:
            rule, value, step = "return real numbers", "a state, or several shots", "Return [qp.expval(...)]."
        raise NotImplementedError(checks.message("qnode", rule, value, step))
    return layer.n_features, layer.n_outputs or 1


class FourierLayer(nn.Module):
    """A trained linear map of a circuit's trigonometric features, which replaces the circuit.

    Args:
        layer: A `QuantumLayer` that has run once. Its circuit embeds the inputs as angles of gates; an angle
            may be any function of the inputs, plus any function of the weights.
        random: Whether to draw the frequencies from a normal distribution instead, as many as the circuit has
            and with the same mean square for each angle.
        seed: Fixes the initial weights and the randomly drawn frequencies.

    Attributes:
        frequencies: Shape (n_frequencies, n_features), or (n_frequencies, n_angles) if an angle is not a
            linear function of the inputs: 0 first, then one of each pair d, -d.
        linear: The map from 2 * n_frequencies - 1 features to the circuit's outputs.
        is_sampled: Whether the features are a sample, because the circuit has more than `MAX_FEATURES`.

    Raises:
        NotImplementedError: The circuit is not a map of a fixed set of such features; the message says why.

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
        frequencies, self.is_sampled = _combinations(self.encoding, generator)
        if self.encoding.slopes is not None:  # (n_frequencies, n_angles) @ (n_angles, n_features)
            frequencies = frequencies @ self.encoding.slopes
        if random:
            spread = frequencies.square().mean(0).sqrt()
            drawn = torch.randn(frequencies[1:].shape, generator=generator, dtype=torch.float64)
            frequencies = torch.cat([frequencies[:1], drawn * spread])
        dtype = next((weight.dtype for weight in layer.parameters()), torch.float32)
        self.register_buffer("frequencies", frequencies.to(dtype), persistent=False)
        n_features = 2 * len(frequencies) - 1
        self.linear = seeded_linear(n_features, self.encoding.n_outputs, generator, bias=False, dtype=dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of shape (..., n_outputs) for features of shape (..., n_features), in radians."""
        step = "Give as many features as the layer has."
        checks.last_axis("inputs", inputs, self.encoding.n_features, step)
        return self.linear(self.features(inputs))

    def features(self, inputs: Tensor) -> Tensor:
        """cos and sin features of shape (..., 2 * n_frequencies - 1); the first is the constant 1."""
        rows = inputs.reshape(-1, inputs.shape[-1]).to(self.frequencies.dtype)
        angles = rows if self.encoding.slopes is not None else self.encoding.angles(rows)
        phases = angles @ self.frequencies.T
        return torch.cat([phases.cos(), phases[:, 1:].sin()], -1).reshape(*inputs.shape[:-1], -1)


def fourier_fit(layer: QuantumLayer, *, most: int = MAX_FEATURES) -> tuple[FourierLayer, float]:
    """The linear map of a circuit's features that fits the circuit best, and their largest difference.

    The map is the least-squares solution in float64, at a quarter more inputs than there are features; the
    difference is the largest one at 256 other inputs. Inputs are uniform over ten periods of the steepest
    angle, or in (-1, 1) if an angle is not a linear function of them.

    Args:
        layer: As in `FourierLayer`.
        most: Most features to fit; the time grows with their third power.

    Returns:
        The fitted layer, and the largest absolute difference of its outputs from the circuit's.

    Raises:
        NotImplementedError: As in `FourierLayer`, or the circuit has more than `most` features.
    """
    exact = copy.deepcopy(layer).double().cpu()
    exact.qnode = qp.set_shots(exact.qnode, None)  # exact expectation values
    twin = FourierLayer(exact)
    if twin.is_sampled or twin.linear.in_features > most:
        rule, step = f"have at most {most:,} Fourier features", "Train the `fourier` control instead."
        raise NotImplementedError(checks.message("layer", rule, "a circuit with more", step))
    n_rows, width = twin.linear.in_features * 5 // 4 + 320, 1.0
    if twin.encoding.slopes is not None:  # a whole period of slopes down to a tenth of the largest
        width = 10 * math.pi / float(twin.encoding.slopes.abs().max())
    generator, shape = torch.Generator().manual_seed(0), (n_rows, twin.encoding.n_features)
    rows = width * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)
    with torch.no_grad():
        values, features = exact.forward(rows).reshape(n_rows, -1), twin.features(rows)
        # gelsd cuts small singular values; the default driver is wrong if features are linearly dependent.
        fitted = torch.linalg.lstsq(features[256:], values[256:], driver="gelsd").solution
        twin.linear.weight.copy_(fitted.T)
        difference = (twin(rows[:256]) - values[:256]).abs().max().item()
    return twin.to(next(iter(layer.parameters()), torch.zeros(()))), difference


class _Encoding:
    """The gate angles that depend on a circuit's inputs.

    Attributes:
        differences: For each angle, the positive differences of the eigenvalues of its gate's generator.
        slopes: The angles as a linear map, shape (n_angles, n_features); None if they are not linear.
        phases: The angles at three random inputs minus those at a fourth, shape (n_angles, 3).
    """

    def __init__(self, layer: QuantumLayer):
        self.n_features, self.n_outputs = sizes_of(layer)
        if not layer.takes_batches:
            raise _outside("its layer gets single samples, not batches")
        # Copied and pickled as layers are. Its programs are separate, so `layer.explain()` stays the same.
        self.layer = layer.with_qnode(layer.qnode)
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        small = normal(4, self.n_features).tanh()  # in the domain of arccos
        rows = torch.cat([small, 30 * normal(5, self.n_features)]).requires_grad_()
        weights = [{n: normal(*w.shape) for n, w in layer.qnode_weights.items()} for _ in range(3)]
        runs = [self._turned(each, one) for each, one in zip((rows, rows, -0.9 * rows), weights, strict=True)]
        if len({id(program) for program, _ in runs}) > 1:
            raise _outside("its list of gates depends on the values of inputs or weights")
        program = runs[0][0]
        gates = [each for each in program.circuit.gates if each.angle is not None]
        rates: Any = {each.angle: each.form.rates for each in gates}  # pyright: ignore
        differences = [np.unique(np.abs(np.subtract.outer(each, each))) for _, each in sorted(rates.items())]
        moving: Any = program.circuit.matrix[:, program.on_rows].any(1)
        self.chosen = [i for i, each in enumerate(differences) if moving[i] and each[-1] > 0]
        if not self.chosen:
            raise _outside("no gate has a separate angle for each sample")
        self.differences = [torch.from_numpy(differences[i][differences[i] > 0]) for i in self.chosen]
        first, second = ((each - each[0])[:, self.chosen].detach() for _, each in runs[:2])
        if not torch.allclose(first, second, equal_nan=True):  # weights may only be added
            raise _outside("weights multiply the inputs")
        basis = torch.cat([torch.zeros(1, self.n_features), torch.eye(self.n_features)]).double()
        at_basis, at_rows = self.angles(basis).T, self.angles(rows.detach()).T
        slopes = at_basis[:, 1:] - at_basis[:, :1]
        is_affine = torch.allclose(slopes @ rows.detach().T + at_basis[:, :1], at_rows)
        self.slopes = slopes if is_affine else None
        self.phases = at_rows[:, 1:4] - at_rows[:, :1]

    def angles(self, rows: Tensor) -> Tensor:
        """The angles that depend on the inputs, of shape (batch, n_angles), at weights of 0."""
        weights = {name: rows.new_zeros(w.shape) for name, w in self.layer.qnode_weights.items()}
        return self._turned(rows, weights)[1][:, self.chosen]

    def _turned(self, rows: Tensor, weights: dict[str, Tensor]) -> tuple[Fused, Tensor]:
        programs = self.layer.programs()
        try:
            program, angles = programs.turned(rows, weights)
        except Exception as error:
            raise _outside(words.first_line(error)) from error
        if not {*program.kinds} <= MEASURED:
            raise _outside("what it measures is not linear in the state")
        return program, angles


def _combinations(encoding: _Encoding, generator: torch.Generator) -> tuple[Tensor, bool]:
    """Frequencies (n_frequencies, n_angles), 0 and one of each pair d, -d; and whether they are a sample."""
    choices = [torch.cat([each.new_zeros(1), each, -each]) for each in encoding.differences]
    sums = torch.zeros(1, 0, dtype=torch.float64)
    for i, each in enumerate(choices, 1):
        sums = torch.cat([sums.repeat_interleave(len(each), 0), each.repeat(len(sums)).unsqueeze(-1)], -1)
        sums = _distinct(sums, encoding.phases[:i])
        if len(sums) > MAX_FEATURES:
            drawn = [one[torch.randint(len(one), (MAX_FEATURES,), generator=generator)] for one in choices]
            drawn = torch.stack([torch.cat([one.new_zeros(1), one]) for one in drawn], -1)
            return _half(drawn, encoding.phases)[: MAX_FEATURES // 2 + 1], True
    return _half(sums, encoding.phases), False


def _distinct(combinations: Tensor, phases: Tensor) -> Tensor:
    """The combinations that differ as functions of the inputs, judged at random inputs; keeps their order."""
    values = (combinations @ phases / 1e-6).round() + 0.0  # no -0
    _, first = np.unique(values.numpy(), axis=0, return_index=True)
    return combinations[np.sort(first)]


def _half(combinations: Tensor, phases: Tensor) -> Tensor:
    """0 and one of each pair d, -d, whose cos and sin are the same functions up to a sign."""
    signs = (combinations @ phases[:, :1]).sign()
    return _distinct(torch.cat([0 * combinations[:1], combinations * signs]), phases)


def _outside(reason: str) -> NotImplementedError:
    rule, step = "embed its inputs as angles of gates", "Omit fourier and fourier_random, or --classical."
    return NotImplementedError(checks.message("layer", rule, f"a circuit where {reason}", step))

"""Which frequencies of its inputs a circuit can express, and which it does."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pennylane as qp
import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.simulator import OverWeights
from qnnkit.simulator.fusion import items
from qnnkit.simulator.gates import Turn

EXACT = 1e-9
POWER = 1e-12
"""A mean |c|^2 below this is rounding, in float64."""
POINTS = 64
MOST = 2000
"""Frequencies of a feature; more are not told."""
FRACTIONS = range(1, 13)
"""A common frequency is looked for among so many parts of the least one."""
ROWS = 2**12
"""Rows that are computed at once."""


@dataclass(frozen=True)
class Spectrum:
    """A circuit's outputs as a Fourier series of one feature, sum_w c_w exp(i w x)."""

    feature: int
    frequencies: tuple[float, ...]
    """Those that it can express, 0 and above, in radians per unit of the feature; c_-w is conj(c_w)."""
    power: tuple[float, ...]
    """|c_w|^2 of each, mean over random weights, other features and outputs; () where it is not known."""
    why_not: str
    """Why there are no frequencies, or no powers, in words; "" where there are."""

    @property
    def expressed(self) -> tuple[float, ...]:
        """The frequencies that some weights do express."""
        return tuple(w for w, power in zip(self.frequencies, self.power, strict=False) if power > POWER)


def spectrum(
    qnode: qp.QNode,
    weight_shapes: Mapping[str, tuple[int, ...]],
    n_features: int,
    *,
    n: int = 100,
    seed: int = 0,
) -> list[Spectrum]:
    """The Fourier series of a circuit in each feature.

    What it can express follows from its gates: where a feature x turns exp(-i s x G), the differences of
    the eigenvalues of s G; over several gates, all sums of one difference of each. What it does express is
    measured: a Fourier transform over one period, at random weights in [0, 2 pi).

    Args:
        qnode: Takes `inputs` and the names of `weight_shapes`; returns expectation values.
        weight_shapes: Shapes by name.
        n_features: Length of `inputs`.
        n: Number of random sets of weights, each with values of the other features, in [0, 2 pi).
        seed: Fixes them.

    Raises:
        NotFusable: The circuit has no fused form.

    Reference: Schuld, Sweke and Meyer (2021), arXiv:2008.08605, eqs. 5 to 11.

    Example:
        >>> from qnnkit import circuits
        >>> [first, second] = spectrum(*circuits.build("data_reuploading", n_qubits=2, n_layers=2), 2)
        >>> first.frequencies
        (0.0, 1.0, 2.0)
    """
    checks.positive("n_features", n_features)
    checks.positive("n", n)
    program = OverWeights(qnode, weight_shapes, n_features)
    if program.is_given:
        why = "the features are amplitudes of the first state, not angles: there is no Fourier series"
        return [Spectrum(feature, (), (), why) for feature in range(n_features)]
    return [_of_feature(program, feature, n, seed + feature) for feature in range(n_features)]


def _of_feature(program: OverWeights, feature: int, n: int, seed: int) -> Spectrum:
    scales = _scales(program, feature)
    if scales is None:
        why = (
            "an angle is no multiple of this feature plus what does not depend on it (a product of features, "
            "a function): the frequency changes with the other features or weights, or is none"
        )
        return Spectrum(feature, (), (), why)
    found = np.zeros(1)
    for item in items(program.circuit, np.ones(program.circuit.matrix.shape[1], bool))[0]:
        if item.angle is not None and item.on_rows and scales[item.angle]:
            assert isinstance(item.form, Turn)
            rates = item.form.rates
            differences = scales[item.angle] * np.unique(np.subtract.outer(rates, rates))
            found = _distinct(np.add.outer(found, differences))
            if len(found) > 2 * MOST:
                return Spectrum(feature, (), (), f"there are more than {MOST} frequencies")
    frequencies = tuple(float(w) for w in found if w >= 0)
    base = _common(frequencies)
    if base is None:
        why = "the frequencies have no common period, over which a Fourier transform could be taken"
        return Spectrum(feature, frequencies, (), why)
    power = _power(program, feature, base, round(frequencies[-1] / base), n, seed)
    return Spectrum(feature, frequencies, tuple(float(power[round(w / base)]) for w in frequencies), "")


def _scales(program: OverWeights, feature: int) -> np.ndarray | None:
    """How much each angle grows with the feature, (n_angles,); None where an angle is not linear in it."""
    matrix, used = program.circuit.matrix, program.circuit.matrix.any(axis=1)
    if program.is_affine:
        return matrix[used, feature]
    generator = torch.Generator().manual_seed(0)
    rows = (
        4 * math.pi * (torch.rand(POINTS, sum(program.sizes), generator=generator, dtype=torch.float64) - 0.5)
    )
    steps = torch.linspace(-2.3, 1.9, POINTS, dtype=torch.float64)[:, None]
    moved = rows.clone()
    moved[:, feature] += steps[:, 0]
    after, before = (torch.cat([e.reshape(len(r), -1) for e in program.numbers(r)], 1) for r in (moved, rows))
    slopes = ((after - before) / steps) @ torch.from_numpy(matrix[used].T)
    if not torch.allclose(slopes, slopes[:1].expand_as(slopes), rtol=0, atol=EXACT):
        return None
    return torch.where(slopes[0].abs() < EXACT, 0, slopes[0]).numpy()


def _distinct(values: np.ndarray) -> np.ndarray:
    """Sorted, those closer than rounding counted once."""
    values = np.sort(values.ravel())
    return values[np.concatenate([[True], np.diff(values) > EXACT])]


def _common(frequencies: Iterable[float]) -> float | None:
    """The largest frequency of which all are multiples, if it is no small part of the least; 1 for none."""
    positive = np.array([w for w in frequencies if w > EXACT])
    if not len(positive):
        return 1.0
    for part in FRACTIONS:
        ratios = positive * part / positive[0]
        if np.abs(ratios - ratios.round()).max() < EXACT * ratios.max() * 10:
            return float(positive[0] / part)
    return None


def _power(program: OverWeights, feature: int, base: float, highest: int, n: int, seed: int) -> Tensor:
    """Mean |c_k|^2 for k = 0 .. highest multiples of the base frequency."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return 2 * math.pi * torch.rand(*shape, generator=generator, dtype=torch.float64)

    points = 2 * highest + 2
    period = torch.arange(points, dtype=torch.float64) * (2 * math.pi / base / points)
    total, at_once = torch.zeros(highest + 1, dtype=torch.float64), max(1, ROWS // points)
    for first in range(0, n, at_once):
        sets = min(at_once, n - first)
        inputs = draw(sets, program.n_features).repeat_interleave(points, dim=0)
        inputs[:, feature] = period.repeat(sets)
        weights = {
            name: draw(sets, *shape).repeat_interleave(points, dim=0)
            for name, shape in program.weight_shapes.items()
        }
        with torch.no_grad():
            values = program(inputs, weights).reshape(sets, points, -1)
        coefficients = torch.fft.rfft(values, dim=1)[:, : highest + 1] / points
        total += coefficients.abs().square().mean(2).sum(0)
    return total / n

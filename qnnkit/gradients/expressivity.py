"""A circuit's random states: their fidelities against Haar's, and how entangled they are."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pennylane as qp
import torch
from torch import Tensor

from qnnkit import checks, circuits
from qnnkit.gradients.plateau import INTERVAL, draw, program

BINS, PAIRS = 75, 5000
"""Of the fidelity histogram, as published."""
RESAMPLES = 300
STATES = 2**23
"""Amplitudes that are computed at once."""


# --- states ---------------------------------------------------------------------------------------


def states(
    circuit: str,
    n: int,
    *,
    n_qubits: int = 4,
    n_layers: int = 2,
    initialisation: str = "uniform",
    seed: int = 0,
) -> Tensor:
    """`n` random states that a circuit of `CIRCUITS` makes, of shape (n, 2**n_qubits), complex128.

    Embeddings get random inputs; ansaetze random weights, from |0...0>; what is both gets both. Inputs are
    uniform in [0, 2 pi); as amplitudes they are normal, so that every direction is equally likely.

    Args:
        circuit: Name of an entry of `CIRCUITS`.
        n: Number of states.
        n_qubits: Number of wires.
        n_layers: Depth, where it has one.
        initialisation: Name in `circuits.INITIALISATIONS`, where it has weights.
        seed: Fixes inputs, weights and the structure of `random`.
    """
    checks.choice("circuit", circuit, circuits.CIRCUITS)
    checks.choice("initialisation", initialisation, circuits.INITIALISATIONS)
    for name, value in (("n", n), ("n_qubits", n_qubits), ("n_layers", n_layers)):
        checks.positive(name, value)
    mirrored, generator = initialisation in circuits.MIRRORED, torch.Generator().manual_seed(seed)
    own = program(circuit, qp.state, n_qubits=n_qubits, n_layers=n_layers, seed=seed, mirrored=mirrored)
    if circuit == "amplitude":
        inputs = torch.randn(n, own.n_features, generator=generator, dtype=torch.float64)
    else:
        inputs = 2 * math.pi * torch.rand(n, own.n_features, generator=generator, dtype=torch.float64)
    weights = {name: draw(initialisation, shape, n, generator) for name, shape in own.weight_shapes.items()}
    with torch.no_grad():
        parts = [
            own(inputs[rows], {name: weight[rows] for name, weight in weights.items()})
            for rows in torch.arange(n).split(max(1, STATES >> n_qubits))
        ]
    return torch.cat(parts)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Expressibility:
    """How far the fidelities of a circuit's random states are from those of Haar-random states."""

    divergence: Estimate
    """Kullback-Leibler, in nats; 0 is as expressive as can be."""
    floor: float
    """What that many Haar-random pairs get themselves, on average: nothing below tells circuits apart."""
    fidelities: np.ndarray
    """Share of the pairs in each bin, of shape (BINS,)."""
    haar: np.ndarray
    """The same for Haar-random states, exact."""
    edges: np.ndarray
    """Of the bins, from 0 to 1, of shape (BINS + 1,)."""


def expressibility(pairs: Tensor, *, seed: int = 0) -> Expressibility:
    """The divergence of the fidelity histogram from that of Haar-random states.

    The bins are of equal width, as published, up to 5 wires; beyond, nearly all of Haar's pairs would fall
    into the first, and the bins are of equal share among Haar's instead. Such values compare with each other.

    Args:
        pairs: States of shape (2 n, d): the first half is compared with the second, row by row.
        seed: Fixes the resampling and the Haar-random pairs of the floor.

    Reference: Sim, Johnson and Aspuru-Guzik (2019), arXiv:1905.10876, eqs. 6 to 8; there 75 bins, 5000 pairs.

    Example:
        >>> expressibility(torch.eye(2)[[0] * 200]).divergence.value  # one state: ln 75  # doctest: +ELLIPSIS
        4.31748...
    """
    if pairs.ndim != 2 or len(pairs) < 2 or len(pairs) % 2:
        step = "Draw an even number of states."
        raise ValueError(checks.message("pairs", "have the shape (2 n, d)", tuple(pairs.shape), step))
    one, other = pairs.chunk(2)
    n, d = one.shape
    fidelities = (one.conj() * other).sum(1).abs().square().clamp(0, 1).double().numpy()
    edges = np.linspace(0, 1, BINS + 1)
    if (1 - edges[1]) ** (d - 1) < 0.5:  # P(F) = (d - 1) (1 - F)^(d - 2), from 0 on 1 - (1 - F)^(d - 1)
        edges = 1 - (1 - edges) ** (1 / (d - 1))
    counts, _ = np.histogram(fidelities, bins=edges)
    haar = -np.diff((1 - edges) ** (d - 1))
    rng = np.random.default_rng(seed)
    resampled = rng.multinomial(n, counts / n, size=RESAMPLES)
    floor = float(_divergence(rng.multinomial(n, haar, size=RESAMPLES) / n, haar).mean())
    value, values = float(_divergence(counts / n, haar)), _divergence(resampled / n, haar)
    # Every sample lies above its source, as that of Haar above 0: such a shift is no uncertainty.
    low, high = _interval(np.maximum(values - values.mean() + value, 0))
    return Expressibility(Estimate(value, low, high), floor, counts / n, haar, edges)


def _divergence(shares: np.ndarray, haar: np.ndarray) -> np.ndarray:
    """Over the last axis, in nats; a bin without pairs adds nothing."""
    # On many wires Haar's share of the last bins falls below the smallest number.
    ratio = np.log(np.where(shares > 0, shares, 1)) - np.log(np.maximum(haar, np.finfo(float).tiny))
    return np.where(shares > 0, shares * ratio, 0).sum(-1)


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, INTERVAL)
    return float(low), float(high)


def entanglement(states: Tensor) -> Tensor:
    """Meyer-Wallach's Q of each state: 2 (1 - mean purity of a single wire); 0 product, 1 GHZ.

    Args:
        states: Of shape (batch, 2**n_wires).

    Reference: Meyer and Wallach (2002), arXiv:quant-ph/0108104; this form: Brennen (2003), quant-ph/0305094.
    """
    batch, n_wires = len(states), states.shape[1].bit_length() - 1
    purities = []
    for wire in range(n_wires):
        halves = states.reshape(batch, 2**wire, 2, -1).movedim(2, 1).flatten(2)  # (batch, 2, the rest)
        purities.append((halves @ halves.mH).abs().square().sum((1, 2)))
    return 2 * (1 - torch.stack(purities).mean(0))


def entangling_capability(states: Tensor, *, seed: int = 0) -> Estimate:
    """The mean of `entanglement` over random states.

    Reference: Sim, Johnson and Aspuru-Guzik (2019), arXiv:1905.10876, eq. 11.
    """
    values = entanglement(states).numpy()
    rows = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    return Estimate(float(values.mean()), *_interval(values[rows].mean(axis=1)))


def table(
    names: Sequence[str] = tuple(circuits.CIRCUITS),
    *,
    n_qubits: int = 4,
    n_layers: int = 2,
    pairs: int = PAIRS,
    initialisation: str = "uniform",
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Expressibility and entangling capability of circuits, a plain row for each."""
    rows = []
    for name in names:
        drawn = states(
            name, 2 * pairs, n_qubits=n_qubits, n_layers=n_layers, initialisation=initialisation, seed=seed
        )
        found, capability = expressibility(drawn, seed=seed), entangling_capability(drawn, seed=seed)
        kind = circuits.CIRCUITS[name].kind
        drawn_of = {"embedding": "inputs", "ansatz": "weights", "both": "inputs and weights"}[kind]
        row: dict[str, Any] = {"circuit": name, "kind": kind, "random": drawn_of}
        of = {"KL from Haar": found.divergence, "entangling capability": capability}
        for what, estimate in of.items():
            start = what.split(" ")[0]
            row |= {what: estimate.value, f"{start} low": estimate.low, f"{start} high": estimate.high}
        rows.append(row | {"KL of Haar itself": found.floor})
    return rows

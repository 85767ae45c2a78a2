"""Do gradients vanish as a circuit grows? Their variance by qubits, depth, observable, initialisation.

`scan` computes the variances, `fit` how fast they decay with the number of qubits.
"""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pennylane as qp
import torch
from torch import Tensor

from qnnkit import checks, circuits
from qnnkit.simulator import OverWeights

if TYPE_CHECKING:
    import pandas as pd

OBSERVABLES = ("local", "global")
RESAMPLES, INTERVAL = 1000, (0.025, 0.975)
MOST_QUBITS = 20
"""Most qubits of a scan. A state then takes 16 MiB, and a gradient keeps hundreds of them."""
WIDE = 10
"""Number of wires from which on torch's own number of threads is used."""
DEAD = 1e-13
"""Derivative in float64 below which a weight, if it never exceeds this, affects no measured value."""
AS_RANDOM = 0.1
"""Relative difference up to which two decay rates are called equal: a few qubits fix a slope no better."""
BYTES = 2**27
"""Bytes of states for which initialisations are computed at once, as the backward pass keeps these states."""


def scan(
    circuit: str = "hardware_efficient",
    *,
    qubits: Sequence[int] = (2, 4, 6, 8),
    depths: Sequence[int | str] = (2, "10n"),
    initialisations: Sequence[str] = ("uniform",),
    n: int = 200,
    embedding: str | None = "angle",
    seed: int = 0,
) -> pd.DataFrame:
    """The variance of the gradient by qubits and depth, in float64, with all initialisations in one batch.

    Every initialisation has its own weights and, if data are embedded, its own input, uniform in [0, pi) like
    pixels. The variance is over both.

    Args:
        circuit: Name of an ansatz in `CIRCUITS`.
        qubits: Numbers of wires.
        depths: Numbers of layers; "10n" means ten per qubit.
        initialisations: Names in `circuits.INITIALISATIONS`. identity_block uses the mirrored circuit. The
            spread of gaussian is that for an observable of one wire, whatever is measured.
        n: Number of initialisations, at least 8: a bootstrap sample of fewer may consist of only one.
        embedding: Embedding for an ansatz that embeds nothing itself. None starts from |0...0>, as in the
            literature (identity blocks then have no gradient: |0...0> is an eigenstate of both observables).
        seed: Seed of weights, inputs, resampling and the structure of `random`.

    Returns:
        One row per size, observable and initialisation, with the columns
        n_qubits, depth (as passed, such as "10n"), n_layers, initialisation, n;
        observable: "local" is Z on the middle wire, "global" the projector on |0...0>; the local and the
        global cost of Cerezo et al. (eqs. 10 and 11) are sums of these, up to a sign and a constant;
        variance: variance of the derivative of the expectation value by an angle, per radian squared, as a
        mean over the weights; 0 if all weights are dead;
        low, high: its 95 % percentile bootstrap interval over initialisations, which is too narrow if few
        initialisations carry the variance (a global observable of a shallow circuit);
        n_weights, n_dead: numbers of weights, and of weights with zero derivative, which the variance omits;
        resampled: the variance of each bootstrap sample, an array.

    Raises:
        ValueError: A name, `n`, a number of qubits (1..20) or a depth breaks its rule.

    Reference: McClean et al. (2018), arXiv:1803.11173; Cerezo et al. (2021), arXiv:2001.00550.

    Example:
        >>> table = scan("data_reuploading", qubits=(2, 3), depths=(2,), n=10)
        >>> table.query("observable == 'local'")[["n_qubits", "n_weights", "n_dead"]].values.tolist()
        [[2, 12, 2], [3, 18, 3]]
    """
    import pandas as pd

    checks.choice("circuit", circuit, circuits.ANSAETZE)
    for initialisation in initialisations:
        checks.choice("initialisations", initialisation, circuits.INITIALISATIONS)
    checks.positive("n", n, "An interval needs several; use 200.", above=7)
    sizes = [*itertools.product(qubits, depths)]
    for size in sizes:
        _require_size(*size, paired=bool(set(initialisations) & set(circuits.MIRRORED)))
    rows = [_of_size(circuit, *size, initialisations, n, embedding, seed) for size in sizes]
    return pd.DataFrame(itertools.chain.from_iterable(rows))


def n_layers(depth: int | str, n_qubits: int) -> int:
    """The number of layers that a depth such as 4, "4" or "10n" means.

    Raises:
        ValueError: The depth is none of these.

    Example:
        >>> n_layers("10n", 6)
        60
    """
    text = str(depth)
    digits = text.removesuffix("n")
    if not digits.isdecimal() or int(digits) < 1:
        step = 'Use 4 for four layers, or "10n" for ten layers per qubit.'
        raise ValueError(checks.message("depths", "hold numbers of layers", depth, step))
    return int(digits) * (n_qubits if text.endswith("n") else 1)


def _require_size(n_qubits: int, depth: int | str, paired: bool) -> None:
    """Raises an error if a state would not fit, or if layers that come in pairs are odd in number."""
    if not isinstance(n_qubits, int) or not 1 <= n_qubits <= MOST_QUBITS:
        step = "Each added qubit doubles memory and time."
        raise ValueError(checks.message("qubits", f"lie in 1..{MOST_QUBITS}", n_qubits, step))
    layers = n_layers(depth, n_qubits)
    if layers % 2 and paired:
        step = f"Its layers come in pairs, and {n_qubits} qubits have {layers} of them here."
        raise ValueError(checks.message("depths", "be even with identity_block", depth, step))


def random_circuit(n_qubits: int, observable: str) -> float:
    """The variance of a derivative in a circuit that is random before and after the gate.

    Both parts are 2-designs, the gate is exp(-i t P / 2) with a Pauli word P, and d = 2**n_qubits. From the
    second moments of the Haar measure: d^2 / (2 (d^2 - 1) (d + 1)) for a Pauli word, 1 / (2 (d + 1)^2) for a
    projector on one state.

    Args:
        n_qubits: Number of wires.
        observable: "local" for a Pauli word, "global" for a projector.

    Raises:
        ValueError: The observable is neither.

    Reference: McClean et al. (2018), arXiv:1803.11173, eqs. 8 to 12.
    """
    d = 2.0**n_qubits
    checks.choice("observable", observable, OBSERVABLES)
    return d**2 / (2 * (d**2 - 1) * (d + 1)) if observable == "local" else 1 / (2 * (d + 1) ** 2)


def fit(table: pd.DataFrame) -> pd.DataFrame:
    """How fast each line of a scan decays, by least squares on log2 of the variances.

    Args:
        table: Return value of `scan`. A line with fewer than two numbers of qubits (without those where all
            weights are dead) has no row.

    Returns:
        One row per depth, observable and initialisation, with the columns
        rate: each added qubit divides the variance by 2^rate; at 0 or less it does not vanish;
        low, high: its 95 % percentile bootstrap interval over initialisations;
        qubits: the numbers of qubits that were fitted;
        reference: the same line through the values of random circuits, `random_circuit`, at these qubits;
        verdict: "does not vanish", or "as", "slower than" or "faster than in random circuits". It is "as" if
        the reference is within the interval or within 10 % of the rate.
    """
    import pandas as pd

    line, rows = ["depth", "observable", "initialisation"], []
    alive = table.loc[table["resampled"].map(np.min) > 0].sort_values(by="n_qubits", kind="stable")
    for _, some in alive.groupby(line, sort=False):
        about, qubits = some[line].iloc[0].to_dict(), tuple(some["n_qubits"])
        if len(set(qubits)) < 2:
            continue
        random = [random_circuit(n_qubits, about["observable"]) for n_qubits in qubits]
        low, high = map(float, np.quantile(_rates(qubits, list(some["resampled"])), INTERVAL))
        rate, reference = (float(_rates(qubits, of)) for of in (some["variance"], random))
        fitted = {"rate": rate, "low": low, "high": high, "qubits": qubits, "reference": reference}
        rows.append(about | fitted | {"verdict": verdict(rate, low, high, reference)})
    return pd.DataFrame(rows, columns=[*line, "rate", "low", "high", "qubits", "reference", "verdict"])


def verdict(rate: float, low: float, high: float, reference: float) -> str:
    """How a decay compares with that of random circuits; the arguments are columns of `fit`.

    Example:
        >>> verdict(0.99, 0.97, 1.01, reference=0.95)
        'as in random circuits'
    """
    if high <= 0:
        return "does not vanish"
    if low <= reference <= high or abs(rate / reference - 1) <= AS_RANDOM:
        return "as in random circuits"
    return f"{'faster' if rate > reference else 'slower'} than in random circuits"


def _rates(qubits: Sequence[int], variances: Any) -> np.ndarray:
    """Minus the slopes of log2 of variances of shape (n_qubits, ...) against the number of qubits."""
    centred = np.asarray(qubits) - np.mean(qubits)
    return -(centred @ np.log2(variances)) / (centred @ centred)


# --- one size -----------------------------------------------------------------------------------------------


def _of_size(circuit, n_qubits, depth, initialisations, n, embedding, seed) -> Iterator[dict]:
    """The rows of one number of qubits and one depth; the arguments are those of `scan`."""
    layers, programs = n_layers(depth, n_qubits), {}
    zeros = qp.Projector([0] * n_qubits, wires=range(n_qubits))
    measure = lambda: [qp.expval(qp.Z(n_qubits // 2)), qp.expval(zeros)]  # noqa: E731
    for initialisation in initialisations:
        mirrored = initialisation in circuits.MIRRORED
        if mirrored not in programs:
            programs[mirrored] = _program(circuit, measure, n_qubits, layers, embedding, seed, mirrored)
        program: OverWeights = programs[mirrored]
        generator = torch.Generator().manual_seed(seed)
        empty = torch.zeros(program.weight_shapes["weights"]).double()
        draw = circuits.INITIALISATIONS[initialisation]
        weights = torch.stack([draw(empty.clone(), generator) for _ in range(n)])
        inputs = math.pi * torch.rand(n, program.n_features, generator=generator, dtype=torch.float64)
        before = torch.get_num_threads()
        torch.set_num_threads(1 if n_qubits < WIDE else before)  # small states gain nothing from more threads
        try:
            gradients = _gradients(program, inputs, weights)
        finally:
            torch.set_num_threads(before)
        rng = np.random.default_rng((seed, n_qubits, layers))
        size = {"n_qubits": n_qubits, "depth": str(depth), "n_layers": layers}
        for observable, gradient in zip(OBSERVABLES, gradients, strict=True):
            about = size | {"observable": observable, "initialisation": initialisation, "n": n}
            yield about | _summed_up(gradient.numpy(), rng)


def _program(circuit, measure, n_qubits, n_layers, embedding=None, seed=0, mirrored=False) -> OverWeights:
    """A circuit of `CIRCUITS` in which each row has its own weights, and its own inputs if it embeds any.

    Args:
        circuit: Name of an ansatz.
        measure: Returns the measurements.
        n_qubits: Number of wires.
        n_layers: Number of layers.
        embedding: Embedding for an ansatz that embeds nothing itself; None starts from |0...0>.
        seed: Seed of the structure of `random`.
        mirrored: Whether each layer of an ansatz is followed by its inverse.
    """
    sizes = {"n_qubits": n_qubits, "n_layers": n_layers}
    gates, shapes = circuits.compose(circuit, embedding=embedding, seed=seed, mirrored=mirrored, **sizes)
    entry = circuits.CIRCUITS[circuit]
    embeds = entry if entry.n_features or embedding is None else circuits.CIRCUITS[embedding]

    @qp.qnode(circuits.make_device("default.qubit", range(n_qubits)))
    def function(inputs=None, weights=None):
        gates(inputs, weights)
        return measure()

    return OverWeights(function, shapes, embeds.n_features(n_qubits) if embeds.n_features else 0)


def _gradients(program: OverWeights, inputs: Tensor, weights: Tensor) -> Tensor:
    """Derivatives of every observable by every weight: (n_observables, n, n_weights)."""
    at_once = max(1, BYTES // (program.state_bytes * len(program.steps)))
    derivatives = []
    for features, part in zip(inputs.split(at_once), weights.split(at_once), strict=True):
        with torch.enable_grad():
            leaf = part.detach().requires_grad_()
            sums = program(features, {"weights": leaf}).sum(0)
            parts = [torch.autograd.grad(value, leaf, retain_graph=True)[0].flatten(1) for value in sums]
        derivatives.append(torch.stack(parts))
    return torch.cat(derivatives, dim=1)


def _summed_up(gradients: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Variance, interval and dead weights of derivatives of shape (n, n_weights)."""
    n, n_weights = gradients.shape
    live = gradients[:, np.abs(gradients).max(axis=0) > DEAD]
    counted = {"n_weights": n_weights, "n_dead": n_weights - live.shape[1]}
    if not live.shape[1]:
        return counted | {"variance": 0.0, "low": 0.0, "high": 0.0, "resampled": np.zeros(RESAMPLES)}
    variance = live.var(axis=0, ddof=1).mean()
    live = live - live.mean(axis=0)  # a constant would only cost digits below
    counts = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n
    # The variance of a bootstrap sample is too small by the factor (n - 1) / n, twice.
    resampled = (counts @ live**2 - (counts @ live) ** 2).mean(axis=1) * (n / (n - 1)) ** 2
    low, high = np.quantile(resampled, INTERVAL)
    ends = {"low": float(low), "high": float(high)}
    return counted | {"variance": float(variance), **ends, "resampled": resampled}

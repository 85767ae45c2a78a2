"""The cells of 07_circuit: what they compute of states and frequencies that are known."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
import pennylane as qp
import pytest
from matplotlib import pyplot

from tests.notebooks.test_notebook_cells import executed

EXACT = 1e-10


@pytest.fixture(scope="module")
def shown():
    """Everything that the notebook's cells define, at a small size."""
    with matplotlib.rc_context({"backend": "agg"}):
        found = executed("07_circuit", n_qubits=2, n_pairs=50, n_weights=3)
        pyplot.close("all")
    return found


def haar(n, d, seed=0):
    parts = np.random.default_rng(seed).normal(size=(2, n, d))
    drawn = parts[0] + 1j * parts[1]
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def kl(shown, states):
    return shown["divergence"](*shown["fidelity_histogram"](states))


@pytest.mark.parametrize("d", [2, 16, 2**12])
def test_haar_states_are_as_expressive_as_can_be(shown, d):
    n_pairs = 5000 if d < 100 else 100
    shares, of_haar = shown["fidelity_histogram"](haar(2 * n_pairs, d))
    assert shares.sum() == pytest.approx(1) and of_haar.sum() == pytest.approx(1)
    floor = 74 / (2 * n_pairs)  # of a multinomial over 75 bins, to first order
    assert 0 <= shown["divergence"](shares, of_haar) < 3 * floor


def test_divergences_in_closed_form(shown):
    """One state alone: 3 ln 75 of two qubits. RY(t)|0>: the arcsine law against uniform fidelities."""
    assert kl(shown, np.eye(4)[[1] * 100]) == pytest.approx(3 * math.log(75))
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 40_000) / 2
    shares = np.diff(2 / np.pi * np.arcsin(np.sqrt(np.linspace(0, 1, 76))))
    expected = float((shares * np.log(shares * 75)).sum())
    assert kl(shown, np.stack([np.cos(angles), np.sin(angles)], axis=1)) == pytest.approx(expected, abs=0.02)


def test_entanglement_of_known_states(shown):
    def basis(*indices):
        state = np.zeros(8)
        state[list(indices)] = len(indices) ** -0.5
        return state

    product = np.kron(np.kron(*haar(2, 2)), haar(1, 2, seed=1)[0])
    states = np.array([product, basis(0, 7), basis(1, 2, 4), basis(0, 3), basis(5)])
    # a product, GHZ, W (purity of a wire 5/9), a Bell pair and a third wire, a basis state
    np.testing.assert_allclose(shown["entanglement"](states), [0, 1, 8 / 9, 2 / 3, 0], atol=EXACT)
    assert shown["entanglement"](haar(2000, 16)).mean() == pytest.approx(14 / 17, abs=0.01)


def test_the_shipped_circuit_reaches_as_high_as_its_layers(shown):
    assert ((shown["spectra"].max(axis=1) > 1e-12) == (np.arange(5) <= 2)).all()


def test_frequencies_of_a_circuit_of_the_readers(shown):
    """cos x has |c_1|^2 = 1/4; cos(2x + 0.3) likewise at 2; another period raises."""

    def spectrum(circuit):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"circuit": circuit, "shape": (0,), "n_features": 1}.items():
                patch.setitem(shown, name, value)
            return shown["spectrum"](0)

    cosine = spectrum(lambda inputs, weights: qp.RX(inputs[0], wires=0))
    np.testing.assert_allclose(cosine, [0, 1 / 4, 0, 0, 0], atol=EXACT)
    twice = spectrum(lambda inputs, weights: qp.RX(2 * inputs[0] + 0.3, wires=0))
    np.testing.assert_allclose(twice, [0, 0, 1 / 4, 0, 0], atol=EXACT)
    with pytest.raises(ValueError, match="period"):
        spectrum(lambda inputs, weights: qp.RX(0.5 * inputs[0], wires=0))

"""The plateau scan: closed forms, the published decay, omitted rows and errors."""

import numpy as np
import pennylane as qp
import pytest
from scipy.stats import unitary_group

from qnnkit import circuits
from qnnkit.gradients import plateau
from tests.toys import refused


@pytest.fixture
def one_layer(monkeypatch):
    """A circuit of one RY on every wire, registered for the test."""

    def product(weights, wires, first=0):
        for wire in wires:
            qp.RY(weights[0][wire], wires=wire)

    entry = circuits.Circuit(product, "ansatz", weights_shape=lambda layers, n: (1, n), layers=product)
    monkeypatch.setitem(circuits.CIRCUITS, "product", entry)
    monkeypatch.setattr(circuits, "ANSAETZE", (*circuits.ANSAETZE, "product"))


def test_a_product_circuit_has_the_variance_of_its_closed_form(one_layer):
    """prod cos^2(t_i / 2): sin^2(t) / 4 averages 1/8, and cos^4(t / 2) 3/8. cos t: sin^2 t averages 1/2."""
    frame = plateau.scan("product", qubits=(1, 2, 4), depths=(1,), n=2000, embedding=None)
    for row in frame.itertuples():
        n = row.n_qubits
        exact = {"local": 1 / 2, "global": (1 / 8) * (3 / 8) ** (n - 1)}[row.observable]
        assert row.variance == pytest.approx(exact, rel=0.1)
        assert row.low < exact < row.high and row.low < row.variance < row.high
        assert (row.n_weights, row.n_dead) == (n, n - 1 if row.observable == "local" else 0)
    rates = {fit.observable: fit for fit in plateau.fit(frame).itertuples()}
    assert rates["global"].low < np.log2(8 / 3) < rates["global"].high
    assert rates["local"].low < 0 < rates["local"].high and rates["local"].verdict.startswith("slower than")


@pytest.mark.parametrize("n_qubits", [1, 2, 3])
def test_the_reference_equals_that_of_random_unitaries(n_qubits):
    d, n = 2**n_qubits, 20_000
    rng = np.random.default_rng(n_qubits)
    before, after = (unitary_group.rvs(d, size=n, random_state=rng) for _ in range(2))
    flip = np.kron(np.eye(d // 2), [[0, 1], [1, 0]])  # X on the last wire
    state = before[:, :, 0]
    turned = state @ flip.T  # d/dt exp(-i t X / 2) = -i X / 2
    for observable, diagonal in (("local", np.repeat([1, -1], d // 2)), ("global", np.eye(d)[0])):
        end, moved = (np.einsum("nij,nj->ni", after, each) for each in (state, -0.5j * turned))
        squared = (2 * (end.conj() * diagonal * moved).sum(1).real) ** 2
        error = squared.std() / np.sqrt(n)
        assert abs(squared.mean() - plateau.random_circuit(n_qubits, observable)) < 4 * error
        assert error < 0.05 * squared.mean()


def test_the_published_decay():
    """McClean et al. (2018): deep circuits; Cerezo et al. (2021): local observables of shallow ones."""
    frame = plateau.scan("hardware_efficient", qubits=(2, 3, 4), depths=("10n",), n=100)
    for row in frame.itertuples():
        assert row.variance == pytest.approx(plateau.random_circuit(row.n_qubits, row.observable), rel=0.2)
    local, deep = plateau.fit(frame).itertuples()
    assert deep.low <= deep.reference <= deep.high < deep.low + 0.35
    assert deep.verdict == "as in random circuits"
    shallow = plateau.scan("hardware_efficient", qubits=(3, 4, 6), depths=(2,), n=100)
    fit, _ = plateau.fit(shallow).itertuples()
    assert fit.low < 0 < fit.high  # no decay at all, once the light cone fits
    assert fit.high < 0.2 < local.low and fit.verdict.startswith("slower than")


@pytest.mark.parametrize("initialisation", circuits.INITIALISATIONS)
def test_every_initialisation_is_reproducible_by_seed_also_in_chunks(initialisation, monkeypatch):
    options = {"qubits": (3,), "depths": (4,), "n": 20, "initialisations": (initialisation,), "seed": 2}
    frame = plateau.scan("data_reuploading", **options)
    monkeypatch.setattr(plateau, "BYTES", 1)
    again, other = (plateau.scan("data_reuploading", **options | {"seed": seed}) for seed in (2, 3))
    assert frame["observable"].tolist() == ["local", "global"]
    assert (frame["low"] > 0).all() and frame["variance"].between(frame["low"], frame["high"]).all()
    assert frame[["n_weights", "n", "n_layers"]].drop_duplicates().values.tolist() == [[36, 20, 4]]
    assert again["variance"].tolist() == pytest.approx(frame["variance"].tolist(), rel=1e-10)
    assert (other["variance"] != frame["variance"]).all()
    assert frame["resampled"].map(np.mean).tolist() == pytest.approx(frame["variance"].tolist(), rel=0.04)


def test_all_weights_of_identity_blocks_on_the_zero_state_are_dead():
    frame = plateau.scan(qubits=(2, 3), depths=(2,), n=8, initialisations=("identity_block",), embedding=None)
    assert (frame["variance"] == 0).all() and (frame["n_dead"] == frame["n_weights"]).all()
    assert plateau.fit(frame).empty


def test_a_bad_value_raises_an_error_before_the_scan(monkeypatch):
    monkeypatch.setattr(plateau, "_of_size", lambda *sizes: pytest.fail("it began"))
    bad = [("circuit", "angle"), ("n", 7), ("initialisations", ("unform",)), ("depths", ("deep",))]
    for argument, value in [*bad, ("n", 9.5), ("depths", (0,)), ("qubits", ("2",)), ("qubits", (26,))]:
        with refused(argument):
            plateau.scan(**{argument: value})
    with refused("depths"):  # layers then come in pairs
        plateau.scan(qubits=(2, 3), depths=("1n",), initialisations=("identity_block",))


def test_verdicts_of_a_fit():
    """Equal within the interval, or within 10 % of the rate, which a few qubits do not determine."""
    for line, sentence in {
        (1.3, 0.9, 1.7): "as in random circuits",
        (1.4, 1.3, 1.5): "faster than in random circuits",
        (-0.2, -0.3, 0.0): "does not vanish",
    }.items():
        assert plateau.verdict(*line, reference=1.0) == sentence

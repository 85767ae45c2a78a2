"""What circuits can reach: states and frequencies that are known, and Haar's own."""

from __future__ import annotations

import math

import numpy as np
import pennylane as qp
import pytest
import torch

from qnnkit import CIRCUITS, circuits, gradients
from qnnkit.gradients import expressivity
from tests.toys import refused

EXACT = 1e-10


def haar(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(n, d, dtype=torch.complex128, generator=generator)
    return drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)


# --- fidelities -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 16, 2**12])
def test_haar_states_are_as_expressive_as_can_be(d):
    found = expressivity.expressibility(haar(10_000 if d < 100 else 200, d))
    divergence = found.divergence
    assert divergence.low <= divergence.value <= divergence.high
    assert 0 <= divergence.value < 3 * found.floor + 1e-9
    assert found.haar.sum() == pytest.approx(1) and found.fidelities.sum() == pytest.approx(1)


def test_one_state_alone_is_as_little_expressive_as_can_be():
    """All fidelities are 1: KL = -ln of Haar's share of the last bin, (1 / 75)^(d - 1)."""
    found = expressivity.expressibility(torch.eye(4, dtype=torch.complex128)[[1] * 100])
    assert found.divergence.value == pytest.approx(3 * math.log(75))
    assert found.divergence.low == pytest.approx(found.divergence.high) == pytest.approx(3 * math.log(75))
    assert found.fidelities[-1] == 1


def test_a_single_rotation_has_the_published_divergence():
    """RY(t) on |0>: fidelities cos^2(t / 2) follow the arcsine law; Haar's of one wire are uniform."""
    generator = torch.Generator().manual_seed(0)
    angles = 2 * math.pi * torch.rand(40_000, generator=generator, dtype=torch.float64)
    found = expressivity.expressibility(torch.stack([(angles / 2).cos(), (angles / 2).sin()], dim=1))
    edges = np.linspace(0, 1, expressivity.BINS + 1)
    shares = np.diff(2 / np.pi * np.arcsin(np.sqrt(edges)))
    assert found.divergence.value == pytest.approx(float((shares * np.log(shares * 75)).sum()), abs=0.02)


def test_many_wires_are_told_apart_too():
    """75 bins of equal width would hold all of Haar's pairs in the first, and so those of any circuit."""
    product = expressivity.states("angle", 2000, n_qubits=8)
    found, best = expressivity.expressibility(product), expressivity.expressibility(haar(2000, 2**8))
    np.testing.assert_allclose(found.haar, 1 / expressivity.BINS)
    assert found.edges[0] == 0 and found.edges[-1] == 1 and (np.diff(found.edges) > 0).all()
    assert found.divergence.low > 5 * best.divergence.high
    assert best.divergence.value < 2 * best.floor


# --- entanglement -----------------------------------------------------------------------------------------


def test_entanglement_of_known_states():
    def basis(n, *indices):
        state = torch.zeros(2**n, dtype=torch.complex128)
        state[list(indices)] = len(indices) ** -0.5
        return state

    product = torch.kron(torch.kron(*haar(2, 2)), haar(1, 2, seed=1)[0])
    found = expressivity.entanglement(
        torch.stack([product, basis(3, 0, 7), basis(3, 1, 2, 4), basis(3, 0, 3), basis(3, 5)])
    )
    # a product, GHZ, W (purity of a wire 5/9), a Bell pair beside a third wire, a basis state
    expected = torch.tensor([0, 1, 8 / 9, 2 / 3, 0], dtype=torch.float64)
    assert (found - expected).abs().max() < EXACT


def test_entanglement_of_haar_states():
    """The mean over Haar is (d - 2) / (d + 1)."""
    found = expressivity.entangling_capability(haar(2000, 16))
    assert found.low < 14 / 17 < found.high and found.high - found.low < 0.02


# --- every circuit ----------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_circuit():
    rows = {row["circuit"]: row for row in expressivity.table(n_qubits=3, pairs=300)}
    assert list(rows) == list(CIRCUITS)
    for row in rows.values():
        assert 0 <= row["KL low"] <= row["KL from Haar"] <= row["KL high"]
        assert -EXACT <= row["entangling capability"] <= 1
    assert rows["angle"]["entangling capability"] == pytest.approx(0, abs=EXACT)
    assert rows["angle"]["KL from Haar"] > 5 * rows["strongly_entangling"]["KL from Haar"]
    assert rows["strongly_entangling"]["entangling capability"] > 0.6
    assert rows["iqp"]["random"] == "inputs" and rows["random"]["random"] == "weights"


@pytest.mark.parametrize("name", CIRCUITS)
def test_states_follow_the_seed_however_many_are_computed_at_once(monkeypatch, name):
    found, other = (expressivity.states(name, 6, n_qubits=3, seed=seed) for seed in (1, 2))
    assert found.shape == (6, 8) and not torch.allclose(found, other)
    assert (found.abs().square().sum(1) - 1).abs().max() < EXACT
    monkeypatch.setattr(expressivity, "STATES", 16)
    assert torch.allclose(expressivity.states(name, 6, n_qubits=3, seed=1), found, rtol=0, atol=EXACT)


def test_identity_blocks_reach_nothing_and_an_odd_number_makes_no_pairs():
    found = expressivity.states("hardware_efficient", 9, initialisation="identity_block")
    assert (found[:, 0].abs() - 1).abs().max() < EXACT
    with refused("pairs"):
        expressivity.expressibility(found)


# --- frequencies ------------------------------------------------------------------------------------------


def on_wires(n, function):
    return qp.QNode(function, circuits.make_device("default.qubit", range(n)))


def test_one_rotation_is_a_cosine():
    def circuit(inputs):
        qp.RX(inputs[0], wires=0)
        return [qp.expval(qp.Z(0))]

    [found] = gradients.spectrum(on_wires(1, circuit), {}, 1)
    assert found.frequencies == (0, 1) and found.expressed == (1,) and found.why_not == ""
    assert found.power == pytest.approx((0, 1 / 4), abs=EXACT)


@pytest.mark.parametrize("n_layers", [1, 2, 4])
def test_data_reuploading_reaches_as_high_as_it_has_layers(n_layers):
    qnode, shapes = circuits.build("data_reuploading", n_qubits=2, n_layers=n_layers)
    for found in gradients.spectrum(qnode, shapes, 2, n=20):
        assert found.frequencies == found.expressed == tuple(range(n_layers + 1))


def scaled(inputs, weights):
    qp.RX(0.5 * inputs[0], wires=0)
    qp.RY(weights[0], wires=0)
    qp.PhaseShift(2 * inputs[0] + weights[1], wires=0)
    qp.RY(weights[2], wires=0)
    qp.RX(math.sqrt(2) * inputs[1], wires=0)
    qp.RY(torch.sin(inputs[2]), wires=0)
    qp.RY(weights[3] * weights[0], wires=0)
    qp.RX(inputs[3] + 1, wires=0)
    qp.RX(math.pi * inputs[3], wires=0)
    return [qp.expval(qp.Z(0))]


def test_scaled_features():
    first, second, third, fourth, fifth = gradients.spectrum(on_wires(1, scaled), {"weights": (4,)}, 5)
    assert first.frequencies == (0, 0.5, 1.5, 2, 2.5) and len(first.power) == 5 and not first.why_not
    assert second.frequencies == pytest.approx((0, math.sqrt(2)))
    assert third.frequencies == () and "no multiple of this feature" in third.why_not
    assert fourth.frequencies == pytest.approx((0, 1, math.pi - 1, math.pi, math.pi + 1))
    assert fourth.power == () and "no common period" in fourth.why_not
    assert fifth.frequencies == (0,) and not fifth.why_not


def test_the_powers_make_the_function():
    """Parseval: the mean square over a period is |c_0|^2 + 2 sum |c_w|^2; no frequency is missing."""

    def circuit(inputs):
        for _ in range(3):
            qp.RX(inputs[0], wires=0)
            qp.Hadamard(0)
            qp.T(0)
        return [qp.expval(qp.Z(0))]

    qnode = on_wires(1, circuit)
    [found] = gradients.spectrum(qnode, {}, 1, n=1)
    points = 2 * math.pi * torch.arange(64, dtype=torch.float64) / 64
    mean_square = sum(float(qnode(point[None])[0]) ** 2 for point in points) / 64
    assert found.power[0] + 2 * sum(found.power[1:]) == pytest.approx(mean_square, abs=EXACT)


@pytest.mark.parametrize(("embedding", "told"), [("iqp", "product"), ("amplitude", "amplitudes")])
def test_where_there_is_no_series_it_says_so(embedding, told):
    n_features = circuits.CIRCUITS[embedding].n_features(2)
    found = gradients.spectrum(*circuits.build("random", n_qubits=2, embedding=embedding), n_features)
    assert len(found) == n_features
    assert all(each.frequencies == each.power == () and told in each.why_not for each in found)

"""Initial angles of circuits, and mirrored circuits, whose pairs of layers can cancel."""

import math
import typing

import numpy as np
import pennylane as qp
import pytest
import torch

from qnnkit import Quanv2d, circuits
from qnnkit.models.circuit_part import CircuitSettings
from tests.nets import family

EXACT = 1e-10


def drawn(name, shape=(4, 50, 30), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return circuits.INITIALISATIONS[name](torch.zeros(shape, dtype=torch.float64), generator)


def test_the_setting_offers_every_initialisation():
    offered = typing.get_args(CircuitSettings.model_fields["initialisation"].annotation)
    assert list(offered) == list(circuits.INITIALISATIONS)
    assert set(circuits.MIRRORED) <= set(offered)


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [
        ("uniform", math.pi, 2 * math.pi / math.sqrt(12)),
        ("small", 0, 0.1),
        ("gaussian", 0, 1 / math.sqrt(4 * (4 + 2))),
        ("identity_block", math.pi, 2 * math.pi / math.sqrt(12)),
    ],
)
def test_mean_and_deviation(name, mean, deviation):
    weights = drawn(name)  # 6000 numbers, of which 3000 are independent if they come in pairs
    assert float(weights.mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(3000))
    assert float(weights.std()) == pytest.approx(deviation, rel=0.05)
    assert not torch.equal(weights, drawn(name, seed=1))


@pytest.mark.parametrize("name", [None, *circuits.INITIALISATIONS])
def test_a_quanvolution_uses_the_given_initialisation(name):
    """The default is uniform."""
    generator = torch.Generator().manual_seed(7 * 1000 + 1)
    expected = circuits.INITIALISATIONS[name or "uniform"](torch.empty(2, 4, 2), generator)
    layer = Quanv2d(1, "hardware_efficient", filters=2, seed=7, **({"initialisation": name} if name else {}))
    assert torch.equal(layer.filters[1].weights, expected)
    if name == "identity_block":  # the layers cancel, which leaves the embedding
        patch = torch.tensor([0.1, 0.7, 1.3, 2.2])
        assert torch.allclose(layer.filters[1](patch), patch.cos(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", ["quanv", "residual_quanv", "resnet_circuit"])
def test_models_pass_on_the_setting(model):
    sizes = {"channels": 1, "image_size": (16, 16), "n_classes": 2}
    small = {"n_qubits": 2, "stem_stride": 1, "width": 8}
    net = family(model, small, sizes=sizes, initialisation="identity_block")
    [block] = [weight for key, weight in net.named_parameters() if key.endswith(".weights")]
    assert torch.equal(block[0], block[1])


# --- mirrored circuits ------------------------------------------------------------------------------------


def unitary(ansatz, weights, n_qubits, mirrored=True):
    options = {"n_qubits": n_qubits, "n_layers": len(weights), "embedding": None, "mirrored": mirrored}
    gates, _ = circuits.compose(ansatz, **options)
    return qp.matrix(lambda: gates(np.zeros(n_qubits), weights), wire_order=range(n_qubits))()


@pytest.mark.parametrize("n_qubits", [1, 3])
@pytest.mark.parametrize("ansatz", circuits.ANSAETZE)
def test_identity_blocks_do_nothing(ansatz, n_qubits):
    _, shapes = circuits.compose(ansatz, n_qubits=n_qubits, n_layers=4, mirrored=True)
    weights = drawn("identity_block", shapes["weights"]).numpy()
    one = np.eye(2**n_qubits)
    assert (weights[1] != weights[2]).all(), "each pair is drawn separately"
    assert np.abs(unitary(ansatz, weights, n_qubits) - one).max() < EXACT
    weights[3, 0] += 0.3
    assert np.abs(unitary(ansatz, weights, n_qubits) - one).max() > 0.1


def test_data_is_uploaded_once_per_pair_and_not_undone():
    qnode, shapes = circuits.build("data_reuploading", n_qubits=2, n_layers=4, mirrored=True)
    weights, inputs = drawn("identity_block", shapes["weights"]).numpy(), np.array([0.3, 0.5])
    assert np.allclose(qnode(inputs, weights), np.cos(2 * inputs), rtol=0, atol=EXACT)


@pytest.mark.parametrize("ansatz", ["data_reuploading", "strongly_entangling", "hardware_efficient"])
def test_pairs_use_the_layers_of_the_plain_circuit(ansatz):
    """The second pair uses the second layer, which may have other entanglers."""
    weights = drawn("uniform", circuits.CIRCUITS[ansatz].weights_shape(4, 4)).numpy()
    a, b, c, d = weights

    def plain(*layers):
        return unitary(ansatz, np.stack(layers), 4, mirrored=False)

    once, twice = [plain(a), plain(b)], [plain(a, each) @ plain(a).conj().T for each in (c, d)]
    inverse = 0 if ansatz == "strongly_entangling" else 1  # the other's entangler is outside in either case
    for pair in (once, twice):
        pair[inverse] = pair[inverse].conj().T
    assert np.abs(unitary(ansatz, weights, 4) - twice[1] @ twice[0] @ once[1] @ once[0]).max() < EXACT


def test_pairs_of_random_gates_differ():
    pair = drawn("uniform", (2, 4)).numpy()
    once, twice = (unitary("random", weights, 4) for weights in (pair, np.concatenate([pair, pair])))
    assert np.abs(twice - once @ once).max() > 0.1

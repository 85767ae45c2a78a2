"""Measures of circuits and nets against closed forms, including cells of 04b_inside and 07_circuit."""

import math
from types import SimpleNamespace

import matplotlib
import nbformat
import numpy as np
import pandas as pd
import pennylane as qp
import pytest
import torch
from matplotlib import pyplot
from torch import nn

from qnnkit import QuantumLayer, circuits, gradients, layers
from qnnkit.tasks import Step
from tests.notebooks.test_notebook_cells import NOTEBOOKS, executed
from tests.toys import layer_on, linear, refused, uniform

EXACT, FLOAT32 = 1e-10, 1e-5
CLOSE = 1e-6
ANGLE = float(uniform(1, seed=5, top=2 * np.pi))


def layer_of(after, observable, weights=(1,), order=(0, 1, 2)) -> QuantumLayer:
    """RX embeds three inputs, in some order, then `after`."""

    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs[..., list(order)], wires=order)
        after(weights)
        return [qp.expval(observable), qp.expval(qp.Z(2))]

    return layer_on(3, circuit, {"weights": weights}, "lightning.qubit")  # this splits batches


@pytest.mark.parametrize(
    ("after", "observable", "shares"),
    [
        (lambda w: qp.RZ(w[0], 0), qp.Z(0), [0, 1, 1, 1]),  # commutes with the observable
        (lambda w: qp.CNOT([0, 1]), qp.Z(1), [0, 0, 1, 1]),  # Z of the target becomes Z Z
        (lambda w: (qp.CNOT([0, 1]), qp.CNOT([1, 2])), qp.Z(2), [0, 0, 0, 1]),
        # RX turns Z into cos Z + sin Y, and CZ turns Y into Z Y.
        (lambda w: (qp.CZ([0, 1]), qp.RX(w[0], 1)), qp.Z(1), [0, math.cos(ANGLE) ** 2, 1, 1]),
    ],
)
def test_shares_in_closed_form_for_any_order_of_gates(after, observable, shares):
    layers = [layer_of(after, observable, order=order) for order in ((0, 1, 2), (2, 0, 1))]
    frame, other = (gradients.pauli_weights(layer, uniform(6, 3, seed=1, top=3.0)) for layer in layers)
    pd.testing.assert_frame_equal(frame, other)
    first = frame[frame["output"] == 0]
    np.testing.assert_allclose(first["share"], shares, atol=CLOSE)
    assert first["explained"].iloc[0] == pytest.approx(0, abs=CLOSE)
    np.testing.assert_allclose(first["explained"][first["share"] > 1 - CLOSE], 1, atol=CLOSE)


def test_circuits_without_pauli_strings_raise_an_error():
    with refused("inputs"):
        gradients.pauli_weights(layer_of(lambda w: qp.RZ(w[0], 0), qp.Z(0)), torch.zeros(1, 3))
    with refused("layer"):
        wide = QuantumLayer(*circuits.build("random", n_qubits=11), torch.zeros_like)
        gradients.pauli_weights(wide, torch.zeros(2, 11))


def test_tangent_kernels_of_a_linear_model_and_of_a_circuit():
    model, inputs = linear(3, 2), uniform(5, 3)
    expected = 2 * (inputs @ inputs.T + 1)
    torch.testing.assert_close(gradients.tangent_kernel(model, inputs), expected)
    model.bias.requires_grad_(False)
    torch.testing.assert_close(gradients.tangent_kernel(model, inputs), expected - 2)
    layer = layer_of(lambda w: qp.RX(w[0], 0), qp.Z(0))
    model, inputs = nn.Sequential(layer, nn.Dropout(0.5)).train(), uniform(4, 3, seed=5, top=3.0)
    slopes = -torch.sin(inputs[:, 0] + layer.weights.detach()[0])  # Z of wire 2 does not depend on w
    kernel = gradients.tangent_kernel(model, inputs)
    torch.testing.assert_close(kernel, torch.outer(slopes, slopes), rtol=0, atol=1e-5)
    assert model.training and model[1].training and layer.weights.grad is None


def test_alignment_is_one_for_the_kernel_of_the_labels_and_small_for_noise():
    labels = torch.tensor([0, 1, 2] * 20)
    equal = (labels[:, None] == labels[None]).double()
    assert gradients.alignment(3 * equal + 2, labels) == pytest.approx(1, abs=CLOSE)
    noise, centre = uniform(60, 60).double(), torch.eye(60).double() - 1 / 60
    one, two = centre @ noise @ noise.T @ centre, centre @ equal @ centre
    cosine = float((one * two).sum() / one.norm() / two.norm())
    assert gradients.alignment(noise @ noise.T, labels) == pytest.approx(cosine, abs=CLOSE) and cosine < 0.3
    with refused("the number of classes"):
        gradients.alignment(equal, 0 * labels)


class Coin(nn.Module):
    """p = cos(w / 2) ** 2, whose Fisher information is 1 at every w, and weights without effect."""

    def __init__(self, n_idle: int):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(1 + n_idle).double())

    def forward(self, inputs):
        half = self.weights[0] / 2
        return torch.stack([half.cos() ** 2, half.sin() ** 2]).log().expand(len(inputs), 2)


@pytest.mark.parametrize("n_idle", [0, 3])
def test_effective_dimension_of_a_constant_fisher_information(n_idle):
    model, n_data = Coin(n_idle), 1000
    kappa, size = n_data / (2 * math.pi * math.log(n_data)), 1 + n_idle
    expected = math.log(1 + size * kappa) / math.log(kappa) / size
    result = gradients.effective_dimension(model, torch.zeros(3, 1), n_data=n_data, n_weights=7)
    assert result == pytest.approx(expected, rel=CLOSE) and (model.weights == 1).all()


def test_effective_dimension_of_a_circuit_is_seeded_and_uses_evaluation_mode():
    layer = layer_of(lambda w: qp.StronglyEntanglingLayers(w, range(3)), qp.Z(0), (1, 3, 3))
    model, inputs = nn.Sequential(layer, linear(2, 3), nn.Dropout(0.5)).train(), uniform(8, 3, top=3.0)
    sizes = {"n_data": 500, "n_weights": 5}
    one, same, other = (gradients.effective_dimension(model, inputs, **sizes, seed=n) for n in (0, 0, 1))
    assert one == same != other and 0 < one < 1.5
    for wrong in ({"n_data": 49}, {"n_weights": 0}):
        with refused(*wrong):
            gradients.effective_dimension(model, inputs, **sizes | wrong)


# --- 04b_inside: the loss along lines -----------------------------------------------------------------------


def lines_of(layer: QuantumLayer, rows: torch.Tensor) -> dict:
    """The variables that the cells define for a net whose loss is its mean output."""

    def loss(model, batch) -> Step:
        return Step(model(batch[0]).mean(), {}, len(batch[0]))

    names = {"model": layer, "layers": layers, "torch": torch, "pd": pd, "n_circuits": 1}
    about = {"config": SimpleNamespace(seed=0), "save_figure": lambda *saved: None}
    names["run"] = SimpleNamespace(task=loss, **about)
    names["runs"] = SimpleNamespace(first_batch=lambda run, split, n: (rows,))
    with matplotlib.rc_context({"backend": "agg"}):
        for cell in nbformat.read(NOTEBOOKS / "04b_inside.ipynb", as_version=4).cells:
            if cell.cell_type == "code" and "vector_to_parameters" in cell.source:
                exec(cell.source, names)
        pyplot.close("all")
    return names


def sum_of_angles(a=0.3, b=0.1) -> QuantumLayer:
    """<Z> = cos(x + a + b)."""

    @qp.qnode(circuits.make_device("default.qubit", 1))
    def circuit(inputs, a, b):
        qp.RX(inputs[..., 0] + a + b, wires=0)
        return [qp.expval(qp.Z(0))]

    return QuantumLayer(circuit, {"a": (), "b": ()}, {"a": torch.tensor(a), "b": torch.tensor(b)})


def test_the_loss_along_a_line_is_a_cosine_and_frozen_angles_stay():
    """Along the gradient both angles move by the offset; with one frozen, only the other moves."""
    layer, rows = sum_of_angles(), torch.tensor([[0.3]])
    for angles in (2, 1):
        layer.a.requires_grad_(angles == 2)
        names = lines_of(layer, rows)
        unit = names["unit"]  # the random direction
        assert len(names["angles"]) == angles
        assert float(unit.square().mean()) == pytest.approx(1, abs=FLOAT32)
        steps = {"along the gradient": -angles, "random": float(unit.sum())}  # the gradient is -sin(0.7)
        for name, line in names["lines"].items():
            exact = np.cos(0.7 + steps.pop(name) * names["offsets"].numpy())
            np.testing.assert_allclose(line, exact, atol=FLOAT32)
        assert steps == {}
        assert [float(each.detach()) for each in names["angles"]] == pytest.approx([0.3, 0.1][-angles:])
    assert lines_of(layer.requires_grad_(False), rows)["lines"] == {}
    flat = lines_of(sum_of_angles(0.0, 0.0), torch.zeros(1, 1))
    assert list(flat["lines"]) == ["random"], "the gradient is zero at a maximum"


# --- 07_circuit ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown():
    """The variables that the notebook's cells define, at a small size."""
    with matplotlib.rc_context({"backend": "agg"}):
        names = executed("07_circuit", n_qubits=2, n_pairs=50, n_weights=3)
        pyplot.close("all")
    return names


def haar(n, d, seed=0):
    parts = np.random.default_rng(seed).normal(size=(2, n, d))
    drawn = parts[0] + 1j * parts[1]
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def test_divergences_in_closed_form(shown):
    """A single state of two qubits: 3 ln 75. RY(t)|0>: the arcsine law against uniform fidelities."""
    one = shown["divergence"](*shown["fidelity_histogram"](np.eye(4)[[1] * 100]))
    assert one == pytest.approx(3 * math.log(75))
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 40_000) / 2
    shares = np.diff(2 / np.pi * np.arcsin(np.sqrt(np.linspace(0, 1, 76))))
    expected = float((shares * np.log(shares * 75)).sum())
    states = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    result = shown["divergence"](*shown["fidelity_histogram"](states))
    assert result == pytest.approx(expected, abs=0.02)


def test_entanglement_of_known_states(shown):
    def basis(*indices):
        state = np.zeros(8)
        state[list(indices)] = len(indices) ** -0.5
        return state

    product = np.kron(np.kron(*haar(2, 2)), haar(1, 2, seed=1)[0])
    states = np.array([product, basis(0, 7), basis(1, 2, 4), basis(0, 3), basis(5)])
    # a product, GHZ, W (purity 5/9 per wire), a Bell pair with a third wire, a basis state
    np.testing.assert_allclose(shown["entanglement"](states), [0, 1, 8 / 9, 2 / 3, 0], atol=EXACT)
    assert shown["entanglement"](haar(2000, 16)).mean() == pytest.approx(14 / 17, abs=0.01)


def test_frequencies_of_the_shipped_and_of_a_users_circuit(shown, monkeypatch):
    """cos(k x + b) has |c_k|^2 = 1/4; a different period raises an error."""
    assert ((shown["spectra"].max(axis=1) > 1e-12) == (np.arange(5) <= 2)).all()

    def spectrum(k, b=0.0):
        circuit = lambda inputs, weights: qp.RX(k * inputs[0] + b, wires=0)  # noqa: E731
        for name, value in {"circuit": circuit, "shape": (0,), "n_features": 1}.items():
            monkeypatch.setitem(shown, name, value)
        return shown["spectrum"](0)

    np.testing.assert_allclose(spectrum(1), [0, 1 / 4, 0, 0, 0], atol=EXACT)
    np.testing.assert_allclose(spectrum(2, 0.3), [0, 0, 1 / 4, 0, 0], atol=EXACT)
    with pytest.raises(ValueError, match="period"):
        spectrum(0.5)

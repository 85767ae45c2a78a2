"""Cells of 04b_inside and 07_circuit: the loss around trained angles, and states that are known."""

from __future__ import annotations

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

from qnnkit import QuantumLayer, circuits, layers
from qnnkit.tasks import Step
from tests.notebooks.test_notebook_cells import NOTEBOOKS, executed

EXACT, FLOAT32 = 1e-10, 1e-5

# --- 04b_inside: the loss along lines -----------------------------------------------------------------------


def lines_of(layer: QuantumLayer, rows: torch.Tensor) -> dict:
    """What the cells define of a net whose loss is its mean output."""

    def loss(model, batch) -> Step:
        return Step(model(batch[0]).mean(), {}, len(batch[0]))

    found = {"model": layer, "layers": layers, "torch": torch, "pd": pd, "n_circuits": 1}
    about = {"config": SimpleNamespace(seed=0), "save_figure": lambda *saved: None}
    found["run"] = SimpleNamespace(task=loss, **about)
    found["runs"] = SimpleNamespace(first_batch=lambda run, split, n: (rows,))
    with matplotlib.rc_context({"backend": "agg"}):
        for cell in nbformat.read(NOTEBOOKS / "04b_inside.ipynb", as_version=4).cells:
            if cell.cell_type == "code" and "vector_to_parameters" in cell.source:
                exec(cell.source, found)
        pyplot.close("all")
    return found


def sum_of_angles(*frozen: str, a=0.3, b=0.1) -> QuantumLayer:
    """<Z> = cos(x + a + b)."""

    @qp.qnode(circuits.make_device("default.qubit", 1))
    def circuit(inputs, a, b):
        qp.RX(inputs[..., 0] + a[0] + b[0], wires=0)
        return [qp.expval(qp.Z(0))]

    start = {"a": torch.tensor([a]), "b": torch.tensor([b])}
    layer = QuantumLayer(circuit, {"a": (1,), "b": (1,)}, start)
    for name in frozen:
        layer.get_parameter(name).requires_grad_(False)
    return layer


def test_a_line_is_a_cosine_and_frozen_angles_stay():
    """Along the gradient two angles move by the offset each; with one frozen, the other moves alone."""
    for frozen, angles in ((), 2), (("a",), 1):
        found = lines_of(sum_of_angles(*frozen), torch.tensor([[0.3]]))
        unit = found["unit"]  # of the random direction
        assert len(found["angles"]) == angles
        assert float(unit.square().mean()) == pytest.approx(1, abs=FLOAT32)
        steps = {"along the gradient": -angles, "random": float(unit.sum())}  # the gradient is -sin(0.7)
        for name, line in found["lines"].items():
            exact = np.cos(0.7 + steps.pop(name) * found["offsets"].numpy())
            np.testing.assert_allclose(line, exact, atol=FLOAT32)
        assert steps == {}
        assert [float(each.detach()) for each in found["angles"]] == pytest.approx([0.3, 0.1][-angles:])
    assert lines_of(sum_of_angles("a", "b"), torch.tensor([[0.3]]))["lines"] == {}
    flat = lines_of(sum_of_angles(a=0.0, b=0.0), torch.zeros(1, 1))
    assert list(flat["lines"]) == ["random"], "at a maximum there is no gradient"


# --- 07_circuit ---------------------------------------------------------------------------------------------


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


def test_divergences_in_closed_form(shown):
    """One state alone: 3 ln 75 of two qubits. RY(t)|0>: the arcsine law against uniform fidelities."""
    one = shown["divergence"](*shown["fidelity_histogram"](np.eye(4)[[1] * 100]))
    assert one == pytest.approx(3 * math.log(75))
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 40_000) / 2
    shares = np.diff(2 / np.pi * np.arcsin(np.sqrt(np.linspace(0, 1, 76))))
    expected = float((shares * np.log(shares * 75)).sum())
    states = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = shown["divergence"](*shown["fidelity_histogram"](states))
    assert found == pytest.approx(expected, abs=0.02)


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


def test_frequencies_of_the_shipped_circuit_and_of_the_readers(shown, monkeypatch):
    """cos(k x + b) has |c_k|^2 = 1/4; another period raises."""
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

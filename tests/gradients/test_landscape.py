"""The loss around trained angles, in cells of 04b_inside: closed forms, and one point after the other."""

from __future__ import annotations

from types import SimpleNamespace

import matplotlib
import nbformat
import numpy as np
import pandas as pd
import pennylane as qp
import pytest
import torch
from matplotlib import pyplot as plt

from qnnkit import QuantumLayer, circuits, layers, recipes
from qnnkit.tasks import Classification, Step
from tests.notebooks.test_notebook_cells import NOTEBOOKS

EXACT = 1e-5


def mean_value(model, batch) -> Step:
    """The mean of all outputs as a loss."""
    loss = model(batch[0]).mean()
    return Step(loss, {"loss": loss.detach()}, len(batch[0]))


def shown(model, task, batch):
    """What the cells of that section define."""
    cells = nbformat.read(NOTEBOOKS / "04b_inside.ipynb", as_version=4).cells
    begins = [i for i, cell in enumerate(cells) if cell.source.startswith("## ")]
    start = next(i for i in begins if "The loss around" in cells[i].source)
    run = SimpleNamespace(task=task, config=SimpleNamespace(seed=0), save_figure=lambda *saved: None)
    runs = SimpleNamespace(first_batch=lambda run, split, n: batch)
    found = {"model": model, "run": run, "runs": runs, "layers": layers, "torch": torch, "pd": pd}
    found["n_circuits"] = 1
    with matplotlib.rc_context({"backend": "agg"}):
        for cell in cells[start : begins[begins.index(start) + 1]]:
            if cell.cell_type == "code":
                exec(cell.source, found)
        plt.close("all")
    return found


def sum_of_angles(backend: str, frozen: tuple[str, ...] = (), a=0.3, b=0.1) -> QuantumLayer:
    """<Z> = cos(x + a + b)."""

    @qp.qnode(circuits.make_device("default.qubit", 1))
    def circuit(inputs, a, b):
        qp.RX(inputs[..., 0] + a[0] + b[0], wires=0)
        return [qp.expval(qp.Z(0))]

    start = {"a": torch.tensor([a]), "b": torch.tensor([b])}
    layer = QuantumLayer(circuit, {"a": (1,), "b": (1,)}, start, backend=backend)
    for name in frozen:
        layer.get_parameter(name).requires_grad_(False)
    return layer


@pytest.mark.parametrize("backend", ["batched", "default.qubit"])
def test_a_line_is_a_cosine_and_frozen_angles_stay(backend):
    """Along the gradient two angles move by the offset each; with one frozen, the other moves alone."""
    batch = (torch.tensor([[0.3]]),)
    for frozen, angles in (((), 2), (("a",), 1)):
        found = shown(sum_of_angles(backend, frozen), mean_value, batch)
        down = np.cos(0.7 - angles * found["offsets"].numpy())  # the gradient is -sin(0.7)
        np.testing.assert_allclose(found["lines"]["along the gradient"], down, atol=EXACT)
        assert list(found["lines"]) == ["along the gradient", "random"] and len(found["angles"]) == angles
    assert shown(sum_of_angles(backend, ("a", "b")), mean_value, batch)["lines"] == {}
    top = sum_of_angles(backend, a=0.0, b=0.0)
    assert list(shown(top, mean_value, (torch.zeros(1, 1),))["lines"]) == ["random"]


def test_a_line_is_what_each_point_gives_alone():
    recipe = recipes.find("digits_quanv")
    settings = recipe.settings(circuit="strongly_entangling", filters=2)
    model, generator = recipe.build(settings, recipe.load(settings), 0), torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8, generator=generator)
    batch = images, torch.arange(5)
    layers.circuit_inputs(model, images)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = shown(model, Classification(), batch)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    unit = found["unit"]  # of the random direction
    assert float(unit.square().mean()) == pytest.approx(1, abs=1e-5)
    for place in (0, 13, 20):
        point = found["centre"].detach() + found["offsets"][place] * unit
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(point, found["angles"])
            alone = float(Classification()(model.eval(), batch).loss)
        assert found["lines"]["random"][place] == pytest.approx(alone, abs=EXACT)
    assert np.std(found["lines"]["random"]) > 1e-4

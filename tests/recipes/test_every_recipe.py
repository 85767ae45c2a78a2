"""The notebooks of a run work for every shipped recipe, at toy size."""

import json

import pytest

from qnnkit import RECIPES, runs
from qnnkit.checkpoint import own_generators
from tests.notebooks.test_notebook_cells import cells, style  # noqa: F401  one is a fixture
from tests.recipes.test_recipes import pretrained, sets, toy  # noqa: F401  fixtures


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
@own_generators()  # 03 trains on a single batch, with dropout
def test_the_notebooks_run_every_recipe(name, sets, pretrained, tmp_path):  # noqa: F811
    settings = toy(name, sets, pretrained) | {"epochs": 1, "n_seeds": 1, "threads": 1}
    known = RECIPES[name].Settings.model_fields
    settings |= {each: 4 for each in ("hidden", "width") if each in known}
    settings |= {"controls": list(RECIPES[name].settings().controls)[:1]}
    folder = tmp_path / "run"
    run = runs.open_run(folder, name, **settings)
    for notebook in runs.NOTEBOOKS:
        cells(notebook, run, plateau_qubits=2, hardware_images=2, samples=1)
    result = json.loads((folder / "result.json").read_text())
    assert [row["net"] for row in result["nets"]] == list(runs.open_run(folder).nets)
    assert (folder / "report.html").exists()
    assert (folder / "model").exists() or (folder / "adapter").exists()

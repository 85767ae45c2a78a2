"""qnnkit.recipes: every recipe is complete: its names exist, and its nets can be built and trained."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from qnnkit import RECIPES, layers, recipes, runs
from qnnkit.circuits import ANSAETZE, EMBEDDINGS
from qnnkit.config import validate
from qnnkit.data import DATASETS
from qnnkit.models import MODELS


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Ten random images in each of two class folders, for the recipes that need a folder."""
    root, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("left", "right"):
        (root / name).mkdir()
        for i in range(10):
            Image.fromarray(generator.integers(0, 256, (12, 12), dtype=np.uint8)).save(
                root / name / f"{i}.png"
            )
    return root


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_what_exists(name):
    recipe = recipes.recipe(name)
    assert recipe.recipe == name
    assert recipe.data.dataset in DATASETS
    assert recipe.model.model in MODELS
    assert recipe.model.circuit in ANSAETZE
    assert recipe.model.embedding in EMBEDDINGS
    assert recipe.device == recipe.backend == "auto"  # placement is the machine's business
    assert validate(json.loads(recipe.model_dump_json())) == recipe


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_say_something_of_the_quantum_part(name):
    """Every hybrid result stands beside its control of equal size, with an interval over seeds."""
    recipe = recipes.recipe(name)
    assert "classical" in recipe.controls and recipe.n_seeds >= 3


@pytest.mark.parametrize("name", RECIPES)
def test_the_nets_of_a_recipe_differ_in_the_quantum_part_alone(name, pictures, tmp_path):
    folder = None if recipes.recipe(name).data.dataset == "digits" else str(pictures)
    run = runs.open_run(tmp_path / "run", name, data_dir=folder)
    images, labels = next(iter(run.splits.batches("train", 4, shuffle=False)))
    nets = {net: runs.build(run, net, seed=0) for net in run.nets}
    counts = {net: layers.count_parameters(model) for net, model in nets.items()}
    for net, model in nets.items():
        step = runs.task_of(run.config.training)(model, (images, labels))
        step.loss.backward()
        assert model(images).shape == (4, run.splits.n_classes)
        assert step.count == 4
        for weight in model.parameters():  # each weight that is trained gets a gradient
            assert (weight.grad is not None) == weight.requires_grad
        assert sum(counts[net].values()) == sum(counts["hybrid"].values())
    assert counts["hybrid"]["quantum"] == counts["no_entanglement"]["quantum"] > 0
    assert counts["classical"]["quantum"] == counts["frozen_random"]["quantum"] == 0
    assert counts["frozen_random"]["frozen"] == counts["hybrid"]["quantum"]
    for model in nets.values():
        for here, there in zip(model.reader.parameters(), nets["hybrid"].reader.parameters(), strict=True):
            assert torch.equal(here, there)


def test_an_unknown_recipe():
    with pytest.raises(ValueError, match="Did you mean 'digits_quanv'"):
        recipes.recipe("digit_quanv")


def test_the_digits_recipe_reaches_95_percent(tmp_path):
    """The hybrid net alone, as the main job trains it: the mean test accuracy of three seeds."""
    run = runs.open_run(tmp_path / "run", "digits_quanv")
    assert list(run.seeds) == [0, 1, 2]
    hybrid = dataclasses.replace(run, config=run.config.model_copy(update={"controls": ()}))
    accuracies = [final["test_accuracy"] for final in runs.train_all(hybrid)]
    assert len(accuracies) == 3 and np.mean(accuracies) >= 0.95

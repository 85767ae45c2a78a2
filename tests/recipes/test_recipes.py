"""qnnkit.recipes: shipped recipes are complete and run; a user's recipe is loaded, identified and checked."""

import copy
import importlib
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from qnnkit import RECIPES, data, layers, recipes, runs, tasks
from qnnkit.settings import MAIN_NETS
from tests.recipes.test_your_own import RECIPE, home  # noqa: F401  fixture
from tests.toys import AsFloat, Digits, fill, music, refused, texts

PUBLIC = ("mnist", "ahcd")
OF_IMAGES = [name for name in RECIPES if issubclass(RECIPES[name].Settings, data.Images)]
SHORT = {"epochs": 1, "n_seeds": 1}
TINY = {"text": {"sequence_length": 16, "vocabulary": 260}, "music": {"sequence_length": 32}}


# --- the shipped ones --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Data for the recipes that need files: images in folders, captions, text and music."""
    root = tmp_path_factory.mktemp("home")
    names = [f"{i}_{label:02d}.png" for label in range(2) for i in range(10)]
    for folder in ("flat_folder", "captions"):
        fill(root / folder, names, size=(12, 12))
    fill(root / "class_folder", [f"{name[3]}/{name[0]}.png" for name in names], size=(12, 12))
    captions = {name: f"picture {name[0]} of class {name[3]}" for name in names}
    (root / "captions" / "captions.json").write_text(json.dumps(captions))
    for kind in TINY:
        (root / kind).mkdir()
    texts(root / "text")
    music(root / "music" / "bach.json")
    return root


@pytest.fixture(scope="module")
def pretrained(sets):
    """Kind of token -> the folder of an untrained base model."""
    folders = {}
    for kind in TINY:
        run = runs.open_run(sets / f"{kind}_base", f"{kind}_llama", data_dir=str(sets / kind), **TINY[kind])
        net, folder = runs.build(run, "reference", 0), sets / f"{kind}_model"
        folders[kind] = str(tasks.save(net, run.splits.tokenizer, folder))
    return folders


def toy(name, sets, pretrained):
    """Settings that make a recipe small."""
    usual, settings = RECIPES[name].settings(), {}
    if usual.dataset in PUBLIC:
        settings = {"dataset": "digits", "train_fraction": 0.1}
    elif usual.dataset not in ("digits", "digit_captions"):
        settings = {"data_dir": str(sets / usual.dataset)}
    if hasattr(usual, "adapter"):
        settings |= {"pretrained": pretrained[usual.dataset], "base_precision": "float32"}
        settings["sequence_length"] = TINY[usual.dataset]["sequence_length"]
        return settings | {"four_bit": False, "gradient_checkpointing": False, "precision": "float32"}
    if hasattr(usual, "filters"):
        settings["filters"] = min(2, usual.filters)
    if getattr(usual, "frozen_backbone", False):  # built like resnet_circuit_trained, with all its controls
        settings["controls"] = usual.controls[:1]
    return settings | TINY.get(usual.dataset, {})


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_describes_itself_and_sets_nothing_of_the_machine(name):
    recipe = RECIPES[name]
    usual = recipe.settings()
    assert (recipe.name, recipe.reference, usual.recipe) == (name, name, name)
    assert recipe.shipped and recipes.of(usual) is recipe and RECIPES[name] is recipe
    assert usual.device == usual.backend == "auto"  # placement belongs to the machine
    assert usual.dataset in data.DATASETS and data.kind(usual.dataset) == usual.kind
    if name in OF_IMAGES:  # every hybrid result has a control of equal size and an interval
        assert ("classical" in usual.controls) == hasattr(usual, "circuit") and usual.n_seeds >= 3


def test_listing_recipes_is_fast():
    """Names and sentences are read from the files, because importing torch alone takes seconds."""
    code = "import sys; from qnnkit import cli; sys.argv = ['qnnkit', 'recipes']\ntry: cli.main()\n"
    code += "finally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = [line.split(maxsplit=1) for line in done.stdout.partition("\n\n")[0].splitlines()]
    assert [name for name, _ in lines] == [*RECIPES]
    assert all(sentence.endswith(".") and len(sentence) < 200 for _, sentence in lines)
    assert done.stdout.endswith("False\n"), done.stderr


@pytest.fixture(scope="module", params=RECIPES)
def small(request, sets, pretrained, tmp_path_factory):
    """A small run of each recipe, and its nets."""
    settings = toy(request.param, sets, pretrained) | {"epochs": 2, "seed": 5}
    run = runs.open_run(tmp_path_factory.mktemp("small") / "run", request.param, **settings)
    return run, {net: runs.build(run, net, seed=0) for net in run.nets}


def test_its_settings_are_restored_from_a_folder(small):
    run, _ = small
    name = run.recipe.name
    stored = json.loads((run.folder / "config.json").read_text())
    assert stored.pop("recipe_digest") == RECIPES[name].digest and stored.pop("recipe") == name
    assert set(stored) == set(RECIPES[name].Settings.model_fields)
    assert (run.folder / "recipe.py").read_text() == RECIPES[name].source
    again = runs.open_run(run.folder)
    assert again.config == run.config and again.recipe is RECIPES[name]


def test_its_controls_differ_only_in_the_quantum_part(small):
    run, nets = small
    if run.recipe.name not in OF_IMAGES:
        return  # adapters have their own test
    hybrid, *others = nets.values()
    quantum, counted = layers.quantum_parameters(hybrid), layers.count_parameters(hybrid)["quantum"]
    assert hybrid.eval()(run.splits.example(4)).shape == (4, run.splits.n_classes)
    for net, other in zip(run.config.controls, others, strict=True):
        weights = dict(other.named_parameters())
        for place, weight in hybrid.named_parameters():
            if not any(weight is angle for angle in quantum) and place in weights:
                assert torch.equal(weights[place], weight)
        assert layers.count_parameters(other)["quantum"] == (counted if net == "no_entanglement" else 0)


def test_a_recipe_and_its_controls_load_build_and_train(small):
    run, nets = small
    nets = {name: copy.deepcopy(net) for name, net in nets.items()}
    batch = next(iter(run.splits.batches("train", 4, shuffle=False)))
    first, is_adapter = run.nets[0], hasattr(run.config, "adapter")
    hybrid = run.config.adapter != "lora" if is_adapter else hasattr(run.config, "circuit")
    assert run.nets == (MAIN_NETS[not hybrid], *run.config.controls)
    for model in nets.values():
        with torch.random.fork_rng(devices=[]):  # augmentation and dropout draw random numbers
            step = run.task(model.train(), batch)
            step.loss.backward()
        assert step.loss.isfinite() and step.count > 0
        for weight in model.parameters():  # every trained weight gets a gradient
            assert (weight.grad is not None) == weight.requires_grad
    groups = {net: recipes.parameter_groups(model, run.config) for net, model in nets.items()}
    for net in {"classical", "classical_trained"} & set(nets):  # trained in the same way as the circuit
        for ours, theirs in zip(groups[net], groups[first], strict=True):
            assert sum(w.numel() for w in ours.parameters) == sum(w.numel() for w in theirs.parameters)
            for rule in ("learning_rate", "clip_norm", "weight_decay"):
                assert getattr(ours, rule) == getattr(theirs, rule), rule
    n_quantum = layers.count_parameters(nets[first])["quantum"]
    assert (n_quantum > 0) == (hybrid and getattr(run.config, "trainable", True))


def test_the_digits_recipe_reaches_95_percent(tmp_path):
    """Only the hybrid net, as the main job trains its first seed."""
    [final] = runs.train_all(runs.open_run(tmp_path / "run", "digits_quanv", n_seeds=1, controls=[]))
    assert final["test_accuracy"] >= 0.95


# --- loading a recipe --------------------------------------------------------------------------------------


@pytest.fixture
def write(home):  # noqa: F811
    """Writes docs/your_own.md's recipe: `write("mine.py", "PauliZ", "PauliX")` replaces one word."""

    def write(name, old="", new="", text=RECIPE):
        assert old in text
        (home / name).write_text(text.replace(old, new))
        return home / name

    return write


class OfPoints(Digits):
    """A recipe as an object."""

    def build(splits, seed):
        return nn.Sequential(nn.Flatten(), AsFloat(), nn.Linear(64, splits.n_classes))


def test_a_recipe_can_be_given_by_name_path_and_module(write, monkeypatch):
    recipe = recipes.find("digits_quanv")
    assert recipes.find("digits_quanv") is recipes.find(recipe) is RECIPES["digits_quanv"] is recipe
    for name in ("digit_quanv", "a .py file of yours", "nowhere.py", "folder/nowhere.py", "folder/nowhere"):
        with refused("recipe", (ValueError, OSError)):
            recipes.find(name)
    path = write("cnn.py")
    monkeypatch.syspath_prepend(str(path.parent))
    for key in (path, str(path), "cnn.py", importlib.import_module("cnn")):
        recipe = recipes.find(key)
        assert (recipe.name, recipe.reference, recipe.shipped) == ("cnn", str(path), False)
    assert recipe.source == path.read_text()
    assert recipe.settings(n_layers=4).n_layers == 4 and recipe.settings().recipe == str(path)
    assert recipes.find(importlib.import_module("qnnkit.recipes.cnn")) is RECIPES["cnn"]


def test_a_recipe_can_be_given_as_an_object(tmp_path):
    recipe = recipes.find(OfPoints)
    assert recipe.name == "OfPoints" and recipes.find(OfPoints()).digest == recipe.digest
    assert "class AsFloat" in recipe.source, "the code it uses is part of a run's identity"
    run = runs.open_run(tmp_path / "run", OfPoints, epochs=1, train_fraction=0.2)
    [final] = runs.train_all(run)
    assert final["net"] == "reference" and run.nets == ("reference",)
    assert (run.folder / "recipe.py").read_text() == recipe.source
    with refused("recipe"):
        recipes.find(SimpleNamespace(load=data.of, build=OfPoints.build))


# --- identity of an experiment -----------------------------------------------------------------------------


def test_a_run_belongs_to_one_version_of_its_recipe(write, tmp_path):
    """Code counts, comments do not; test_your_own_traps covers neighbouring files."""
    path = write("mine.py")
    run, before = runs.open_run(tmp_path / "run", path, n_layers=3), recipes.find(path)
    assert recipes.find("mine.py") is before, "not run twice"
    assert run.nets[0] == "hybrid" and "classical" in run.nets, "all controls, if it names none"
    assert runs.open_run(tmp_path / "run").config == run.config, "this process knows it"
    write("mine.py", "# the larger", "# the more")
    assert runs.open_run(tmp_path / "run", path).config == run.config
    after = recipes.find(write("mine.py", "= 2\n", "= 3\n"))
    assert before.digest != after.digest and before.settings().digest() != after.settings().digest()
    assert (before.settings().n_layers, after.settings().n_layers) == (2, 3), "a loaded recipe stays"
    write("mine.py", "PauliZ", "PauliX")
    with pytest.raises(ValueError, match=r"holds another experiment.*the recipe has changed: .*PauliX"):
        runs.open_run(tmp_path / "run", path)


def test_a_run_with_a_missing_recipe_can_be_read_but_not_built(write, tmp_path, monkeypatch):
    path = write("mine.py")
    list(runs.train_all(runs.open_run(tmp_path / "run", path, n_layers=1, controls=["classical"], **SHORT)))
    monkeypatch.setattr(recipes, "_found", {})  # another process
    path.unlink()
    run = runs.open_run(tmp_path / "run")
    assert run.config.n_layers == 1 and run.config.recipe and run.config.source is None
    assert run.nets[0] == "hybrid" and len(runs.frame(run)) == len(run.nets) and run.score.name == "r2"
    for asked in (lambda: runs.trained(run), lambda: run.splits, lambda: run.task, lambda: run.recipe):
        with pytest.raises(ValueError, match=r"be given for a run of `.*mine\.py`"):
            asked()
    copy = write("copied.py", text=(run.folder / "recipe.py").read_text())
    assert runs.open_run(tmp_path / "run", copy).config == runs.open_run(tmp_path / "run", copy).config
    assert isinstance(runs.trained(runs.open_run(tmp_path / "run", copy)), nn.Module)


def test_new_copies_a_recipe(tmp_path):
    path = recipes.new(tmp_path / "own" / "letters.py", like="letters")
    assert path.read_text() == RECIPES["letters"].source
    run, copy = runs.open_run(tmp_path / "run", "digits_quanv"), recipes.new(tmp_path / "copy.py")
    assert recipes.find(copy).digest == run.recipe.digest and runs.open_run(run.folder).recipe is run.recipe

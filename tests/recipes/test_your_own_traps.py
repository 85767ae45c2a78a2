"""Traps in a user's recipes that a review revealed: each is reported, and nothing is lost."""

import importlib.machinery
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qnnkit import recipes, runs
from tests.recipes.test_your_own import RECIPE, TINY, home, in_cells  # noqa: F401  fixture
from tests.toys import AsFloat, Digits, trained

CELL = """
import pennylane as qml
from qnnkit import recipes

SIZE = {size}

@qml.qnode(qml.device("default.qubit", wires=2))
def circuit(inputs):
    qml.AngleEmbedding({angle}, wires=range(2))
    return [qml.expval(qml.PauliZ(0))]

class Base:
    def load(self):
        return [0.0] * {width}

class Mine(Base):
    def build(self):
        return circuit, SIZE

print(recipes.find(Mine()).digest)
"""


def test_objects_from_cells_count_as_part_of_a_recipe(home):  # noqa: F811
    """Its class, and the functions, classes, QNodes and numbers from cells that it uses."""
    usual = {"angle": "inputs", "size": 1, "width": 2}
    changes = [{}, {}, {"angle": "2 * inputs"}, {"size": 2}, {"width": 3}]
    first, same, *others = in_cells([CELL.format(**(usual | each)) for each in changes]).split()[-5:]
    assert first == same and len({first, *others}) == 4


def test_the_kit_or_another_recipes_module_is_no_neighbour_of_a_recipe(home):  # noqa: F811
    """No module is hidden from processes that start later: `copy.py` was the first known case."""
    (home / "qnnkit").mkdir()
    (home / "qnnkit" / "__init__.py").write_text("raise RuntimeError('another checkout')\n")
    assert recipes.find("mine.py").neighbours == {}
    recipes.find(recipes.new(home / "copy.py", like="digits_quanv"))
    for name, where in (("statistics", "/"), ("time", "of Python"), ("yaml", "/")):
        (home / f"{name}.py").write_text("raise RuntimeError('not the one that was meant')\n")
        (home / "mine.py").write_text(RECIPE.replace("import qnnkit\n", f"import qnnkit\nimport {name}\n", 1))
        with pytest.raises(recipes.RecipeError, match=rf"`{name}`, which hides .*{where}"):
            recipes.find("mine.py")
    for name in ("copy", "yaml"):
        spec = importlib.machinery.PathFinder.find_spec(name, sys.path)
        assert spec is not None and not Path(spec.origin).is_relative_to(home)


def test_imports_from_a_recipes_folder_count_in_their_current_form(home, tmp_path, monkeypatch):  # noqa: F811
    """Also with a relative import or through a link."""
    link, seen = tmp_path / "link", []
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    link.symlink_to(home / "a")
    sys.path.insert(0, str(link))  # as for a script started through the link
    for folder, near, inner in (("a", 1, 1), ("a", 2, 1), ("a", 2, 2), ("b", 3, 2)):
        (home / folder / "pkg" / "bare").mkdir(parents=True, exist_ok=True)  # it is no package, and imported
        files = {"mine.py": RECIPE.replace("import qnnkit\n", "import qnnkit\nimport near, pkg\n", 1)}
        files["pkg/__init__.py"] = "from .bare import deep\nfrom .inner import number\n"
        files["pkg/inner.py"] = f"number = {inner}\n"
        for name, text in (files | {"near.py": f"number = {near}\n", "pkg/bare/deep.py": ""}).items():
            (home / folder / name).write_text(text)
            os.utime(home / folder / name, (1e9, 1e9))  # changed within the same second
        seen.append(recipe := recipes.find(home / folder / "mine.py"))
        assert (recipe.code.near.number, recipe.code.pkg.number) == (near, inner)
        inside = [f"pkg/{name}.py" for name in ("__init__", "bare/deep", "inner")]
        assert sorted(recipe.neighbours) == ["near.py", *inside]
    assert len({recipe.digest for recipe in seen}) == 4
    assert [recipe.code.near.number for recipe in seen] == [1, 2, 2, 3], "each recipe has its own"


OWN_NAMES = """
    circuit: str = "data_reuploading"
    four_bit: int = 3
    adapter: str = "the one of my lab"
    augmentation: str = "heavy"
    tokenizer: str = "mine"
    pretrained: str = "mine"
    part: str = "left"
    dataset: str = "flat_folder"
    label_pattern: str = "("
"""


def test_a_users_setting_with_a_name_of_the_kit_stays_the_users(home):  # noqa: F811
    text = RECIPE.replace("    n_layers: int = 2\n", f"    n_layers: int = 2\n{OWN_NAMES}")
    (home / "mine.py").write_text(text)
    run = trained("runs/one", "mine.py", controls=[], **TINY)
    assert run.config.circuit == "data_reuploading" and run.config.of_kit("circuit") is None
    assert runs.export(run).name == "model" and run.nets == ("hybrid",)
    [row] = runs.predict("runs/one", [np.full(3, 0.5, np.float32)], recipe="mine.py")
    assert np.isfinite(row["output"])


def test_load_draws_the_same_random_numbers_every_time(home):  # noqa: F811
    (home / "mine.py").write_text(RECIPE.replace("np.linspace(-1, 1, 240)", "np.random.uniform(-1, 1, 240)"))
    run = trained("runs/one", "mine.py", controls=[], **TINY)
    assert len(runs.open_run("runs/one", "mine.py").tested()) == 1
    assert torch.equal(run.splits.train.inputs, runs.open_run("runs/one", "mine.py").splits.train.inputs)


def test_predict_reports_a_net_that_needs_its_data_to_be_built(home):  # noqa: F811
    text = RECIPE.replace("    qnode =", "    mean = splits.train.inputs.mean()\n    qnode =")
    (home / "mine.py").write_text(text)
    with pytest.warns(UserWarning, match=r"without its data.*mine\.py.*it has no `train`"):
        run = runs.open_run("runs/one", "mine.py", **TINY)
    assert len(run.nets) == 5, "it can still be trained"
    (home / "mine.py").write_text(RECIPE.replace(LAYERS, ALONE))
    run = runs.open_run("runs/two", "mine.py", **TINY)
    assert run.nets == ("hybrid", "no_entanglement", "classical"), "other nets have nothing to train"


HELD_TWICE = """

class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.all = [layer]

    def forward(self, inputs):
        return self.all[0](inputs)[:, :1]
"""

LAYERS = "return nn.Sequential(nn.Linear(3, 3), layer, nn.Linear(3, 1))"
NET, ALONE = "return Net(layer)", "return layer"
CONTROLS = "def controls():\n    return {%r: lambda: nn.Linear(%d, 1)}\n\n\nclass Regression"
TYPED = 'def odd(x: int): ...\n\n\nassert odd.__annotations__["x"] is not int\n\n\n'
SETTING, AFTER = "    n_layers: int = 2\n", "\n    def model_post_init(self, context):\n        raise %s\n"
REFUSED = {
    "no build": ("def build(", "def bild(", "must define `build`, but has ['Settings', 'load', 'task']"),
    "no Python": ("    return data.arrays", "  return data.arrays", "Error: unindent"),
    "a seed that is none": (SETTING, SETTING + "    seed: int = -3\n", "`seed` must be greater than or"),
    "settings apart": (SETTING, SETTING + AFTER % 'ValueError("no two")', "do not go together: no two"),
    "a rule in no words": (SETTING, SETTING + AFTER % "AssertionError", "keep the rule of its own validator"),
    "custom annotations": ("class Settings(", TYPED + "class Settings(", "AssertionError"),
    "no value": ("    n_layers: int = 2\n", "    n_layers: int\n", "`n_layers` must be given"),
    "a circuit outside its modules": (LAYERS, NET, "replace every circuit of the net"),
    "a control with nothing to train": (LAYERS, ALONE, "weights to train in frozen_random` must be"),
    "a division": ("class Settings(", "1 / 0\nclass Settings(", "line 11: ZeroDivisionError"),
    "no net": (LAYERS, "return 3", "Argument `build` must"),
    "wider data": ("nn.Linear(3, 3)", "nn.Linear(4, 3)", "shapes cannot be multiplied"),
    "no splits": ("    return data.arrays", "    return t\n    data.arrays", "`load` must return splits"),
    "an unknown argument": ("build(settings, splits, seed)", "build(settings, splits, sed)", "must not take"),
    "other settings": ("(qnnkit.Settings)", "", "`Settings` must derive from qnnkit.Settings"),
    "an error in load": ("np.sin(3 * t)", "1 / 0", "line 21, in load: ZeroDivisionError"),
    "a loss that is detached": ("error.mean(),", "error.detach().mean(),", "give a loss with a gradient"),
    "no task for real targets": ("def task(", "def tusk(", "`targets` must be classes: integers"),
    "a control that does not take the data": ("class Regression", CONTROLS % ("a", 4), "mat1 and"),
    **{
        f"a control named {name!r}": ("class Regression", CONTROLS % (name, 3), "in letters, digits")
        for name in ("reference", "hybrid", "../../escaped", "")
    },
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_wrong_recipe_is_reported_in_one_sentence_and_begins_no_run(kind, home):  # noqa: F811
    before, after, words = REFUSED[kind]
    assert before in RECIPE
    (home / "mine.py").write_text(RECIPE.replace(before, after) + HELD_TWICE)
    named = {NET: "classical", ALONE: "frozen_random"}.get(after)
    controls = {"controls": [named]} if named else {}
    with pytest.raises(ValueError, match=rf"^.*{re.escape(words)}.*\Z"):
        runs.open_run("runs/one", "mine.py", **TINY, **controls)
    assert not (home / "runs" / "one" / "config.json").exists()


def test_the_error_names_the_file_and_line_that_failed(home):  # noqa: F811
    text = RECIPE.replace("import qnnkit\n", "import helping\nimport qnnkit\n", 1)
    (home / "mine.py").write_text(text.replace("np.sin(3 * t)", "helping.scale()"))
    helping = '"""Help."""\n\n\ndef scale():\n    return 1 / 0\n'
    for text, words in (  # on use, import and reading
        (helping, r"mine\.py`, helping\.py, line 5, in scale: ZeroD"),
        (helping + "\n\nscale()\n", r"mine\.py`, helping\.py, line 5, in scale: ZeroD"),
        (helping + "\n\nraise SystemExit(0)\n", r"mine\.py`, helping\.py, line 8: SystemExit: 0"),
        ("\n\ndef (\n", r"mine\.py`: SyntaxError: .*\(helping\.py, line 3\)"),
    ):
        (home / "helping.py").write_text(text)
        with pytest.raises(recipes.RecipeError, match=words):
            runs.open_run("runs/one", "mine.py")


def test_a_misspelt_name_of_a_recipe_is_reported(home):  # noqa: F811
    for name, wrong in (("task", "tasks"), ("Settings", "Setting")):
        (home / "mine.py").write_text(re.sub(rf"(def|class) {name}\b", rf"\1 {wrong}", RECIPE))
        with pytest.warns(UserWarning, match=f"has no `{name}`, and `{wrong}` is not used as such"):
            recipes.find("mine.py")


class Bytes(Digits):
    def build(splits, seed):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Nine(Digits):
    def build(splits, seed):
        return nn.Sequential(nn.Flatten(), AsFloat(), nn.Linear(64, 9))


def test_a_net_that_cannot_take_its_images_is_reported(tmp_path):
    for kind, words in ((Bytes, "uint8. Begin forward with: images = "), (Nine, "returns shape (2, 10)")):
        with pytest.raises(recipes.RecipeError, match=re.escape(words)):
            runs.open_run(tmp_path / "run", kind)

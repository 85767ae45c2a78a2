"""Recipes: what a run computes, one file each. The files beside this one are shipped; yours lie anywhere.

A recipe is a Python file, a module or any object with these names:

- `Settings`, derived from `qnnkit.Settings`; without it there are no others than those;
- `load(settings)`, which gives the data, such as `data.of(settings)` or `data.arrays(settings, x, y)`;
- `build(settings, splits, seed)`, which gives the net: any `nn.Module`, circuits in `qnnkit.QuantumLayer`s;
- `task(settings)`, what it is trained for; `tasks.Classification()` where it is left out;
- `controls(net, settings, splits, seed)`, the nets beside it by name, or functions that make them;
  `qnnkit.controls(net)` where it is left out;
- `check(settings)`, which raises ValueError for settings that do not go together.

Each takes those of the arguments above that it names.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import linecache
import sys
import warnings
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qnnkit import checks, workspace
from qnnkit.recipes._recipe import Recipe, located
from qnnkit.recipes._source import PARTS, RecipeError, presets, source_of, texts_of, with_one_preset
from qnnkit.settings import MAIN_NETS, Settings

if TYPE_CHECKING:
    from torch import nn

    from qnnkit import train

HOME = Path(__file__).parent
NEEDED = ("load", "build")


# --- finding them -------------------------------------------------------------------------------------------


_found: dict[str, Recipe] = {}
"""Recipes of this process, by digest: what somebody has named here."""
_folders: list[str] = []
"""Where recipes' files were run from, the last first: a module of the same name in another is another one."""


def find(recipe: Any) -> Recipe:
    """The recipe that is named.

    Args:
        recipe: A shipped name, the path of a .py file (relative to this folder or to the workspace), a
            module, or any object with a recipe's names.

    Raises:
        ValueError: None is there, or it lacks a name, or its file cannot be run: then with file and line.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | Path):
        return _named(str(recipe))
    if isinstance(recipe, ModuleType) and recipe.__file__:
        return _of_module(recipe)
    name = getattr(recipe, "__name__", type(recipe).__name__)
    return _kept(Recipe(name, name, recipe, source_of(recipe)))


def of(settings: Settings) -> Recipe:
    """The recipe whose settings these are.

    Raises:
        ValueError: It is not at hand.
    """
    if settings.source is not None:
        return settings.source
    recorded = getattr(settings, "recorded", "")
    if recorded in RECIPES:
        step = "Its recipe.py is in the run folder: read it, and name that."
        raise ValueError(f"This run was begun by another version of the recipe `{recorded}`. {step}")
    step = f"Name {recorded}, or a copy of recipe.py in the run folder that you have read."
    rule = f"be named: this run's recipe `{recorded}` is yours, and runs only where you name it"
    raise ValueError(checks.message("recipe", rule, None, step))


def known(digest: str) -> Recipe | None:
    """A recipe that somebody has named in this process before."""
    return _found.get(digest)


def settings(recipe: Any, **given: Any) -> Settings:
    """The settings of a recipe, some of them exchanged.

    Example:
        >>> settings("digits_quanv", epochs=2).epochs
        2
    """
    return find(recipe).settings(**given)


def difference(before: str, after: str, most: int = 6) -> str:
    """The first lines in which two sources differ."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    more = f" ... and {len(changed) - most} more" if len(changed) > most else ""
    return "; ".join(changed[:most]) + more


def new(path: str | Path, like: str = "digits_quanv") -> Path:
    """Writes a copy of a shipped recipe, to be changed.

    Raises:
        FileExistsError: Something is there.
    """
    path = Path(path)
    recipe = find(like)
    if path.suffix != ".py":
        step = "Add .py."
        raise ValueError(checks.message("path", "end in .py", str(path), step))
    if path.exists():
        raise FileExistsError(checks.message("path", "be a new file", str(path), "Choose another name."))
    path.parent.mkdir(parents=True, exist_ok=True)
    workspace.write_bytes(path, with_one_preset(recipe.source, recipe.preset).encode())
    return path


def _shipped() -> dict[str, Recipe]:
    """Name -> recipe beside this file; its module is imported when it is first used."""
    found = {}
    for path in sorted(HOME.glob("[a-z]*.py")):
        source = path.read_text()
        for preset, given in (presets(source) or {"": {}}).items():
            name = f"{path.stem}_{preset}" if preset else path.stem
            found[name] = Recipe(name, name, f"{__name__}.{path.stem}", source, preset=given)
    return found


RECIPES: Mapping[str, Recipe] = _shipped()


def _named(name: str) -> Recipe:
    if name in RECIPES:
        return RECIPES[name]
    for path in (Path(name).absolute(), workspace.place(name)):
        if path.suffix == ".py" and path.is_file():
            return _of_file(path.resolve())
    if name.endswith(".py") or "/" in name:
        step = f"Write one: qnnkit new {name} --like digits_quanv."
        raise FileNotFoundError(checks.message("recipe", "be an existing .py file", name, step))
    return RECIPES[checks.choice("recipe", name, [*RECIPES, "a .py file of yours"])]


def _of_file(path: Path) -> Recipe:
    """Runs a user's file. What it imports from its own folder is read anew where it has changed."""
    source, neighbours = texts_of(str(path))
    [preset, *others] = presets(source).values() or [{}]
    if others:
        step = "Delete the others."
        raise RecipeError(
            checks.message("PRESETS", "have one entry in a file of yours", [*presets(source)], step)
        )
    made = Recipe(path.stem, str(path), None, source, neighbours, preset)
    before = _found.get(made.digest)
    if before is not None and before.reference == str(path):
        return before
    _read_again(path, neighbours)
    linecache.checkcache(str(path))
    name = f"qnnkit_recipe_{path.stem}_{made.digest[:8]}"
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # no stale bytecode
    except Exception as error:
        del sys.modules[name]
        raise located(str(path), error) from error
    return _kept(dataclasses.replace(made, home=module))


def _of_module(module: ModuleType) -> Recipe:
    """The recipe in a module; one of no package is read from its file, as it is now."""
    name, file = module.__name__, str(module.__file__)
    if name.startswith("qnnkit.recipes."):
        return _named(name.rpartition(".")[2])
    if not module.__package__ or name == "__main__":
        return _of_file(Path(file).resolve())
    return _kept(Recipe(Path(file).stem, name, module, *texts_of(str(Path(file).resolve()), name)))


def _read_again(path: Path, neighbours: Mapping[str, str]) -> None:
    """Lets a recipe import the modules of its folder, as they are now.

    The folder comes before those of other recipes and behind all else: were it the first, a `copy.py` in it
    would be taken for Python's own by each process that is started later.

    Raises:
        RecipeError: Such a module has the name of another one, which would be run in its stead.
    """
    folder = str(path.parent)
    if folder in _folders or folder not in sys.path:
        _folders[:] = [folder, *(each for each in _folders if each != folder)]
        sys.path[:] = [*(each for each in sys.path if each not in _folders), *_folders]
    importlib.invalidate_caches()
    names = {file.partition("/")[0].removesuffix(".py") for file in neighbours}
    for name in sorted(names):
        spec = None if name in sys.builtin_module_names else PathFinder.find_spec(name)
        places = [str(each) for each in (spec.submodule_search_locations or [spec.origin])] if spec else []
        if not any(Path(each).resolve().is_relative_to(folder) for each in places):
            told = f"`{name}` beside it has the name of another module ({[*places, 'of Python'][0]})."
            raise RecipeError(f"Recipe `{path}`: {told} Rename it.")
    for name in [each for each in sys.modules if each.partition(".")[0] in names]:
        del sys.modules[name]


def _kept(recipe: Recipe) -> Recipe:
    """The recipe, once it has what a recipe needs; the same one for the same source."""
    for part in NEEDED:
        if not callable(getattr(recipe.code, part, None)):
            rule, step = f"define `{part}`", "See qnnkit.recipes for what a recipe is made of."
            own = [name for name in PARTS if hasattr(recipe.code, name)]
            raise RecipeError(f"Recipe `{recipe.reference}` must {rule}, but has {own or 'nothing'}. {step}")
    for name, value in getattr(recipe.code, "__dict__", {}).items():
        meant = difflib.get_close_matches(name, PARTS, 1, 0.85)
        if meant and callable(value) and not hasattr(recipe.code, meant[0]):
            told = f"Recipe `{recipe.reference}` has no `{meant[0]}`, and `{name}` is not used as such"
            warnings.warn(f"{told}. Rename it, if it is meant.", stacklevel=3)
    same = _found.get(recipe.digest)
    if same is not None and same.code is recipe.code and same.reference == recipe.reference:
        return same
    _found[recipe.digest] = recipe
    return recipe


# --- their nets ---------------------------------------------------------------------------------------------


def without_weights(config: Settings) -> Settings:
    """Settings by which a language model is built on the meta device, from its configuration alone.

    Such a net takes no memory and can be counted, but computes nothing. Other nets are built as usual.
    """
    return config.model_copy(update={"device": "meta"})


def made(config: Settings, splits: Any, net: str, seed: int, *, bare: bool = False) -> nn.Module:
    """An untrained net of a recipe: its own, or one of the controls, which starts from the same weights.

    Args:
        config: The recipe's settings.
        splits: The data, or what knows their `sizes` and gives an `example`.
        net: Its name; "" is the recipe's own net, as are the names in `MAIN_NETS`.
        seed: Fixes its first weights.
        bare: Whether a language model is built without weights, see `without_weights`.
    """
    recipe = of(config)
    config = without_weights(config) if bare else config
    main = net in ("", *MAIN_NETS)
    model = recipe.build(config, splits, seed) if main else recipe.control(net, config, splits, seed)
    if config.shots or config.noise:
        from qnnkit import noise

        noise.put(model, config.shots, config.noise)
    return model


def parameter_groups(model: nn.Module, config: Settings) -> list[train.Group]:
    """The circuit's weights and the others, each with its own step size and clipping.

    A classical layer in a circuit's place is trained as the circuit is: a control differs in nothing else.
    """
    from qnnkit import layers, train

    exchanged = layers.exchanged_parameters(model)
    known = {id(weight) for weight in exchanged}
    classical = [weight for weight in model.parameters() if id(weight) not in known]
    name = "quantum" if layers.quantum_parameters(model) else "stand_in"
    rate = config.quantum_learning_rate or config.learning_rate
    return [
        train.Group(name, exchanged, rate, config.quantum_clip_norm),
        train.Group("classical", classical, config.learning_rate, config.clip_norm, config.weight_decay),
    ]


__all__ = [
    "RECIPES", "Recipe", "RecipeError", "difference", "find", "known", "made", "new", "of",
    "parameter_groups", "settings", "without_weights",
]  # fmt: skip

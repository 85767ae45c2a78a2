"""Recipes: what a run computes, one file each. Those in this folder ship with qnnkit; yours can be anywhere.

A recipe is a Python file, a module or any object with these names:

- `Settings`, derived from `qnnkit.Settings`; without it there are no others than those;
- `load(settings)`, which gives the data, such as `data.of(settings)` or `data.arrays(settings, x, y)`;
- `build(settings, splits, seed)`, which gives the net: any `nn.Module`, circuits in `qnnkit.QuantumLayer`s;
- `task(settings)`, what it is trained for; by default `tasks.Classification()`;
- `controls(net, settings, splits, seed)`, its controls by name, or functions that make them;
  by default `qnnkit.controls(net)`;
- `check(settings)`, which raises ValueError for settings that cannot be combined.

Each takes those of the arguments above that it names.
"""

from __future__ import annotations

import difflib
import importlib
import linecache
import sys
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from qnnkit import checks, layers, noise, train, workspace
from qnnkit.recipes._recipe import Recipe
from qnnkit.recipes._source import PARTS, RecipeError, digest, located, of_library, source_of, texts_of
from qnnkit.settings import MAIN_NETS, Settings

# --- finding them -------------------------------------------------------------------------------------------


_found: dict[str, Recipe] = {}
"""Recipes of this process, by digest: what somebody has named here."""


def find(recipe: Any) -> Recipe:
    """The recipe that is named.

    Args:
        recipe: A shipped name, the path of a .py file (relative to the current folder or the workspace), a
            module, or any object with a recipe's names.

    Raises:
        FileNotFoundError: There is no such .py file.
        ValueError: No recipe has this name, it lacks `load` or `build`, or its file cannot be run: then with
            file and line (`RecipeError`).
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | Path):
        return _named(str(recipe))
    if isinstance(recipe, ModuleType) and recipe.__file__:  # read from its file, as it is now
        shipped = {each.home: each for each in RECIPES.values()}
        return shipped.get(recipe.__name__) or _of_file(Path(recipe.__file__).resolve())
    name = getattr(recipe, "__name__", type(recipe).__name__)
    return _kept(Recipe(name, name, recipe, source_of(recipe)))


def of(settings: Settings) -> Recipe:
    """The recipe whose settings these are.

    Raises:
        ValueError: It is not at hand.
    """
    if settings.source is not None:
        return settings.source
    rule = f"be named: this run's recipe `{settings.recorded}` runs only where you name it"
    step = "Name that file, or a copy of recipe.py in the run folder that you have read."
    raise ValueError(checks.message("recipe", rule, None, step))


def known(sha256: str) -> Recipe | None:
    """A recipe that somebody has named in this process before."""
    return _found.get(sha256)


def settings(recipe: Any, **given: Any) -> Settings:
    """The settings of a recipe, some of them changed; errors are those of `find` and `Settings.of`.

    Example:
        >>> settings("digits_quanv", epochs=2).epochs
        2
    """
    return find(recipe).settings(**given)


def difference(before: str, after: str, most: int = 6) -> str:
    """The first lines in which two sources differ."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "; ".join([*changed[:most], *["..."] * (len(changed) > most)])


def new(path: str | Path, like: str = "digits_quanv") -> Path:
    """Writes a copy of a recipe, to be changed; returns its path.

    Args:
        path: The new .py file; folders are made.
        like: The recipe to copy, as `find` takes it.

    Raises:
        FileExistsError: Something is there.
        ValueError: `path` does not end in .py, or there is no such recipe.
    """
    path = Path(path)
    recipe = find(like)
    if path.suffix != ".py":
        raise ValueError(checks.message("path", "end in .py", str(path), "Add .py."))
    if path.exists():
        raise FileExistsError(checks.message("path", "be a new file", str(path), "Choose another name."))
    path.parent.mkdir(parents=True, exist_ok=True)
    workspace.write_bytes(path, recipe.source.encode())
    return path


RECIPES: Mapping[str, Recipe] = {
    path.stem: Recipe(path.stem, path.stem, f"{__name__}.{path.stem}", path.read_text())
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))
}
"""Name -> recipe next to this file; its module is imported when it is first used."""


def _named(name: str) -> Recipe:
    if name in RECIPES:
        return RECIPES[name]
    for path in (Path(name).absolute(), workspace.place(name)):
        if path.suffix == ".py" and path.is_file():
            return _of_file(path.resolve())
    if name.endswith(".py") or "/" in name:
        step = "Put it into the current folder or the workspace, or write one: "
        step += f"qnnkit new {name} --like digits_quanv."
        raise FileNotFoundError(checks.message("recipe", "be an existing .py file", name, step))
    return RECIPES[checks.choice("recipe", name, [*RECIPES, "a .py file of yours"])]


def _of_file(path: Path) -> Recipe:
    """Runs a user's file. What it imports from its own folder is read anew where it has changed."""
    try:
        source, neighbours = texts_of(path)
        sha256 = digest({"": source, **neighbours})
    except (SyntaxError, ValueError) as error:
        raise located(str(path), error) from None
    before = _found.get(sha256)
    if before is not None and before.reference == str(path):
        return before
    _forget(path, {file.partition("/")[0].removesuffix(".py") for file in neighbours})
    linecache.checkcache(str(path))
    name = f"qnnkit_recipe_{path.stem}_{sha256[:8]}"
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    places = [each for each in sys.path if each != str(path.parent)]
    sys.path[:] = [str(path.parent), *places]
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it would be stale for a second
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # no stale bytecode
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise located(str(path), error) from error
    finally:  # for what it imports later; as the first it would hide modules of Python's from others
        sys.path[:] = [*places, str(path.parent)]
        sys.dont_write_bytecode = writes
    return _kept(Recipe(path.stem, str(path), module, source, neighbours))


def _forget(path: Path, names: Collection[str]) -> None:
    """Lets a recipe import the modules of its folder, as they are now.

    Raises:
        RecipeError: One of them has the name of another module, which others here would get in its stead.
    """
    importlib.invalidate_caches()
    for name in sorted(names):
        other = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.stdlib_module_names or (other and of_library(other)):
            told = f"`{name}` beside it has the name of another module ({other or 'of Python'})."
            raise RecipeError(f"Recipe `{path}`: {told} Rename it.")
    for name in [each for each in sys.modules if each.partition(".")[0] in names]:
        del sys.modules[name]


def _kept(recipe: Recipe) -> Recipe:
    """The recipe, once it has what a recipe needs; the same one for the same source."""
    for part in ("load", "build"):
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
        noise.put(model, config.shots, config.noise)
    return model


def parameter_groups(model: nn.Module, config: Settings) -> list[train.Group]:
    """The circuit's weights and the others, each with its own learning rate and clipping.

    A classical layer in a circuit's place is trained as the circuit is: a control differs in nothing else.
    """
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

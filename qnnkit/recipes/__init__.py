"""Recipes: what a run computes, one file each. Those in this folder ship with qnnkit; yours can be anywhere.

A recipe is a Python file, a module or any object with these names:

- `Settings`, a class derived from `qnnkit.Settings`, which is the default;
- `load(settings)`, which returns the data, such as `data.of(settings)` or `data.arrays(settings, x, y)`;
- `build(settings, splits, seed)`, which returns the net: any `nn.Module`, circuits in `qnnkit.QuantumLayer`s;
- `task(settings)`, which returns the training task; by default `tasks.Classification.of(settings)`;
- `controls(net, settings, splits, seed)`, which returns the controls, or functions that build them, by name;
  by default `qnnkit.controls(net)`;
- `check(settings)`, which raises a ValueError for settings that cannot be combined.

Only `load` and `build` are required. A function may leave out any of these arguments. `RECIPES` has the
shipped ones by name; `find` loads yours, and `new` copies one for you to edit.
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

# --- finding recipes ----------------------------------------------------------------------------------------


_found: dict[str, Recipe] = {}
"""Digest -> recipe that `find` has returned in this process."""


def find(recipe: Any) -> Recipe:
    """Returns a recipe: a shipped one, or one of yours, whose code it runs.

    Args:
        recipe: A shipped name, the path of a .py file (relative to the current folder or the workspace), a
            module, or any object with a recipe's names.

    Raises:
        FileNotFoundError: The .py file does not exist.
        ValueError: No recipe has this name, it lacks `load` or `build`, or running its file fails, which is
            reported with file and line (`RecipeError`).
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | Path):
        return _named(str(recipe))
    if isinstance(recipe, ModuleType) and recipe.__file__:  # run its file again, as it is now
        shipped = {each.home: each for each in RECIPES.values()}
        return shipped.get(recipe.__name__) or _of_file(Path(recipe.__file__).resolve())
    name = getattr(recipe, "__name__", type(recipe).__name__)
    return _register(Recipe(name, name, recipe, source_of(recipe)))


def of(settings: Settings) -> Recipe:
    """Returns the recipe that the settings belong to.

    Raises:
        ValueError: The settings were read from a run whose recipe was not given.
    """
    if settings.source is not None:
        return settings.source
    step = "Give that file, or a copy of recipe.py in the run folder that you have read."
    raise ValueError(checks.message("recipe", f"be given for a run of `{settings.recorded}`", None, step))


def known(sha256: str) -> Recipe | None:
    """Returns the recipe with this digest if `find` has returned it in this process, or None."""
    return _found.get(sha256)


def settings(recipe: Any, **changes: Any) -> Settings:
    """Returns the settings of a recipe with some of them changed.

    Args:
        recipe: As in `find`.
        changes: Values by the name of the setting.

    Raises:
        FileNotFoundError, ValueError: As in `find`; or a name is unknown, or a value breaks its rule.

    Example:
        >>> settings("digits_quanv", epochs=2).epochs
        2
    """
    return find(recipe).settings(**changes)


def difference(before: str, after: str, most: int = 6) -> str:
    """Returns the first lines, `most` at most, in which two sources differ, as a text."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "; ".join([*changed[:most], *["..."] * (len(changed) > most)])


def new(path: str | Path, like: str = "digits_quanv") -> Path:
    """Copies a recipe to a new file, for editing, and returns its path.

    Args:
        path: The new .py file; missing folders are created.
        like: The recipe to copy, as in `find`.

    Raises:
        FileExistsError: The file exists.
        ValueError: `path` does not end in .py, or the recipe does not exist.
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
"""Name -> recipe in this folder; its module is imported on first use."""


def _named(name: str) -> Recipe:
    for path in (Path(name).absolute(), workspace.place(name)):
        if path.suffix == ".py" and path.is_file():
            return _of_file(path.resolve())
    if name.endswith(".py") or "/" in name:
        step = f"Put it into the current folder or the workspace, or run: qnnkit new {name}."
        raise FileNotFoundError(checks.message("recipe", "be an existing .py file", name, step))
    return RECIPES[checks.choice("recipe", name, RECIPES, "Or give the path of a .py file of yours.")]


def _of_file(path: Path) -> Recipe:
    """Runs a user's file. Files of its folder that it imports are read again if they have changed."""
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
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it could be stale within a second
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # no stale bytecode
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise located(str(path), error) from error
    finally:  # last on the path for later imports; as the first, it would hide Python's modules from others
        sys.path[:] = [*places, str(path.parent)]
        sys.dont_write_bytecode = writes
    return _register(Recipe(path.stem, str(path), module, source, neighbours))


def _forget(path: Path, names: Collection[str]) -> None:
    """Makes a recipe import the modules of its folder again.

    Raises:
        RecipeError: One of them has the name of another module, and would replace it for other code.
    """
    importlib.invalidate_caches()
    for name in sorted(names):
        other = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.stdlib_module_names or (other and of_library(other)):
            raise RecipeError(f"Recipe `{path}`: rename `{name}`, which hides {other or 'that of Python'}.")
    for name in [each for each in sys.modules if each.partition(".")[0] in names]:
        del sys.modules[name]


def _register(recipe: Recipe) -> Recipe:
    """Checks and stores a recipe; returns the stored one if the source is the same.

    Raises:
        RecipeError: It has no `load` or no `build`.
    """
    for part in ("load", "build"):
        if not callable(getattr(recipe.code, part, None)):
            parts = [name for name in PARTS if hasattr(recipe.code, name)]
            raise recipe.wrong(f"It must define `{part}`, but has {parts or 'nothing'}. See qnnkit.recipes.")
    for name, value in getattr(recipe.code, "__dict__", {}).items():
        meant = difflib.get_close_matches(name, PARTS, 1, 0.85)
        if meant and callable(value) and not hasattr(recipe.code, meant[0]):
            note = f"Recipe `{recipe.reference}` has no `{meant[0]}`, and `{name}` is not used as such"
            warnings.warn(f"{note}. Rename it, if it is meant.", stacklevel=3)
    same = _found.get(recipe.digest)
    if same is not None and same.code is recipe.code and same.reference == recipe.reference:
        return same
    _found[recipe.digest] = recipe
    return recipe


# --- nets of recipes ----------------------------------------------------------------------------------------


def without_weights(config: Settings) -> Settings:
    """Returns settings that build a language model on the meta device, from its configuration alone.

    Such a model takes no memory: its parameters can be counted, but it cannot run. Other nets do not change.
    """
    return config.model_copy(update={"device": "meta"})


def made(config: Settings, splits: Any, net: str, seed: int, *, bare: bool = False) -> nn.Module:
    """Returns an untrained net: the recipe's net, or one of its controls with the same initial weights.

    Args:
        config: The recipe's settings.
        splits: The data, or an object with their `sizes` and `example`.
        net: Name of the net; "", "hybrid" and "reference" are the recipe's net.
        seed: Fixes the initial weights.
        bare: Whether to build a language model without weights, see `without_weights`.

    Raises:
        ValueError: There is no control of that name.
    """
    recipe = of(config)
    config = without_weights(config) if bare else config
    main = net in ("", *MAIN_NETS)
    model = recipe.build(config, splits, seed) if main else recipe.control(net, config, splits, seed)
    if config.shots or config.noise:
        noise.put(model, config.shots, config.noise)
    for module in model.modules():
        if isinstance(module, layers.QuantumLayer):
            module.generator = "torch"  # whose state checkpoints restore
    return model


def parameter_groups(model: nn.Module, config: Settings) -> list[train.Group]:
    """Returns the circuit parameters and the other parameters, each with its learning rate and clipping.

    The groups are called "quantum" ("stand_in" without a circuit) and "classical". A classical layer that
    replaces a circuit is trained like the circuit, so that a control differs in nothing else.
    """
    exchanged = layers.exchanged_parameters(model)
    ids = {id(weight) for weight in exchanged}
    classical = [weight for weight in model.parameters() if id(weight) not in ids]
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

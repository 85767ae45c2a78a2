"""A recipe and its settings as the command line gives them: by name or file, words, YAML files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from qnnkit import checks, workspace
from qnnkit.settings import MAIN_NETS, listed

Recipe = Annotated[
    str | None,
    Option(
        metavar="NAME_OR_FILE",
        help="A shipped recipe, or your .py file. A run that was begun with a shipped one knows it.",
    ),
]
RunDir = Annotated[
    Path | None,
    Argument(metavar="RUN_DIR", help="Folder of the run, relative to the workspace.", show_default=False),
]
AsOption = Annotated[Path | None, Option("--run-dir", metavar="RUN_DIR", help="The same, as an option.")]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. --set epochs=20. Repeatable."),
]
Files = Annotated[
    list[Path] | None,
    Option("--settings", metavar="FILE.yaml", help="Settings in a file. Repeatable; later files win."),
]
Only = Annotated[
    str | None,
    Option(metavar="NETS", help="Train only the run's own net and the named controls: hybrid,classical."),
]
Epochs = Annotated[int | None, Option(help="Passes over the data; may be raised when a run continues.")]


def folder_of(run_dir: Path | None, option: Path | None) -> Path:
    """The run's folder, given once: as an argument or as an option."""
    if run_dir is None and option is None:
        raise ValueError("Argument `RUN_DIR` must be given. Name the run's folder, such as runs/first.")
    if run_dir is not None and option is not None and run_dir != option:
        step = "Leave out one of the two."
        raise ValueError(checks.message("--run-dir", f"be left out beside {run_dir}", str(option), step))
    return run_dir or option or Path()


def asked_for(
    run_dir: Path,
    recipe: str | None,
    files: list[Path] | None,
    words: list[str] | None,
    only: str | None,
    **given: Any,
) -> tuple[Any, dict[str, Any]]:
    """The recipe that is meant, and the settings of files, then of words, then of options of their own."""
    from qnnkit import recipes
    from qnnkit.runs import folder, lock

    if recipe is not None:
        named = recipes.find(recipe)
    else:
        there = workspace.run_folder(run_dir)
        lock.bring(there)
        begun = folder.read_config(there / "config.json")
        if begun is None:
            rule, step = "hold a run", "Name a recipe to begin one there."
            raise FileNotFoundError(checks.message("run_dir", rule, str(run_dir), step))
        named = recipes.of(begun)
    return named, gathered(named, files, words, controls=only and controls_of(only), **given)


def controls_of(only: str) -> list[str]:
    """The controls that `--only` names beside the run's own net.

    Raises:
        ValueError: That net is not named: controls are compared with it, so it is always trained.

    Example:
        >>> controls_of("hybrid, classical")
        ['classical']
    """
    names = listed(only)
    if not {*names} & {*MAIN_NETS}:
        usual = "no_entanglement, frozen_random, classical, no_quantum, or the recipe's own"
        step = (
            f"Name it, alone or with controls ({usual}), which are compared with it: --only hybrid,classical."
        )
        rule = "name the run's own net, hybrid (reference, without a circuit)"
        raise ValueError(checks.message("--only", rule, only, step))
    return [name for name in names if name not in MAIN_NETS]


def require_own_net(only: str | None, net: str) -> None:
    """Raises ValueError where `--only` names the other kind of net of one's own than the run has.

    Example:
        >>> require_own_net("hybrid,classical", "hybrid")
    """
    if only is not None and net not in listed(only):
        why = "its net holds a circuit" if net == MAIN_NETS[0] else "its net holds no circuit"
        raise ValueError(checks.message("--only", f"name {net}, as {why}", only, f"Write --only {net}."))


def refuse_with(option: str, given: Mapping[str, Any]) -> None:
    """Refuses options that would be passed over beside another one: those that have a value.

    Raises:
        ValueError: One has.

    Example:
        >>> refuse_with("--compare", {"--quick": False, "--seconds": None})
    """
    for name, value in given.items():
        if value:
            raise ValueError(
                checks.message(name, f"be left out with {option}", value, f"{option} takes none.")
            )


def gathered(recipe: Any, files: list[Path] | None, words: list[str] | None, **given: Any) -> dict[str, Any]:
    """Settings of files, then of words, then of options of their own; `recipe` tells what is a text."""
    from qnnkit import recipes

    asked: dict[str, Any] = {}
    for path in files or ():
        asked |= read_settings(path)
    given = {name: value for name, value in given.items() if value is not None}
    set_ = parse_settings(words or [], None if recipe is None else recipes.find(recipe).Settings)
    for name in set_.keys() & given.keys():
        option = "--only" if name == "controls" else f"--{name.replace('_', '-')}"
        value, step = [set_[name], given[name]], f"Leave out --set or {option}."
        raise ValueError(checks.message(name, "be given once", value, step))
    return asked | set_ | given


def read_settings(path: Path) -> dict[str, Any]:
    """Settings in a YAML file, by name.

    Raises:
        ValueError: It holds something else.
        OSError: It cannot be read.
    """
    found = checks.read_yaml(path, "settings file")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"Settings file `{path}` must hold lines such as `epochs: 2`, but does not.")
    for name, value in found.items():
        _require_setting(f"Settings file `{path}`", name, value)
    return found


def parse_settings(words: list[str], kind: Any = None) -> dict[str, Any]:
    """`["epochs=2", "circuit=random"]` as values: JSON where it is JSON, else text.

    Args:
        words: As `--set` is given them.
        kind: Settings class of the recipe: a text in it stays one, whatever it looks like.

    Raises:
        ValueError: A word has no `=`, names what an option of its own does, or what another word does.

    Example:
        >>> parse_settings(["epochs=2", "circuit=random", "trainable=false"])
        {'epochs': 2, 'circuit': 'random', 'trainable': False}
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            step = "Write, for example, --set epochs=2."
            raise ValueError(f"Option --set must be KEY=VALUE, but is {word!r}. {step}")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if isinstance(value, int | float | dict) and kind is not None and kind.is_text(name):
            value = text  # tokenizer=123 is the folder of that name
        _require_setting("Option --set", name, value)
        if values.get(name, value) != value:
            step = "Leave all but one out."
            raise ValueError(checks.message(name, "be given once", [values[name], value], step))
        values[name] = value
    return values


def _require_setting(whose: str, name: str, value: Any) -> None:
    """Raises ValueError for what is no setting, and for one that is given no value."""
    if name in ("recipe", "run_dir"):
        raise ValueError(f"{whose} must name a setting, but names `{name}`. Use --{name.replace('_', '-')}.")
    if value is None:
        raise ValueError(f"{whose} must give a value for `{name}`. Leave it out to keep the recipe's own.")

"""A recipe and its settings as the command line gives them: by name or file, words, YAML files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from qnnkit import checks, workspace

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
    """The run's folder, given as an argument or as an option."""
    given = {each for each in (run_dir, option) if each is not None}
    if len(given) != 1:
        step = "Name it once, such as qnnkit run runs/first."
        raise ValueError(checks.message("RUN_DIR", "be given once", [str(each) for each in given], step))
    return given.pop()


def asked_for(
    run_dir: Path,
    recipe: str | None,
    files: list[Path] | None,
    words: list[str] | None,
    only: str | None,
    epochs: int | None = None,
) -> tuple[Any, dict[str, Any]]:
    """The recipe of a run, named or as the run began with it, and the settings that are given for it."""
    from qnnkit import recipes
    from qnnkit.runs import folder, lock

    if recipe is not None:
        named = recipes.find(recipe)
    else:
        there = workspace.run_folder(run_dir)
        lock.bring(there)
        begun = folder.read_config(there)
        if begun is None:
            rule, step = "hold a run", "Name a recipe to begin one there."
            raise FileNotFoundError(checks.message("run_dir", rule, str(run_dir), step))
        named = recipes.of(begun)
    return named, gathered(named, files, words, controls=only and controls_of(only), epochs=epochs)


def gathered(
    recipe: Any, files: list[Path] | None, words: list[str] | None, **options: Any
) -> dict[str, Any]:
    """Settings of files, of which a later one wins, replaced by those of words and options.

    Args:
        recipe: Tells which settings are texts.
        files: YAML files.
        words: As `--set` is given them.
        options: Of the command line, by the name of the setting; None if not given.

    Raises:
        ValueError: A file or word gives no settings, or words and options differ about one.
        OSError: A file cannot be read.

    Example:
        >>> gathered(None, None, ["epochs=2", "circuit=random"], controls=None)
        {'epochs': 2, 'circuit': 'random'}
    """
    from qnnkit import recipes

    kind = None if recipe is None else recipes.find(recipe).Settings
    asked: dict[str, Any] = {}
    for path in files or ():
        settings = checks.read_yaml(path, "settings file")
        if not isinstance(settings, dict):
            raise ValueError(f"Settings file `{path}` must hold lines such as `epochs: 2`, but does not.")
        asked |= settings
    once: dict[str, Any] = {}
    given = [(name, value) for name, value in options.items() if value is not None]
    for name, value in [*(_parsed(word, kind) for word in words or ()), *given]:
        if once.setdefault(name, value) != value:
            both, step = [once[name], value], "Leave out one of them."
            raise ValueError(checks.message(name, "be given once", both, step))
    for name, value in (asked | once).items():
        if name in ("recipe", "run_dir"):
            step = f"Use --{name.replace('_', '-')}."
            raise ValueError(checks.message("setting", "be one of the recipe's", name, step))
        if value is None:
            raise ValueError(
                checks.message(name, "have a value", value, "Leave it out for the recipe's own.")
            )
    return asked | once


def _parsed(word: str, kind: Any) -> tuple[str, Any]:
    """Name and value in `KEY=VALUE`: JSON if it is JSON, else text; of a text setting, always text."""
    name, equals, text = word.partition("=")
    if not equals:
        raise ValueError(checks.message("--set", "be KEY=VALUE", word, "Write, for example, --set epochs=2."))
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return name, text
    is_text = kind is not None and kind.is_text(name) and not isinstance(value, str | list)
    return name, text if is_text else value  # tokenizer=123 is the folder of that name


def controls_of(only: str) -> list[str]:
    """The controls that `--only` names next to the run's own net.

    Raises:
        ValueError: That net is not named: controls are compared with it, so it is always trained.

    Example:
        >>> controls_of("hybrid, classical")
        ['classical']
    """
    from qnnkit.settings import MAIN_NETS, listed

    names = listed(only)
    if not {*names} & {*MAIN_NETS}:
        rule = "name the run's own net, hybrid (reference, without a circuit)"
        raise ValueError(checks.message("--only", rule, only, "Write, for example, --only hybrid,classical."))
    return [name for name in names if name not in MAIN_NETS]


def open_with(run_dir: Path, recipe: Any, only: str | None, settings: dict[str, Any]) -> Any:
    """The run of a command; ValueError, and none is begun, if `--only` does not name its own net."""
    from qnnkit import runs
    from qnnkit.settings import listed

    return runs.open_run(run_dir, recipe, among=None if only is None else listed(only), **settings)

"""Options of the command line for a recipe and its settings: names, KEY=VALUE words, YAML files."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from qnnkit import checks

RecipeName = Annotated[str | None, Option(metavar="NAME_OR_FILE", help="A shipped recipe, or your .py file.")]
RunDir = Annotated[Path | None, Argument(metavar="RUN_DIR", help="Folder of the run, in the workspace.")]
AsOption = Annotated[Path | None, Option("--run-dir", metavar="RUN_DIR", help="RUN_DIR as an option.")]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. --set epochs=20. Repeatable."),
]
Files = Annotated[list[Path] | None, Option("--settings", metavar="YAML", help="Settings file. Repeatable.")]
Only = Annotated[str | None, Option(metavar="NETS", help="Train only these nets: hybrid,classical.")]
Epochs = Annotated[int | None, Option(help="Passes over the data; may be raised when a run continues.")]


def folder_of(run_dir: Path | None, option: Path | None) -> Path:
    """Returns the run's folder, given as an argument or as an option."""
    folders = {folder for folder in (run_dir, option) if folder is not None}
    if len(folders) != 1:
        step = "Give it once, as in qnnkit run runs/first."
        raise ValueError(checks.message("RUN_DIR", "be given once", [*map(str, folders)], step))
    return folders.pop()


def gathered(files: list[Path] | None, words: list[str] | None, **options: Any) -> dict[str, Any]:
    """Returns the settings in files, overridden by words and options; a later file overrides an earlier one.

    Args:
        files: YAML files.
        words: Arguments of `--set`.
        options: Values of other options, by the name of the setting; None if an option is not given.

    Raises:
        ValueError: A file or word holds no settings, or words and options give one setting two values.
        OSError: A file cannot be read.

    Example:
        >>> gathered(None, ["epochs=2", "circuit=random"], controls=None)
        {'epochs': 2, 'circuit': 'random'}
    """
    from_files: dict[str, Any] = {}
    for path in files or ():
        settings = checks.read_yaml(path, "settings file")
        if not isinstance(settings, dict):
            raise ValueError(f"Settings file `{path}` must hold lines such as `epochs: 2`, but does not.")
        from_files |= settings
    overrides: dict[str, Any] = {}
    given = [(name, value) for name, value in options.items() if value is not None]
    for name, value in [*map(_parsed, words or ()), *given]:
        if overrides.setdefault(name, value) != value:
            step = "Leave out one of them."
            raise ValueError(checks.message(name, "be given once", [overrides[name], value], step))
    for name, value in (from_files | overrides).items():
        if value is None or name in ("recipe", "run_dir"):
            step = "Leave it out to use the recipe's default; recipe and run_dir have options of their own."
            raise ValueError(checks.message(name, "be a setting with a value", value, step))
    return from_files | overrides


def _parsed(word: str) -> tuple[str, Any]:
    """Returns name and value of `KEY=VALUE`: JSON if possible, else text; numbers such as 1e-3 stay text."""
    name, equals, text = word.partition("=")
    if not equals:
        raise ValueError(checks.message("--set", "be KEY=VALUE", word, "Write, for example, --set epochs=2."))
    with contextlib.suppress(json.JSONDecodeError):
        return name, json.loads(text, parse_float=checks.written, parse_constant=str)
    return name, text


def controls_of(only: str | None) -> list[str] | None:
    """Returns the controls that `--only` names in addition to the main net; None if it is not given.

    Raises:
        ValueError: The main net is not named. It is always trained, since controls are compared with it.

    Example:
        >>> controls_of("hybrid, classical")
        ['classical']
    """
    from qnnkit.settings import MAIN_NETS, listed

    if only is None:
        return None
    names = [name for name in listed(only) if name not in MAIN_NETS]
    if len(names) == len(listed(only)):
        rule = "name the main net, hybrid (reference, if it has no circuit)"
        raise ValueError(checks.message("--only", rule, only, "Write, for example, --only hybrid,classical."))
    return names

"""A recipe and its settings as the command line gives them: by name or file, words, YAML files."""

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
    """The run's folder, given as an argument or as an option."""
    given = {each for each in (run_dir, option) if each is not None}
    if len(given) != 1:
        step = "Name it once, such as qnnkit run runs/first."
        raise ValueError(checks.message("RUN_DIR", "be given once", [str(each) for each in given], step))
    return given.pop()


def gathered(files: list[Path] | None, words: list[str] | None, **options: Any) -> dict[str, Any]:
    """Settings of files, of which a later one wins, replaced by those of words and options.

    Args:
        files: YAML files.
        words: As `--set` is given them.
        options: Of the command line, by the name of the setting; None if not given.

    Raises:
        ValueError: A file or word gives no settings, or words and options differ about one.
        OSError: A file cannot be read.

    Example:
        >>> gathered(None, ["epochs=2", "circuit=random"], controls=None)
        {'epochs': 2, 'circuit': 'random'}
    """
    asked: dict[str, Any] = {}
    for path in files or ():
        settings = checks.read_yaml(path, "settings file")
        if not isinstance(settings, dict):
            raise ValueError(f"Settings file `{path}` must hold lines such as `epochs: 2`, but does not.")
        asked |= settings
    once: dict[str, Any] = {}
    given = [(name, value) for name, value in options.items() if value is not None]
    for name, value in [*map(_parsed, words or ()), *given]:
        if once.setdefault(name, value) != value:
            step = "Leave out one of them."
            raise ValueError(checks.message(name, "be given once", [once[name], value], step))
    for name, value in (asked | once).items():
        if value is None or name in ("recipe", "run_dir"):
            step = "Leave it out for the recipe's own; recipe and run_dir have options of their own."
            raise ValueError(checks.message(name, "be a setting with a value", value, step))
    return asked | once


def _parsed(word: str) -> tuple[str, Any]:
    """Name and value in `KEY=VALUE`: JSON if it is JSON, else text, as are numbers of another form (1e-3)."""
    name, equals, text = word.partition("=")
    if not equals:
        raise ValueError(checks.message("--set", "be KEY=VALUE", word, "Write, for example, --set epochs=2."))
    with contextlib.suppress(json.JSONDecodeError):
        return name, json.loads(text, parse_float=checks.written, parse_constant=str)
    return name, text


def controls_of(only: str | None) -> list[str] | None:
    """The controls that `--only` names next to the run's own net; None if it is not given.

    Raises:
        ValueError: That net is not named: controls are compared with it, so it is always trained.

    Example:
        >>> controls_of("hybrid, classical")
        ['classical']
    """
    from qnnkit.settings import MAIN_NETS, listed

    if only is None:
        return None
    names = [name for name in listed(only) if name not in MAIN_NETS]
    if len(names) == len(listed(only)):
        rule = "name the run's own net, hybrid (reference, without a circuit)"
        raise ValueError(checks.message("--only", rule, only, "Write, for example, --only hybrid,classical."))
    return names

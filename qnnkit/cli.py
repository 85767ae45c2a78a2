"""The `qnnkit` command: a thin shell over the library."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from qnnkit import device

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def main() -> None:
    """Runs the command; what a person can mend is told in one sentence, with exit status 2.

    `QNNKIT_DEBUG=1` shows the whole trace instead.
    """
    for name, value in device.launch_environment().items():  # before torch is imported
        os.environ.setdefault(name, value)
    try:
        app()
    except Exception as error:
        from qnnkit.runs import NotebookError  # not before: `--help` need not wait for torch

        if not isinstance(error, ValueError | TypeError | OSError | NotebookError):
            raise
        if os.environ.get("QNNKIT_DEBUG"):
            raise
        # qnnkit's own sentences stand in strerror; the system's say little without the file's name.
        told = error.strerror if isinstance(error, OSError) and not error.filename else None
        typer.echo(f"qnnkit: {told or error}", err=True)
        raise SystemExit(2) from None


@app.command()
def run(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run; relative to the workspace.")],
    recipe: Annotated[str | None, typer.Option(help="Named settings; a begun folder knows its own.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Exchange a setting of the recipe.")
    ] = None,
) -> None:
    """Run notebooks 00 to 04 in order. Run again, it finishes what is unfinished and only prints the rest."""
    from qnnkit import runs

    begun = runs.open_run(run_dir, recipe, **parse_settings(settings or []))
    if begun.result is None:
        for note in begun.splits.notes:  # data that cannot be used stops here, before a notebook starts
            typer.echo(f"Note: {note}")
    result = begun.result or runs.run_notebooks(begun, echo=typer.echo)
    _print_result(begun, result)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Tell what this machine is, what can compute here, and what is missing."""
    found = device.report()
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else device.table(found))


@app.command()
def report(run_dir: Annotated[Path, typer.Argument(help="Folder of a finished run.")]) -> None:
    """Write the report of a finished run anew, and print its table."""
    from qnnkit import report as reports
    from qnnkit import runs

    begun = runs.open_run(run_dir)
    if begun.result is None:
        raise ValueError(f"Run `{begun.folder}` is not finished. Finish it: qnnkit run --run-dir {run_dir}.")
    _print_result(begun, reports.finish(begun))


def parse_settings(words: list[str]) -> dict[str, Any]:
    """`["epochs=2", "circuit=random"]` as values: JSON where it is JSON, else text.

    Raises:
        ValueError: A word has no `=`, or names what an option of its own does.

    Example:
        >>> parse_settings(["epochs=2", "circuit=random", "trainable=false"])
        {'epochs': 2, 'circuit': 'random', 'trainable': False}
    """
    values = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ValueError(
                f"Option --set must be KEY=VALUE, but is {word!r}. Write, for example, --set epochs=2."
            )
        if name in ("recipe", "run_dir"):
            raise ValueError(
                f"Option --set must name a setting, but is {word!r}. Use --{name.replace('_', '-')}."
            )
        try:
            values[name] = json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
        if values[name] is None:
            raise ValueError(
                f"Option --set must give a value, but is {word!r}. Leave it out to keep the recipe's own."
            )
    return values


def _print_result(begun: Any, result: dict[str, Any]) -> None:
    from qnnkit import report as reports

    typer.echo(f"\n{reports.table(result['nets']).to_string()}\n")
    for sentence in result["verdicts"]:
        typer.echo(sentence)
    typer.echo(f"\nReport: {begun.report}")

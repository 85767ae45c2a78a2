"""The `qnnkit` command: a thin shell over the library."""

from __future__ import annotations

import ast
import functools
import json
import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from typer import Argument, Option

from qnnkit import checks, cli_settings, device, warm, workspace
from qnnkit.cli_output import ending_cleanly, print_result, show_batch
from qnnkit.cli_settings import AsOption, Epochs, Files, Only, RecipeName, RunDir, Set

TRAIN, SET_UP, PLAN, MODELS = "Train", "Set up", "Plan", "Models"
"""The groups of commands in the help."""
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Trained = Annotated[Path, Argument(metavar="RUN_DIR", help="A finished run, or its model/ or adapter/.")]


class Commands(typer.core.TyperGroup):
    """The commands; if a signal ends one, it prints one sentence and exits with the usual status."""

    def invoke(self, ctx: Any) -> Any:
        with ending_cleanly():
            return super().invoke(ctx)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        from qnnkit import __version__

        typer.echo(f"qnnkit {__version__}")
        raise typer.Exit


Version = Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback(
    epilog="Start:  qnnkit run runs/first --recipe digits_quanv  ·  your own:  qnnkit new mine.py  ·  "
    "resume:  qnnkit run runs/first"
)
def start(version: Version = False) -> None:
    """Train hybrid quantum-classical nets next to matched classical controls."""


def main() -> None:
    """Runs the command; prints an error that the user can fix as one sentence, with exit status 2.

    `QNNKIT_DEBUG=1` shows the full traceback instead.
    """
    for name, value in device.launch_environment().items():  # before torch is imported
        os.environ.setdefault(name, value)
    try:
        with checks.renamed({"recipe": "--recipe"}):
            app()
    except Exception as error:
        from qnnkit.runs import NotebookError  # not earlier, so that `--help` does not import torch

        fixable = ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError, NotebookError
        fixable = *fixable, NotImplementedError, FloatingPointError
        if not isinstance(error, fixable) or os.environ.get("QNNKIT_DEBUG"):
            raise
        text = str(error) or "Memory ran out."
        if isinstance(error, OSError) and error.strerror:  # a sentence of qnnkit, or the system's message
            path, text = error.filename or "a file, or the current folder", error.strerror
            if text == os.strerror(error.errno or 0):
                text = f"Cannot use {path} ({text}). Check it, and try again."
        typer.echo(f"qnnkit: {text}", err=True)
        raise SystemExit(2) from None


@app.command(rich_help_panel=TRAIN)
def run(
    run_dir: RunDir = None,
    recipe: RecipeName = None,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    notebooks: Annotated[str | None, Option(metavar="NAMES", help="Only these: 03_train,04_analyze.")] = None,
    as_option: AsOption = None,
) -> None:
    """Run notebooks 00 to 04b. Run it again to resume an unfinished run, or to print a finished one."""
    run_dir = cli_settings.folder_of(run_dir, as_option)
    given = cli_settings.gathered(files, settings, controls=cli_settings.controls_of(only), epochs=epochs)
    warm.begin()
    from qnnkit import recipes, runs
    from qnnkit import report as reports
    from qnnkit.settings import CRITERIA, listed

    names = runs.chain.chosen(notebooks)
    known = recipes.find(recipe).Settings.model_fields if recipe else runs.open_run(run_dir).config.flat()
    parameters = runs.chain.of_notebooks(run_dir, given, known, names)
    given = {name: value for name, value in given.items() if name not in parameters}
    begun = runs.open_run(run_dir, recipe, among=only and listed(only), **given)
    result = runs.chain.finished(begun)
    left = [name for name in names if not begun.notebook(name).exists()]
    source = runs.chain.find_notebook
    asked = parameters and [n for n in left if parameters.keys() & runs.chain.declared(source(n)).keys()]
    # A run that was trained without notebooks gets them only on request.
    if result is None or (left and (notebooks or asked or names[0] not in left)):
        echo = runs.chain.logged(begun, typer.echo)
        for note in begun.splits.notes:  # unusable data raise an error here, before a notebook starts
            echo(f"Note: {note}")
        result = runs.run_notebooks(begun, echo, parameters, names, reports.finish)
    elif given.keys() & {*CRITERIA}:
        result = reports.finish(begun)
    if result is None:
        typer.echo(f"The run is not finished. Continue it: qnnkit run --run-dir {run_dir}.")
    else:
        print_result(begun, result)


@app.command(rich_help_panel=TRAIN)
def train(
    run_dir: RunDir = None,
    recipe: RecipeName = None,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    as_option: AsOption = None,
) -> None:
    """Train without notebooks, also on several processes: torchrun --nproc_per_node 2 -m qnnkit train ...

    It writes the trained net to model/ or adapter/ of the run, as notebook 04 does.
    On GPUs `accelerate launch` does the same; on CPUs it starts a single process.
    """
    run_dir = cli_settings.folder_of(run_dir, as_option)
    given = cli_settings.gathered(files, settings, controls=cli_settings.controls_of(only), epochs=epochs)
    from qnnkit import runs
    from qnnkit.settings import CRITERIA, listed
    from qnnkit.train.processes import is_main, wait_for_all

    opened = functools.partial(runs.open_run, run_dir, recipe, among=only and listed(only), **given)
    begun = opened() if is_main() else None
    wait_for_all()  # the first process makes the folder before the others open it
    begun = begun or opened()
    echo = runs.chain.logged(begun, typer.echo)

    def show(row: dict[str, Any]) -> None:
        if sentence := runs.epoch_line(begun, row):
            echo(sentence)

    if is_main():
        for note in begun.splits.notes:
            echo(f"Note: {note}")
        echo(runs.placed(begun).sentence)
    main, folders = (begun.nets[0], begun.config.seed), (begun.folder / "model", begun.folder / "adapter")
    exported = next(filter(Path.exists, folders), None) if main in begun.tested() else None
    runs.train_all(begun, on_row=show)
    if is_main() and main in begun.tested():
        echo(f"The trained net is in {exported or runs.export(begun)}.")
        if begun.result is not None and given.keys() & {*CRITERIA}:
            from qnnkit import report as reports

            reports.finish(begun)


@app.command(rich_help_panel=TRAIN)
def watch(
    run_dir: Annotated[Path, Argument(metavar="RUN_DIR", help="Folder of a run or a batch.")],
    once: Annotated[bool, Option("--once", help="Print the progress once and exit.")] = False,
) -> None:
    """Show the progress of a run or batch from another terminal: net, epoch, loss, speed, time left.

    It ends when no run is running. Ctrl-C ends only the watching.
    """
    from qnnkit import runs

    runs.watch(run_dir, typer.echo, once=once)


@app.command(rich_help_panel=TRAIN)
def batch(
    file: Annotated[Path, Argument(help="YAML file of the batch; docs/batch.yaml shows all keys.")],
    scheduler: Annotated[str | None, Option(metavar="tls://HOST:PORT", help="Your Dask scheduler.")] = None,
) -> None:
    """Run many runs, several at a time. Run it again to resume; Ctrl-C stops cleanly."""
    if scheduler is None:
        warm.begin()
    else:
        logging.disable()  # Dask logs every worker that comes or goes
    from qnnkit import batch as batches

    folder = batches.batch_folder(batches.read_config(file))  # now, as the file may be edited meanwhile
    outcomes = batches.run_batch(file, scheduler=scheduler)
    show_batch(folder, again=False)
    raise typer.Exit(any(outcome.state == "failed" for outcome in outcomes))


@app.command(rich_help_panel=PLAN)
def plan(
    recipe: RecipeName,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    deadline: Annotated[float | None, Option(help="Hours for all nets and seeds.")] = None,
    budget: Annotated[float | None, Option(min=0, help="US dollars for all nets and seeds.")] = None,
    prices: Annotated[Path | None, Option(metavar="FILE", help="Your own machines and prices.")] = None,
    measuring: Annotated[bool, Option("--measuring/--no-measuring", help="Time a few updates here.")] = True,
    as_json: Json = False,
) -> None:
    """Estimate memory, time and cost before training, here and on other machines.

    --only hybrid plans one net and one seed. The exit status is 0 even if the training fits nowhere.
    """
    from qnnkit import measure, runs

    controls = cli_settings.controls_of(only)
    given = cli_settings.gathered(files, settings, controls=controls, epochs=epochs)
    arguments = runs.to_plan(recipe, given, alone=controls == [], timed=measuring)
    result = measure.plan(**arguments, deadline=deadline, budget=budget, prices=prices, measure=measuring)
    typer.echo(json.dumps(result.as_dict(), indent=2) if as_json else str(result))


@app.command(rich_help_panel=MODELS)
def predict(
    run_dir: Trained,
    inputs: Annotated[list[str], Argument(metavar="INPUT ...", help="Images, MIDI, arrays, CSV, or a text.")],
    recipe: RecipeName = None,
    classical: Annotated[bool, Option("--classical", help="Use circuits' classical functions.")] = False,
    as_json: Json = False,
) -> None:
    """Apply a trained net to new data: classify images, match captions, continue a text or a piece.

    If the model has a chat template, a text is sent as a user's message.
    """
    from qnnkit import runs
    from qnnkit.runs.using import line

    for row in runs.predict(run_dir, inputs, recipe=recipe, classical=classical):
        typer.echo(json.dumps(row) if as_json else line(row))


@app.command(rich_help_panel=SET_UP)
def new(
    file: Annotated[Path, Argument(help="File to write, such as mine.py.")],
    like: Annotated[str, Option(help="The shipped recipe to copy.")] = "digits_quanv",
) -> None:
    """Copy a shipped recipe into a file of yours, to edit."""
    from qnnkit import recipes

    with checks.renamed({"recipe": "--like", "path": "FILE"}):
        recipes.new(file, like)
    typer.echo(f"{file}: edit it, then qnnkit run runs/mine --recipe {file}")


@app.command(name="recipes", rich_help_panel=SET_UP)
def list_recipes(
    name: Annotated[str | None, Argument(metavar="NAME_OR_FILE", help="Print its settings.")] = None,
) -> None:
    """List the shipped recipes, or the settings of one with their defaults."""
    if name is not None:
        from qnnkit import recipes

        for key, field in recipes.find(name).Settings.model_fields.items():
            typer.echo(f"{key}={field.get_default(call_default_factory=True)}\n    {field.description or ''}")
        return
    for path in sorted(Path(__file__).parent.glob("recipes/[a-z]*.py")):  # parsed: to import takes seconds
        sentence = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
        typer.echo(f"{path.stem:<24} {sentence}")
    typer.echo("\nIts settings: qnnkit recipes NAME.  Minutes on this machine: qnnkit plan --recipe NAME.")
    typer.echo("A copy to edit: qnnkit new mine.py --like NAME.")


@app.command(rich_help_panel=SET_UP)
def doctor(as_json: Json = False) -> None:
    """Report this machine's hardware, the devices that can compute here, and what is missing."""
    result = device.report(workspace.home())
    typer.echo(json.dumps(result.as_dict(), indent=2) if as_json else device.table(result))


@app.command(rich_help_panel=PLAN)
def measure(
    recipe: RecipeName = None,
    settings: Set = None,
    quick: Annotated[bool, Option("--quick", help="Take seconds, not a minute; rougher figures.")] = False,
    out: Annotated[Path | None, Option(metavar="FILE", help="Default: machines/<kind>.json.")] = None,
    as_json: Json = False,
) -> None:
    """Benchmark this machine, and a net on it (default: that of digits_quanv).

    05_benchmark compares the files of several machines.
    """
    from qnnkit.measure import survey
    from qnnkit.runs.nets import measure_machine

    echo = functools.partial(typer.echo, err=as_json)
    given = cli_settings.gathered(None, settings)
    result, path = measure_machine(recipe or "digits_quanv", given, out, echo=echo, quick=quick)
    typer.echo(json.dumps(result, indent=2) if as_json else f"\n{survey.table(result)}\n\nFile: {path}")


@app.command(rich_help_panel=SET_UP)
def sample(
    source: Annotated[str, Argument(metavar="SRC", help="Folder, archive or URL of images.")],
    folder: Annotated[Path, Argument(metavar="DST", help="New or empty folder for the sample.")],
    per_class: Annotated[int, Option(metavar="N", help="Images per class.")],
    seed: Annotated[int, Option(help="Seed of the random choice.")] = 0,
    pattern: Annotated[str | None, Option(metavar="REGEX", help="Its first group is the label.")] = None,
) -> None:
    """Copy a few images of each class into a new folder."""
    from qnnkit import data

    names = {"root": "SRC", "folder": "DST", "label_pattern": "--pattern", "per_class": "--per-class"}
    place, target = workspace.data_place(source), workspace.place(folder)
    with checks.renamed(names):
        data.sample_files(place, target, per_class=per_class, seed=seed, pattern=pattern)
    record = workspace.read_json(target / "sample.json")
    typer.echo(f"{len(record['files']):,} images in {target}; sample.json lists them.")
    for note in record["notes"]:
        typer.echo(note)


@app.command(rich_help_panel=TRAIN)
def report(
    run_dir: Annotated[Path, Argument(metavar="RUN_DIR", help="Folder of a finished run, or of a batch.")],
    verify: Annotated[bool, Option("--verify", help="Only compare the files with their hashes.")] = False,
    recipe: RecipeName = None,
) -> None:
    """Write the report of a finished run again, by executing 04_analyze; or verify the run.

    For a batch, execute 06_study on the finished runs and print the verdicts.
    """
    from qnnkit import report as reports
    from qnnkit import runs
    from qnnkit.runs import state

    folder = workspace.place(run_dir)
    if (folder / "batch.json").exists():
        if verify or recipe:
            raise ValueError("A batch takes neither --verify nor --recipe. Use them with one of its runs.")
        return show_batch(folder)
    state.of_run(run_dir)  # raises an error if there is no run
    begun = runs.open_run(run_dir, recipe)
    if begun.result is None:
        raise ValueError(f"Run `{begun.folder}` is not finished. Finish it: qnnkit run --run-dir {run_dir}.")
    if not verify:
        return print_result(begun, runs.chain.analyze(begun))
    results = reports.verify_run(begun)
    for name, result in results.items():
        typer.echo(f"{name}: {result}")
    raise typer.Exit(any(result.startswith("FAILED") for result in results.values()))


@app.command(rich_help_panel=MODELS)
def evaluate(
    run_dir: Trained,
    data: Annotated[str, Argument(metavar="FILE_OR_FOLDER", help="Text, chats, music, or labelled images.")],
    recipe: RecipeName = None,
    as_json: Json = False,
) -> None:
    """Evaluate a trained net on other data: perplexity of text or music, accuracy on labelled images."""
    from qnnkit import runs
    from qnnkit.runs.using import line

    row = runs.evaluate(run_dir, data, recipe=recipe)
    typer.echo(json.dumps(row) if as_json else line(row))


@app.command(rich_help_panel=MODELS)
def merge(
    run_dir: Trained,
    out: Annotated[Path, Argument(metavar="OUT", help="Folder for the merged model.")],
) -> None:
    """Merge an adapter into its language model, for plain transformers."""
    from qnnkit import runs

    typer.echo(f"The merged model is in {runs.merge(run_dir, workspace.place(out))}.")

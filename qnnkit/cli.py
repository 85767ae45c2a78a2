"""The `qnnkit` command: a thin shell over the library."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from qnnkit import checks, device, warm, workspace
from qnnkit.cli_output import ending_cleanly, print_result, show_batch, tell_data
from qnnkit.cli_settings import (
    AsOption,
    Epochs,
    Files,
    Only,
    Recipe,
    RunDir,
    Set,
    asked_for,
    controls_of,
    folder_of,
    gathered,
    open_with,
)

TRAIN, SET_UP, PLAN, MODELS = "Train", "Set up", "Plan", "Models"
"""The groups of commands in the help."""
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Trained = Annotated[
    Path, Argument(metavar="RUN_DIR", help="Folder of a finished run, or its model/ or adapter/.")
]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        from qnnkit import __version__

        typer.echo(f"qnnkit {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Start:  qnnkit run runs/first --recipe digits_quanv  ·  your own:  qnnkit new mine.py  ·  "
    "resume:  qnnkit run runs/first"
)
def start(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train hybrid quantum-classical nets next to matched classical controls."""


def main() -> None:
    """Runs the command; an error that a person can mend is one sentence, with exit status 2.

    `QNNKIT_DEBUG=1` shows the whole trace instead.
    """
    for name, value in device.launch_environment().items():  # before torch is imported
        os.environ.setdefault(name, value)
    try:
        with checks.renamed({"recipe": "--recipe"}):
            app()
    except Exception as error:
        from qnnkit.runs import NotebookError  # not before: `--help` need not wait for torch

        mendable = ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError, NotebookError
        if not isinstance(error, mendable) or os.environ.get("QNNKIT_DEBUG"):
            raise
        # qnnkit's own sentences are in strerror; the system's say little without the file's name.
        sentence = error.strerror if isinstance(error, OSError) and not error.filename else None
        typer.echo(f"qnnkit: {sentence or str(error) or 'Memory ran out.'}", err=True)
        raise SystemExit(2) from None


@app.command(rich_help_panel=TRAIN)
def run(
    run_dir: RunDir = None,
    recipe: Recipe = None,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    notebooks: Annotated[
        str | None, Option(metavar="NAMES", help="Run only these: 03_train,04_analyze.")
    ] = None,
    on: Annotated[str | None, Option(metavar="colab", help="Write a script that runs it there.")] = None,
    as_option: AsOption = None,
) -> None:
    """Run notebooks 00 to 04b. Type it again to resume an unfinished run, or to print a finished one."""
    run_dir = folder_of(run_dir, as_option)
    if on is not None:
        checks.choice("--on", on, ("colab",))
        from qnnkit.runs import on_colab

        words = re.sub(r"(^| )--on[ =]colab\b", "", shlex.join(sys.argv[2:]))
        read = [str(each) for each in (recipe, *(files or ())) if each]
        path = on_colab.write(run_dir, read, shlex.split(words))
        typer.echo(f"Wrote {path}. Start it by: colab run --gpu T4 {path}")
        return
    warm.begin()
    with ending_cleanly():
        from qnnkit import report as reports
        from qnnkit import runs
        from qnnkit.settings import CRITERIA

        names = runs.chain.chosen(notebooks)
        named, asked = asked_for(run_dir, recipe, files, settings, only, epochs)
        own = runs.chain.of_notebooks(run_dir, asked, named.Settings.model_fields, names)
        asked = {name: value for name, value in asked.items() if name not in own}
        begun = open_with(run_dir, named, only, asked)
        result = runs.chain.finished(begun)
        chained = notebooks or begun.notebook(names[0]).exists()  # else trained without notebooks
        asked_for_more = chained and not all(begun.notebook(name).exists() for name in names)
        if result is None or asked_for_more:
            tell = runs.chain.logged(begun, typer.echo)
            tell_data(begun, tell)  # data that cannot be used stops here, before a notebook starts
            result = runs.run_notebooks(begun, tell, own, names, reports.finish)
        elif asked.keys() & {*CRITERIA}:
            result = reports.finish(begun)
        if result is None:
            typer.echo(f"The run is not finished: qnnkit run --run-dir {run_dir} goes on.")
        else:
            print_result(begun, result)


@app.command(rich_help_panel=TRAIN)
def train(
    run_dir: RunDir = None,
    recipe: Recipe = None,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    as_option: AsOption = None,
) -> None:
    """Train without notebooks, also on several processes: torchrun --nproc_per_node 2 -m qnnkit train ...

    The trained net is left in model/ or adapter/ of the run, as notebook 04 leaves it.
    On GPUs `accelerate launch` does the same; on CPUs it starts a single process.
    """
    run_dir = folder_of(run_dir, as_option)
    from qnnkit import runs
    from qnnkit.train.processes import is_main, wait_for_all

    with ending_cleanly():
        named, asked = asked_for(run_dir, recipe, files, settings, only, epochs)
        begun = open_with(run_dir, named, only, asked) if is_main() else None
        wait_for_all()  # the first process makes the folder, the others find it
        begun = begun or open_with(run_dir, named, only, asked)
        placed, before = runs.placed(begun), begun.tested()
        tell = runs.chain.logged(begun, typer.echo)

        def show(row: dict[str, Any]) -> None:
            if sentence := runs.epoch_line(begun, row):
                tell(sentence)

        if is_main():
            tell_data(begun, tell)
            tell(placed.sentence)
            for final in before.values():
                show(final)
        runs.train_all(begun, on_row=show)
        written = any((begun.folder / name).exists() for name in ("model", "adapter"))
        own_net = begun.nets[0], begun.config.seed
        if is_main() and own_net in begun.tested() and (len(begun.tested()) > len(before) or not written):
            tell(f"The trained net is in {runs.export(begun)}.")


@app.command(rich_help_panel=TRAIN)
def watch(
    run_dir: Annotated[Path, Argument(metavar="RUN_DIR", help="Folder of a run or a batch.")],
    once: Annotated[bool, Option("--once", help="Print the progress once and exit.")] = False,
) -> None:
    """Show the progress of a run or batch from another terminal: net, epoch, loss, speed, time left.

    It ends when nothing runs any more. Ctrl-C ends only the watching.
    """
    from qnnkit import runs

    runs.watch(run_dir, typer.echo, once=once)


@app.command(rich_help_panel=TRAIN)
def batch(
    file: Annotated[Path, Argument(help="What to run: a YAML file, as docs/batch.yaml shows.")],
    scheduler: Annotated[
        str | None, Option(metavar="tls://HOST:PORT", help="A Dask scheduler of yours.")
    ] = None,
) -> None:
    """Run many runs, several at a time. Type it again to resume; Ctrl-C stops cleanly."""
    if scheduler is None:
        warm.begin()
    else:
        logging.disable()  # Dask's, of workers that come and go
    from qnnkit import batch as batches

    folder = batches.batch_folder(batches.read_config(file))  # before someone edits the file meanwhile
    with ending_cleanly():
        outcomes = batches.run_batch(file, scheduler=scheduler)
        show_batch(folder, again=False)
    raise typer.Exit(any(each.state == "failed" for each in outcomes))


@app.command(rich_help_panel=PLAN)
def plan(
    recipe: Recipe = None,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    samples: Annotated[int | None, Option(help="Samples in an epoch, if not those of the data.")] = None,
    deadline: Annotated[
        str | None, Option(help="Time limit for all nets and seeds, such as 8h or '2d 4h'.")
    ] = None,
    budget: Annotated[str | None, Option(help="US dollars for all nets and seeds, such as 10.")] = None,
    prices: Annotated[Path | None, Option(metavar="FILE", help="Your own machines and prices.")] = None,
    measuring: Annotated[bool, Option("--measuring/--no-measuring", help="Time a few updates here.")] = True,
    as_json: Json = False,
) -> None:
    """Estimate memory, time and cost before training, here and on other machines.

    --only hybrid plans one net and one seed. The exit status is 0 even if the training fits nowhere.
    """
    from qnnkit import measure, runs

    if recipe is None:
        step = "Name a shipped one (qnnkit recipes lists them), or your own file."
        raise ValueError(checks.message("--recipe", "be named", recipe, step))
    controls = None if only is None else controls_of(only)
    chosen = gathered(recipe, files, settings, controls=controls, epochs=epochs)
    asked = runs.to_plan(recipe, chosen, samples=samples, alone=controls == [], timed=measuring)
    found = measure.plan(**asked, deadline=deadline, budget=budget, prices=prices, measure=measuring)
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))


@app.command(rich_help_panel=MODELS)
def predict(
    run_dir: Trained,
    inputs: Annotated[list[str], Argument(metavar="INPUT ...", help="Images, MIDI, arrays, or a text.")],
    recipe: Recipe = None,
    raw: Annotated[
        bool, Option("--raw", help="Send a text as it is, without the model's chat template.")
    ] = False,
    classical: Annotated[
        bool, Option("--classical", help="Replace each circuit by the classical function that it is.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Apply a trained net to new data: classify images, match captions, continue a text or a piece.

    If the model has a chat template, a text is sent as a user's message.
    """
    from qnnkit import runs
    from qnnkit.runs.using import line

    for row in runs.predict(run_dir, inputs, recipe=recipe, raw=raw, classical=classical):
        typer.echo(json.dumps(row) if as_json else line(row))


@app.command(rich_help_panel=SET_UP)
def new(
    file: Annotated[Path, Argument(help="File to write, such as mine.py.")],
    like: Annotated[str, Option(help="The shipped recipe to copy.")] = "digits_quanv",
) -> None:
    """Copy a shipped recipe into a file of yours, to edit."""
    from qnnkit import recipes

    with checks.renamed({"recipe": "--like", "path": "FILE"}):
        written = recipes.new(file, like)
    typer.echo(f"{written}: edit it, then qnnkit run --recipe {file} --run-dir runs/mine")


@app.command(name="recipes", rich_help_panel=SET_UP)
def list_recipes(
    name: Annotated[
        str | None, Argument(metavar="NAME_OR_FILE", help="Print this recipe's settings.", show_default=False)
    ] = None,
) -> None:
    """List the shipped recipes, or the settings of one with their defaults."""
    from qnnkit import recipes

    if name is not None:
        for key, field in recipes.find(name).Settings.model_fields.items():
            default = field.get_default(call_default_factory=True)
            typer.echo(f"{key}={default}\n    {field.description or ''}")
        return
    for name, recipe in recipes.RECIPES.items():
        typer.echo(f"{name:<24} {recipe.sentence}")
    typer.echo("\nIts settings: qnnkit recipes NAME.  Minutes on this machine: qnnkit plan --recipe NAME.")
    typer.echo("A copy to edit: qnnkit new mine.py --like NAME.")


@app.command(rich_help_panel=SET_UP)
def doctor(as_json: Json = False) -> None:
    """Report what this machine is, what can compute here, and what is missing."""
    found = device.report(workspace.home())
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else device.table(found))


@app.command(rich_help_panel=PLAN)
def measure(
    recipe: Recipe = None,
    settings: Set = None,
    quick: Annotated[bool, Option("--quick", help="Take seconds, not a minute; rougher figures.")] = False,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="File to write.", show_default="machines/<kind>.json")
    ] = None,
    as_json: Json = False,
) -> None:
    """Benchmark this machine, and a net on it (default: that of digits_quanv).

    05_benchmark compares the files of several machines.
    """
    from qnnkit.measure import survey
    from qnnkit.runs.nets import measure_machine

    with ending_cleanly():
        found, place = measure_machine(
            recipe or "digits_quanv",
            gathered(recipe, None, settings),
            out,
            echo=lambda sentence: typer.echo(sentence, err=as_json),
            quick=quick,
        )
        typer.echo(json.dumps(found, indent=2) if as_json else f"\n{survey.table(found)}\n\nFile: {place}")


@app.command(rich_help_panel=SET_UP)
def sample(
    source: Annotated[str, Argument(metavar="SRC", help="Folder, archive or URL of images.")],
    folder: Annotated[Path, Argument(metavar="DST", help="New or empty folder for the sample.")],
    per_class: Annotated[int, Option(metavar="N", help="Images per class.")],
    seed: Annotated[int, Option(help="Chooses the images.")] = 0,
    pattern: Annotated[
        str | None, Option(metavar="REGEX", help="Regular expression whose first group is the label.")
    ] = None,
) -> None:
    """Copy a few images of each class into a new folder."""
    from qnnkit import data

    names = {"root": "SRC", "folder": "DST", "label_pattern": "--pattern", "per_class": "--per-class"}
    with checks.renamed(names):
        there = data.sample_files(
            workspace.data_place(source),
            workspace.place(folder),
            per_class=per_class,
            seed=seed,
            pattern=pattern,
        )
    record = workspace.read_json(there / "sample.json")
    typer.echo(f"{len(record['files']):,} images in {there}; sample.json tells which.")
    for note in record["notes"]:
        typer.echo(note)
    if pattern is None and any("label_pattern" in note for note in record["notes"]):
        typer.echo(r"Give --pattern for other names, such as --pattern 'label_(\d+)'.")


@app.command(rich_help_panel=TRAIN)
def report(
    run_dir: Annotated[Path, Argument(metavar="RUN_DIR", help="Folder of a finished run, or of a batch.")],
    verify: Annotated[bool, Option("--verify", help="Only compare the files with their hashes.")] = False,
    recipe: Recipe = None,
) -> None:
    """Write the report of a finished run again, by executing 04_analyze; or verify the run.

    For a batch, execute 06_study on the finished runs and print the verdicts.
    """
    from qnnkit import report as reports
    from qnnkit import runs
    from qnnkit.runs import state

    if (workspace.place(run_dir) / "batch.json").exists():
        if verify or recipe:
            step = "Name one of its runs, or leave the option out."
            raise ValueError(checks.message("--verify, --recipe", "be left out with a batch", True, step))
        show_batch(workspace.place(run_dir))
        return
    state.of_run(run_dir)  # says what the folder must hold
    begun = runs.open_run(run_dir, recipe)
    if begun.result is None:
        raise ValueError(f"Run `{begun.folder}` is not finished. Finish it: qnnkit run --run-dir {run_dir}.")
    if not verify:
        print_result(begun, runs.chain.analyze(begun))
        return
    found = reports.verify_run(begun)
    for name, result in found.items():
        typer.echo(f"{name}: {result}")
    raise typer.Exit(int(any(result.startswith("FAILED") for result in found.values())))


@app.command(rich_help_panel=MODELS)
def evaluate(
    run_dir: Trained,
    data: Annotated[str, Argument(metavar="FILE_OR_FOLDER", help="Text, chats, music, or labelled samples.")],
    recipe: Recipe = None,
    as_json: Json = False,
) -> None:
    """Evaluate a trained net on other data: perplexity of a text, accuracy on labelled images or arrays."""
    from qnnkit import runs
    from qnnkit.runs.using import line

    found = runs.evaluate(run_dir, data, recipe=recipe)
    typer.echo(json.dumps(found) if as_json else line(found))


@app.command(rich_help_panel=MODELS)
def merge(
    run_dir: Annotated[
        Path, Argument(metavar="RUN_DIR", help="Folder of a run with an adapter, or its adapter/.")
    ],
    out: Annotated[Path, Argument(metavar="OUT", help="Folder for the merged model.")],
) -> None:
    """Merge an adapter into its language model, for plain transformers."""
    from qnnkit import runs

    typer.echo(f"The whole model is in {runs.merge(run_dir, workspace.place(out))}.")

"""The `qnnkit` command: a thin shell over the library."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from typer import Argument, Option

from qnnkit import checks, device, warm, workspace
from qnnkit.cli_output import ending_cleanly, judged_anew, print_result, show_batch, tell_data
from qnnkit.cli_settings import asked_for, controls_of, gathered, refuse_with, require_own_net

Recipe = Annotated[
    str | None, Option(metavar="NAME_OR_FILE", help="What to compute; a begun folder knows a shipped one.")
]
RunDir = Annotated[Path, Option(help="Folder of the run; relative to the workspace.")]
Set = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Exchange a setting.")]
Files = Annotated[
    list[Path] | None, Option("--settings", metavar="FILE.yaml", help="Settings in a file; later ones win.")
]
Only = Annotated[
    str | None,
    Option(
        metavar="NETS",
        help="Train the run's own net, hybrid, and of its controls these alone: hybrid,classical.",
    ),
]
Epochs = Annotated[int | None, Option(help="Passes over the data; a run that has begun may get more.")]
OnOom = Annotated[str | None, Option(metavar="stop|shrink", help="Out of memory: stop, or go in pieces.")]
Json = Annotated[bool, Option("--json", help="Print JSON instead of a table or lines.")]


class Commands(typer.core.TyperGroup):
    """The commands; Ctrl-C ends each with a sentence, that of its own where it has one."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("Stopped.")
            raise typer.Exit(130) from None


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def main() -> None:
    """Runs the command; what a person can mend is told in one sentence, with exit status 2.

    `QNNKIT_DEBUG=1` shows the whole trace instead.
    """
    for name, value in device.launch_environment().items():  # before torch is imported
        os.environ.setdefault(name, value)
    try:
        with checks.renamed({"recipe": "--recipe"}):
            app()
    except Exception as error:
        from qnnkit.runs import NotebookError  # not before: `--help` need not wait for torch

        if not isinstance(error, ValueError | TypeError | OSError | MemoryError | NotebookError):
            raise
        if os.environ.get("QNNKIT_DEBUG"):
            raise
        # qnnkit's own sentences stand in strerror; the system's say little without the file's name.
        told = error.strerror if isinstance(error, OSError) and not error.filename else None
        typer.echo(f"qnnkit: {told or str(error) or 'Memory ran out.'}", err=True)
        raise SystemExit(2) from None


@app.command()
def run(
    run_dir: RunDir,
    recipe: Recipe = None,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    fork: Annotated[Path | None, Option(metavar="NEW_DIR", help="Go on there, with other settings.")] = None,
    on_oom: OnOom = None,
    notebooks: Annotated[str | None, Option(metavar="NAMES", help="Run these alone: 03_train,...")] = None,
    on: Annotated[str | None, Option(metavar="colab", help="Write a script that runs it there.")] = None,
) -> None:
    """Run notebooks 00 to 04 in order. Run again, it finishes what is unfinished and only prints the rest."""
    if on is not None:
        checks.choice("--on", on, ("colab",))
        from qnnkit.runs import on_colab

        words = sys.argv[2:]
        at = next(i for i, word in enumerate(words) if word.partition("=")[0] == "--on")
        read = [str(each) for each in (recipe, *(files or ())) if each]
        path = on_colab.write(run_dir, read, [*words[:at], *words[at + (2 if words[at] == "--on" else 1) :]])
        typer.echo(f"Wrote {path}. Start it by: colab run --gpu T4 {path}")
        return
    warm.begin()
    with ending_cleanly():
        with warm.importing():
            from qnnkit import report as reports
            from qnnkit import runs

        names = runs.chain.chosen(notebooks)
        named, asked = asked_for(run_dir, recipe, files, settings, only, epochs=epochs, on_oom=on_oom)
        own = runs.chain.of_notebooks(asked, named.Settings.model_fields, names)
        asked = {name: value for name, value in asked.items() if name not in own}
        begun = runs.fork(run_dir, fork, named, **asked) if fork else runs.open_run(run_dir, named, **asked)
        require_own_net(only, begun.nets[0])
        runs.chain.check_finished(begun, own)
        result, tell = runs.finished(begun), typer.echo
        asked_for_more = notebooks and not all(begun.notebook(name).exists() for name in names)
        if result is None or asked_for_more:
            tell = runs.chain.logged(begun, typer.echo)
            tell_data(begun, tell)  # data that cannot be used stops here, before a notebook starts
            result = runs.run_notebooks(begun, tell, own, names, reports.finish)
        if result is None:
            tell(f"The run is not finished: qnnkit run --run-dir {run_dir} goes on.")
        else:
            print_result(begun, judged_anew(begun, result), tell)


@app.command()
def train(
    run_dir: RunDir,
    recipe: Recipe = None,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    on_oom: OnOom = None,
) -> None:
    """Train without notebooks, also on several processes: torchrun --nproc_per_node 2 -m qnnkit train ...

    The trained net is left in model/ or adapter/ of the run, as notebook 04 leaves it.
    On GPUs `accelerate launch` does the same; on CPUs it starts a single process.
    """
    with warm.importing():
        from qnnkit import runs
        from qnnkit.train.processes import is_main, wait_for_all

    with ending_cleanly():
        named, asked = asked_for(run_dir, recipe, files, settings, only, epochs=epochs, on_oom=on_oom)
        begun = runs.open_run(run_dir, named, **asked) if is_main() else None
        wait_for_all()  # the first process makes the folder, the others find it
        begun = begun or runs.open_run(run_dir, named, **asked)
        require_own_net(only, begun.nets[0])
        placed = runs.placed(begun)
        tell = runs.chain.logged(begun, typer.echo)
        if is_main():
            tell_data(begun, tell)
            tell(placed.sentence)

        def show(row: dict[str, Any]) -> None:
            if row["event"] in ("epoch", "test"):
                tell(runs.epoch_line(begun, row))

        before = begun.tested()
        for final in before.values() if is_main() else ():
            show(final)
        runs.train_all(begun, on_row=show, on_warning=tell)
        written = any((begun.folder / name).exists() for name in ("model", "adapter"))
        tested = begun.tested()
        if (
            is_main()
            and (begun.nets[0], begun.config.seed) in tested
            and (len(tested) > len(before) or not written)
        ):
            tell(f"The trained net is in {runs.export(begun)}.")


@app.command()
def watch(
    run_dir: Annotated[Path, Argument(help="Folder of a run or a batch.")],
    once: Annotated[bool, Option("--once", help="Look once, and end.")] = False,
    every: Annotated[float | None, Option(help="Seconds between two looks; 2 if not given.")] = None,
) -> None:
    """Look on while a run trains, from another terminal: step, loss, speed, time left, memory.

    It ends when the training has, or after a minute in which none began; Ctrl-C ends the watching alone.
    """
    from qnnkit import runs

    if once:
        refuse_with("--once", {"--every": every})
    echo = None if sys.stdout.isatty() else typer.echo
    runs.watch(run_dir, echo, every=2.0 if every is None else every, once=once)


@app.command()
def batch(
    file: Annotated[Path, Argument(help="What to run: a YAML file, as docs/batch.yaml shows.")],
    scheduler: Annotated[str | None, Option(metavar="tls://HOST:PORT", help="Your own Dask's.")] = None,
) -> None:
    """Run many runs, some at a time. Run again, it finishes what is unfinished; Ctrl-C stops cleanly."""
    if scheduler is None:
        warm.begin()
    with warm.importing():
        from qnnkit import batch as batches

    folder = batches.batch_folder(batches.read_config(file))  # before someone edits the file meanwhile
    echo = None if sys.stdout.isatty() else typer.echo
    with ending_cleanly(KeyboardInterrupt):
        try:
            outcomes = batches.run_batch(file, scheduler=scheduler, echo=echo)
        except ModuleNotFoundError as error:
            typer.echo(f"qnnkit: {error}", err=True)
            raise typer.Exit(2) from None
        failed = [each for each in outcomes if each.state == "failed"]
        for each in failed:
            where = f" Notebook: {each.notebook}" if each.notebook else ""
            typer.echo(f"Run {each.id} failed: {each.error}{where}")
        show_batch(folder, again=False)
    raise typer.Exit(1 if failed else 0)


@app.command()
def plan(
    recipe: Annotated[str | None, Option(help="Named settings, on their data.")] = None,
    settings: Set = None,
    files: Files = None,
    only: Only = None,
    epochs: Epochs = None,
    samples: Annotated[int | None, Option(help="In an epoch, if others than the data's.")] = None,
    deadline: Annotated[str | None, Option(help="Time for all of it, such as 8h or '2d 4h'.")] = None,
    budget: Annotated[str | None, Option(help="US dollars for all of it, such as 10.")] = None,
    prices: Annotated[Path | None, Option(metavar="FILE", help="Your machines and prices.")] = None,
    measuring: Annotated[bool, Option("--measuring/--no-measuring", help="Time some updates.")] = True,
    as_json: Json = False,
) -> None:
    """Tell what a training needs, how long it takes here and elsewhere, and what it costs, before it is run.

    --only hybrid plans one net and one seed. A training that fits nowhere is an answer too: exit status 0.
    """
    from qnnkit import measure, recipes, runs

    if recipe is None:
        names = f"Name one: {', '.join(recipes.RECIPES)}, or your own file."
        raise ValueError(checks.message("--recipe", "be named", recipe, names))
    controls = None if only is None else controls_of(only)
    chosen = gathered(recipe, files, settings, controls=controls, epochs=epochs)
    asked = runs.to_plan(recipe, chosen, samples=samples, alone=controls == [], timed=measuring)
    found = measure.plan(**asked, deadline=deadline, budget=budget, prices=prices, measure=measuring)
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))


@app.command()
def predict(
    run_dir: Annotated[Path, Argument(help="Folder of a finished run, or its model/ or adapter/.")],
    inputs: Annotated[list[str], Argument(metavar="INPUT ...", help="Images, MIDI, arrays, or a text.")],
    recipe: Recipe = None,
    raw: Annotated[bool, Option("--raw", help="A text as it is, without the model's chat template.")] = False,
    as_json: Json = False,
) -> None:
    """Use a trained net: classes of images, captions or images by CLIP, a text or piece that goes on.

    A text to a model with a chat template is a user's message, which it answers.
    """
    from qnnkit import runs
    from qnnkit.runs.using import of_language, prediction_lines, predictor

    if recipe is not None and of_language(run_dir):
        step = "It is read from its own files."
        raise ValueError(checks.message("recipe", "be left out for a language model", recipe, step))
    found = runs.predict(run_dir, inputs, recipe=recipe, raw=raw)
    by = predictor(run_dir)
    for row in found:
        for line in [json.dumps(row | by)] if as_json else prediction_lines(row):
            typer.echo(line)
    if by and not as_json:
        typer.echo(f"By net {by['net']} of seed {by['seed']}, at its best epoch.")


@app.command()
def new(
    file: Annotated[Path, Argument(help="Where the recipe goes, such as mine.py.")],
    like: Annotated[str, Option(help="Which one it begins as.")] = "digits_quanv",
) -> None:
    """Write a recipe of your own: a working copy of a shipped one, to edit."""
    from qnnkit import recipes

    with checks.renamed({"recipe": "--like", "path": "FILE"}):
        written = recipes.new(file, like)
    typer.echo(f"{written}: edit it, then qnnkit run --recipe {file} --run-dir runs/mine")


@app.command(name="recipes")
def list_recipes() -> None:
    """List the recipes that are shipped, by name and what each is about."""
    from qnnkit import recipes

    for name, recipe in recipes.RECIPES.items():
        typer.echo(f"{name:<24} {recipe.sentence}")
    typer.echo("\nMinutes on this machine: qnnkit plan --recipe NAME.")
    typer.echo("A copy to edit: qnnkit new mine.py --like NAME.")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Tell what this machine is, what can compute here, and what is missing."""
    found = device.report(workspace.home())
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else device.table(found))


@app.command()
def measure(
    recipe: Annotated[str | None, Option(help="Whose net is measured; default: digits_quanv.")] = None,
    run_dir: Annotated[Path | None, Option(help="Or a run's own, with its data.")] = None,
    settings: Set = None,
    seconds: Annotated[float | None, Option(help="For all of it, about; default: 60.")] = None,
    quick: Annotated[bool, Option("--quick", help="Seconds, not a minute; rougher figures.")] = False,
    out: Annotated[Path | None, Option(metavar="FILE", help="In place of machines/<kind>.json.")] = None,
    as_json: Json = False,
) -> None:
    """Measure what this machine reaches and what a net takes on it. 05_benchmark compares such files."""
    from qnnkit.measure import survey
    from qnnkit.runs.surveying import measure_machine

    with ending_cleanly(), checks.renamed({"seconds": "--seconds"}):
        found, place = measure_machine(
            recipe,
            run_dir,
            out=out,
            settings=gathered(recipe, None, settings),
            echo=lambda sentence: typer.echo(sentence, err=as_json),
            quick=quick,
            **({} if seconds is None else {"seconds": seconds}),
        )
        typer.echo(json.dumps(found, indent=2) if as_json else f"\n{survey.table(found)}\n\nFile: {place}")


@app.command()
def sample(
    source: Annotated[str, Argument(metavar="SRC", help="Folder, archive or URL of images.")],
    folder: Annotated[Path, Argument(metavar="DST", help="Where the sample goes; absent or empty.")],
    per_class: Annotated[int, Option(metavar="N", help="How many of each class.")],
    seed: Annotated[int, Option(help="Chooses which.")] = 0,
    pattern: Annotated[str | None, Option(metavar="REGEX", help="Its first group is the label.")] = None,
) -> None:
    """Copy some images of each class: class folders or flat ones, train/ and test/ alike."""
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


@app.command()
def report(
    run_dir: Annotated[Path, Argument(help="Folder of a finished run, or of a batch.")],
    verify: Annotated[bool, Option("--verify", help="Compare files and data with their hashes.")] = False,
    recipe: Recipe = None,
) -> None:
    """Execute 04_analyze of a finished run again, which writes its report; or only verify the run.

    Of a batch it executes 06_study on what has finished, and prints what that shows.
    """
    from qnnkit import report as reports
    from qnnkit import runs

    is_batch = (workspace.place(run_dir) / "batch.json").exists()
    if verify and is_batch:
        raise ValueError(
            f"Option --verify must be given a run, but `{run_dir}` is a batch. Name the folder of a run."
        )
    if is_batch and recipe is not None:
        raise ValueError(
            f"Option --recipe must be given a run, but `{run_dir}` is a batch. Name the folder of a run."
        )
    if is_batch:
        show_batch(workspace.place(run_dir))
        return
    begun = _begun(run_dir, recipe)
    if begun.result is None:
        raise ValueError(f"Run `{begun.folder}` is not finished. Finish it: qnnkit run --run-dir {run_dir}.")
    if not verify:
        print_result(begun, runs.chain.analyze(begun))
        return
    found = reports.verify_run(begun)
    for name, result in found.items():
        typer.echo(f"{name}: {result}")
    raise typer.Exit(int(any(result.startswith("FAILED") for result in found.values())))


@app.command()
def evaluate(
    run_dir: Annotated[Path, Argument(help="Folder of a finished run, or its model/ or adapter/.")],
    data: Annotated[str, Argument(metavar="FILE_OR_FOLDER", help="Text, chats, music, or labelled samples.")],
    recipe: Recipe = None,
    as_json: Json = False,
) -> None:
    """Evaluate a trained net on other data: perplexity of a text, accuracy on labelled images or arrays."""
    from qnnkit import runs
    from qnnkit.runs.using import evaluation_lines

    found = runs.evaluate(run_dir, data, recipe=recipe)
    for line in [json.dumps(found)] if as_json else evaluation_lines(found):
        typer.echo(line)


@app.command()
def merge(
    run_dir: Annotated[
        Path, Argument(metavar="RUN", help="Folder of a run with an adapter, or its adapter/.")
    ],
    out: Annotated[Path, Argument(metavar="OUT", help="Where the model goes.")],
) -> None:
    """Write a language model with its adapter worked in, for plain transformers."""
    from qnnkit import runs

    typer.echo(f"The whole model is in {runs.merge(run_dir, workspace.place(out))}.")


def _begun(run_dir: Path, recipe: str | None = None) -> Any:
    """A run that is there already."""
    from qnnkit import runs
    from qnnkit.runs import state

    state.of_run(run_dir)  # says what the folder must hold
    return runs.open_run(run_dir, recipe)

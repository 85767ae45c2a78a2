"""The `qnnkit` command: a thin shell over the library."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from qnnkit import device, workspace

RecipeOption = Annotated[
    str | None,
    typer.Option(metavar="NAME_OR_FILE", help="What to compute; a begun folder knows a shipped one."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Exchange a setting of the recipe.")
]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--settings", metavar="FILE.yaml", help="Settings in a file; of several, later ones win."),
]
OnOom = Annotated[
    str | None,
    typer.Option("--on-oom", metavar="stop|shrink", help="Where memory runs out: stop, or smaller parts."),
]

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
    run_dir: Annotated[Path, typer.Option(help="Folder of the run; relative to the workspace.")],
    recipe: RecipeOption = None,
    settings: SetOption = None,
    files: FilesOption = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="NETS", help="Train these alone, such as hybrid, or hybrid,classical."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; a run that has begun may be asked for more.")
    ] = None,
    fork: Annotated[
        Path | None,
        typer.Option(metavar="NEW_DIR", help="Go on from run_dir there, with other training settings."),
    ] = None,
    on_oom: OnOom = None,
) -> None:
    """Run notebooks 00 to 04 in order. Run again, it finishes what is unfinished and only prints the rest."""
    with _ending_cleanly():
        from qnnkit import runs

        named, asked = _asked(run_dir, recipe, files, settings, only, epochs=epochs, on_oom=on_oom)
        own = runs.of_notebooks(asked, named.Settings.model_fields)
        asked = {name: value for name, value in asked.items() if name not in own}
        begun = runs.fork(run_dir, fork, named, **asked) if fork else runs.open_run(run_dir, named, **asked)
        runs.check_finished(begun, own)
        result = runs.finished(begun)
        if result is None:
            _tell_data(begun)  # data that cannot be used stops here, before a notebook starts
            result = runs.run_notebooks(begun, echo=typer.echo, parameters=own)
        _print_result(begun, _judged_anew(begun, result))


@app.command()
def train(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run; relative to the workspace.")],
    recipe: RecipeOption = None,
    settings: SetOption = None,
    files: FilesOption = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="NETS", help="Train these alone, such as hybrid, or hybrid,classical."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; a run that has begun may be asked for more.")
    ] = None,
    on_oom: OnOom = None,
) -> None:
    """Train without notebooks, also on several processes: torchrun --nproc_per_node 2 -m qnnkit train ...

    On GPUs `accelerate launch` does the same; on CPUs it starts a single process.
    """
    from qnnkit import runs
    from qnnkit.train.processes import is_main, wait_for_all

    with _ending_cleanly():
        named, asked = _asked(run_dir, recipe, files, settings, only, epochs=epochs, on_oom=on_oom)
        begun = runs.open_run(run_dir, named, **asked) if is_main() else None
        wait_for_all()  # the first process makes the folder, the others find it
        begun = begun or runs.open_run(run_dir, named, **asked)
        placed = runs.placed(begun)
        if is_main():
            _tell_data(begun)
            typer.echo(placed.sentence)
        for final in runs.train_all(
            begun, on_epoch=lambda row: typer.echo(runs.epoch_line(begun, row)), on_warning=typer.echo
        ):
            if is_main():
                score = begun.score
                reached = f"{score.told}: {score.tell(final[f'test_{score.name}'])}"
                typer.echo(
                    f"{final['net']}, seed {final['seed']}: {reached}, best epoch {final['best_epoch']}"
                )


@app.command()
def watch(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run or a batch.")],
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
) -> None:
    """Look on while a run trains, from another terminal: step, loss, speed, time left, memory, load.

    It ends when the training has, or after a minute in which none began; Ctrl-C ends the watching alone.
    """
    from qnnkit import runs

    runs.watch(run_dir, None if sys.stdout.isatty() else typer.echo, every=every, once=once)


@app.command()
def batch(
    file: Annotated[Path, typer.Argument(help="What to run: a YAML file, as docs/batch.yaml shows.")],
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Use your own Dask scheduler and workers.")
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST", help="Where this machine's scheduler and dashboard listen.")
    ] = "127.0.0.1",
) -> None:
    """Run many runs, some at a time. Run again, it finishes what is unfinished; Ctrl-C stops cleanly."""
    from qnnkit import batch as batches

    folder = batches.batch_folder(batches.read_config(file))  # before someone edits the file meanwhile
    echo = None if sys.stdout.isatty() else typer.echo
    with _ending_cleanly(KeyboardInterrupt):
        try:
            outcomes = batches.run_batch(file, scheduler=scheduler, listen=listen, echo=echo)
        except KeyboardInterrupt:
            typer.echo("Stopped. The same command goes on.")
            raise typer.Exit(130) from None
        except ModuleNotFoundError as error:
            typer.echo(f"qnnkit: {error}", err=True)
            raise typer.Exit(2) from None
    failed = [each for each in outcomes if each.state == "failed"]
    for each in failed:
        where = f" Notebook: {each.notebook}" if each.notebook else ""
        typer.echo(f"Run {each.id} failed: {each.error}{where}")
    _write_study(folder)
    raise typer.Exit(1 if failed else 0)


@app.command()
def plan(
    recipe: Annotated[str | None, typer.Option(help="Named settings, on their data.")] = None,
    model: Annotated[str | None, typer.Option(help="Or a transformers model: llama or clip.")] = None,
    size: Annotated[
        str | None, typer.Option(help="Of the model: tiny, small, ..., or a folder with a config.json.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    sequence_length: Annotated[int | None, typer.Option(help="Tokens of a sample; of models.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Train low-rank updates; of models.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam, adamw or sgd.")] = None,
    samples: Annotated[int | None, typer.Option(help="In an epoch, if others than the data's.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Exchange a setting.")
    ] = None,
    epochs: Annotated[
        str | None, typer.Option("--for", "--epochs", metavar="EPOCHS", help="Such as '50 epochs'.")
    ] = None,
    deadline: Annotated[str | None, typer.Option(help="Time for all of it, such as 8h or '2d 4h'.")] = None,
    budget: Annotated[str | None, typer.Option(help="Money for all of it, such as 10.")] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your table of machines and prices.")
    ] = None,
    measured: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A machine's file, by `qnnkit measure`.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Torch device of this machine to plan for.")] = None,
    measuring: Annotated[
        bool, typer.Option("--measuring/--no-measuring", help="Time some updates here.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Tell what a training needs, how long it takes here and elsewhere, and what it costs, before it is run.

    A training that fits nowhere is an answer too: the exit status is 0.
    """
    from qnnkit import plan as plans

    own = {"batch_size": batch_size, "sequence_length": sequence_length, "lora_rank": lora_rank}
    own |= {"precision": precision, "optimizer": optimizer, "device": device}
    own |= {"epochs": None if epochs is None else plans.parse_epochs(epochs)}
    chosen = parse_settings(settings or [], _kind(recipe))
    given = {name: value for name, value in own.items() if value is not None}
    for name in given.keys() & chosen.keys():
        raise ValueError(f"Setting `{name}` must be given once, but is twice. Drop --set {name}=...")
    found = plans.plan(
        plans.asked(recipe, model, size, settings=given | chosen, samples=samples, measure=measuring),
        deadline=deadline,
        budget=budget,
        prices=prices,
        measured=measured or (),
        measure=measuring,
    )
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else plans.table(found))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Tell what this machine is, what can compute here, and what is missing."""
    found = device.report()
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else device.table(found))


@app.command()
def measure(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE ...]", help="Machines' files, or folders of them, with --compare."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Only compare the files of machines.")] = False,
    recipe: Annotated[str | None, typer.Option(help="Whose net is measured; digits_quanv if none.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Or a run's own, with its data.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Exchange a setting of the recipe.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="For all of it, about; 150 if not given.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take seconds, not minutes; figures are rougher.")
    ] = False,
    samples: Annotated[int | None, typer.Option(help="Of an epoch, for other data of yours.")] = None,
    price: Annotated[
        float | None, typer.Option(metavar="PER_HOUR", help="What an hour of this machine costs; 0 if free.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Write a torch.profiler trace, too.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; machines/<kind>.json if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure what this machine reaches and what a net takes on it, or compare such files of machines."""
    from qnnkit import checks, survey

    words = {"`compare`": "`--compare`", "`n_samples`": "`--samples`", "`seconds`": "`--seconds`"}
    words |= {"`price_per_hour`": "`--price`"}
    with _ending_cleanly(), checks.in_words(words):
        if compare:
            text, place = survey.compare_machines(files or [], out)
            typer.echo(f"{text}\n\nPicture: {place}")
            return
        if files:
            raise ValueError("Files are for --compare: qnnkit measure --compare FILE FILE.")
        found, place = survey.measure_machine(
            recipe,
            run_dir,
            out=out,
            with_profile=profile,
            settings=parse_settings(settings or [], _kind(recipe)),
            echo=lambda sentence: typer.echo(sentence, err=as_json),
            seconds=seconds,
            quick=quick,
            n_samples=samples,
            price_per_hour=price,
        )
        typer.echo(json.dumps(found, indent=2) if as_json else f"\n{survey.table(found)}\n\nFile: {place}")


@app.command()
def sample(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder, archive or URL of images.")],
    folder: Annotated[Path, typer.Argument(metavar="DST", help="Where the sample goes; absent or empty.")],
    per_class: Annotated[int | None, typer.Option(help="Images of each class, on each side.")] = None,
    fraction: Annotated[float | None, typer.Option(help="Or their share, such as 0.1.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses which.")] = 0,
    link: Annotated[bool, typer.Option("--link", help="Hard links in place of copies.")] = False,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="The label in a file's name is its first group.")
    ] = None,
) -> None:
    """Copy some images of each class: class folders or flat ones, train/ and test/ alike."""
    from qnnkit import checks, data

    if (per_class is None) == (fraction is None):
        raise ValueError("Give --per-class or --fraction, one of them.")
    words = {"root": "SRC", "folder": "DST", "label_pattern": "--pattern", "per_class": "--per-class"}
    words |= {"fraction": "--fraction", "link": "--link"}
    with checks.in_words({f"`{name}`": f"`{typed}`" for name, typed in words.items()}):
        there = data.sample_files(
            workspace.data_place(source),
            workspace.place(folder),
            per_class=per_class,
            fraction=fraction,
            seed=seed,
            link=link,
            pattern=pattern,
        )
    record = workspace.read_json(there / "sample.json")
    typer.echo(f"{len(record['files']):,} images in {there}; sample.json tells which.")
    left_out, n = record["left_out"], record["left_out"]["count"]
    if n:
        more = n - len(left_out["first"])
        told = ", ".join(left_out["first"]) + (f" and {more:,} more" if more else "")
        fit = f"fit --pattern {pattern}" if pattern else "end in two digits"
        step = r"Give --pattern for other names, such as --pattern 'label_(\d+)'."
        typer.echo(f"Left out {n:,} of {left_out['of']:,} files whose names do not {fit}: {told}. {step}")


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a finished run, or of a batch.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash its files, settings and data anew, and compare.")
    ] = False,
) -> None:
    """Write the report of a finished run anew, and print its table; or only verify the run.

    Of a batch it writes the page and the study of what has finished, and prints the conclusions.
    """
    from qnnkit import report as reports
    from qnnkit import runs

    if (workspace.place(run_dir) / "batch.json").exists():
        if verify:
            raise ValueError(
                f"Option --verify must be given a run, but `{run_dir}` is a batch. Name the folder of a run."
            )
        _write_study(workspace.place(run_dir))
        return
    begun = runs.open_run(run_dir)
    if begun.result is None:
        raise ValueError(f"Run `{begun.folder}` is not finished. Finish it: qnnkit run --run-dir {run_dir}.")
    if not verify:
        _print_result(begun, reports.finish(begun))
        return
    findings = reports.verify_run(begun)
    for finding in findings:
        typer.echo({True: "ok    ", False: "WRONG ", None: "      "}[finding.ok] + finding.sentence)
    raise typer.Exit(int(any(finding.ok is False for finding in findings)))


@app.command()
def merge(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run with an adapter.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Where the model goes; relative to the workspace.")
    ],
) -> None:
    """Write a language model with its adapter worked in, for plain transformers."""
    from qnnkit import runs

    typer.echo(f"The whole model is in {runs.merge(runs.open_run(run_dir), workspace.place(out))}.")


@contextlib.contextmanager
def _ending_cleanly(error: type[BaseException] | None = None) -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does, so that no kernel or run is left behind.

    `QNNKIT_STOP_WITH_PARENT` holds the process that started this one and cannot stop it once it is killed:
    when it is gone, this one ends too.
    """

    def end(signal_number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: what is cleaned up now must not be cut short
        raise (error or SystemExit)(128 + signal_number)

    parent = os.environ.pop("QNNKIT_STOP_WITH_PARENT", None)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    if parent:
        threading.Thread(target=_follow, args=(int(parent),), daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(parent: int, patience: float = 60.0) -> None:
    """Ends this process soon after its parent has gone, cleanly or, should that hang, at once."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience)
    os._exit(128 + signal.SIGTERM)  # its kernel follows by itself


def _asked(
    run_dir: Path,
    recipe: str | None,
    files: list[Path] | None,
    words: list[str] | None,
    only: str | None,
    **given: Any,
) -> tuple[Any, dict[str, Any]]:
    """The recipe that is meant, and the settings of files, then of words, then of options of their own."""
    from qnnkit import recipes
    from qnnkit.runs import folder

    if recipe is not None:
        named = recipes.find(recipe)
    else:
        begun = folder.read_config(workspace.run_folder(run_dir) / "config.json")
        if begun is None:
            from qnnkit import checks

            rule, step = "hold a run", "Name a recipe to begin one there."
            raise FileNotFoundError(checks.message("run_dir", rule, str(run_dir), step))
        named = recipes.of(begun)
    asked: dict[str, Any] = {}
    for path in files or ():
        asked |= read_settings(path)
    asked |= parse_settings(words or [], named.Settings)
    asked |= {name: value for name, value in given.items() if value is not None}
    if only is not None:
        asked["controls"] = [name for name in only.split(",") if name not in recipes.MAIN_NETS]
    return named, asked


def read_settings(path: Path) -> dict[str, Any]:
    """Settings in a YAML file, by name.

    Raises:
        ValueError: It holds something else.
        OSError: It cannot be read.
    """
    found = workspace.read_yaml(path, "settings file")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"Settings file `{path}` must hold lines such as `epochs: 2`, but does not.")
    for name in ("recipe", "run_dir"):
        if name in found:
            step = f"Use --{name.replace('_', '-')}."
            raise ValueError(f"Settings file `{path}` must hold settings, but names `{name}`. {step}")
    if empty := [name for name, value in found.items() if value is None]:
        step = "Leave the line out to keep the recipe's own."
        raise ValueError(f"Settings file `{path}` must give a value for `{empty[0]}`. {step}")
    return found


def parse_settings(words: list[str], kind: Any = None) -> dict[str, Any]:
    """`["epochs=2", "circuit=random"]` as values: JSON where it is JSON, else text.

    Args:
        words: As `--set` is given them.
        kind: Settings class of the recipe: a text in it stays one, whatever it looks like.

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
        text_wanted = kind is not None and kind.is_text(name)
        if values[name] is not None and not isinstance(values[name], str | list) and text_wanted:
            values[name] = text  # tokenizer=123 is the folder of that name
        if values[name] is None:
            raise ValueError(
                f"Option --set must give a value, but is {word!r}. Leave it out to keep the recipe's own."
            )
    return values


def _kind(recipe: str | None) -> Any:
    """Settings class of a recipe, where one is named."""
    from qnnkit import recipes

    return None if recipe is None else recipes.find(recipe).Settings


def _tell_data(begun: Any) -> None:
    """What the run's images were found to be."""
    for note in begun.splits.notes:
        typer.echo(f"Note: {note}")
    if "batch_size" in begun.provenance:
        typer.echo(f"Batch size: {begun.config.batch_size}, measured when the run began.")


def _write_study(folder: Path) -> None:
    """Writes what a batch shows, tells it, and where it is."""
    from qnnkit import report as reports

    study = reports.write_study(folder)
    if study is not None:
        told = f"{study.finished} of {study.planned} runs" if study.left_out else f"{study.planned} runs"
        typer.echo(f"\nStudy of {told}:")
        for sentence in reports.conclusions(reports.comparisons(study.frame, study.score)[0], study.score):
            typer.echo(f"- {sentence}")
        for note in study.notes:
            typer.echo(f"Note: {note}")
        typer.echo(f"\nStudy: {folder / 'study'}")
    typer.echo(f"Report: {reports.write_batch_page(folder)}")


def _judged_anew(begun: Any, result: dict[str, Any]) -> dict[str, Any]:
    """The result, written again where the run has since been given other bounds."""
    from qnnkit import report as reports

    def bounds(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {row["criterion"]: row["bound"] for row in rows}

    same = bounds(reports.judge(begun)) == bounds(result.get("criteria", []))
    return result if same else reports.finish(begun)


def _print_result(begun: Any, result: dict[str, Any]) -> None:
    from qnnkit import report as reports

    typer.echo(f"\n{reports.table(result['nets'], begun.score).to_string()}\n")
    for sentence in result["verdicts"]:
        typer.echo(sentence)
    for row in reports.judge(begun):
        typer.echo(f"{row['criterion']}: {row['sentence']}")
    kept = workspace.remote_of(begun.folder) or begun.folder  # on Drive, where runs are worked on elsewhere
    typer.echo(f"\nReport: {kept / begun.report.name}")

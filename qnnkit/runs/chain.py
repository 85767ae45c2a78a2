"""The main job: notebooks 00 to 04b, one after the other, through the run folder."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnkit import checks, warm, words
from qnnkit.runs.folder import Run, now, without_places
from qnnkit.runs.launch import check_parameters, declared, find_notebook, launch, replaced
from qnnkit.runs.lock import alone, mirrored
from qnnkit.runs.opening import asked_of_kernels
from qnnkit.runs.rows import Followed
from qnnkit.runs.trainings import Stopped, stopped_in

ANALYZE, INSIDE = "04_analyze", "04b_inside"
"""The notebook that writes report and result, and the one that adds to them."""
NOTEBOOKS = ("00_setup", "01_sample_data", "02_gradient_check", "03_train", ANALYZE, INSIDE)


def chosen(names: str | None) -> tuple[str, ...]:
    """The notebooks of a run that are named, such as "03_train,04_analyze", in their order; all of none.

    Raises:
        ValueError: A name is unknown.
    """
    asked = NOTEBOOKS if names is None else names.split(",")
    for name in asked:
        checks.choice("notebook", name, NOTEBOOKS)
    return tuple(name for name in NOTEBOOKS if name in asked)


def of_notebooks(
    given: Mapping[str, Any], settings: Collection[str], names: Collection[str] = NOTEBOOKS
) -> dict[str, Any]:
    """Those of the given values that are no settings of a run, but parameters of its notebooks.

    Args:
        given: By name.
        settings: Names of the settings of the run's recipe.
        names: Of the notebooks.

    Raises:
        TypeError: A value has another type than the notebook declares.
    """
    others = {name: value for name, value in given.items() if name not in settings}
    found = {}
    for each in names if others else ():
        notebook = find_notebook(each)
        own = {name: value for name, value in others.items() if name in declared(notebook)}
        check_parameters(notebook, own)
        found |= own
    return found


def check_finished(run: Run, parameters: Mapping[str, Any]) -> None:
    """Refuses parameters with which a notebook of the run can no longer be run.

    Raises:
        ValueError: It has finished, with another value.
    """
    parameters = json.loads(without_places(json.dumps(dict(parameters))))  # as executed copies have them
    for name in NOTEBOOKS if parameters else ():
        if not run.notebook(name).exists():
            continue
        known = declared(find_notebook(name))
        used = _used(run, name)
        for each in parameters.keys() & known.keys():
            if used.get(each, ast.literal_eval(known[each]["default"])) != parameters[each]:
                rule = f"be what {name} of this run has finished with"
                step = "Begin another run_dir, or run that notebook alone, by papermill."
                raise ValueError(checks.message(each, rule, parameters[each], step))


def run_notebooks(
    run: Run,
    echo: Callable[[str], None] = print,
    parameters: Mapping[str, Any] | None = None,
    names: Sequence[str] = NOTEBOOKS,
    finish: Callable[[Run], Any] | None = None,
) -> dict[str, Any] | None:
    """Runs what has not finished yet.

    Every notebook gets the run folder and reads its settings there, so that each agrees with config.json.

    Args:
        run: The run, as `open_run` gives it.
        echo: Called with one line per notebook and per epoch.
        parameters: Of the notebooks themselves, by name; each gets those that it declares.
        names: Of the notebooks to run.
        finish: Writes the result of a run whose nets are trained, where 04_analyze is not among them.

    Returns:
        The run's result; None where neither wrote it.

    Raises:
        NotebookError: A notebook stopped; the ones before it stay finished.
        BlockingIOError: Another process runs the notebooks of this run.
        Stopped: A person has stopped it (Ctrl-C); the message says where.
    """
    with alone(run.folder, "chain"), mirrored(run.folder, echo):
        if mine := replaced(names):
            echo(f"Taken from notebooks/ of the workspace, in place of the kit's: {', '.join(mine)}.")
        if len(names) > 1:
            warm.begin()
        for index, name in enumerate(names, start=1):
            label = f"[{index}/{len(names)}] {name}"
            due = name == ANALYZE and run.result is None  # it is its result that says that it has finished
            if run.notebook(name).exists() and not due:
                echo(f"{label}: finished before")
                continue
            start, source = time.perf_counter(), find_notebook(name)
            echo(f"{label} ...")
            with _Following(run, echo):
                given = _parameters(run, source, parameters or {})
                try:
                    launch(source, run.notebook(name), given, asked_of_kernels(run))
                except KeyboardInterrupt:
                    raise Stopped(_stopped(run, name)) from None
                except SystemExit as ended:  # of a signal
                    ended.add_note(_stopped(run, name))
                    raise
            echo(f"{label}: done in {time.perf_counter() - start:.0f} s")
        if run.result is None and ANALYZE in names:
            raise RuntimeError(f"04_analyze must write result.json, but {run.folder} has none. Run it again.")
        if run.result is None and "03_train" in names and finish is not None:
            finish(run)
    return run.result


def _stopped(run: Run, name: str) -> str:
    """Where a person has stopped a notebook: in which epoch, while it trains."""
    begun = [(row["net"], row["seed"]) for row in run.rows("metrics") if row["event"] == "begin"]
    if name != "03_train" or not begun or begun[-1] in run.tested():
        return f"Stopped in {name}. Run this again to go on from here."
    return stopped_in(run, *begun[-1])


def analyze(run: Run, echo: Callable[[str], None] = print) -> Any:
    """Executes 04_analyze of a trained run anew, with the parameters it had: report, figures and result.

    Raises:
        NotebookError: The notebook stopped; the earlier page stays.
        BlockingIOError: Another process runs the notebooks of this run.
    """
    name = ANALYZE
    with alone(run.folder, "chain"), mirrored(run.folder, echo):
        source = find_notebook(name)
        used = _used(run, name) if run.notebook(name).exists() else {}
        launch(source, run.notebook(name), _parameters(run, source, used), asked_of_kernels(run))
    return run.result


def _used(run: Run, name: str) -> dict[str, Any]:
    """The parameters with which a notebook of the run was executed."""
    return json.loads(run.notebook(name).read_bytes())["metadata"]["papermill"]["parameters"]


def logged(run: Run, echo: Callable[[str], None]) -> Callable[[str], None]:
    """`echo`, which also adds what it is told to run.log in the run folder, with the time."""

    def tell(text: str = "") -> None:
        with contextlib.suppress(OSError), (run.folder / "run.log").open("a", encoding="utf-8") as file:
            lines = without_places(text).splitlines()
            file.write("".join(f"{now()}  {line}\n" for line in lines if line))
            if os.path.sameopenfile(file.fileno(), 1):
                return  # a batch sends there what its runs print: it would stand there twice
        echo(text)

    return tell


def finished(run: Run) -> dict[str, Any] | None:
    """The result of a run that is done, else None.

    What a kill left to be done is done: the last notebook gets its name, and Drive what it lacks.
    """
    result, last = run.result, run.notebook(ANALYZE)
    if result is None:
        return None
    running = last.with_suffix(".running.ipynb")
    with mirrored(run.folder):
        if running.exists():
            with contextlib.suppress(BlockingIOError), alone(run.folder, "chain", wait=0):
                running.replace(last)
    return result


def _parameters(run: Run, notebook: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """What a notebook declares of the run's settings and its own; the rest it reads from the run folder."""
    values: dict[str, Any] = {**own, "recipe": run.config.recipe, "run_dir": str(run.folder)}
    values |= {"device": run.config.device, "backend": run.config.backend}
    values |= {"data_dir": getattr(run.config, "data_dir", None)}
    return {name: value for name, value in values.items() if name in declared(notebook) and value is not None}


def epoch_line(run: Run, row: dict[str, Any]) -> str:
    """A row of metrics.jsonl for people, of an epoch or of the test of a trained net."""
    score, whose = run.score, f"{row['net']:<17} seed {row['seed']}"
    if "best_epoch" in row:
        reached = f"{score.column}: {score.tell(row[f'test_{score.name}'])}"
        peak = words.size(row["peak_memory"])
        return f"{whose}  {reached}, best epoch {row['best_epoch']}, peak memory {peak}"
    epoch = f"{row['epoch']:>3}/{run.config.epochs}"
    name = score.on_validation
    told = f"{name} {score.tell(row[f'validation_{name}'])}{' %' * (score.factor == 100)}"
    speed = f", {row['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in row else ""
    if row.get("updates"):
        speed += f", {words.duration(row['epoch'] * row['seconds'] / row['updates'])} per batch"
    return (
        f"{whose}  epoch {epoch}  loss {row['train_loss']:.3f}  "
        f"validation {told}  {row['seconds']:.2f} s{speed}"
    )


class _Following:
    """Echoes where a run is placed, each epoch and each word of its machine, while a kernel writes them."""

    def __init__(self, run: Run, echo: Callable[[str], None]):
        self.run, self.echo, self.done = run, echo, threading.Event()
        self.rows, self.placed = Followed(run.folder), run.placement.get("sentence")
        self.rows.look()
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _follow(self) -> None:
        while not self.done.wait(0.5):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        placed = self.run.placement.get("sentence")
        if placed != self.placed:
            self.placed = placed
            self.echo(f"      {placed}")
        for row in self.rows.look():
            if row["event"] in ("epoch", "test"):
                self.echo(f"      {epoch_line(self.run, row)}")

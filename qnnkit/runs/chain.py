"""The main job: notebooks 00 to 04b, one after the other, through the run folder; and how one is launched.

A launch is strict: every parameter must be declared in the notebook, with that type, or nothing runs.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from traitlets.config import Config

import qnnkit
from qnnkit import checks, warm, words, workspace
from qnnkit.runs.folder import Run, now, without_places
from qnnkit.runs.lock import alone, mirrored
from qnnkit.runs.rows import Followed
from qnnkit.runs.trainings import stopping

ANALYZE, INSIDE = "04_analyze", "04b_inside"
"""The notebook that writes report and result, and the one that adds to them."""
NOTEBOOKS = ("00_setup", "01_sample_data", "02_gradient_check", "03_train", ANALYZE, INSIDE)
TYPES: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list}
START_TIMEOUT = 300
"""Seconds that a kernel has to start; papermill's own 60 are too few where many start at once."""
ANNOUNCED = "QNNKIT_NOTEBOOK"
"""Environment variable of a kernel: the file to which the executed copy of its notebook is written."""
STOP_TIMEOUT = 60.0
"""Seconds that a kernel has to finish its step and save it; Jupyter's own 5 are too few."""


class NotebookError(RuntimeError):
    """A notebook stopped; the message is the sentence it stopped with."""


# --- the notebooks of a run ---------------------------------------------------------------------------------


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
    others, parameters = {name: given[name] for name in given if name not in settings}, {}
    for notebook in map(find_notebook, names if others else ()):
        declares = declared(notebook)
        parameters |= (own := {name: value for name, value in others.items() if name in declares})
        check_parameters(notebook, own)
    return parameters


def check_finished(run: Run, parameters: Mapping[str, Any]) -> None:
    """Refuses values with which a notebook of the run, executed with others, would not be run again.

    Raises:
        ValueError: There is one.
    """
    given = json.loads(without_places(json.dumps(dict(parameters))))  # as executed copies have them
    for name in NOTEBOOKS if given else ():
        copy, known = workspace.read_json(run.notebook(name)), declared(find_notebook(name))
        used = copy["metadata"]["papermill"]["parameters"] if copy else given
        for each in given.keys() & known.keys():
            if used.get(each, ast.literal_eval(known[each]["default"])) != given[each]:
                rule = f"be what {name} of this run has finished with"
                step = "Begin another run_dir, or run that notebook alone, by papermill."
                raise ValueError(checks.message(each, rule, given[each], step))


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
            start = time.perf_counter()
            echo(f"{label} ...")
            with stopping(run, name), _followed(run, echo):
                _execute(run, name, parameters or {})
            echo(f"{label}: done in {time.perf_counter() - start:.0f} s")
        if run.result is None and ANALYZE in names:
            raise RuntimeError(f"04_analyze must write result.json, but {run.folder} has none. Run it again.")
        if run.result is None and "03_train" in names and finish is not None:
            finish(run)
    return run.result


def analyze(run: Run, echo: Callable[[str], None] = print) -> Any:
    """Executes 04_analyze of a trained run again, with the parameters it had: report, figures and result.

    Raises:
        NotebookError: The notebook stopped; the earlier page stays.
        BlockingIOError: Another process runs the notebooks of this run.
    """
    before = workspace.read_json(run.notebook(ANALYZE)) or {"metadata": {"papermill": {"parameters": {}}}}
    with alone(run.folder, "chain"), mirrored(run.folder, echo):
        _execute(run, ANALYZE, before["metadata"]["papermill"]["parameters"])
    return run.result


def _execute(run: Run, name: str, own: Mapping[str, Any]) -> None:
    """Launches a notebook with what it declares of its own parameters and of the run's settings."""
    source, config = find_notebook(name), run.config
    values = {**own, "recipe": config.recipe, "run_dir": str(run.folder), "device": config.device}
    values |= {"backend": config.backend, "data_dir": getattr(config, "data_dir", None)}
    known = declared(source)
    given = {name: value for name, value in values.items() if name in known and value is not None}
    launch(source, run.notebook(name), given)


def logged(run: Run, echo: Callable[[str], None]) -> Callable[[str], None]:
    """`echo`, which also adds each line, with the time, to run.log in the run folder."""

    def tell(text: str = "") -> None:
        with contextlib.suppress(OSError), (run.folder / "run.log").open("a", encoding="utf-8") as file:
            file.writelines(f"{now()}  {line}\n" for line in without_places(text).splitlines() if line)
            if os.path.sameopenfile(file.fileno(), 1):
                return  # a batch sends there what its runs print
        echo(text)

    return tell


def finished(run: Run) -> dict[str, Any] | None:
    """The result of a run that is done, else None; Drive gets what it lacks of it."""
    if run.result is not None:
        with mirrored(run.folder):
            pass
    return run.result


def epoch_line(run: Run, row: dict[str, Any]) -> str:
    """A row of metrics.jsonl for people; of the beginning, where the nets are trained."""
    score, whose = run.score, f"{row['net']:<17} seed {row['seed']}"
    if row["event"] == "begin":
        return run.provenance.get("trained", {}).get("sentence", "")
    if row["event"] == "test":
        reached = f"{score.column}: {score.tell(row[f'test_{score.name}'])}"
        peak = words.size(row["peak_memory"])
        return f"{whose}  {reached}, best epoch {row['best_epoch']}, peak memory {peak}"
    if row["event"] != "epoch":
        return ""
    name = score.on_validation
    reached = f"{name} {score.tell(row[f'validation_{name}'])}{' %' * (score.factor == 100)}"
    return (
        f"{whose}  epoch {row['epoch']:>3}/{run.config.epochs}  loss {row['train_loss']:.3f}  "
        f"validation {reached}  {row['seconds']:.2f} s"
    )


@contextlib.contextmanager
def _followed(run: Run, echo: Callable[[str], None]) -> Iterator[None]:
    """Echoes where a run is trained, and each of its epochs, while a kernel writes rows."""
    rows, done = Followed(run.folder), threading.Event()
    rows.look()

    def follow() -> None:
        told, over = {""}, False
        while not over:
            over = done.wait(0.5)
            for line in [epoch_line(run, row) for row in rows.look()]:
                if line not in told:
                    told.add(line)
                    echo(f"      {line}")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# --- one notebook -------------------------------------------------------------------------------------------


def declared(notebook: Path) -> dict[str, dict[str, Any]]:
    """The parameters that a notebook's `parameters` cell declares, by name.

    Raises:
        FileNotFoundError: There is no such notebook.
    """
    import papermill

    if not notebook.is_file():
        step = "Give the path of one of the files in notebooks/."
        raise FileNotFoundError(checks.message("notebook", "be a file", str(notebook), step))
    return papermill.inspect_notebook(str(notebook))


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Refuses parameters that the notebook does not declare, or declares with another type.

    papermill itself only warns of an unknown name and enforces no type.

    Raises:
        ValueError: A name is unknown; the nearest one is offered.
        TypeError: A value has the wrong type.
    """
    known = declared(notebook)
    for name, value in parameters.items():
        checks.choice(f"parameter of {notebook.name}", name, known)
        kind, meaning = known[name]["inferred_type_name"].strip("\"'"), known[name]["help"].strip()
        optional = value is None and known[name]["default"] == "None"
        optional |= value == "auto" and '"auto"' in meaning  # a word that its own line offers
        wrong_bool = isinstance(value, bool) and kind != "bool"  # True is an int to Python, not to a person
        if not optional and (wrong_bool or not isinstance(value, TYPES.get(kind, object))):
            step = f"Its meaning: {meaning}"
            raise TypeError(checks.message(name, f"be of type {kind}", value, step))


def launch(notebook: str | Path, output: str | Path, parameters: Mapping[str, Any]) -> Path:
    """Executes a notebook with checked parameters in a fresh kernel, and keeps the executed copy.

    The kernel works in the current folder, so a relative path means the same in both.
    While it runs the copy is `<name>.running.ipynb`; it gets its own name only when every cell has finished,
    and `<name>.failed.ipynb`, with the error in it, when one has not.

    Args:
        notebook: Source, left unchanged.
        output: Where the executed copy goes.
        parameters: Values by name.

    Raises:
        ValueError: A parameter is unknown.
        TypeError: A parameter has the wrong type.
        NotebookError: A cell failed, or the kernel died.
        OSError: The executed copy cannot be written.
        KeyboardInterrupt: Ctrl-C; the kernel was given time to save what it trained.
    """
    import papermill

    notebook, output = Path(notebook), Path(output)
    check_parameters(notebook, parameters)
    workspace.make_folder(output.parent)
    running, failed = output.with_suffix(".running.ipynb"), output.with_suffix(".failed.ipynb")
    try:
        _in_a_kernel(notebook, running, parameters)
    except OSError as error:
        raise workspace.cannot_write(running, error) from None
    except papermill.PapermillExecutionError as error:
        why = f"stopped: {error.evalue} The cell and the whole trace are in {failed}."
    except RuntimeError as error:  # of Jupyter
        why = f"stopped: its kernel died or did not start, as where memory runs out ({error}). Free memory, "
        why += "raise the number of open files (`ulimit -n 1024`), or go on with --set "
        why += f"gradient_checkpointing=true. The cells before are in {failed}."
    else:
        failed.unlink(missing_ok=True)
        return _share(running).replace(output)
    if running.exists():
        _share(running).replace(failed)
    raise NotebookError(f"Notebook {notebook.name} {why}")


def _share(notebook: Path) -> Path:
    """An executed notebook, in which no path says where this machine's workspace is, or whose it is."""
    workspace.write_bytes(notebook, without_places(notebook.read_text(encoding="utf-8")).encode())
    return notebook


def _in_a_kernel(notebook: Path, running: Path, parameters: Mapping[str, Any]) -> None:
    """Executes a notebook in a thread, so that a signal here cuts nothing of Jupyter's; no kernel is left.

    Kernels speak over files in a folder of their own: two launches at once cannot take each other's.
    Jupyter's own choice is `kernel-ipc-1` and so on in the current folder, or ports; of both, two that start
    at the same moment may take the same, and then wait for each other until they give up.
    """
    import papermill
    from jupyter_core.utils import ensure_event_loop

    kernels: list[Any] = []
    options: dict[str, Any] = {"shutdown_wait_time": STOP_TIMEOUT}

    def execute(config: Config) -> None:
        with contextlib.closing(ensure_event_loop()):  # of this thread
            papermill.execute_notebook(
                str(notebook),
                str(running),
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=False,
                start_timeout=START_TIMEOUT,
                extra_arguments=["--log-level=CRITICAL"],  # its end, an interrupt, is no error to tell
                config=config,
                kernel_manager_class=_manager({ANNOUNCED: str(running.absolute())}, kernels),
            )

    with (
        tempfile.TemporaryDirectory(prefix="qnnkit-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1) as thread,
    ):
        if os.name == "posix":
            options |= {"transport": "ipc", "ip": f"{folder}/kernel"}
        executed = thread.submit(execute, Config({"KernelManager": options}))
        try:
            executed.result()
        except (KeyboardInterrupt, SystemExit):
            told, end = 0, time.monotonic() + STOP_TIMEOUT
            while not executed.done() and time.monotonic() < end:
                for kernel in kernels[told:]:  # one that trains saves its state, any other ends at once
                    kernel.terminate()
                    told += 1
                wait([executed], 0.1)
            raise
        finally:
            for kernel in kernels:
                kernel.kill()
                kernel.wait()


def _manager(variables: Mapping[str, str], kernels: list[Any]) -> type:
    """Jupyter's manager of kernels, which get these variables; they are forked where that is possible.

    Their processes are added to `kernels`.
    """
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
            env = {**options.pop("env"), **variables}
            kernel_cmd = ["qnnkit.kernel" if word == "ipykernel_launcher" else word for word in kernel_cmd]
            there: Any = self.provisioner
            if warm.ready(kernel_cmd):
                known = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
                alone = "--IPKernelApp.parent_handle=0"  # it ends with this process by itself
                there.process = warm.Forked([*kernel_cmd, alone], known | env)
                there.pid = there.pgid = there.process.pid  # its session is its own
            else:
                await super()._async_launch_kernel(kernel_cmd, env=env, **options)
            kernels.append(there.process)

    return Manager


def find_notebook(name: str) -> Path:
    """The numbered notebook `name`, such as "03_train".

    A copy in `notebooks/` of the workspace comes first, then that of the checkout that qnnkit was imported
    from, then the one that its wheel brought: `share/qnnkit/notebooks` of the environment.

    Raises:
        FileNotFoundError: There is none.
    """
    folders = _folders()
    for folder in folders:
        if (path := folder / f"{name}.ipynb").is_file():
            return path.absolute()
    step = f"Put one into `{folders[0]}`, or install qnnkit again."
    raise FileNotFoundError(checks.message("notebook", "be one that comes with qnnkit", name, step))


def _folders() -> list[Path]:
    """Where notebooks are looked for; the first is the workspace's."""
    package = Path(qnnkit.__file__).parent
    folders = [workspace.home() / "notebooks", package.parent / "notebooks"]
    return folders + [parent / "share/qnnkit/notebooks" for parent in package.parents]


def replaced(names: Iterable[str]) -> list[str]:
    """Those of the notebooks that the workspace has in place of the kit's."""
    mine, *others = _folders()  # which are one in a checkout of the kit
    return [name for name in names if mine.absolute() not in others and (mine / f"{name}.ipynb").is_file()]

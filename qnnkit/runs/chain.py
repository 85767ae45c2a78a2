"""Runs notebooks 00 to 04b of a run one after the other, and launches single notebooks.

A launch is strict: if a parameter is not declared in the notebook, or has another type, nothing runs.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import qnnkit
from qnnkit import checks, warm, workspace
from qnnkit.runs.folder import Run, now, without_places
from qnnkit.runs.lock import alone, bring, mirrored
from qnnkit.runs.trainings import stopping
from qnnkit.settings import SETTINGS

ANALYZE, INSIDE = "04_analyze", "04b_inside"
"""The notebook that writes the report and the result, and the one that adds to the report."""
NOTEBOOKS = ("00_setup", "01_sample_data", "02_gradient_check", "03_train", ANALYZE, INSIDE)
TYPES: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list}
START_TIMEOUT = 300
"""Seconds that a kernel has to start; papermill's default of 60 is too short when many start at once."""
ANNOUNCED = "QNNKIT_NOTEBOOK"
"""Environment variable of a kernel: the path at which the executed copy of its notebook is written."""
LOOK = 0.5
"""Seconds between two reads of the rows that a kernel writes."""
STOP_TIMEOUT = 60.0
"""Seconds that a kernel has to finish and save its step; Jupyter's default of 5 is too short."""


class NotebookError(RuntimeError):
    """A notebook stopped with an error; the message contains that error."""


# --- the notebooks of a run ---------------------------------------------------------------------------------


def chosen(names: str | None) -> tuple[str, ...]:
    """Returns the named notebooks of a run, such as "03_train,04_analyze", in order; all if `names` is None.

    Raises:
        ValueError: A name is unknown.
    """
    selected = NOTEBOOKS if names is None else names.split(",")
    for name in selected:
        checks.choice("notebook", name, NOTEBOOKS)
    return tuple(name for name in NOTEBOOKS if name in selected)


def of_notebooks(
    run_dir: str | Path, given: Mapping[str, Any], settings: Collection[str], names: Collection[str]
) -> dict[str, Any]:
    """Returns the given values that are parameters of a run's notebooks, not settings of its recipe.

    Args:
        run_dir: The run's folder, in which some of the notebooks may have finished.
        given: Values by name.
        settings: Names of the settings of the run's recipe.
        names: Names of the notebooks.

    Raises:
        TypeError: A value does not have the type that the notebook declares.
        ValueError: A name is unknown, or a notebook that has finished had another value.
    """
    candidates, parameters = [name for name in given if name not in settings], {}
    books = {name: declared(find_notebook(name)) for name in names} if candidates else {}
    for name in candidates:
        checks.choice("setting", name, [*settings, *(x for each in books.values() for x in each)], SETTINGS)
    bring(folder := workspace.run_folder(run_dir))
    for notebook, fields in books.items():
        used, values = _used(folder, notebook), {name: given[name] for name in candidates if name in fields}
        for name, value in [*values.items()]:
            with contextlib.suppress(ValueError, TypeError):  # 1e-3, which `--set` leaves as text
                values[name] = float(value) if fields[name]["inferred_type_name"] == "float" else value
        check_parameters(find_notebook(notebook), values)
        recorded = json.loads(without_places(json.dumps(values)))
        for name in values:
            default = ast.literal_eval(fields[name]["default"])
            if used is not None and used.get(name, default) != recorded[name]:
                rule = f"be the value with which {notebook} of this run finished"
                step = "Use another run_dir, or run that notebook alone with papermill."
                raise ValueError(checks.message(name, rule, values[name], step))
        parameters |= values
    return parameters


def run_notebooks(
    run: Run,
    echo: Callable[[str], None] = print,
    parameters: Mapping[str, Any] | None = None,
    names: Sequence[str] = NOTEBOOKS,
    finish: Callable[[Run], Any] | None = None,
) -> dict[str, Any] | None:
    """Runs the notebooks that have not finished yet.

    Every notebook gets the run folder and reads its settings there, so that all agree with config.json.

    Args:
        run: The run, as `open_run` returns it.
        echo: Called with one line per notebook and per epoch.
        parameters: Parameters of the notebooks, by name; each notebook gets those that it declares.
        names: Names of the notebooks to run.
        finish: Writes the result of a run whose nets are trained, if 04_analyze is not among `names`.

    Returns:
        The run's result; None if nothing has written it.

    Raises:
        NotebookError: A notebook stopped; the ones before it stay finished.
        BlockingIOError: Another process runs the notebooks of this run.
        Stopped: The user stopped it (Ctrl-C); the message says where.
    """
    with alone(run.folder, "chain"), mirrored(run.folder):
        shipped = _folders()[1:]
        if replaced := [name for name in names if find_notebook(name).parent not in shipped]:
            echo(f"Using notebooks/ of the workspace instead of the shipped {', '.join(replaced)}.")
        for index, name in enumerate(names, start=1):
            label = f"[{index}/{len(names)}] {name}"
            due = name == ANALYZE and run.result is None  # only its result shows that it has finished
            if run.notebook(name).exists() and not due:
                echo(f"{label}: finished before")
                continue
            start = time.perf_counter()
            echo(f"{label} ...")
            with stopping(run, name):
                _execute(run, name, parameters or {}, _following(run, echo))
            echo(f"{label}: done in {time.perf_counter() - start:.0f} s")
        if run.result is None and "03_train" in names and finish is not None:
            finish(run)
    return run.result


def analyze(run: Run) -> Any:
    """Executes 04_analyze of a trained run again, with its earlier parameters: report, figures and result.

    Raises:
        NotebookError: The notebook stopped; the earlier report stays.
    """
    with alone(run.folder, "chain"), mirrored(run.folder):
        _execute(run, ANALYZE, _used(run.folder, ANALYZE) or {}, lambda: None)
    return run.result


def _used(folder: Path, name: str) -> Any:
    """Returns the parameters with which a notebook of a run finished; None if it has not finished."""
    copy = workspace.read_json(folder / "notebooks" / f"{name}.ipynb")
    return copy and copy["metadata"]["papermill"]["parameters"]


def _execute(run: Run, name: str, parameters: Mapping[str, Any], follow: Callable[[], None]) -> None:
    """Launches a notebook with those of the parameters that it declares; settings are in config.json."""
    source = find_notebook(name)
    fields, values = declared(source), {**parameters, "recipe": run.config.recipe, "run_dir": str(run.folder)}
    launch(source, run.notebook(name), {key: values[key] for key in values if key in fields}, follow)


def logged(run: Run, echo: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a version of `echo` that also adds each line, with the time, to run.log in the run folder."""

    def echo_and_log(text: str = "") -> None:
        with contextlib.suppress(OSError), (run.folder / "run.log").open("a", encoding="utf-8") as file:
            file.writelines(f"{now()}  {line}\n" for line in without_places(text).splitlines() if line)
            if os.path.sameopenfile(file.fileno(), 1):
                return  # a batch redirects the output of its runs to this file
        echo(text)

    return echo_and_log


def finished(run: Run) -> dict[str, Any] | None:
    """Returns the result of a finished run, else None; completes the copy on Drive."""
    if run.result is not None and workspace.remote_of(run.folder) is not None:
        with mirrored(run.folder):
            pass
    return run.result


def epoch_line(run: Run, row: Mapping[str, Any]) -> str:
    """Returns a row of metrics.jsonl as a line of text, "" for a step, for "begin" where nets are trained."""
    score, whose = run.score, f"{row['net']:<17} seed {row['seed']}"
    if row["event"] == "begin":
        return run.provenance.get("trained", {}).get("sentence", "")
    if row["event"] == "warning":
        return f"{whose}  {row['sentence']}"
    if row["event"] == "test":
        reached = score.tell(row[f"test_{score.name}"])
        return f"{whose}  {score.column}: {reached}, best epoch {row['best_epoch']}"
    if row["event"] != "epoch":
        return ""
    name = score.on_validation
    reached = f"{name} {score.tell(row[f'validation_{name}'])}{' %' * (score.factor == 100)}"
    return (
        f"{whose}  epoch {row['epoch']:>3}/{run.config.epochs}  loss {row['train_loss']:.3f}  "
        f"validation {reached}  {row['seconds']:.2f} s"
    )


def _following(run: Run, echo: Callable[[str], None]) -> Callable[[], None]:
    """Returns a function that echoes what another process has trained since the last call."""
    echoed, seen = {""}, len(run.rows("metrics"))

    def follow() -> None:
        nonlocal seen
        rows = run.rows("metrics")
        for line in [epoch_line(run, row) for row in rows[seen:]]:
            if line not in echoed:
                echoed.add(line)
                echo(f"      {line}")
        seen = len(rows)

    return follow


# --- one notebook -------------------------------------------------------------------------------------------


def declared(notebook: Path) -> dict[str, dict[str, Any]]:
    """Returns the parameters that a notebook's `parameters` cell declares, by name."""
    import papermill

    return papermill.inspect_notebook(str(notebook))


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Checks what papermill does not: the notebook must declare every parameter, with the value's type.

    Raises:
        ValueError: A name is unknown; the message suggests the nearest one.
        TypeError: A value has the wrong type.
    """
    fields = declared(notebook)
    for name, value in parameters.items():
        checks.choice(f"parameter of {notebook.name}", name, fields)
        kind, meaning = fields[name]["inferred_type_name"].strip("\"'"), fields[name]["help"].strip()
        optional = value is None and fields[name]["default"] == "None"
        optional |= value == "auto" and '"auto"' in meaning  # allowed by the comment on its line
        wrong_bool = isinstance(value, bool) and kind != "bool"  # True is an int to Python, not to a person
        if not optional and (wrong_bool or not isinstance(value, TYPES.get(kind, object))):
            step = f"It means: {meaning}."
            raise TypeError(checks.message(name, f"be of type {kind}", value, step))


def launch(
    notebook: str | Path,
    output: str | Path,
    parameters: Mapping[str, Any],
    follow: Callable[[], None] = lambda: None,
) -> Path:
    """Executes a notebook with checked parameters in a fresh kernel; returns the path of the executed copy.

    The kernel works in the current folder. While it runs, the copy is called `<name>.running.ipynb`. It gets
    its final name when every cell has finished; otherwise it becomes `<name>.failed.ipynb`, with the error.

    Args:
        notebook: The source, which is not changed.
        output: Path of the executed copy.
        parameters: Values by name.
        follow: Called twice a second while the notebook runs, and once at its end.

    Raises:
        ValueError: A parameter is unknown.
        TypeError: A parameter has the wrong type.
        NotebookError: A cell failed, or the kernel died.
        OSError: The notebook cannot be read, or the executed copy cannot be written.
        KeyboardInterrupt: Ctrl-C; the kernel had time to save what it trained.
    """
    import papermill

    notebook, output = Path(notebook), Path(output)
    check_parameters(notebook, parameters)
    workspace.make_folder(output.parent)
    running, failed = output.with_suffix(".running.ipynb"), output.with_suffix(".failed.ipynb")
    try:
        with workspace.writing(running):
            _in_a_kernel(notebook, running, parameters, follow)
    except papermill.PapermillExecutionError as error:
        why = f"stopped: {error.evalue} The cell and the full traceback are in {failed}."
    except RuntimeError as error:  # raised by Jupyter
        why = f"stopped: its kernel died or did not start, perhaps out of memory ({error}). Free memory, "
        why += "raise the limit of open files (`ulimit -n 1024`), or use --set gradient_checkpointing=true. "
        why += f"The earlier cells are in {failed}."
    else:
        failed.unlink(missing_ok=True)
        return _share(running).replace(output)
    if running.exists():
        _share(running).replace(failed)
    raise NotebookError(f"Notebook {notebook.name} {why}")


def _share(notebook: Path) -> Path:
    """Removes the paths of this machine's workspace and home folder from an executed notebook."""
    workspace.write_bytes(notebook, without_places(notebook.read_text(encoding="utf-8")).encode())
    return notebook


def _in_a_kernel(
    notebook: Path, running: Path, parameters: Mapping[str, Any], follow: Callable[[], None]
) -> None:
    """Executes a notebook in a thread, so that a signal here does not interrupt Jupyter; leaves no kernel.

    A kernel communicates over files in a folder of its own. With Jupyter's defaults (`kernel-ipc-1` and so on
    in the current folder, or ports), two simultaneous launches may choose the same and wait for each other.
    """
    import papermill
    from jupyter_core.utils import ensure_event_loop

    kernels: list[Any] = []

    def execute(manager: type) -> None:
        with contextlib.closing(ensure_event_loop()):  # this thread's
            papermill.execute_notebook(
                str(notebook),
                str(running),
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=False,
                start_timeout=START_TIMEOUT,
                extra_arguments=["--log-level=CRITICAL"],  # an interrupt ends it, which is not an error
                kernel_manager_class=manager,
            )

    temporary = tempfile.TemporaryDirectory(prefix="qnnkit-", dir=warm.sockets(), ignore_cleanup_errors=True)
    with temporary as folder, ThreadPoolExecutor(1) as thread:
        execution = thread.submit(execute, _manager(folder, running, kernels))
        try:
            while not wait([execution], LOOK).done:
                follow()
            follow()
            execution.result()
        except (KeyboardInterrupt, SystemExit):
            n_ended, end = 0, time.monotonic() + STOP_TIMEOUT
            while not execution.done() and time.monotonic() < end:
                for kernel in kernels[n_ended:]:  # a kernel that trains saves its state, others end at once
                    kernel.terminate()
                    n_ended += 1
                wait([execution], 0.1)
            raise
        finally:
            for kernel in kernels:
                kernel.kill()
                kernel.wait()


def _manager(folder: str, running: Path, kernels: list[Any]) -> type:
    """Returns a Jupyter kernel manager that forks kernels if possible and adds them to `kernels`."""
    from jupyter_client.manager import AsyncKernelManager

    options = {"shutdown_wait_time": STOP_TIMEOUT, "transport": "ipc", "ip": f"{folder}/kernel"}

    class Manager(AsyncKernelManager):
        def __init__(self, **arguments: Any):
            super().__init__(**arguments, **options)

        async def _async_launch_kernel(self, kernel_cmd: list[str], **arguments: Any) -> None:
            env = {**arguments.pop("env"), ANNOUNCED: str(running.absolute())}
            kernel_cmd = ["qnnkit.kernel" if word == "ipykernel_launcher" else word for word in kernel_cmd]
            provisioner: Any = self.provisioner
            if warm.ready(kernel_cmd):
                inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
                no_parent = "--IPKernelApp.parent_handle=0"  # a forked kernel watches this process itself
                process = provisioner.process = warm.Forked([*kernel_cmd, no_parent], inline | env)
                provisioner.pid = provisioner.pgid = process.pid  # it leads its own session
            else:
                await super()._async_launch_kernel(kernel_cmd, env=env, **arguments)
            kernels.append(provisioner.process)

    return Manager


def find_notebook(name: str) -> Path:
    """Returns the path of the notebook `name`, such as "03_train".

    A copy in `notebooks/` of the workspace comes first, then that of the checkout or wheel of qnnkit.

    Raises:
        FileNotFoundError: No folder has it.
    """
    folders = _folders()
    for folder in folders:
        if (path := folder / f"{name}.ipynb").is_file():
            return path.absolute()
    step = f"Put one into `{folders[0]}`, or install qnnkit again."
    raise FileNotFoundError(checks.message("notebook", "be one that comes with qnnkit", name, step))


def _folders() -> list[Path]:
    """Returns the folders that may hold notebooks, the workspace's first."""
    package = Path(qnnkit.__file__).parent
    folders = [workspace.home() / "notebooks", package.parent / "notebooks"]
    return folders + [parent / "share/qnnkit/notebooks" for parent in package.parents]

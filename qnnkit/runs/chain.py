"""The main job: notebooks 00 to 04b, one after the other, through the run folder; and how one is launched.

A launch is strict: every parameter must be declared in the notebook, with that type, or nothing runs.
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

ANALYZE, INSIDE = "04_analyze", "04b_inside"
"""The notebook that writes report and result, and the one that adds to them."""
NOTEBOOKS = ("00_setup", "01_sample_data", "02_gradient_check", "03_train", ANALYZE, INSIDE)
TYPES: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list}
START_TIMEOUT = 300
"""Seconds that a kernel has to start; papermill's own 60 are too few where many start at once."""
ANNOUNCED = "QNNKIT_NOTEBOOK"
"""Environment variable of a kernel: the file to which the executed copy of its notebook is written."""
LOOK = 0.5
"""Seconds between two looks at the rows that a kernel writes."""
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
    run_dir: str | Path, given: Mapping[str, Any], settings: Collection[str], names: Collection[str]
) -> dict[str, Any]:
    """Those of the given values that are no settings of a run, but parameters of its notebooks.

    Args:
        run_dir: The run's folder, in which some of the notebooks may have finished.
        given: By name.
        settings: Names of the settings of the run's recipe.
        names: Of the notebooks.

    Raises:
        TypeError: A value has another type than the notebook declares.
        ValueError: A notebook that has finished had another value, and would not be executed again.
    """
    others, parameters = {name: given[name] for name in given if name not in settings}, {}
    bring(folder := workspace.run_folder(run_dir))
    for name in names if others else ():
        known, used = declared(find_notebook(name)), _used(folder, name)
        own = {each: others[each] for each in others if each in known}
        for each in own:
            with contextlib.suppress(ValueError, TypeError):  # 1e-3, which `--set` leaves as it is written
                own[each] = float(own[each]) if known[each]["inferred_type_name"] == "float" else own[each]
        check_parameters(find_notebook(name), own)
        as_kept = json.loads(without_places(json.dumps(own)))
        for each in own:
            default = ast.literal_eval(known[each]["default"])
            if used is not None and used.get(each, default) != as_kept[each]:
                rule = f"be what {name} of this run has finished with"
                step = "Begin another run_dir, or run that notebook alone, by papermill."
                raise ValueError(checks.message(each, rule, own[each], step))
        parameters |= own
    return parameters


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
    with alone(run.folder, "chain"), mirrored(run.folder):
        kits = _folders()[1:]
        if mine := [name for name in names if find_notebook(name).parent not in kits]:
            echo(f"Taken from notebooks/ of the workspace, in place of the kit's: {', '.join(mine)}.")
        for index, name in enumerate(names, start=1):
            label = f"[{index}/{len(names)}] {name}"
            due = name == ANALYZE and run.result is None  # it is its result that says that it has finished
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
    """Executes 04_analyze of a trained run again, with the parameters it had: report, figures and result.

    Raises:
        NotebookError: The notebook stopped; the earlier page stays.
    """
    with alone(run.folder, "chain"), mirrored(run.folder):
        _execute(run, ANALYZE, _used(run.folder, ANALYZE) or {})
    return run.result


def _used(folder: Path, name: str) -> Any:
    """The parameters that a notebook of a run has finished with; None where it has not."""
    copy = workspace.read_json(folder / "notebooks" / f"{name}.ipynb")
    return copy and copy["metadata"]["papermill"]["parameters"]


def _execute(run: Run, name: str, own: Mapping[str, Any], follow: Callable[[], None] = lambda: None) -> None:
    """Launches a notebook with what it declares of its own parameters; settings are in config.json."""
    source = find_notebook(name)
    known, values = declared(source), {**own, "recipe": run.config.recipe, "run_dir": str(run.folder)}
    launch(source, run.notebook(name), {each: values[each] for each in values if each in known}, follow)


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


def epoch_line(run: Run, row: Mapping[str, Any]) -> str:
    """A row of metrics.jsonl for people; of the beginning, where the nets are trained."""
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
    """A function that echoes what another process has trained since it was last called."""
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
    """The parameters that a notebook's `parameters` cell declares, by name."""
    import papermill

    return papermill.inspect_notebook(str(notebook))


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Refuses what papermill does not: a parameter that the notebook lacks, or declares with another type.

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
            step = f"It means: {meaning}."
            raise TypeError(checks.message(name, f"be of type {kind}", value, step))


def launch(
    notebook: str | Path,
    output: str | Path,
    parameters: Mapping[str, Any],
    follow: Callable[[], None] = lambda: None,
) -> Path:
    """Executes a notebook with checked parameters in a fresh kernel, and keeps the executed copy.

    The kernel works in the current folder. While it runs the copy is `<name>.running.ipynb`; it gets its own
    name when every cell has finished, or is `<name>.failed.ipynb`, with the error in it.

    Args:
        notebook: Source, left unchanged.
        output: Where the executed copy goes.
        parameters: Values by name.
        follow: Called twice a second meanwhile, and in the end.

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
        with workspace.writing(running):
            _in_a_kernel(notebook, running, parameters, follow)
    except papermill.PapermillExecutionError as error:
        why = f"stopped: {error.evalue} The cell and the whole trace are in {failed}."
    except RuntimeError as error:  # of Jupyter
        why = f"stopped: its kernel died or did not start, as where memory runs out ({error}). Free memory, "
        why += "raise the number of open files (`ulimit -n 1024`), or use --set gradient_checkpointing=true. "
        why += f"The cells before are in {failed}."
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


def _in_a_kernel(
    notebook: Path, running: Path, parameters: Mapping[str, Any], follow: Callable[[], None]
) -> None:
    """Executes a notebook in a thread, so that a signal here cuts nothing of Jupyter's; no kernel is left.

    Kernels speak over files in a folder of their own. Of Jupyter's own choices, `kernel-ipc-1` and so on in
    the current folder, or ports, two launches at the same moment may take the same and wait for each other.
    """
    import papermill
    from jupyter_core.utils import ensure_event_loop

    kernels: list[Any] = []

    def execute(manager: type) -> None:
        with contextlib.closing(ensure_event_loop()):  # of this thread
            papermill.execute_notebook(
                str(notebook),
                str(running),
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=False,
                start_timeout=START_TIMEOUT,
                extra_arguments=["--log-level=CRITICAL"],  # its end, an interrupt, is no error to tell
                kernel_manager_class=manager,
            )

    with (
        tempfile.TemporaryDirectory(prefix="qnnkit-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1) as thread,
    ):
        executed = thread.submit(execute, _manager(folder, running, kernels))
        try:
            while not wait([executed], LOOK).done:
                follow()
            follow()
            executed.result()
        except (KeyboardInterrupt, SystemExit):
            asked, end = 0, time.monotonic() + STOP_TIMEOUT
            while not executed.done() and time.monotonic() < end:
                for kernel in kernels[asked:]:  # one that trains saves its state, any other ends at once
                    kernel.terminate()
                    asked += 1
                wait([executed], 0.1)
            raise
        finally:
            for kernel in kernels:
                kernel.kill()
                kernel.wait()


def _manager(folder: str, running: Path, kernels: list[Any]) -> type:
    """Jupyter's manager of kernels, which are forked where that is possible; they are added to `kernels`."""
    from jupyter_client.manager import AsyncKernelManager

    options: dict[str, Any] = {"shutdown_wait_time": STOP_TIMEOUT}
    if os.name == "posix":
        options |= {"transport": "ipc", "ip": f"{folder}/kernel"}

    class Manager(AsyncKernelManager):
        def __init__(self, **known: Any):
            super().__init__(**known, **options)

        async def _async_launch_kernel(self, kernel_cmd: list[str], **known: Any) -> None:
            env = {**known.pop("env"), ANNOUNCED: str(running.absolute())}
            kernel_cmd = ["qnnkit.kernel" if word == "ipykernel_launcher" else word for word in kernel_cmd]
            there: Any = self.provisioner
            if warm.ready(kernel_cmd):
                inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
                alone = "--IPKernelApp.parent_handle=0"  # it ends with this process by itself
                there.process = warm.Forked([*kernel_cmd, alone], inline | env)
                there.pid = there.pgid = there.process.pid  # its session is its own
            else:
                await super()._async_launch_kernel(kernel_cmd, env=env, **known)
            kernels.append(there.process)

    return Manager


def find_notebook(name: str) -> Path:
    """The numbered notebook `name`, such as "03_train".

    A copy in `notebooks/` of the workspace comes first, then that of the checkout or wheel of qnnkit.

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

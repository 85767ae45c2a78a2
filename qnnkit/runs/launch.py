"""Launch a notebook strictly: every parameter must be declared there, with that type, or nothing runs."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from traitlets.config import Config

import qnnkit
from qnnkit import checks, warm, workspace
from qnnkit.device import launch_environment
from qnnkit.runs.folder import without_places
from qnnkit.train.stop import SIGNALS

TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "list": list,
}

START_TIMEOUT = 300
"""Seconds that a kernel has to start; papermill's own 60 are too few where many start at once."""
ANNOUNCED = "QNNKIT_NOTEBOOK"
"""Environment variable of a kernel: the file to which the executed copy of its notebook is written."""
STOP_TIMEOUT = 60.0
"""Seconds that an interrupted kernel has to finish its step and save it; Jupyter's own 5 are too few."""


class NotebookError(RuntimeError):
    """A notebook stopped; the message is the sentence it stopped with."""


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
        if name not in known:
            checks.choice(f"parameter of {notebook.name}", name, known)
        kind = known[name]["inferred_type_name"].strip("\"'")
        meaning = known[name]["help"].strip()
        optional = value is None and known[name]["default"] == "None"
        optional |= value == "auto" and '"auto"' in meaning  # a word that its own line offers
        wrong_bool = isinstance(value, bool) and kind != "bool"  # True is an int to Python, not to a person
        if not optional and (wrong_bool or not isinstance(value, TYPES.get(kind, object))):
            step = f"Its meaning: {meaning}"
            raise TypeError(checks.message(name, f"be of type {kind}", value, step))


def launch(
    notebook: str | Path,
    output: str | Path,
    parameters: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Executes a notebook with checked parameters in a fresh kernel, and keeps the executed copy.

    The kernel works in the current folder, so a relative path means the same in both.
    While it runs the copy is `<name>.running.ipynb`; it gets its own name only when every cell has finished,
    and `<name>.failed.ipynb`, with the error in it, when one has not.

    Args:
        notebook: Source, left unchanged.
        output: Where the executed copy goes.
        parameters: Values by name.
        environment: Variables that the kernel gets in addition to those of this process.

    Raises:
        ValueError: A parameter is unknown.
        TypeError: A parameter has the wrong type.
        NotebookError: A cell failed, or the kernel died.
        OSError: The executed copy cannot be written.
        KeyboardInterrupt: Ctrl-C; the kernel was given time to save what it trained.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError

    notebook, output = Path(notebook), Path(output)
    check_parameters(notebook, parameters)
    workspace.make_folder(output.parent)
    running, failed = output.with_suffix(".running.ipynb"), output.with_suffix(".failed.ipynb")
    usual = {name: os.environ.get(name, value) for name, value in launch_environment().items()}
    variables = {**usual, ANNOUNCED: str(running.absolute()), **(environment or {})}
    try:
        with _kernels(variables) as kernels, _heard_between_tasks():
            papermill.execute_notebook(
                str(notebook),
                str(running),
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=False,
                start_timeout=START_TIMEOUT,
                extra_arguments=["--log-level=CRITICAL"],  # its end, an interrupt, is no error to tell
                **kernels,
            )
    except OSError as error:
        raise workspace.cannot_write(running, error) from None
    except (papermill.PapermillExecutionError, RuntimeError) as error:
        if isinstance(error, papermill.PapermillExecutionError):
            why = f"stopped: {error.evalue} The cell and the whole trace are in {failed}."
        elif isinstance(error, DeadKernelError):
            why = (
                "stopped: its kernel died, as it does when memory runs out. Go on with --set "
                "gradient_checkpointing=true, or begin another run_dir with a smaller batch_size or "
                f"image_size. The cells before are in {failed}."
            )
        else:  # jupyter_client's, of a kernel that does not come up
            why = (
                f"cannot begin: {error}. Free memory, raise the number of open files (`ulimit -n 1024`), "
                "and run the same command again."
            )
        if running.exists():
            _share(running).replace(failed)
        raise NotebookError(f"Notebook {notebook.name} {why}") from None
    failed.unlink(missing_ok=True)
    return _share(running).replace(output)


def _share(notebook: Path) -> Path:
    """An executed notebook, in which no path says where this machine's workspace is, or whose it is."""
    workspace.write_bytes(notebook, without_places(notebook.read_text(encoding="utf-8")).encode())
    return notebook


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
    mine, *others = _folders()
    if mine.absolute() in others:  # in a checkout of the kit
        return []
    return [name for name in names if (mine / f"{name}.ipynb").is_file()]


def _manager(variables: Mapping[str, str], begun: list[Any]) -> type:
    """Jupyter's manager of kernels, which get these variables; they are forked where that is possible.

    Their processes are added to `begun`.
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
            begun.append(there.process)

    return Manager


@contextlib.contextmanager
def _heard_between_tasks() -> Iterator[None]:
    """Signals do what they did, but never inside a task of the loop that waits for a kernel.

    A task that was cut there would be raised again while the kernel is being ended, and leave it running.
    """
    from jupyter_core.utils import ensure_event_loop

    loop, before = ensure_event_loop(), {}
    if threading.current_thread() is threading.main_thread() and not loop.is_running():
        found: Any = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: handler for number, handler in found.items() if callable(handler)}
    with contextlib.suppress(NotImplementedError):  # Windows
        for number, handler in before.items():
            loop.add_signal_handler(number, handler, number, None)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        loop.set_exception_handler(lambda *_: None)  # its tasks say that the kernel has died
        raise
    finally:
        for number, handler in before.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.contextmanager
def _kernels(variables: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Options for papermill's kernels; at the end, no kernel is left running.

    They speak over files in a folder of their own: two launches at once cannot take each other's. Jupyter's
    own choice is `kernel-ipc-1` and so on in the current folder, or ports; of both, two that start
    at the same moment may take the same, and then wait for each other until they give up.
    """
    begun: list[Any] = []
    options: dict[str, Any] = {"shutdown_wait_time": STOP_TIMEOUT}
    with tempfile.TemporaryDirectory(prefix="qnnkit-", ignore_cleanup_errors=True) as folder:
        if os.name == "posix":
            options |= {"transport": "ipc", "ip": f"{folder}/kernel"}
        try:
            config = Config({"KernelManager": options})
            yield {"config": config, "kernel_manager_class": _manager(variables, begun)}
        finally:
            for kernel in begun:  # papermill ends it, except one that was interrupted before it was ready
                kernel.kill()
                kernel.wait()

"""Looking on while a run trains: from another terminal, a notebook, or another machine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.runs.lock import held
from qnnkit.runs.status import Status, read
from qnnkit.words import duration

PATIENCE = 60.0
"""Seconds that a run which has not begun, or the next one of a batch, is waited for while none goes on."""


def watch(
    run_dir: str | Path, echo: Callable[[str], None] | None = None, *, every: float = 2.0, once: bool = False
) -> list[Status]:
    """Shows how a run, or every run of a batch, stands until none is running; returns what was seen last.

    On a terminal and in a notebook the lines are kept up to date in place. Only files are read and the system
    asked, so nothing that is watched is slowed down or can be harmed; Ctrl-C ends the watching alone.

    Args:
        run_dir: Folder of a run or of a batch.
        echo: Called with each line once, whenever it has changed.
        every: Seconds between two looks.
        once: Looks once.

    Raises:
        FileNotFoundError: There is no run and no batch.
        ValueError: `every` is not above 0, or batch.json lists no runs.
    """
    checks.positive("every", every, "Use a number of seconds, such as 2.")
    begun = time.monotonic()
    found = _look(run_dir)
    with contextlib.suppress(KeyboardInterrupt), _display(echo) as show:
        while True:
            shown = [status for status in found if status.state != "not begun"] or found
            show(shown)
            states = {status.state for status in found}
            if states & {"running"} or any(_held(status.folder) for status in found):
                begun = time.monotonic()
            waiting = "not begun" in states or _goes_on(run_dir)
            if once or not ("running" in states or (waiting and time.monotonic() - begun < PATIENCE)):
                break
            time.sleep(every)
            found = _look(run_dir)
    return shown


def _look(run_dir: str | Path) -> list[Status]:
    """How the run stands, or every planned run of a batch."""
    folder = workspace.place(run_dir)
    batch = workspace.read_json(folder / "batch.json")
    if batch is None:
        return [read(run_dir)]
    rows = batch.get("runs") if isinstance(batch, dict) else None
    if not isinstance(rows, list):
        rule, step = "hold a list of runs in batch.json", "The command that runs the batch writes it anew."
        raise ValueError(checks.message("run_dir", rule, str(folder), step))
    return [_one(Path(os.path.normpath(folder / str(row["folder"])))) for row in rows]


def _one(folder: Path) -> Status:
    """A run of a batch; one that has failed does not go on, whatever its own file says."""
    try:
        found = read(folder)
    except FileNotFoundError:  # its settings are written last, when it begins
        found = Status(folder, "not begun")
    if found.state == "not begun" and (folder / "failed.json").exists():
        return replace(found, state="stopped")
    return found


def _goes_on(run_dir: str | Path) -> bool:
    """Whether a command runs a batch: it may propose another run, or try one again. A kill leaves this."""
    return (workspace.place(run_dir) / "session.json").exists()


def _held(folder: Path) -> bool:
    """Whether a command works on a run, though none of its nets may be in training."""
    local = workspace.run_folder(folder)
    return any(held(local, work) for work in ("begin", "chain", "train"))


# --- in words ----------------------------------------------------------------------------------------------


def line(status: Status) -> str:
    """A run in one line of words."""
    told = [status.folder.name, _state(status)]
    if status.net is not None:
        of = f" ({status.number} of {status.of})" if status.of else ""
        told.append(f"{status.net}, seed {status.seed}{of}")
    if status.epoch is not None:
        told.append(f"epoch {status.epoch}/{status.epochs}, step {status.step}/{status.steps}")
    if status.loss is not None:
        told.append(f"loss {status.loss:.4f}")
    if status.state == "running" and status.per_second is not None:
        told.append(f"{status.per_second:,.0f} {status.counted or 'samples'}/s")
    if status.state == "running" and status.seconds_left_net is not None:
        left = duration(status.seconds_left_net)
        if status.seconds_left_run is not None and status.of != 1:
            left += f", in all {duration(status.seconds_left_run)}"
        told.append(f"{left} left")
    if status.memory is not None:
        peak = "" if status.peak_memory is None else f" (peak {status.peak_memory / 1e9:.2f})"
        told.append(f"memory {status.memory / 1e9:.2f} GB{peak}")
    if status.device is not None:
        on_device = status.device_memory
        told.append(status.device + ("" if on_device is None else f" {on_device / 1e9:.2f} GB"))
    return "  ".join(told)


def _state(status: Status) -> str:
    if status.state == "running" and status.age is not None and status.age > 20:
        return f"running (last sign {duration(status.age)} ago)"
    if status.state == "stopped" and status.age is not None:
        return f"stopped {duration(status.age)} ago"
    return status.state


# --- shown -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def live() -> Iterator[tuple[Callable[[str], None], Callable[[str], None]] | None]:
    """Two functions, where a terminal or a notebook can keep a text up to date in place; None elsewhere.

    The first shows a text in place of the one before, the second prints a line above it.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is not None:
        from IPython.display import display

        # One output that is replaced, and no widget: a saved notebook shows it too.
        handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
        yield lambda text: handle.update({"text/plain": text}, raw=True), print
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(console=Console(file=sys.stdout), auto_refresh=False) as shown:
            tell = partial(shown.console.print, markup=False, highlight=False, soft_wrap=True)
            yield lambda text: shown.update(Text(text), refresh=True), tell
    else:
        yield None


@contextlib.contextmanager
def _display(echo: Callable[[str], None] | None) -> Iterator[Callable[[list[Status]], None]]:
    """Shows runs as lines that are kept up to date in place, or each line once."""
    with live() if echo is None else contextlib.nullcontext() as place:
        said: set[str] = set()

        def show(statuses: list[Status]) -> None:
            told = [text for each in statuses for text in (line(each), *(f"  ! {w}" for w in each.warnings))]
            if place is not None:
                place[0]("\n".join(told))
                return
            for sentence in told:
                if sentence not in said:
                    said.add(sentence)
                    (echo or print)(sentence)

        yield show

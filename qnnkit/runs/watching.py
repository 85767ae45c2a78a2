"""Looking on while a run trains: from another terminal, a notebook, or another machine."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.runs import state
from qnnkit.runs.state import State
from qnnkit.words import duration

PATIENCE = 60.0
"""Seconds to wait for a run that has not begun, or for the next one of a batch, while none is running."""


def watch(
    run_dir: str | Path, echo: Callable[[str], None] | None = None, *, every: float = 2.0, once: bool = False
) -> list[State]:
    """Shows the state of a run, or of every run of a batch, until none is running; returns the last states.

    On a terminal and in a notebook the lines are kept up to date in place. Only files are read and the system
    asked, so nothing that is watched is slowed down or can be harmed; Ctrl-C ends the watching alone.

    Args:
        run_dir: Folder of a run or of a batch.
        echo: Called with each line once, whenever it has changed.
        every: Seconds between two looks.
        once: Looks once.

    Raises:
        FileNotFoundError: There is no run and no batch.
        ValueError: `every` is not above 0, or batch.json is damaged.
    """
    checks.positive("every", every, "Use a number of seconds, such as 2.")
    folder, active = workspace.place(run_dir), time.monotonic()
    echoed: set[str] = set()
    with (
        contextlib.suppress(KeyboardInterrupt),
        live() if echo is None else contextlib.nullcontext() as screen,
    ):
        while True:
            is_batch = (folder / "batch.json").exists()
            runs = state.of_batch(folder) if is_batch else [state.of_run(run_dir)]
            shown = [run for run in runs if run.state != "waiting"] or runs
            lines = [text for run in shown for text in (line(run), *(f"  ! {w}" for w in run.warnings))]
            if screen is not None:
                screen[0]("\n".join(lines))
            else:
                for text in [text for text in lines if text not in echoed]:
                    echoed.add(text)
                    (echo or print)(text)
            states = {run.state for run in runs}
            active = time.monotonic() if "running" in states else active
            # A command that runs a batch may propose another run, or try one again; a kill leaves its file.
            waiting = "waiting" in states or (folder / state.SESSION).exists()
            if once or not ("running" in states or (waiting and time.monotonic() - active < PATIENCE)):
                break
            time.sleep(every)
    return shown


def line(run: State) -> str:
    """A run in one line of words."""
    running, words = run.state == "running", [run.folder.name, _state(run)]
    if run.net is not None:
        words.append(f"{run.net}, seed {run.seed}" + (f" ({run.number} of {run.of})" if run.of else ""))
    if run.epoch is not None:
        words.append(f"epoch {run.epoch}/{run.epochs}, step {run.step}/{run.steps}")
    if run.loss is not None:
        words.append(f"loss {run.loss:.4f}")
    if running and run.per_second is not None:
        words.append(f"{run.per_second:,.0f} {run.counted or 'samples'}/s")
    if running and run.seconds_left_net is not None:
        whole = run.of != 1 and run.seconds_left_run
        in_all = f", in all {duration(whole)}" if whole else ""
        words.append(f"{duration(run.seconds_left_net)}{in_all} left")
    if run.memory is not None:
        peak = f" (peak {run.peak_memory / 1e9:.2f})" if run.peak_memory else ""
        words.append(f"memory {run.memory / 1e9:.2f} GB{peak}")
    if run.device is not None:
        on_device = f" {run.device_memory / 1e9:.2f} GB" if run.device_memory is not None else ""
        words.append(f"{run.device}{on_device}")
    return "  ".join(words)


def _state(run: State) -> str:
    if run.state == "running" and run.age is not None and run.age > 20:
        return f"running (last sign {duration(run.age)} ago)"
    if run.state == "stopped" and run.age is not None:
        return f"stopped {duration(run.age)} ago"
    return run.state + (f": {run.error}" if run.error else "")


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

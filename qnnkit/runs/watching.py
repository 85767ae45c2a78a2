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
"""Seconds that a run which has not begun, or the next one of a batch, is waited for while none goes on."""


def watch(
    run_dir: str | Path, echo: Callable[[str], None] | None = None, *, every: float = 2.0, once: bool = False
) -> list[State]:
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
        ValueError: `every` is not above 0, or batch.json is damaged.
    """
    checks.positive("every", every, "Use a number of seconds, such as 2.")
    folder, begun = workspace.place(run_dir), time.monotonic()
    said: set[str] = set()
    with (
        contextlib.suppress(KeyboardInterrupt),
        live() if echo is None else contextlib.nullcontext() as place,
    ):
        while True:
            is_batch = (folder / "batch.json").exists()
            found = state.of_batch(folder) if is_batch else [state.of_run(run_dir)]
            shown = [each for each in found if each.state != "waiting"] or found
            lines = [text for each in shown for text in (line(each), *(f"  ! {w}" for w in each.warnings))]
            if place is not None:
                place[0]("\n".join(lines))
            for text in () if place else [text for text in lines if text not in said]:
                said.add(text)
                (echo or print)(text)
            states = {each.state for each in found}
            begun = time.monotonic() if "running" in states else begun
            # A command that runs a batch may propose another run, or try one again; a kill leaves its file.
            waiting = "waiting" in states or (folder / state.SESSION).exists()
            if once or not ("running" in states or (waiting and time.monotonic() - begun < PATIENCE)):
                break
            time.sleep(every)
    return shown


def line(found: State) -> str:
    """A run in one line of words."""
    told, running = [found.folder.name, _state(found)], found.state == "running"
    if found.net is not None:
        of = f" ({found.number} of {found.of})" if found.of else ""
        told.append(f"{found.net}, seed {found.seed}{of}")
    if found.epoch is not None:
        told.append(f"epoch {found.epoch}/{found.epochs}, step {found.step}/{found.steps}")
    if found.loss is not None:
        told.append(f"loss {found.loss:.4f}")
    if running and found.per_second is not None:
        told.append(f"{found.per_second:,.0f} {found.counted or 'samples'}/s")
    if running and found.seconds_left_net is not None:
        left = duration(found.seconds_left_net)
        if found.seconds_left_run is not None and found.of != 1:
            left += f", in all {duration(found.seconds_left_run)}"
        told.append(f"{left} left")
    if found.memory is not None:
        peak = "" if found.peak_memory is None else f" (peak {found.peak_memory / 1e9:.2f})"
        told.append(f"memory {found.memory / 1e9:.2f} GB{peak}")
    if found.device is not None:
        on_device = found.device_memory
        told.append(found.device + ("" if on_device is None else f" {on_device / 1e9:.2f} GB"))
    return "  ".join(told)


def _state(found: State) -> str:
    if found.state == "running" and found.age is not None and found.age > 20:
        return f"running (last sign {duration(found.age)} ago)"
    if found.state == "stopped" and found.age is not None:
        return f"stopped {duration(found.age)} ago"
    return found.state + (f": {found.error}" if found.error else "")


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

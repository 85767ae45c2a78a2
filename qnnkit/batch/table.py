"""How a batch stands, while it runs: a live table on a terminal or in a notebook, else a line per change."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from qnnkit.batch import state
from qnnkit.batch.plan import Planned
from qnnkit.batch.state import Outcome

EVERY = 1.0  # seconds between two pictures of the table
ORDER = ("running", "failed", "waiting", "pruned", "finished")
STYLES = {"running": "bold", "failed": "red", "pruned": "dim", "finished": "green", "waiting": "dim"}


class Progress:
    """Tells how a batch stands, as lines.

    Args:
        batch: Its folder.
        echo: Called with each line.
    """

    def __init__(self, batch: Path, echo: Callable[[str], None]):
        self.batch, self.echo = batch, echo
        self.seconds: list[float] = []  # of runs that have finished now
        listed = (batch / "batch.json").exists()
        self.states = {each.id: each.state for each in state.read(batch)} if listed else {}
        self.begun: dict[str, tuple[float, float]] = {}  # when first seen running, and how far it was
        self.known: dict[str, Outcome] = {}  # finished, and looked at
        self.last = 0.0

    def line(self, text: str) -> None:
        """Tells one line."""
        self.echo(text)

    def ended(self, run: Planned, ended: dict[str, Any]) -> None:
        """Takes note of a run that has ended."""
        if ended["state"] == "finished" and run.id in self.begun:
            share = 1 - self.begun[run.id][1]  # the rest was done by an earlier command
            if share > 0.5:
                self.seconds.append(ended["seconds"] / share)
        self.begun.pop(run.id, None)

    def update(self, busy: list[str], waiting: int, slots: int, *, final: bool = False) -> None:
        """Tells what has changed, at most once a second."""
        now = time.monotonic()
        if now - self.last < EVERY and not final:
            return
        self.last = now
        outcomes = state.read(self.batch, self.known)
        self.known |= {each.id: each for each in outcomes if each.state == "finished"}
        for each in outcomes:
            if each.state == "running":
                self.begun.setdefault(each.id, (time.time(), each.progress))
        self.show(outcomes, left(outcomes, self.seconds, self.begun, waiting, slots))

    def show(self, outcomes: list[Outcome], seconds: float | None) -> None:
        """A line for each run whose state has changed."""
        for each in outcomes:
            before = self.states.get(each.id, "waiting")
            self.states[each.id] = each.state
            if each.state == before:
                continue
            told = f"{each.id}  {_settings(each)}  {each.state}"
            if each.state == "finished" and each.validation is not None:
                told += f"  {each.score.validation_word} {each.score.with_unit(each.validation)}"
            if each.error:
                told += f": {each.error}"
            self.line(f"{told}  [{summary(outcomes, seconds)}]")


class Live(Progress):
    """As Progress, by one table that is drawn anew in its place."""

    def __init__(self, batch: Path, draw: Callable[[Any], None], width: int, height: int):
        super().__init__(batch, print)
        self.draw, self.width, self.height = draw, width, height

    def show(self, outcomes: list[Outcome], seconds: float | None) -> None:
        self.draw(picture(outcomes, seconds, max(5, self.height - 8)))


@contextlib.contextmanager
def progress(batch: Path, echo: Callable[[str], None] | None) -> Iterator[Progress]:
    """What suits the place: `echo` where it is given, else a terminal, a notebook, or plain lines."""
    shown, close = _suited(batch, echo)
    try:
        yield shown
    finally:
        with contextlib.suppress(OSError, ValueError):
            shown.update([], 0, 1, final=True)
        close()


def _suited(batch: Path, echo: Callable[[str], None] | None) -> tuple[Progress, Callable[[], None]]:
    if echo is not None:
        return Progress(batch, echo), lambda: None
    if _in_notebook():
        return Live(batch, _notebook_drawer(), 110, 60), lambda: None
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live as RichLive

        console = Console()
        live = RichLive(console=console, auto_refresh=False, transient=False)
        live.start()
        shown = Live(batch, lambda table: live.update(table, refresh=True), console.width, console.height)
        shown.echo = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        return shown, live.stop
    return Progress(batch, lambda text: print(text, flush=True)), lambda: None


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell: Any = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def _notebook_drawer() -> Callable[[Any], None]:
    """Draws as text in one output that is replaced: no widget, so a saved notebook shows it too."""
    from IPython.display import display
    from rich.console import Console

    handle: list[Any] = []

    def draw(table: Any) -> None:
        page = StringIO()
        Console(file=page, width=110, color_system=None, force_jupyter=False).print(table)
        content = {"text/plain": page.getvalue()}
        if handle:
            handle[0].update(content, raw=True)
        else:
            handle.append(display(content, raw=True, display_id=True))

    return draw


def picture(outcomes: list[Outcome], seconds: float | None, rows: int = 40) -> Any:
    """The table, and a line below it; what is busy or failed comes first where not all fits."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "settings", "state", "now at", "done", "validation", "time"):
        table.add_column(name, no_wrap=name != "settings", justify="right" if name == "done" else "left")
    shown = sorted(outcomes, key=lambda each: ORDER.index(each.state))[:rows]
    for each in [each for each in outcomes if each in shown]:
        at = f"{each.net} seed {each.seed} epoch {each.epoch or 'last'}" if each.net else ""
        score = "" if each.validation is None else each.score.with_unit(each.validation)
        elapsed = "" if each.started is None else clock(time.time() - each.started)
        table.add_row(
            each.id,
            Text(_settings(each)),
            Text(each.state, style=STYLES[each.state]),
            at if each.state == "running" else "",
            f"{100 * each.progress:.0f} %",
            score,
            elapsed,
        )
    lines: list[Any] = [table]
    if len(outcomes) > len(shown):
        lines.append(Text(f"... and {len(outcomes) - len(shown)} more"))
    lines += [Text(f"{each.id}: {each.error}", style="red") for each in outcomes if each.state == "failed"][
        :5
    ]
    return Group(*lines, Text(summary(outcomes, seconds)))


def summary(outcomes: list[Outcome], seconds: float | None) -> str:
    """How many runs stand where, and how long the rest takes."""
    counts = {name: sum(each.state == name for each in outcomes) for name in ORDER}
    told = [f"{number} {name}" for name, number in counts.items() if number or name == "finished"]
    if seconds is not None and counts["running"] + counts["waiting"]:
        told.append(f"about {clock(seconds)} left")
    return ", ".join(told)


def left(
    outcomes: list[Outcome],
    seconds: list[float],
    begun: dict[str, tuple[float, float]],
    waiting: int,
    slots: int,
) -> float | None:
    """Seconds until the last run ends, from how long others took; None while there is nothing to go by."""
    running = [each for each in outcomes if each.state == "running"]
    now, paces = time.time(), []
    for each in running:
        since, progress = begun.get(each.id, (now, each.progress))
        if each.progress - progress > 0.05 and now > since:
            paces.append((now - since) / (each.progress - progress))
    known = seconds or paces
    if not known:
        return None
    whole = sum(known) / len(known)
    rest = sum(whole * (1 - each.progress) for each in running) + whole * waiting
    return rest / max(1, min(slots, len(running) + waiting))


def clock(seconds: float) -> str:
    """A length of time as people say it.

    Example:
        >>> clock(42), clock(754), clock(7260)
        ('42 s', '12 min 34 s', '2 h 1 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _settings(outcome: Outcome) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in outcome.settings.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

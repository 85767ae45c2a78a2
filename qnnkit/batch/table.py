"""How a batch stands, while it runs: a live table on a terminal or in a notebook, else a line per change."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qnnkit.batch.batch_file import Planned
from qnnkit.runs import rows as files
from qnnkit.runs import state
from qnnkit.runs.state import STATES, State
from qnnkit.runs.watching import live
from qnnkit.words import duration


class Shown:
    """Tells how a batch stands, by a line for each run whose state has changed.

    Args:
        batch: Its folder, with the list of its runs.
        echo: Called with each line.
        draw: Called with a table in place of such lines.
    """

    def __init__(self, batch: Path, echo: Callable[[str], None], draw: Callable[[str], Any] | None = None):
        self.batch, self.line, self.draw = batch, echo, draw
        self.states = {each.id: each.state for each in state.of_batch(batch)}
        self.known: dict[str, State] = {}  # finished, and looked at
        self.begun: dict[str, float] = {}  # when the runs that run now began
        self.fresh: set[str] = set()  # of these, which began at their first epoch
        self.took: list[float] = []  # seconds of whole runs

    def begin(self, run: Planned) -> None:
        """A run begins, or goes on."""
        self.begun[run.id] = time.monotonic()
        if files.content(run.folder, "metrics.jsonl") is None:
            self.fresh.add(run.id)

    def end(self, run: Planned, how: str) -> None:
        """A run has ended."""
        seconds = time.monotonic() - self.begun.pop(run.id)
        if how == "finished" and run.id in self.fresh:
            self.took.append(seconds)

    def update(self, running: Iterable[Planned], waiting: int, slots: int) -> None:
        """Tells how the batch stands."""
        ours = {run.id for run in running}
        outcomes = state.of_batch(self.batch, self.known)
        self.known = {each.id: each for each in outcomes if each.state == "finished"}
        busy = {each.id: each for each in outcomes if each.id in ours}
        outcomes = [replace(each, state="running") if each.id in ours else each for each in outcomes]
        ages = {id_: time.monotonic() - self.begun[id_] for id_ in busy}
        rest = left([(ages[id_], status) for id_, status in busy.items()], self.took, waiting, slots)
        if self.draw is not None:
            self.draw(picture(outcomes, busy, ages, rest, shutil.get_terminal_size((110, 60)).lines - 8))
            return
        for each in outcomes:
            if each.state != self.states.get(each.id, "waiting"):
                told = f"{each.id}  {_settings(each)}  {each.state}"
                if each.state == "finished" and each.validation is not None:
                    told += f"  {each.score.validation_word} {each.score.with_unit(each.validation)}"
                told += f": {each.error}" if each.error else ""
                self.line(f"{told}  [{summary(outcomes, rest)}]")
            self.states[each.id] = each.state


@contextlib.contextmanager
def shown(batch: Path, echo: Callable[[str], None] | None) -> Iterator[Shown]:
    """What suits the place: `echo` where it is given, else a terminal, a notebook, or plain lines."""
    with live() if echo is None else contextlib.nullcontext() as place:
        draw, line = place or (None, echo or partial(print, flush=True))
        found = Shown(batch, line, draw)
        try:
            yield found
        finally:
            with contextlib.suppress(OSError, ValueError):
                found.update([], 0, 1)


# --- in words -----------------------------------------------------------------------------------------------


def picture(
    outcomes: Collection[State],
    busy: Mapping[str, State],
    ages: Mapping[str, float],
    rest: tuple[str, float] | None,
    rows: int,
) -> str:
    """A table, and lines below it; what is busy or failed comes first where not all fits."""
    import pandas as pd

    listed = sorted(outcomes, key=lambda each: STATES.index(each.state))[: max(5, rows)]
    table = [
        {
            "run": each.id,
            "settings": _settings(each),
            "state": each.state,
            "now at": now_at(busy[each.id]) if each.id in busy else "",
            "trained": f"{100 * trained(each):.0f} %",
            "validation": "" if each.validation is None else each.score.with_unit(each.validation),
            "time": duration(ages[each.id]) if each.id in ages else "",
        }
        for each in outcomes
        if each in listed
    ]
    lines = [pd.DataFrame(table).to_string(index=False)] if table else []
    lines += [f"... and {len(outcomes) - len(listed)} more"] if len(outcomes) > len(listed) else []
    lines += [f"{each.id}: {each.error}" for each in outcomes if each.state == "failed"][:5]
    return "\n".join([*lines, summary(outcomes, rest)])


def now_at(found: State) -> str:
    """What a run does now: the notebook, and in its training the net, seed and epoch."""
    if found.doing == "03_train" and found.epoch is not None:
        return f"{found.net} seed {found.seed} epoch {found.epoch}/{found.epochs}"
    return found.doing or "starting"


def trained(found: State) -> float:
    """Share of all epochs of all nets and seeds of a run."""
    if found.state in ("finished", "trained"):
        return 1.0
    if not (found.number and found.of):
        return 0.0
    epoch = (found.epoch or 1) - 1 + (found.step or 0) / (found.steps or 1)
    return min(1.0, (found.number - 1 + epoch / (found.epochs or 1)) / found.of)


def summary(outcomes: Collection[State], rest: tuple[str, float] | None) -> str:
    """How many runs stand where, and how long the rest takes."""
    counts = Counter(each.state for each in outcomes)
    told = [f"{counts[name]} {name}" for name in STATES if counts[name] or name == "finished"]
    if rest is not None:
        told.append(f"{rest[0]} {duration(rest[1])} left")
    return ", ".join(told)


def left(
    running: Collection[tuple[float, State]], took: list[float], waiting: int, slots: int
) -> tuple[str, float] | None:
    """How long until the last run ends, "about" or "at least"; None while nothing tells.

    Args:
        running: Of each run that runs, its seconds so far, and how its training stands.
        took: Seconds of whole runs that have finished; before the first one only trainings tell, and what
            follows a training comes on top.
        waiting: Runs that have not begun.
        slots: Runs at a time.
    """
    trainings = [(age, found.seconds_left_run or 0.0) for age, found in running]
    known = took or [age + rest for age, rest in trainings if rest]
    if not known:
        return None
    whole = sum(known) / len(known)
    rests = [max(whole - age, rest) for age, rest in trainings]
    total = (sum(rests) + whole * waiting) / max(1, min(slots, len(running) + waiting))
    longest = max([total, *rests])
    return ("about" if took else "at least", longest) if longest >= 1 else None


def _settings(outcome: State) -> str:
    shown = {
        key: f"{each:.4g}" if isinstance(each, float) else each for key, each in outcome.settings.items()
    }
    return " ".join(f"{name}={value}" for name, value in shown.items())

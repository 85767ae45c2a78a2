"""Shows the progress of a batch, one line per change."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from qnnkit.runs import state
from qnnkit.runs.state import STATES, State, line
from qnnkit.words import duration

ENDED = ("finished", "failed", "pruned")


class Shown:
    """Shows the runs of a batch.

    Args:
        batch: The batch's folder, with its batch.json.
        echo: Called with a line for each run whose state has changed; None prints it.
    """

    def __init__(self, batch: Path, echo: Callable[[str], None] | None):
        self.line = echo or partial(print, flush=True)
        self.batch, self.begun = batch, time.monotonic()
        self.states = {run.id: run for run in state.of_batch(batch)}
        self.ended = sum(run.state in ENDED for run in self.states.values())  # before this command

    def update(self, waiting: int) -> None:
        """Shows each run whose state has changed; `waiting` is the number of runs that are not started."""
        before = self.states
        finished = {id_: run for id_, run in before.items() if run.state == "finished"}
        states = state.of_batch(self.batch, finished)
        self.states = {run.id: run for run in states}
        left = waiting + sum(run.state == "running" for run in states)
        ended = sum(run.state in ENDED for run in states) - self.ended
        counts = summary(states, (time.monotonic() - self.begun) / ended * left if ended > 0 else 0)
        for run in states:
            if run.state != (before[run.id].state if run.id in before else "waiting"):
                self.line(f"{run_line(run)}  [{counts}]")


def run_line(run: State) -> str:
    """Returns a run as one line: its settings, its line in `qnnkit watch`, and its best validation score."""
    words = [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in run.settings.items()
    ]
    score = run.score
    best = "" if run.validation is None else f"best {score.validation_word} {score.with_unit(run.validation)}"
    return "  ".join(filter(None, [" ".join(words), line(run), best]))


def summary(states: Collection[State], seconds_left: float) -> str:
    """Returns how many runs are in each state, and the estimated time left."""
    counts = Counter(run.state for run in states)
    words = [f"{counts[name]} {name}" for name in STATES if counts[name] or name == "finished"]
    return ", ".join(words + ([f"about {duration(seconds_left)} left"] if seconds_left >= 1 else []))

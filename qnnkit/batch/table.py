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
        self.states = {each.id: each for each in state.of_batch(batch)}
        self.ended = sum(each.state in ENDED for each in self.states.values())  # before this command

    def update(self, waiting: int) -> None:
        """Shows each run whose state has changed; `waiting` is the number of runs that are not started."""
        before = self.states
        finished = {id_: each for id_, each in before.items() if each.state == "finished"}
        states = state.of_batch(self.batch, finished)
        self.states = {each.id: each for each in states}
        left = waiting + sum(each.state == "running" for each in states)
        ended = sum(each.state in ENDED for each in states) - self.ended
        counts = summary(states, (time.monotonic() - self.begun) / ended * left if ended > 0 else 0)
        for each in states:
            if each.state != (before[each.id].state if each.id in before else "waiting"):
                self.line(f"{run_line(each)}  [{counts}]")


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
    counts = Counter(each.state for each in states)
    words = [f"{counts[name]} {name}" for name in STATES if counts[name] or name == "finished"]
    return ", ".join(words + ([f"about {duration(seconds_left)} left"] if seconds_left >= 1 else []))

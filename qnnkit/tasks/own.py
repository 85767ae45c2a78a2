"""A user's own task, with what the training loop and the reports ask beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from qnnkit import checks
from qnnkit.stats import SCORES, Score
from qnnkit.tasks.step import Step

FALLING = frozenset(("loss", "error", "mse", "mae", "rmse", "nll", "ece", "perplexity"))
"""Last words of the names of numbers of which smaller is better."""


class Refused(ValueError):
    """What a user's task gives is not what a task gives."""


class Own:
    """Any callable (model, batch) -> Step, with `monitor`, as a task.

    Args:
        task: Its `monitor` is the reported number that chooses the epoch: larger is better, but of names
            whose last word is in FALLING, such as "test_mse". `score` (`stats.Score`), the number that
            nets are compared by, is that of `monitor` where it is left out; another names `monitor` in
            `watched`.

    Raises:
        ValueError: The score is read from another number on the validation split than `monitor`.
    """

    def __init__(self, task: Any):
        self.task, self.reported = task, str(getattr(task, "monitor", "loss"))
        own = getattr(task, "score", None)
        self.score = own if isinstance(own, Score) else _score(self.reported)
        if self.score.on_validation != self.reported:
            rule = f"watch `{self.reported}`, the monitor, on the validation split"
            step = f"Give Score({self.score.name!r}, ..., watched={self.reported!r})."
            raise ValueError(checks.message("score", rule, self.score.on_validation, step))
        self.larger = (self.score if self.score.name == self.reported else _score(self.reported)).larger
        self.monitor = self.reported if self.larger else f"minus_{self.reported}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "task" not in self.__dict__:  # as a copy asks before it has anything
            raise AttributeError(name)
        return getattr(self.task, name)

    def __call__(self, model: nn.Module, batch: Any, **given: Any) -> Step:
        step = self.task(model, batch, **given)
        if not isinstance(step, Step):
            told = f"It returned {type(step).__name__}."
            raise Refused(checks.message("task", "return a qnnkit.tasks.Step", type(step).__name__, told))
        sums = {"loss": step.loss.detach() * step.count, **step.sums}
        sums = {name: torch.as_tensor(total).detach() for name, total in sums.items()}
        for name, total in sums.items():
            if total.ndim:
                rule = f"report `{name}` as a sum over the batch, one number"
                raise Refused(checks.message("task", rule, tuple(total.shape), "Sum it."))
        if self.reported not in sums:
            rule, step_ = f"report `{self.reported}`, its monitor", f"It reports {', '.join(sums)}."
            raise Refused(checks.message("task", rule, sorted(sums), step_))
        if not self.larger:
            sums[self.monitor] = -sums[self.reported]
        return replace(step, sums=sums)


def complete(task: Any) -> Any:
    """A task as it is, where it is one of the kit's; a user's with what is asked of tasks beside."""
    if not callable(task):
        rule, step = "be callable: (model, batch) -> tasks.Step", "Give tasks.Classification(), or a class."
        raise Refused(checks.message("task", rule, task, step))
    return task if type(task).__module__.startswith("qnnkit.tasks.") else Own(task)


def _score(name: str) -> Score:
    for known in SCORES.values():
        if known.name == name == "accuracy":
            return known
    smaller = name.lower().split("_")[-1] in FALLING
    word = name.replace("_", " ")
    return Score(name, word, per="", factor=1.0, unit="", digits=4, larger=not smaller, criterion="")

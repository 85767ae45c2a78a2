"""A user's own task, with what else the training loop and the reports ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from qnnkit import checks
from qnnkit.data import pieces
from qnnkit.layers import evaluating
from qnnkit.stats import ACCURACY, Score, direction
from qnnkit.tasks.step import Shown, Step, asked, counts

ROWS, VALUES, JUDGED = 6, 6, 1000
"""Samples and, of each, numbers that a table shows; test samples that are judged one by one."""


class Refused(ValueError):
    """What a user's task gives is not what a task gives."""


class Own:
    """Any callable (model, batch) -> Step, with `monitor`, as a task.

    Args:
        task: Its `monitor` is the reported number that chooses the epoch. `score` (`stats.Score`), the number
            that nets are compared by, is that of `monitor` where it is left out; another names `monitor` in
            `watched`. Whether more is better is what the score says, or else the name (`stats.direction`).

    Raises:
        ValueError: The score is read from another number on the validation split than `monitor`, or nothing
            says whether a larger number is better.
    """

    def __init__(self, task: Any):
        self.task, self.reported = task, str(getattr(task, "monitor", "loss"))
        own = getattr(task, "score", None)
        self.score = own if isinstance(own, Score) else _score(self.reported)
        if self.score.on_validation != self.reported:
            rule = f"watch `{self.reported}`, the monitor, on the validation split"
            step = f"Give Score({self.score.name!r}, ..., watched={self.reported!r})."
            raise ValueError(checks.message("score", rule, self.score.on_validation, step))
        self.larger = self.score.larger if self.score.name == self.reported else direction(self.reported)
        self.monitor = self.reported if self.larger else f"minus_{self.reported}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "task" not in self.__dict__:  # as a copy asks before it has anything
            raise AttributeError(name)
        return getattr(self.task, name)

    def __call__(self, model: nn.Module, batch: Any, **given: Any) -> Step:
        given = {"micro_batch": None} | given if getattr(self.task, "whole", False) else given
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

    def preview(self, splits: Any) -> Any:
        """As the task shows the data; without it as the kit's task of these data does."""
        return (getattr(self.task, "preview", None) or usual(splits).preview)(splits)

    def mistakes(self, net: nn.Module, splits: Any, **offered: Any) -> Any:
        """As the task shows them; without it the test samples of the largest loss."""
        if own := getattr(self.task, "mistakes", None):
            return asked(own, net, splits, **offered)
        return largest_losses(self, net, splits, offered.get("n", ROWS))

    def predict(self, net: nn.Module, inputs: Sequence[Any], about: Any) -> Any:
        """As the task does; without it classes and probabilities, or outputs, of images and arrays."""
        own = getattr(self.task, "predict", None) or usual(about).predict
        return asked(own, net, inputs, about=about)


def usual(data: Any) -> Any:
    """The kit's task of some data: of splits, or of what a run keeps of them."""
    from qnnkit import tasks

    tokenizer = getattr(data, "tokenizer", None)
    if pieces.writing(tokenizer):
        return tasks.Music()
    if "vocabulary" in data.sizes:
        return tasks.Language()
    return tasks.Contrastive() if tokenizer is not None else tasks.Classification()


def complete(task: Any) -> Any:
    """A task of qnnkit as it is; a user's task with what else is asked of tasks."""
    if not callable(task):
        rule, step = "be callable: (model, batch) -> tasks.Step", "Give tasks.Classification(), or a class."
        raise Refused(checks.message("task", rule, task, step))
    of_kit = type(task).__module__.startswith("qnnkit.tasks.")
    # A task of qnnkit that chooses the epoch by a number that falls is treated like a user's.
    return task if isinstance(task, Own) or (of_kit and direction(task.monitor)) else Own(task)


def _score(name: str) -> Score:
    if name == ACCURACY.name:
        return ACCURACY
    return Score(name, name.replace("_", " "), per="", factor=1.0, unit="", digits=4, criterion="")


def first_samples(splits: Any) -> list[Shown]:
    """Tables of the first training samples, as numbers, and of how many each split has."""
    import pandas as pd

    rows, inputs = splits.train, splits.example(ROWS)
    each = zip(rows.sources, inputs, rows.targets, strict=False)
    table = [{"sample": source, "inputs": _shortened(x), "target": _shortened(y)} for source, x, y in each]
    first = Shown(pd.DataFrame(table).set_index("sample"), "01_samples", "The first training samples")
    return [first, counts(splits, "Samples of each split", samples=len)]


def largest_losses(task: Any, net: nn.Module, splits: Any, n: int) -> list[Shown]:
    """A table of the test samples of the largest loss, with what the net gives for them."""
    import pandas as pd

    rows = []
    with evaluating(net):
        batches = splits.batches("test", 1, shuffle=False)
        for source, batch in zip(splits.test.sources[:JUDGED], batches, strict=False):
            row = {"sample": source, "loss": float(task(net, batch).loss)}
            if isinstance(batch, list | tuple):
                row |= {"target": _shortened(batch[1][0]), "output": _shortened(net(batch[0])[0])}
            rows.append(row)
    worst = pd.DataFrame(rows).sort_values("loss", ascending=False, kind="stable")[:n].reset_index(drop=True)
    return [Shown(worst, "05_losses", "Test samples of the largest loss")]


def _shortened(values: Any) -> str:
    """The first and last numbers of a tensor."""
    return np.array2string(torch.as_tensor(values).flatten().cpu().numpy(), precision=4, threshold=VALUES)

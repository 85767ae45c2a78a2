"""Wrapper of a user's task that adds what the training loop and the reports need."""

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
"""Samples in a table, numbers shown of each, and test samples whose loss is computed one by one."""


class Refused(ValueError):
    """A user's task, or the batch that it gets, breaks the rules of tasks; a ValueError."""


class Own:
    """Makes a task of any callable (model, batch) -> Step with a `monitor`.

    Args:
        task: Its `monitor` is the reported number that chooses the epoch. `score` (`stats.Score`) is the
            number by which nets are compared; by default that of `monitor`. A score of another name must have
            `monitor` as `watched`. Whether larger is better is given by the score, or else by the name
            (`stats.direction`).

    Raises:
        ValueError: On the validation split, the score is not read from `monitor`; or it is unknown whether
            larger is better.
        Refused: In a call: the task does not return a `Step` whose sums are single numbers and include the
            monitor.
    """

    def __init__(self, task: Any):
        self.task, self.reported = task, str(getattr(task, "monitor", "loss"))
        score = getattr(task, "score", None)
        self.score = score if isinstance(score, Score) else _score(self.reported)
        if self.score.on_validation != self.reported:
            rule = f"watch `{self.reported}`, the monitor, on the validation split"
            step = f"Give Score({self.score.name!r}, ..., watched={self.reported!r})."
            raise ValueError(checks.message("score", rule, self.score.on_validation, step))
        self.larger = self.score.larger if self.score.name == self.reported else direction(self.reported)
        self.monitor = self.reported if self.larger else f"minus_{self.reported}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "task" not in self.__dict__:  # copying asks before __init__ has run
            raise AttributeError(name)
        return getattr(self.task, name)

    def __call__(self, model: nn.Module, batch: Any, **given: Any) -> Step:
        """Returns the step of the task, with its loss, and `minus_<monitor>` if smaller is better."""
        given = {"micro_batch": None} | given if getattr(self.task, "whole", False) else given
        step = self.task(model, batch, **given)
        if not isinstance(step, Step):
            raise Refused(checks.message("task", "return a Step", type(step).__name__, "See tasks.Step."))
        count = step.count.item() if isinstance(step.count, torch.Tensor) else step.count
        sums = {"loss": step.loss.detach() * count, **step.sums}
        sums = {name: torch.as_tensor(total).detach() for name, total in sums.items()}
        for name, total in sums.items():
            if total.ndim:
                rule = f"report `{name}` as a sum over the batch, one number"
                raise Refused(checks.message("task", rule, tuple(total.shape), "Sum it."))
        if self.reported not in sums:
            raise Refused(checks.message("task", f"report its monitor, {self.reported}", [*sums], "Add it."))
        if not self.larger:
            sums[self.monitor] = -sums[self.reported]
        return replace(step, sums=sums, count=count)

    def preview(self, splits: Any) -> Any:
        """Calls `preview` of the task, or else that of qnnkit's task for these data."""
        return (getattr(self.task, "preview", None) or usual(splits).preview)(splits)

    def mistakes(self, net: nn.Module, splits: Any, **offered: Any) -> Any:
        """Calls `mistakes` of the task, or else shows the test samples with the largest loss."""
        if method := getattr(self.task, "mistakes", None):
            return asked(method, net, splits, **offered)
        return largest_losses(self, net, splits, offered.get("n", ROWS))

    def predict(self, net: nn.Module, inputs: Sequence[Any], about: Any) -> Any:
        """Calls `predict` of the task, or else that of qnnkit's task for these data."""
        method = getattr(self.task, "predict", None) or usual(about).predict
        return asked(method, net, inputs, about=about)


def usual(data: Any) -> Any:
    """Returns qnnkit's task for some data: splits, or the description of them stored in a run."""
    from qnnkit import tasks

    tokenizer = getattr(data, "tokenizer", None)
    if pieces.writing(tokenizer):
        return tasks.Music()
    if "vocabulary" in data.sizes:
        return tasks.Language()
    return tasks.Contrastive() if tokenizer is not None else tasks.Classification()


def complete(task: Any) -> Any:
    """Returns a task of qnnkit unchanged, and a user's task wrapped in `Own`.

    Raises:
        ValueError: The task is not callable (`Refused`), or as in `Own`.
    """
    if not callable(task):
        rule, step = "be callable: (model, batch) -> tasks.Step", "Give tasks.Classification(), or a class."
        raise Refused(checks.message("task", rule, task, step))
    of_kit = type(task).__module__.startswith("qnnkit.tasks.")
    # A task of qnnkit whose monitor is better when smaller is wrapped like a user's.
    return task if isinstance(task, Own) or (of_kit and direction(task.monitor)) else Own(task)


def _score(name: str) -> Score:
    if name == ACCURACY.name:
        return ACCURACY
    return Score(name, name.replace("_", " "), per="", factor=1.0, unit="", digits=4, criterion="")


def first_samples(splits: Any) -> list[Shown]:
    """Returns tables of the first training samples, as numbers, and of the size of each split."""
    import pandas as pd

    rows, inputs = splits.train, splits.example(ROWS)
    each = zip(rows.sources, inputs, rows.targets, strict=False)
    table = [{"sample": source, "inputs": _shortened(x), "target": _shortened(y)} for source, x, y in each]
    first = Shown(pd.DataFrame(table).set_index("sample"), "01_samples", "The first training samples")
    return [first, counts(splits, "Samples of each split", samples=len)]


def largest_losses(task: Any, net: nn.Module, splits: Any, n: int) -> list[Shown]:
    """Returns a table of the test samples with the largest loss, and the net's outputs for them."""
    import pandas as pd

    checks.positive("n", n, "Use 12, or 0 for none.", above=-1)
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
    """Returns the first and last numbers of a tensor as text."""
    numbers = np.array(torch.as_tensor(values).flatten().tolist())  # NumPy has no bfloat16
    return np.array2string(numbers, precision=4, threshold=VALUES)

"""What the training loop and the reports ask of a task, and what a task gives for a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from qnnkit.data.splits import SPLITS


@dataclass(frozen=True)
class Step:
    """What one batch gives."""

    loss: Tensor
    """Mean over what the batch counts, to differentiate."""
    sums: dict[str, Tensor]
    """Numbers to report, summed over the batch, without a graph."""
    count: int
    """What the loss is a mean over, and the batch weighs by in updates and means: samples, or tokens."""


@dataclass(frozen=True)
class Shown:
    """A figure or a table of `preview` or `mistakes`; a figure is kept for the report, under these words."""

    content: Any
    """A figure of matplotlib, a table of pandas, or whatever a notebook shows."""
    name: str
    """Of the figure's file; the report orders figures by it."""
    title: str
    description: str = ""
    """How to read it."""


def counts(splits: Any, title: str, **columns: Callable[[Any], int]) -> Shown:
    """A table of the splits, with what each column counts of one."""
    import pandas as pd

    parts = {name: splits.split(name) for name in SPLITS}
    rows = {name: {column: of(part) for column, of in columns.items()} for name, part in parts.items()}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("split")
    return Shown(table, "01_counts", title)


class Task(Protocol):
    """What the training loop asks of a task.

    A task may also have these, which are used if it has them:

    - `counted`: "tokens" where steps count tokens and not samples;
    - `judge(outputs, splits, net, means)`: {name: number} of the whole test split, after the pass that gave
      `means`; it names those arguments that it needs. `outputs` are all outputs of the net, on the CPU;
    - `preview(splits)`: what the data look like, and how much there is;
    - `mistakes(net, splits)`: where a trained net errs; it may also ask for `n` (how many to show), `seed`,
      `folder` (of the run) and `seen` (splits of which a frozen part of the net is computed already);
    - `predict(net, inputs)`: a list of rows, one for each new input; it may also ask for `about`, what a run
      keeps of its data.

    `preview` and `mistakes` give a figure, a table, a `Shown`, or a list of them.
    """

    monitor: Any
    """The reported number (str) by which the best epoch is chosen; larger is better."""
    score: Any
    """The number that nets are compared by, and how people read it; a `stats.Score`."""

    def __call__(self, model: nn.Module, batch: Any) -> Step:
        """What a batch gives.

        A task with a true attribute `whole`, whose loss looks at the batch as a whole, is also given
        `micro_batch`, how many samples to compute at once: batches of other tasks are cut before.
        """
        ...


def asked(function: Callable[..., Any], *given: Any, **offered: Any) -> Any:
    """Calls a function with `given`, and with those of `offered` that it names.

    Example:
        >>> asked(lambda net, n=1: net * n, "net", n=2, seed=0)
        'netnet'
    """
    taken = inspect.signature(function).parameters
    every = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    return function(*given, **{name: value for name, value in offered.items() if every or name in taken})

"""The interface of a task for the training loop and the reports, and its result for a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from qnnkit.data.splits import SPLITS


@dataclass(frozen=True)
class Step:
    """Result of a task for one batch.

    Args:
        loss: Mean loss over the samples or tokens of the batch, to differentiate.
        sums: Numbers to report, summed over the batch, without a graph.
        count: Number of samples or tokens in the mean; the weight of the batch in updates and means.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    count: int


@dataclass(frozen=True)
class Shown:
    """A figure or table of `preview` or `mistakes`; figures are saved for the report with their captions.

    Args:
        content: A matplotlib figure, a pandas table, or anything else that a notebook can show.
        name: Name of the figure's file; the report sorts figures by it.
        title: Caption in the report.
        description: How to read it.
    """

    content: Any
    name: str
    title: str
    description: str = ""


def counts(splits: Any, title: str, **columns: Callable[[Any], int]) -> Shown:
    """Returns a table with a row for each split; each column is a function that counts in one."""
    import pandas as pd

    rows = {name: {column: of(splits.split(name)) for column, of in columns.items()} for name in SPLITS}
    return Shown(pd.DataFrame.from_dict(rows, orient="index").rename_axis("split"), "01_counts", title)


class Task(Protocol):
    """The interface of a task for the training loop: a callable with a `monitor` and a `score`.

    - `monitor`: name of the reported number that chooses the best epoch; larger is better. `train.fit` wraps
      other tasks in `Own`, for which smaller may be better, and the default is "loss";
    - `score`: the `stats.Score` by which nets are compared, and how it is printed.

    These attributes are optional:

    - `counted`: "tokens" if steps count tokens instead of samples;
    - `judge(outputs, splits, net, means)`: returns {name: number} for the whole test split, after the pass
      that computed `means`; its numbers replace means of the same name. It names the arguments that it
      needs. `outputs` are all outputs of the net, on the CPU;
    - `preview(splits)`: shows what the data look like, and how much there is;
    - `mistakes(net, splits)`: shows where a trained net errs. It may also take `n` (how many to show),
      `seed`, `folder` (of the run) and `seen` (splits with the outputs of a frozen part of the net);
    - `predict(net, inputs)`: returns a list of rows, one for each new input. It may also take `about`, the
      description of the training data stored in a run.

    `preview` and `mistakes` return a figure, a table, a `Shown`, or a list of them.
    """

    monitor: Any
    score: Any

    def __call__(self, model: nn.Module, batch: Any) -> Step:
        """Computes the loss and the sums of a batch.

        If a task has an attribute `whole` that is true, because its loss depends on the batch as a whole, it
        also gets `micro_batch`, the number of samples to compute at once, and trains in a single process.
        Batches of other tasks are divided before the call.
        """
        ...


def asked(function: Callable[..., Any], *given: Any, **offered: Any) -> Any:
    """Calls a function with `given`, and with the arguments in `offered` that it names.

    Example:
        >>> asked(lambda net, n=1: net * n, "net", n=2, seed=0)
        'netnet'
    """
    taken = inspect.signature(function).parameters
    every = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    return function(*given, **{name: value for name, value in offered.items() if every or name in taken})

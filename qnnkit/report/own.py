"""What is shown of a user's own data and task: what the task itself shows, else tables of its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qnnkit.data.splits import SPLITS
from qnnkit.data.tensors import TensorSplits
from qnnkit.runs import Run, trained

if TYPE_CHECKING:
    import pandas as pd

ROWS, VALUES, JUDGED = 6, 6, 1000
"""Samples and numbers of each that a table shows; test samples that are judged one by one."""


def shown(run: Run, part: str, *given: Any, name: str, title: str) -> Any:
    """What the run's task shows by its own `preview(splits)` or `mistakes(net, splits)`; None without one.

    Figures of matplotlib are kept for the report.
    """
    function = getattr(run.task, part, None)
    if function is None:
        return None
    with run.recipe.told():
        found = function(*given)
    if hasattr(found, "savefig"):
        return run.keep(found, name, title, f"As `{part}` of the recipe's task draws it.")
    return found


def samples(splits: TensorSplits) -> pd.DataFrame:
    """The first training samples, as numbers."""
    import pandas as pd

    rows = splits.train
    table = [
        {"sample": rows.sources[i], "inputs": _told(rows.inputs[i]), "target": _told(rows.targets[i])}
        for i in range(min(ROWS, len(rows)))
    ]
    return pd.DataFrame(table).set_index("sample")


def counts(splits: TensorSplits) -> pd.DataFrame:
    """Samples of each split."""
    import pandas as pd

    rows = [{"split": name, "samples": len(splits.split(name))} for name in SPLITS]
    return pd.DataFrame(rows).set_index("split")


def worst(run: Run, splits: TensorSplits, n: int) -> pd.DataFrame:
    """The test samples of the largest loss, with what the run's own net, first seed, gives for them."""
    import pandas as pd

    net, task, test = trained(run), run.task, splits.test
    rows = []
    with torch.no_grad(), run.recipe.told():
        for i in range(min(len(test), JUDGED)):
            batch = test.inputs[i : i + 1], test.targets[i : i + 1]
            loss = float(task(net, batch).loss)
            rows.append((loss, i, _told(net(batch[0])[0])))
    rows.sort(reverse=True, key=lambda row: row[0])
    return pd.DataFrame(
        [
            {"sample": test.sources[i], "loss": loss, "target": _told(test.targets[i]), "output": output}
            for loss, i, output in rows[:n]
        ]
    )


def _told(values: Any) -> str:
    if not isinstance(values, Tensor):
        return str(values)[:80]
    flat = values.flatten()
    more = f" ... ({tuple(values.shape)})" if len(flat) > VALUES else ""
    return ", ".join(f"{number:.4g}" for number in flat[:VALUES].tolist()) + more

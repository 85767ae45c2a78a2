"""Losses on groups of the test split, such as the pieces of each composer, where a task judges them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnkit import stats

if TYPE_CHECKING:
    import pandas as pd

OF_NET, OF_BASE = "test_loss_on_", "test_base_on_"
"""How the columns begin that tell the loss on a group, of a net and of the base of its adapter."""
SAME = 1e-4
"""Losses of one base that two runs computed differ by less, relative to themselves."""


def by_group(rows: pd.DataFrame, named: Sequence[str] = ("net",)) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean losses over seeds, and half the width of their 95 % intervals (NaN for a single seed).

    Args:
        rows: Of `runs.frame`, or `finals` of a run.
        named: Columns that tell the nets apart: each combination is a row.

    Returns:
        Two tables of nets, and of the base that adapters stand on, by group; empty where none is judged.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"net": ["lora", "lora"], "test_loss_on_bach": [0.75, 0.25]})
        >>> float(by_group(rows)[0].loc["lora", "bach"])
        0.5
    """
    import pandas as pd

    rows = rows.reset_index(drop=True)

    def of(begin: str) -> Any:
        return rows.filter(regex=f"^{begin}").rename(columns=lambda name: str(name).removeprefix(begin))

    if not of(OF_NET).shape[1]:
        return pd.DataFrame(), pd.DataFrame()
    grouped = of(OF_NET).groupby(rows[list(named)].astype(str).agg(", ".join, axis=1), sort=False)
    means, halves, base = grouped.mean(), grouped.agg(_half_width), of(OF_BASE)
    if base.shape[1] and (base.max() - base.min() <= SAME * base.min()).all():  # nets on one base
        means = pd.concat([base.mean().rename("base").to_frame().T, means])
        halves = halves.reindex(means.index)
    return means, halves


def _half_width(values: pd.Series) -> float:
    known = values.dropna().tolist()
    half = stats.mean_interval(known).half_width if known else math.nan
    return half if math.isfinite(half) else math.nan

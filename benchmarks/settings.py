"""The best learning rates of a batch for every net, by its validation samples alone.

    qnnkit batch docs/study_settings.yaml
    python -m benchmarks.settings batches/ahcd_settings docs/results/settings.csv

Prints the table, and the line of `net_settings` for each recipe (and anything else that the batch varies);
the CSV has every mean.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import record
from qnnkit import batch, report, workspace

RATES = ["learning_rate", "quantum_learning_rate"]


def tried(folder: str) -> pd.DataFrame:
    """Recipe, settings, net, learning rates -> mean best validation score over seeds; marks each net's best.

    Raises:
        FileNotFoundError: There is no batch.
        ValueError: A run of it has not finished: every net needs equally many tries.
    """
    study = report.read_study(folder)
    if study.left_out:
        raise ValueError(
            f"Runs of {folder} have not finished: {', '.join(study.left_out)}. Run the batch again."
        )
    varied = {run.folder.name: run.settings for run in batch.read(folder)}
    names = ["recipe", *(name for name in next(iter(varied.values())) if name not in ("recipe", *RATES))]
    rows = study.frame.copy()
    for name in (*names, *RATES):
        rows[name] = [_value(run, name) for run in rows["run"]]
    case, score = [*names, "net"], f"validation_{study.score.on_validation}"
    means = rows.groupby([*case, *RATES], sort=False)[score].agg(["mean", "count"]).reset_index()
    ranked = means.sort_values("mean", ascending=not study.score.larger, kind="stable")
    return means.assign(chosen=means.index.isin(ranked.drop_duplicates(case).index))  # the first of equals


def _value(run: str, name: str) -> Any:
    """A setting of a run, as a cell of a table."""
    value = workspace.read_json(workspace.home() / "runs" / run / "config.json")[name]
    if name == "recipe":
        return Path(value).stem
    return " ".join(map(str, value)) if isinstance(value, list) else value


def main(folder: str, path: str) -> None:
    table = tried(folder)
    record.write(table, path)
    print(table.to_string(index=False))
    names = list(table)[: list(table).index("net")]
    for case, rows in table[table["chosen"]].groupby(names, sort=False):
        words = [f"{row.net}.{name}={getattr(row, name):g}" for row in rows.itertuples() for name in RATES]
        print(f"{', '.join(map(str, case))}: net_settings = {words}")


if __name__ == "__main__":
    main(*sys.argv[1:])

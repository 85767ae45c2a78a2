"""Which step sizes a batch of a few each found best for every net: by its validation samples alone.

    qnnkit batch docs/study_settings.yaml
    python -m benchmarks.settings batches/ahcd_settings docs/results/settings.csv

Prints the table and the line of `net_settings` of each recipe; the CSV has every mean.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from qnnkit import report, workspace


def tried(folder: str) -> pd.DataFrame:
    """Recipe, net, settings -> mean best validation score over seeds, the best of each net marked.

    Raises:
        FileNotFoundError: No batch is there.
        ValueError: A run of it has not finished: every net is to have as many tries.
    """
    study = report.read_study(folder)
    if study.left_out:
        raise ValueError(
            f"Runs of {folder} have not finished: {', '.join(study.left_out)}. Run the batch again."
        )
    score, rows = f"validation_{study.score.on_validation}", study.frame.copy()
    configs = {
        name: workspace.read_json(workspace.home() / "runs" / name / "config.json")
        for name in set(rows["run"])
    }
    for name in ("recipe", "learning_rate", "quantum_learning_rate"):
        rows[name] = [
            Path(configs[run][name]).stem if name == "recipe" else configs[run][name] for run in rows["run"]
        ]
    keys = ["recipe", "net", "learning_rate", "quantum_learning_rate"]
    found = rows.groupby(keys, sort=False)[score].agg(["mean", "count"]).reset_index()
    best = found.groupby(["recipe", "net"])["mean"].transform("max" if study.score.larger else "min")
    return found.assign(chosen=found["mean"] == best)


def main(folder: str, path: str) -> None:
    table = tried(folder)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, lineterminator="\n")
    print(table.to_string(index=False))
    for recipe, rows in table[table["chosen"]].groupby("recipe", sort=False):
        words = [
            f"{row.net}.{name}={getattr(row, name):g}"
            for row in rows.itertuples()
            for name in ("learning_rate", "quantum_learning_rate")
        ]
        print(f"{recipe}: net_settings = {words}")


if __name__ == "__main__":
    main(*sys.argv[1:])

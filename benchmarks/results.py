"""Keeps what a finished study came to in docs/results, and prints its table as docs/results.md shows it.

qnnkit batch docs/study.yaml
python -m benchmarks.results batches/ahcd_study docs/results/ahcd
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pandas as pd

from qnnkit import stats, workspace

KEPT = ("runs.csv", "means.csv", "comparisons.csv", "conclusions.txt", "fractions.png", "curves.png")
"""What is kept of the `study/` of a batch, as far as it is there: each has the stamp of the runs behind it."""


def table(means: pd.DataFrame, score: stats.Score = stats.ACCURACY) -> str:
    """Mean score with its 95 % interval by net and share of the training data, as a table in Markdown."""
    ends = means[[score.name, f"{score.name}_low", f"{score.name}_high"]].to_numpy()
    told = means.assign(told=[score.with_interval(*each) for each in ends])
    wide = told.pivot_table(
        index=["model", "net"], columns="train_fraction", values="told", aggfunc="first", sort=False
    )
    shares = sorted(wide.columns)
    lines = [["recipe", "net", *(f"{100 * share:g} %" for share in shares)], ["---"] * (2 + len(shares))]
    lines += [[*names, *row[shares].fillna("")] for names, row in wide.iterrows()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(folder: str, place: str) -> None:
    kept = Path(place)
    kept.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (path := workspace.place(folder) / "study" / name).exists():
            shutil.copyfile(path, kept / name)
    means = pd.read_csv(kept / "means.csv")
    print(table(means, next(score for name, score in stats.SCORES.items() if name in means)))


if __name__ == "__main__":
    main(*sys.argv[1:])

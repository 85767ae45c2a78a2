"""Records the results of a finished study in docs/results, and prints its table for docs/results.md.

qnnkit batch docs/study.yaml
python -m benchmarks.results batches/ahcd_study docs/results/ahcd
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pandas as pd

from benchmarks import record
from qnnkit import stats, workspace
from qnnkit.report.study import metrics

KEPT = (
    "groups.csv",
    "runs.csv", "means.csv", "comparisons.csv", "conclusions.txt", "scores.png", "fractions.png", "curves.png"
)  # fmt: skip
"""Files copied from the `study/` of a batch, if they exist: each has the stamp of the runs."""


def table(means: pd.DataFrame) -> str:
    """Scores with their 95 % intervals by model and net, as a table in Markdown.

    A column per share of the training data with the score that nets are compared by; for a single share, a
    column per score.
    """
    [first, *_] = (score for name, score in stats.SCORES.items() if name in means)
    scores, shares = metrics(first), sorted(set(means["train_fraction"]))
    if len(shares) > 1:
        columns = {f"{100 * share:g} %": (first, means["train_fraction"] == share) for share in shares}
    else:
        known = [
            score for score in scores if means[score.name].notna().any() and score.larger == first.larger
        ]
        columns = {score.column: (score, means["train_fraction"] > 0) for score in known}
    frame = means[["model", "net"]].drop_duplicates().set_index(["model", "net"])
    for column, (score, chosen) in columns.items():
        rows = means[chosen].set_index(["model", "net"])
        ends = rows[[score.name, f"{score.name}_low", f"{score.name}_high"]].to_numpy()
        frame[column] = pd.Series([score.with_interval(*each) for each in ends], index=rows.index)
    rows = ([*names, *row.fillna("")] for names, row in frame.iterrows())
    return record.markdown(["recipe", "net", *columns], rows)


def groups_table(groups: pd.DataFrame) -> str:
    """The loss of each net on each group of the test split, with half its 95 % interval, in Markdown."""
    names = [name for name in groups if f"{name} ±" in groups]
    lines = []
    for _, row in groups.iterrows():
        halves = {name: "" if pd.isna(row[f"{name} ±"]) else f" ± {row[f'{name} ±']:.3f}" for name in names}
        lines.append([row["net"], *(f"{row[name]:.3f}{half}" for name, half in halves.items())])
    return record.markdown(["net", *names], lines)


def main(folder: str, place: str) -> None:
    target, study = Path(place), workspace.place(folder) / "study"
    if not (study / "means.csv").exists():
        raise SystemExit(f"Folder `{study}` must hold a study, but has no means.csv. Finish the batch.")
    target.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (study / name).exists():
            shutil.copyfile(study / name, target / name)
    print(table(pd.read_csv(target / "means.csv")))
    if (target / "groups.csv").exists():
        print(groups_table(pd.read_csv(target / "groups.csv")))


if __name__ == "__main__":
    main(*sys.argv[1:])

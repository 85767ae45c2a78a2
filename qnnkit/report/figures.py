"""The figures of a study: scores, learning curves, less data, costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qnnkit import plots
from qnnkit.report.study import Study

MOST_MODELS = 8
"""Models in a figure: those that did best on the validation split. Tables have all."""


def draw(study: Study, means: Any) -> Iterator[Any]:
    """Draws the figures of a study, saves them into its folder, and yields each as a notebook shows it.

    Args:
        study: Of finished runs, one at least.
        means: Of its frame, as `report.means` gives them.
    """
    score, (rows, curves) = study.score, best(study, means)
    n_shares = rows["data"].nunique()
    size = (3.2 * n_shares + 1.5, 0.25 * rows.groupby(["model", "net"]).ngroups + 1)
    title = f"Test {score.word}: each seed, mean and 95 % interval"
    yield study.save(plots.study_scores(rows, score), "scores", title, size)
    size = (3.2 * n_shares + 1, 2.4 * curves["model"].nunique())
    title = "Learning curves: mean over seeds and their range"
    yield study.save(plots.study_curves(curves, score), "curves", title, size)
    if n_shares > 1:
        plot, n = plots.study_fractions(rows, score)
        size = (3.6 * min(n, 3) + 1, 3.2 * -(-n // 3))
        yield study.save(plot, "fractions", f"Test {score.word} against training data", size)
    size = (9, 1 + 2 * rows["model"].nunique())
    yield study.save(plots.study_costs(rows, score), "costs", f"Test {score.word} against cost", size)


def best(study: Study, means: Any) -> tuple[Any, Any]:
    """Scores with their means, as people read them, and curves, of the models that a figure has room for."""
    score, name = study.score, study.score.name
    rows: Any = study.frame.merge(means, on=["model", "net", "train_fraction"], suffixes=("", "_mean"))
    rows[[name, f"{name}_mean", f"{name}_low", f"{name}_high"]] *= score.factor
    rows["data"] = [f"{100 * share:g} %" for share in rows["train_fraction"]]
    validation: Any = rows.groupby("model")[f"validation_{score.on_validation}"].mean()
    top = validation.sort_values(ascending=not score.larger).index[:MOST_MODELS].tolist()
    return rows[rows["model"].isin(top)], study.curves[study.curves["model"].isin(top)]

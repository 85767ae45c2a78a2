"""Whether a run is what its settings call a success: a bound each, what was measured, and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from qnnkit import stats
from qnnkit.runs import Run
from qnnkit.settings import CRITERIA


def judge(run: Run) -> list[dict[str, Any]]:
    """A row for each criterion that the run has a bound for, on its own net (controls are not judged).

    Returns:
        Rows of `criterion`, `bound`, `measured` (over seeds: the mean, of memory the largest), `met` (None
        where it cannot be judged) and `sentence`; of a score also `low` and `high`, its 95 % interval.
    """
    net, bounds = run.nets[0], {name: getattr(run.config, name) for name in CRITERIA}
    finals = [row for (name, _), row in run.tested().items() if name == net]
    return [_row(name, bound, finals, run.score) for name, bound in bounds.items() if bound is not None]


def _row(name: str, bound: float, finals: Sequence[dict[str, Any]], own: stats.Score) -> dict[str, Any]:
    column, judged = _JUDGES[name]
    more = {"n_test": [row.get("n_test") for row in finals]} if name in _SCORES else {}
    values = [row.get(column) for row in finals]
    known = [float(value) for value in values if value is not None]
    found: dict[str, Any] = {"criterion": name, "bound": bound, "measured": None, "met": None}
    if not finals:
        return found | {"sentence": f"not judged: {name} = {bound:g}, but the net is not trained yet."}
    if name in _SCORES and name != own.criterion:
        why = f"the nets of this run are compared by {own.word}: use {own.criterion}"
        return found | {"sentence": f"not judged: {name} = {bound:g}, but {why}."}
    if len(known) < len(values):
        why = f"this run was trained by a version that did not record its {column.replace('_', ' ')}"
        return found | {"sentence": f"not judged: {name} = {bound:g}, but {why}."}
    return found | judged(bound, known, **more)


def _memory(bound: float, values: Sequence[float]) -> dict[str, Any]:
    gb = max(values) / 1e9
    met = gb <= bound
    how = f"stay within {bound:g} GB" if met else f"are more than {bound:g} GB"
    return _told(gb, met, f"{gb:.2f} GB of memory at the peak {how}.")


def _epoch(bound: float, values: Sequence[float]) -> dict[str, Any]:
    seconds = fmean(values)
    met = seconds <= bound
    how = f"stay within {bound:g} s" if met else f"are more than {bound:g} s"
    return _told(seconds, met, f"{seconds:.3g} s for an epoch {how}.")


def _score(
    score: stats.Score, bound: float, values: Sequence[float], n_test: Sequence[float | None]
) -> dict[str, Any]:
    interval = score.interval(values, n_test)
    met, known = score.reaches(interval.mean, bound), interval.known
    missed, down, up = ("is below", "down", "up") if score.larger else ("is above", "up", "down")
    worst, best = (interval.low, interval.high) if score.larger else (interval.high, interval.low)
    reached = score.with_unit(interval.mean, beside=bound)
    told = f"test {score.word} of {reached} {'reaches' if met else missed} {score.with_unit(bound)}"
    if len(values) == 1:
        told += ", with one seed"
    elif known and met and not score.reaches(worst, bound):
        told += f", though its 95 % interval reaches {down} to {score.with_unit(worst, beside=bound)}"
    elif known and not met and score.reaches(best, bound):
        told += f", though its 95 % interval reaches {up} to {score.with_unit(best, beside=bound)}"
    ends = {"low": interval.low, "high": interval.high} if known else {"low": None, "high": None}
    return _told(interval.mean, met, f"{told}.") | ends


def _told(measured: float, met: bool, sentence: str) -> dict[str, Any]:
    return {"measured": measured, "met": met, "sentence": f"{'pass' if met else 'fail'}: {sentence}"}


_SCORES = {score.criterion: score for score in stats.SCORES.values()}
_JUDGES: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "max_memory_gb": ("peak_memory", _memory),
    "max_epoch_seconds": ("seconds_per_epoch", _epoch),
    **{name: (f"test_{score.name}", partial(_score, score)) for name, score in _SCORES.items()},
}
"""Criterion -> the column of the final rows that it judges, and how."""

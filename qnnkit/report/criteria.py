"""Whether a run is what its settings call a success: a bound each, what was measured, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from qnnkit import stats
from qnnkit.runs import Run
from qnnkit.settings import CRITERIA

_SCORES = {score.criterion: score for score in stats.SCORES.values()}


def judge(run: Run) -> list[dict[str, Any]]:
    """A row for each criterion that the run has a bound for, on its own net (controls are not judged).

    Returns:
        Rows of `criterion`, `bound`, `measured` (over seeds: the mean, of memory the largest), `met` (None
        where it cannot be judged) and `sentence`; of a score also `low` and `high`, its 95 % interval.
    """
    net, bounds = run.nets[0], {name: getattr(run.config, name) for name in CRITERIA}
    finals = [row for (name, _), row in run.tested().items() if name == net]
    return [
        {"criterion": name, "bound": bound, "measured": None, "met": None}
        | _judged(name, bound, finals, run.score)
        for name, bound in bounds.items()
        if bound is not None
    ]


def _judged(name: str, bound: float, finals: Sequence[dict[str, Any]], own: stats.Score) -> dict[str, Any]:
    score, why = _SCORES.get(name), None
    column = f"test_{score.name}" if score else _COLUMNS[name]
    values = [row.get(column) for row in finals]
    known = [float(value) for value in values if value is not None]
    if not finals:
        why = "the net is not trained yet"
    elif score and name != own.criterion:
        why = f"the nets of this run are compared by {own.word}: use {own.criterion}"
    elif len(known) < len(values):
        why = f"this run was trained by a version that did not record its {column.replace('_', ' ')}"
    if why:
        return {"sentence": f"not judged: {name} = {bound:g}, but {why}."}
    if score:
        return _score(score, bound, known, [row.get("n_test") for row in finals])
    if name == "max_memory_gb":
        measured, unit = max(known) / 1e9, "GB"
        seen = f"{measured:.2f} GB of memory at the peak"
    else:
        measured, unit = fmean(known), "s"
        seen = f"{measured:.3g} s for an epoch"
    met = measured <= bound
    return _verdict(measured, met, f"{seen} {'stay within' if met else 'are more than'} {bound:g} {unit}.")


_COLUMNS = {"max_memory_gb": "peak_memory", "max_epoch_seconds": "seconds_per_epoch"}


def _score(
    score: stats.Score, bound: float, values: Sequence[float], n_test: Sequence[float | None]
) -> dict[str, Any]:
    interval = score.interval(values, n_test)
    met = score.reaches(interval.mean, bound)
    missed, down, up = ("is below", "down", "up") if score.larger else ("is above", "up", "down")
    worst, best = (interval.low, interval.high) if score.larger else (interval.high, interval.low)
    end, way = (worst, down) if met else (best, up)
    reached = score.with_unit(interval.mean, beside=bound)
    seen = f"test {score.word} of {reached} {'reaches' if met else missed} {score.with_unit(bound)}"
    if len(values) == 1:
        seen += ", with one seed"
    elif interval.known and score.reaches(end, bound) is not met:
        seen += f", though its 95 % interval reaches {way} to {score.with_unit(end, beside=bound)}"
    ends = (interval.low, interval.high) if interval.known else (None, None)
    return _verdict(interval.mean, met, f"{seen}.") | dict(zip(("low", "high"), ends, strict=True))


def _verdict(measured: float, met: bool, seen: str) -> dict[str, Any]:
    return {"measured": measured, "met": met, "sentence": f"{'pass' if met else 'fail'}: {seen}"}

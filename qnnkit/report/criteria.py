"""Whether a run is what its settings call a success: a bound each, what was measured, and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from qnnkit import stats
from qnnkit.runs import Run


def judge(run: Run) -> list[dict[str, Any]]:
    """A row for each criterion that the run has a bound for, on its own net (controls are not judged).

    Returns:
        Rows of `criterion`, `bound`, `measured` (over seeds: the mean, of memory the largest), `met` (None
        where it cannot be judged) and `sentence`; of accuracy also `low` and `high`, its 95 % interval.
    """
    net, bounds = run.nets[0], run.config.criteria.model_dump()
    finals = [row for (name, _), row in run.tested().items() if name == net]
    return [_row(name, bound, finals) for name, bound in bounds.items() if bound is not None]


def _row(name: str, bound: float, finals: Sequence[dict[str, Any]]) -> dict[str, Any]:
    column, judged = _JUDGES[name]
    values = [row.get(column) for row in finals]
    known = [float(value) for value in values if value is not None]
    found: dict[str, Any] = {"criterion": name, "bound": bound, "measured": None, "met": None}
    if not finals:
        return found | {"sentence": f"not judged: {name} = {bound:g}, but the net is not trained yet."}
    if len(known) < len(values):
        why = f"this run was trained by a version that did not record its {column.replace('_', ' ')}"
        return found | {"sentence": f"not judged: {name} = {bound:g}, but {why}."}
    return found | judged(bound, known)


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


def _accuracy(bound: float, values: Sequence[float]) -> dict[str, Any]:
    interval = stats.mean_interval(list(values))
    met = interval.mean >= bound
    known = len(values) > 1
    told = f"test accuracy of {_percent(interval.mean)} {'reaches' if met else 'is below'} {_percent(bound)}"
    if not known:
        told += ", with one seed"
    elif met and interval.low < bound:
        told += f", though the interval over seeds reaches down to {_percent(interval.low)}"
    elif not met and interval.high >= bound:
        told += f", though the interval over seeds reaches up to {_percent(interval.high)}"
    ends = {"low": interval.low, "high": interval.high} if known else {"low": None, "high": None}
    return _told(interval.mean, met, f"{told}.") | ends


def _told(measured: float, met: bool, sentence: str) -> dict[str, Any]:
    return {"measured": measured, "met": met, "sentence": f"{'pass' if met else 'fail'}: {sentence}"}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_JUDGES: dict[str, tuple[str, Callable[[float, Sequence[float]], dict[str, Any]]]] = {
    "max_memory_gb": ("peak_memory", _memory),
    "max_epoch_seconds": ("seconds_per_epoch", _epoch),
    "min_accuracy": ("test_accuracy", _accuracy),
}
"""Criterion -> the column of the final rows that it judges, and how."""

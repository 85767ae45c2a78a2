"""What a study's comparisons show, and what they do not, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qnnkit.stats import ACCURACY, ALPHA, Comparison, Score


@dataclass(frozen=True)
class Compared:
    """One comparison of a family."""

    name: str
    """The first net."""
    other: str
    where: str
    """What tells it from other comparisons of the two, such as "25 %"; "" where there are none."""
    found: Comparison
    """Of scores as they are kept: accuracies as fractions, losses in nats."""
    corrected: float
    """p after correction over the family."""
    control: str = ""
    """What classical control the other net is, in words; "" where it is none. See EQUAL_SIZE."""


EQUAL_SIZE = "the classical control of equal size"
"""Equal in all but for the circuit."""
AS_FROZEN = "the classical control that is as frozen as the circuit"
TRAINED = "the classical control that is trained, though the circuit is frozen"
LORA = "LoRA, which has no circuit"


def conclude(family: Sequence[Compared], score: Score = ACCURACY) -> list[str]:
    """What the data show, what they do not, and whether the circuits helped: sentences, nothing else.

    Judged is by the corrected p alone; where it is not below 0.05 no net is called better.

    Args:
        family: Every comparison that was made, corrected over all of them.
        score: What was compared; accuracies as fractions by default.
    """
    if not family:
        return ["No two nets could be compared, so nothing can be said of any difference."]
    shown = sum(each.found.shown(each.corrected) for each in family)
    untold = sum(math.isnan(each.corrected) for each in family)
    first = (
        f"Of {_counted(len(family), 'comparison')} over the same seeds and splits, {shown} "
        f"show{'s' if shown == 1 else ''} a difference (paired t-test, p < {ALPHA} after Holm's correction "
        "for all of them)."
    )
    if untold:
        first += f" {untold} cannot be tested: one seed, or one and the same difference on every seed."
    pairs: dict[tuple[str, str], list[Compared]] = {}
    for each in family:
        pairs.setdefault((each.name, each.other), []).append(each)
    told = [_on_pair(compared, score) for compared in pairs.values()]
    return [first, *told, *_on_circuits(family, score)]


def _on_pair(compared: Sequence[Compared], score: Score) -> str:
    name, other = compared[0].name, compared[0].other
    shown = [each for each in compared if each.found.shown(each.corrected)]
    told = [
        f"{better} did better than {worse}{_at(which)}, by {_points(which, score)}"
        for better, worse, larger in ((name, other, score.larger), (other, name, not score.larger))
        if (which := [each for each in shown if (each.found.difference > 0) is larger])
    ]
    rest = [each for each in compared if each not in shown]
    open_ = [each for each in rest if not math.isnan(each.corrected)]
    untold = [each for each in rest if math.isnan(each.corrected)]
    if open_:
        told.append(
            f"no difference is shown{_at(open_)}"
            if told
            else f"no difference is shown between {name} and {other}{_at(open_)}"
        )
    if untold:
        told.append(f"nothing can be said of {name} and {other}{_at(untold)}")
    sentence = "; ".join(told) + "."
    return sentence if sentence.startswith((name, other)) else sentence[0].upper() + sentence[1:]


def _on_circuits(family: Sequence[Compared], score: Score) -> list[str]:
    kinds = list(dict.fromkeys(each.control for each in family if each.control))
    return [
        _on_control([each for each in family if each.control == kind], score, alone=len(kinds) == 1)
        for kind in kinds
    ]


def _on_control(beside: Sequence[Compared], score: Score, alone: bool) -> str:
    others = "" if alone else f" ({_listed(list(dict.fromkeys(each.other for each in beside)))})"
    it = "" if alone else " over it"
    shown = [each.found.difference for each in beside if each.found.shown(each.corrected)]
    won = sum((gap > 0) is score.larger for gap in shown)
    lost = len(shown) - won
    told = (
        f"Beside {beside[0].control}{others}, the circuit did better in {won} of "
        f"{_counted(len(beside), 'case')} and worse in {lost}; in {len(beside) - won - lost} no difference "
        "is shown."
    )
    if won and lost:
        return f"{told} Neither is better throughout."
    if won:
        return f"{told} That holds for these data, these settings and these seeds."
    if lost:
        return (
            f"{told} Where the data decide, the classical control wins; no advantage of a circuit{it} is "
            "shown."
        )
    return f"{told} No advantage of a circuit{it} is shown, nor of the control."


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _at(compared: Sequence[Compared]) -> str:
    wheres = [each.where for each in compared if each.where]
    return f" at {_listed(wheres)}" if wheres else ""


def _points(compared: Sequence[Compared], score: Score) -> str:
    gaps = [score.tell(abs(each.found.difference)) for each in compared]
    return f"{_listed(gaps)} {score.unit}".rstrip() + ("" if score.larger else " less")

"""Where to run it: an answer in a few sentences, from how it would go on each machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qnnkit.plan import words
from qnnkit.plan.elsewhere import Range
from qnnkit.plan.places import HERE, Place
from qnnkit.plan.remedies import Remedy
from qnnkit.plan.verdict import Wish


def in_order(places: Sequence[Place]) -> list[Place]:
    """Those that do it, the cheapest first; of equals the comfortable, this machine, then the quickest."""

    def worth(place: Place) -> tuple[float, bool, bool, float]:
        marginal = place.verdict.word != "comfortable"
        return _likely(place.cost), marginal, place.name != HERE, _likely(place.total)

    return sorted((each for each in places if each.verdict.word != "not here"), key=worth)


def answer(places: Sequence[Place], wish: Wish, currency: str, enough: Sequence[Remedy] = ()) -> list[str]:
    """Where to run it, what this machine would make of it, and what would help where nothing does it.

    Args:
        places: Every machine, this one among them.
        wish: Deadline and budget.
        currency: Of costs.
        enough: Remedies that make it fit here.
    """
    order, here = in_order(places), next((each for each in places if each.name == HERE), None)
    told = []
    if order:
        best = order[0]
        told.append(f"Run it {_at(best)}: {_takes(best, currency)}.{_but(best)}")
        quicker = [each for each in order[1:] if _clearly_quicker(each, best)]
        if quicker:
            price = ", at a price" if _likely(quicker[0].cost) > _likely(best.cost) else ""
            told.append(f"Quicker{price}: {_the(quicker[0])}, {_takes(quicker[0], currency)}.")
    if here is not None and here.verdict.word == "not here":
        told.append(f"Not on this machine: {_lower(here.verdict.reason)}")
    if not order:
        told = [
            f"No machine of the table does it{_within(wish, currency)}.",
            *told,
            *_would(places, wish, currency),
        ]
    if enough and here is not None and not here.verdict.fits:
        changes = " ".join(each.command for each in enough)
        told.append(f"To fit it on this machine: {changes} ({_to(enough)}).")
    return told


def _would(places: Sequence[Place], wish: Wish, currency: str) -> list[str]:
    """What else would have to be granted."""
    told, fitting = [], [each for each in places if each.verdict.fits]
    if not fitting:
        most = max(places, key=lambda each: each.usable)
        return [
            f"It fits nowhere: it needs {words.size(most.needs)}, and {_the(most)} lets it use "
            f"{words.size(most.usable)}."
        ]
    timed = [each for each in fitting if each.total is not None]
    within = [each for each in timed if _meets(each.cost, wish.budget)]
    if wish.deadline is not None and within:
        soonest = min(within, key=lambda each: _likely(each.total))
        told.append(
            f"With more time it does: {_the(soonest)} takes {_about(soonest.total)}{_for(soonest, currency)}."
        )
    quick = [each for each in timed if _meets(each.total, wish.deadline) and each.cost is not None]
    if wish.budget is not None and quick:
        cheapest = min(quick, key=lambda each: _likely(each.cost))
        told.append(
            f"With more money it does: {_the(cheapest)} costs about "
            f"{words.money(_likely(cheapest.cost), currency)} and takes {_about(cheapest.total)}."
        )
    if not told and timed:
        nearest = min(timed, key=lambda each: (_likely(each.cost), _likely(each.total)))
        told.append(f"The cheapest is {_the(nearest)}: {_takes(nearest, currency)}.")
    return told


def _clearly_quicker(one: Place, best: Place) -> bool:
    return one.total is not None and best.total is not None and one.total.high < best.total.low


def _meets(range_: Range | None, limit: float | None) -> bool:
    return limit is None or (range_ is not None and range_.likely <= limit)


def _likely(range_: Range | None) -> float:
    return math.inf if range_ is None else range_.likely


def _within(wish: Wish, currency: str) -> str:
    limits = [] if wish.deadline is None else [f"in {words.duration(wish.deadline)}"]
    limits += [] if wish.budget is None else [f"for {words.money(wish.budget, currency)}"]
    return f" {' '.join(limits)}" if limits else ""


def _takes(place: Place, currency: str) -> str:
    if place.total is None:
        return "its time is not known"
    return f"{_about(place.total)}{_for(place, currency)}"


def _about(total: Range | None) -> str:
    return (
        "an unknown time" if total is None else f"about {words.spread(total.low, total.likely, total.high)}"
    )


def _for(place: Place, currency: str) -> str:
    if place.cost is None:
        return ", at a price that is not known"
    if place.cost.high == 0:
        return ", which costs nothing"
    units = place.compute_units
    told = "" if units is None else f" ({words.digits(units.likely)} of Colab's compute units)"
    return f" and {words.money(place.cost.likely, currency)}{told}"


def _but(best: Place) -> str:
    return "" if best.verdict.word == "comfortable" else f" That is marginal: {_lower(best.verdict.reason)}"


def _to(enough: Sequence[Remedy]) -> str:
    return f"{words.size(enough[0].before)} become {words.size(enough[-1].after)}"


def _at(place: Place) -> str:
    owned = " (if you have one)" if place.kind == "mac" and place.name != HERE else ""
    return "here" if place.name == HERE else f"on {_article(place.name)} {place.name}{owned}"


def _the(place: Place) -> str:
    owned = " (if you have one)" if place.kind == "mac" and place.name != HERE else ""
    return place.name if place.name == HERE else f"the {place.name}{owned}"


def _article(name: str) -> str:
    """As it is said: an L4, an A100, an H100, a T4, a Mac."""
    spelt = len(name) > 1 and not name[1].islower()  # said letter by letter
    return "an" if name[0] in ("AEFHILMNORSX" if spelt else "AEIOU") else "a"


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]

"""Whether a training goes well on a machine: comfortable, marginal or not here, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from qnnkit.plan import words
from qnnkit.plan.elsewhere import Range

COMFORTABLE, FULL = 0.70, 0.95
"""Shares of the usable memory: up to the first there is room for what a plan does not know (fragments, other
programs); above the second a training is expected to fail. Chosen, not fitted."""
FINE = 8
"""The largest batch is sought until an eighth more would not fit."""
STRAIGHT = 0.01
"""Share by which memory may lie beside the line that it is expected on."""

Word = Literal["comfortable", "marginal", "not here"]


@dataclass(frozen=True)
class Wish:
    """What a training may cost."""

    deadline: float | None = None
    """Seconds in which all of it should be done."""
    budget: float | None = None
    """In the currency of the table of machines; 0 asks for machines that cost nothing."""


@dataclass(frozen=True)
class Verdict:
    word: Word
    reason: str
    """In a sentence."""
    fits: bool
    """In memory, whatever time and money say."""


def judge(
    needs: float,
    usable: float,
    total: Range | None = None,
    cost: Range | None = None,
    wish: Wish | None = None,
    currency: str = "USD",
) -> Verdict:
    """What is to be said of a training on a machine.

    Args:
        needs: Bytes at the peak.
        usable: Bytes that it may use there.
        total: Seconds of all of it; None where they are not known.
        cost: Of all of it; None where no price is known.
        wish: Deadline and budget.
        currency: Of cost and budget.
    """
    wish, share = wish or Wish(), needs / usable
    memory = f"needs {words.size(needs)} of {words.size(usable)}"
    if share > FULL:
        return Verdict("not here", f"It {memory}.", fits=False)
    against, doubts = [], [f"{memory} (little room is left)"] if share > COMFORTABLE else []
    for range_, limit, told, name in (
        (total, wish.deadline, words.duration, "deadline"),
        (cost, wish.budget, lambda amount: words.money(amount, currency), "budget"),
    ):
        if limit is None:
            continue
        if range_ is None:
            doubts.append(f"has no known {'time' if name == 'deadline' else 'price'}")
        elif range_.likely > limit:
            verb = "takes about" if name == "deadline" else "costs about"
            against.append(f"{verb} {told(range_.likely)}, over the {name} of {told(limit)}")
        elif range_.high > limit:
            doubts.append(f"may go up to {told(range_.high)}, over the {name} of {told(limit)}")
    if against:
        return Verdict("not here", f"It {words.listed(against)}.", fits=True)
    if doubts:
        return Verdict("marginal", f"It {words.listed(doubts)}.", fits=True)
    return Verdict("comfortable", f"It {memory}.", fits=True)


def largest_batch(needs: Callable[[int], float], usable: float, most: int) -> int | None:
    """The largest batch that fits, or nearly; None where not even one sample does.

    Memory grows almost along a line with the batch, so the line between a batch that fits and one that does
    not is followed; where it bends, the middle between the two is tried in turn. What is found fits, and an
    eighth more would not.

    Args:
        needs: Batch size -> bytes at the peak; more samples never need fewer.
        usable: Bytes that may be used.
        most: Samples that there are: a larger batch would hold nothing more.
    """
    limit = FULL * usable
    if needs(1) > limit:
        return None
    if needs(most) <= limit:
        return most
    low, high, turn = 1, most, 0
    while high - low > max(1, low // FINE):
        slope = (needs(high) - needs(low)) / (high - low)
        line = low + int((limit - needs(low)) / slope)
        size = min(max(line if turn % 2 == 0 else (low + high) // 2, low + 1), high - 1)
        expected = needs(low) + slope * (size - low)
        if needs(size) > limit:
            high = size
        elif size == line and abs(needs(size) - expected) < STRAIGHT * expected:
            return size
        else:
            low = size
        turn += 1
    return low

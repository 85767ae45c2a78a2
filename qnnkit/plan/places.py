"""How a training would go on each machine: what it needs there, how long it takes, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qnnkit.plan.elsewhere import Estimate, Figures, Range, published
from qnnkit.plan.machines import Table
from qnnkit.plan.prediction import Prediction
from qnnkit.plan.verdict import Verdict, Wish, judge, largest_batch

HERE = "this machine"
LARGEST = 4096
"""Largest batch that is sought: tracing one takes longer the more circuits it has, and few want more."""


@dataclass(frozen=True)
class Place:
    """A machine, and how the training would go there."""

    name: str
    kind: str
    """ "cuda", "mac" or "cpu"."""
    device: str | None
    """What would compute there; None where no time is known."""
    basis: str
    """What its times follow from: "measured here", "estimated" (here), "from its survey", "published" or
    "not timed"."""
    needs: int
    """Bytes at the peak."""
    usable: int
    """Bytes that it may use."""
    largest: int | None
    """Largest batch that fits, up to LARGEST; None where it was not sought, 0 where not one sample fits."""
    epoch: Range | None
    """Seconds of one epoch of one net."""
    total: Range | None
    """Seconds of all epochs of all nets and seeds."""
    cost: Range | None
    """Of all of it, in the table's currency; None where no price is known."""
    compute_units: Range | None
    """Of Colab, for all of it; None where Colab does not rent it, or no rate is known."""
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """In plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Spot:
    """What is known of a machine before a training is set beside it."""

    name: str
    kind: str
    usable: int
    price_per_hour: float | None = None
    compute_units_per_hour: float | None = None


def needed(prediction: Prediction, kind: str) -> int:
    """Bytes that have to fit: on a GPU what it computes on, elsewhere data and framework as well."""
    return prediction.on_accelerator if kind == "cuda" else prediction.in_all


def of_table(table: Table, surveys: Mapping[str, Sequence[Figures]]) -> list[tuple[Spot, Sequence[Figures]]]:
    """The rows that a table shows, and how fast each is.

    Args:
        table: Machines and prices.
        surveys: Name of a row -> what a survey of such a machine measured; goes before what is published.
    """
    found = []
    for name in table.shown:
        row, price = table.machines[name], table.price_per_hour(name)
        spot = Spot(name, row.kind, round(1e9 * row.usable_gb), price, row.compute_units_per_hour)
        found.append((spot, surveys.get(name) or published(row)))
    return found


def place(
    spot: Spot,
    prediction: Prediction,
    updates: Estimate | None,
    *,
    trainings: int,
    wish: Wish,
    currency: str,
    memory: Callable[[int], Prediction] | None,
) -> Place:
    """A machine with the training set beside it.

    Args:
        spot: The machine.
        prediction: Of the training.
        updates: Seconds of one update there; None where they are not known.
        trainings: How many nets are trained in all, over controls and seeds.
        wish: Deadline and budget.
        currency: Of prices.
        memory: Batch size -> a prediction without times, to seek the largest; None does not.
    """
    config = prediction.training
    epoch = total = cost = units = None
    if updates is not None:
        epoch = updates.seconds.times(prediction.n_samples / config.batch_size)
        total = epoch.times(config.epochs * trainings)
        hours = total.times(1 / 3600)
        cost = None if spot.price_per_hour is None else hours.times(spot.price_per_hour)
        units = None if spot.compute_units_per_hour is None else hours.times(spot.compute_units_per_hour)
    elif spot.price_per_hour == 0:
        cost = Range(0, 0, 0)
    largest = None
    if memory is not None:
        most = min(prediction.n_samples, LARGEST)
        found = largest_batch(lambda size: needed(memory(size), spot.kind), spot.usable, most)
        largest = found or 0
    needs = needed(prediction, spot.kind)
    return Place(
        name=spot.name,
        kind=spot.kind,
        device=None if updates is None else updates.device,
        basis="not timed" if updates is None else updates.basis,
        needs=needs,
        usable=spot.usable,
        largest=largest,
        epoch=epoch,
        total=total,
        cost=cost,
        compute_units=units,
        verdict=judge(needs, spot.usable, total, cost, wish, currency),
    )

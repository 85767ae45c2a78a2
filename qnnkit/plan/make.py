"""Everything that a plan says: what a training needs, how it goes here and elsewhere, what would help."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qnnkit.plan import here, machines, surveys, where
from qnnkit.plan.elsewhere import Estimate, Range, calibration, estimate, roofline
from qnnkit.plan.places import Place, Spot, needed, of_table, place
from qnnkit.plan.predict import predict
from qnnkit.plan.prediction import Prediction
from qnnkit.plan.remedies import Remedy, Sight, enough, remedies
from qnnkit.plan.verdict import COMFORTABLE, Wish
from qnnkit.plan.workload import Workload


@dataclass(frozen=True)
class Plan:
    """What a training will take, and where to run it."""

    prediction: Prediction
    """Of one net on this machine."""
    nets: int
    """The hybrid net and its controls, each taken to cost what the hybrid does."""
    seeds: int
    places: tuple[Place, ...]
    """This machine, then those of the table."""
    wish: Wish
    answer: tuple[str, ...]
    """Where to run it, in sentences."""
    remedies: tuple[Remedy, ...]
    """What would save memory here, in order; none where it fits comfortably."""
    notes: tuple[str, ...]
    """What a reader must know of the figures."""
    currency: str

    @property
    def here(self) -> Place:
        return self.places[0]

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, for JSON."""
        return {
            "prediction": self.prediction.as_dict(),
            "nets": self.nets,
            "seeds": self.seeds,
            "places": [each.as_dict() for each in self.places],
            "wish": {"deadline": self.wish.deadline, "budget": self.wish.budget},
            "answer": list(self.answer),
            "remedies": [each.as_dict() for each in self.remedies],
            "notes": list(self.notes),
            "currency": self.currency,
        }


def make(
    workload: Workload,
    device: torch.device | str = "cpu",
    *,
    threads: int | None = None,
    nets: int = 1,
    seeds: int = 1,
    wish: Wish | None = None,
    prices: str | Path | None = None,
    price_per_hour: float | None = None,
    measured: Sequence[str | Path] = (),
    measure: bool = True,
    seconds: float = 3.0,
    largest: bool = True,
) -> Plan:
    """Plans a training: nothing large is run, whatever it would need.

    Args:
        workload: What is to be trained.
        device: Where it would compute here.
        threads: CPU threads that train; None leaves torch's choice.
        nets: How many nets are trained: the hybrid one and its controls.
        seeds: With how many seeds each.
        wish: Deadline and budget.
        prices: A table of machines of your own, see `machines.load`.
        price_per_hour: Of this machine.
        measured: Files that `qnnkit measure` wrote on other machines.
        measure: Whether updates are timed here; without, there are no times at all for this machine, and
            wider ranges for the others.
        seconds: About how long updates are timed.
        largest: Whether to seek the largest batch that fits on each machine; half a second for each size.

    Raises:
        ValueError, OSError: The table of machines or a survey cannot be used.
    """
    device, wish = torch.device(device), wish or Wish()
    table = machines.load(prices)
    known = surveys.read(measured, table)
    prediction = predict(workload, device, measured=measure, seconds=seconds, threads=threads)

    @functools.cache
    def memory(batch_size: int) -> Prediction:
        return _look(workload.change(batch_size=batch_size), device, threads)

    work, precision, timed = prediction.work, prediction.training.precision, prediction.seconds
    figures = here.figures(device, precision, threads) if measure else None
    calibrated = calibration(work, precision, timed and timed.median, figures)
    this = here.spot(device, table, price_per_hour)
    spots: list[tuple[Spot, Estimate | None]] = [(this, _timed(prediction))]
    for spot, processors in (*of_table(table, known.rows), *known.others):
        spots.append((spot, estimate(work, precision, processors, calibrated)))
    places = [
        place(
            spot,
            prediction,
            updates,
            trainings=nets * seeds,
            wish=wish,
            currency=table.currency,
            memory=memory if largest else None,
        )
        for spot, updates in spots
    ]
    found, chain = [], []
    if places[0].verdict.word != "comfortable" and places[0].needs > COMFORTABLE * this.usable:
        sight = Sight(
            predict=lambda changed: _look(changed, device, threads),
            needs=lambda prediction: needed(prediction, this.kind),
            usable=this.usable,
            seconds=figures and (lambda each: roofline(each.work, figures, each.training.precision)),
        )
        found = remedies(workload, sight)
        chain = [] if places[0].verdict.fits else enough(workload, sight, found)
    return Plan(
        prediction=prediction,
        nets=nets,
        seeds=seeds,
        places=tuple(places),
        wish=wish,
        answer=tuple(where.answer(places, wish, table.currency, chain)),
        remedies=tuple(found),
        notes=(*prediction.notes, *_doubts(prediction, nets), *known.notes, *table.notes()),
        currency=table.currency,
    )


def _look(workload: Workload, device: torch.device, threads: int | None) -> Prediction:
    return predict(workload, device, measured=False, threads=threads)


def _timed(prediction: Prediction) -> Estimate | None:
    """What was measured here, as one estimate among those of other machines."""
    timed = prediction.seconds
    if timed is None:
        return None
    return Estimate(Range(timed.least, timed.median, timed.most), prediction.device, "measured here")


def _doubts(prediction: Prediction, nets: int) -> list[str]:
    """What the times here leave open."""
    told = []
    if prediction.scaled_from is not None:
        told.append(f"Time was measured with {prediction.scaled_from} samples at a time and scaled up.")
    if nets > 1:
        told.append("Controls are taken to cost what the hybrid net does, an upper estimate.")
    return told

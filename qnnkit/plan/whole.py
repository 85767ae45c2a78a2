"""Everything that a plan says: what a training needs, how it goes here and elsewhere, what would help."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit import device as devices
from qnnkit import measure as measuring
from qnnkit.plan import here, machines, surveys, where, words
from qnnkit.plan.asked import Asked
from qnnkit.plan.elsewhere import Estimate, Range, calibration, estimate, roofline
from qnnkit.plan.places import Place, Spot, needed, of_table, place
from qnnkit.plan.predict import predict
from qnnkit.plan.prediction import Prediction
from qnnkit.plan.remedies import Remedy, Sight, enough, remedies
from qnnkit.plan.verdict import COMFORTABLE, Wish
from qnnkit.plan.workload import Workload

ESTIMATED = "estimated"
"""What the times of this machine follow from where a step is too large to be tried: its own figures."""


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

    def brief(self) -> dict[str, Any]:
        """What provenance.json keeps of it: what was predicted of this machine, to be compared later."""
        found = self.prediction
        return {
            "device": found.device,
            "peak_bytes": found.peak,
            "memory": found.memory,
            "seconds_per_epoch": found.seconds_per_epoch,
            "verdict": self.here.verdict.word,
            "answer": list(self.answer),
        }

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


def plan(
    asked: Asked,
    *,
    deadline: str | None = None,
    budget: str | None = None,
    prices: str | Path | None = None,
    measured: Sequence[str | Path] = (),
    measure: bool = True,
    seconds: float = 3.0,
    largest: bool = True,
) -> Plan:
    """Plans a training: nothing large is run, whatever it would need.

    Args:
        asked: What is to be trained, where, and how often.
        deadline: Time for all of it, such as "8h".
        budget: Money for all of it, in the table's currency; "0" asks for machines that cost nothing.
        prices: A table of machines of your own, see `machines.load`.
        measured: Files that `qnnkit measure` wrote on other machines.
        measure: Whether updates are timed here, if they take no more than SHARE of the free memory and
            MOST_WORK operations (see `predict`), else estimated; without, there are no times at all for this
            machine, and wider ranges for the others.
        seconds: About how long updates are timed.
        largest: Whether to seek the largest batch that fits on each machine, by a trace for each size tried.

    Raises:
        ValueError: The device cannot compute here, or time or money cannot be read.
        OSError, ValueError: The table of machines or a survey cannot be used.
    """
    workload, threads, trainings = _full(asked.workload), asked.threads, asked.nets * asked.seeds
    device, table = devices.choose(asked.device), machines.load(prices)
    wish = Wish(
        None if deadline is None else words.parse_duration(deadline, "deadline"),
        None if budget is None else words.parse_money(budget, table.currency),
    )
    known, busy = surveys.read(measured, table), measuring.note(measuring.load()) if measure else None
    prediction = predict(workload, device, measured=measure, seconds=seconds, threads=threads)

    @functools.cache
    def look(changed: Workload) -> Prediction:
        known = prediction.memory["framework"]  # what was timed may have left more
        found = predict(changed, device, measured=False, threads=threads, framework=known)
        grows = changed.training.batch_size / workload.training.batch_size
        taken = round(grows * prediction.memory.get("workspace", 0))
        return replace(found, memory={**found.memory, "workspace": taken}) if taken else found

    def memory(batch_size: int) -> Prediction:
        return look(workload.change(batch_size=batch_size))

    work, precision, timed = prediction.work, prediction.training.precision, prediction.seconds
    figures = here.figures(device, precision, threads) if measure else None
    calibrated = calibration(work, precision, timed and timed.median, figures)
    this = here.spot(device, table, asked.price_per_hour)
    updates = _timed(prediction)
    trains = (device.type, precision) != ("cpu", "float16")
    if updates is None and figures is not None and trains:  # too large to be tried
        updates = replace(estimate(work, precision, [figures], None), basis=ESTIMATED)
    spots: list[tuple[Spot, Estimate | None]] = [(this, updates)]
    for spot, processors in (*of_table(table, known.rows), *known.others):
        spots.append((spot, estimate(work, precision, processors, calibrated)))
    places = [
        place(
            spot,
            prediction,
            updates,
            trainings=trainings,
            wish=wish,
            currency=table.currency,
            memory=memory if largest else None,
        )
        for spot, updates in spots
    ]
    found, chain = [], []
    if places[0].verdict.word != "comfortable" and places[0].needs > COMFORTABLE * this.usable:
        sight = Sight(
            predict=look,
            needs=lambda prediction: needed(prediction, this.kind),
            usable=this.usable,
            seconds=figures and (lambda each: roofline(each.work, figures, each.training.precision)),
        )
        found = remedies(workload, sight)
        chain = [] if places[0].verdict.fits else enough(workload, sight, found)
    return Plan(
        prediction=prediction,
        nets=asked.nets,
        seeds=asked.seeds,
        places=tuple(places),
        wish=wish,
        answer=tuple(where.answer(places, wish, table.currency, chain)),
        remedies=tuple(found),
        notes=(
            *([busy] if busy else []),
            *prediction.notes,
            *_doubts(prediction, asked.nets, updates),
            *known.notes,
            *table.notes(),
        ),
        currency=table.currency,
    )


def _full(workload: Workload) -> Workload:
    """With a batch that the samples can fill: a larger one would be all of them."""
    if workload.training.batch_size <= workload.n_samples:
        return workload
    told = f"A batch of {workload.training.batch_size:,} is more than the samples: it holds all of them."
    full = workload.change(batch_size=workload.n_samples)
    return replace(full, notes=(*full.notes, told))


def _timed(prediction: Prediction) -> Estimate | None:
    """What was measured here, as one estimate among those of other machines."""
    timed = prediction.seconds
    if timed is None:
        return None
    return Estimate(Range(timed.least, timed.median, timed.most), prediction.device, "measured here")


def _doubts(prediction: Prediction, nets: int, updates: Estimate | None) -> list[str]:
    """What the times here leave open."""
    told = []
    if updates is not None and updates.basis == ESTIMATED:
        told.append("A step was too large to be timed here: its time is estimated, as for other machines.")
    if prediction.scaled_from is not None:
        told.append(f"Time was measured with {prediction.scaled_from} samples at a time and scaled up.")
    if prediction.seconds is not None:
        told.append("Times are of training alone: validation, tests and checkpoints come on top.")
    if nets > 1:
        told.append("Controls are taken to cost as much as the hybrid net.")
    return told

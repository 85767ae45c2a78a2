"""The whole of a plan: what a training needs, how it goes here and elsewhere, what would help."""

from __future__ import annotations

import bisect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qnnkit import device as devices
from qnnkit import words
from qnnkit.measure import elsewhere
from qnnkit.measure.clock import load, note
from qnnkit.measure.device_figures import figures
from qnnkit.measure.elsewhere import HERE, Range, Spot
from qnnkit.measure.predict import HOST, Prediction, predict
from qnnkit.measure.remedies import REMEDIES, Remedies, Remedy
from qnnkit.measure.workload import Workload
from qnnkit.settings import Settings

COMFORTABLE, FULL = 0.70, 0.95
"""Shares of the usable memory: up to the first there is room for what a plan does not know (fragments, other
programs); above the second a training is expected to fail. Chosen, not fitted."""
LARGEST = 4096
"""Largest batch that is sought, in powers of two."""
WIDTH = 100


class Wish(NamedTuple):
    """What a training may cost."""

    deadline: float | None = None
    """Seconds in which all of it should be done."""
    budget: float | None = None
    currency: str = "USD"
    """Of the budget: prices in others are not compared with it."""


@dataclass(frozen=True, kw_only=True)
class Place(Spot):
    """A machine, and how the training would go there; its basis is "not timed" where no time is known."""

    needs: int
    """Bytes at the peak."""
    verdict: str
    """ "comfortable", "marginal" or "not here"."""
    why: tuple[str, ...]
    """What stands against it or is tight ("memory", "deadline", "budget"), or why that is not known."""
    device: str | None = None
    """What would compute there; None where no time is known."""
    epoch: Range | None = None
    """Seconds of one epoch of one net."""
    total: Range | None = None
    """Seconds of all epochs of all nets and seeds."""
    cost: Range | None = None
    compute_units: Range | None = None
    """Of Colab, for all of it."""
    largest: int | None = None
    """Largest power of two that fits as a batch; 0 where not one sample does; None where not sought."""

    @property
    def fits(self) -> bool:
        """In memory, whatever time and money say."""
        return self.needs <= FULL * self.usable


@dataclass(frozen=True)
class Plan:
    """What a training will take, and where to run it."""

    prediction: Prediction
    """Of one net on this machine."""
    nets: int
    """The hybrid net and its controls, each taken to cost what the hybrid does."""
    seeds: int
    places: tuple[Place, ...]
    """This machine, then those of the table and of surveys."""
    wish: Wish
    answer: str
    """Where to run it, in a sentence."""
    remedies: tuple[Remedy, ...]
    """What would save memory here, each by itself; none where it fits comfortably."""
    notes: tuple[str, ...]

    @property
    def on_this_machine(self) -> Place:
        return self.places[0]

    def brief(self) -> dict[str, Any]:
        """What provenance.json keeps of it, to be compared with what is then measured."""
        found = self.prediction
        return {
            "device": found.device,
            "peak_bytes": found.peak,
            "memory": found.memory,
            "seconds_per_epoch": found.seconds_per_epoch,
            "verdict": self.on_this_machine.verdict,
            "answer": self.answer,
        }

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, for JSON."""
        return {
            **vars(self),
            "prediction": self.prediction.as_dict(),
            "places": [asdict(replace(each, figures=())) for each in self.places],
            "wish": self.wish._asdict(),
            "remedies": [asdict(each) | {"command": each.command} for each in self.remedies],
        }

    def __str__(self) -> str:
        """Memory by part, the machines, the answer, remedies and notes, of at most 100 columns."""
        found, blocks = self.prediction, []
        config, trained = found.training, self.nets * self.seeds
        length = getattr(config, "sequence_length", None)
        tokens = f" of {length} tokens" if length else ""
        blocks.append([f"{found.name}: {found.n_weights:,} weights, {found.n_trained:,} of them trained"])
        blocks[0] += [
            f"{self.nets} net{'s' * (self.nets > 1)} x {self.seeds} seed{'s' * (self.seeds > 1)} x "
            f"{config.epochs:,} epochs of {found.n_samples:,} samples{tokens}, batch {config.batch_size}",
            f"Checkpoints take {words.size(trained * found.disk)} of disk",
        ]
        memory = sorted(found.memory.items(), key=lambda item: -item[1])
        rows = [("memory at the peak", words.size(found.peak), f"on {found.device}")]
        for part, n in memory:
            where = " in RAM" if part in HOST and found.device != "cpu" else ""
            rows += [(f"  {part}", words.size(n), f"{n / found.in_all:.0%}{where}")] if n else []
        blocks.append(_aligned(rows))
        heads = ("machine", "memory", "batch to", "epoch", "in all", "cost", "units", "verdict")
        blocks.append(_aligned([heads, *map(_row, self.places)]))
        blocks.append(textwrap.wrap(self.answer, WIDTH))
        if self.remedies:
            heads = ("to need less here", "memory", "fits", "time", "")
            blocks.append(_aligned([heads, *map(_remedy_row, self.remedies)]))
        blocks.append([line for note in self.notes for line in textwrap.wrap(f"- {note}", WIDTH)])
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def plan(
    workload: Workload,
    *,
    device: str = "auto",
    n_threads: int | None = None,
    nets: int = 1,
    seeds: int = 1,
    price_per_hour: float | None = None,
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
        workload: What is to be trained.
        device: Where, on this machine.
        n_threads: CPU threads that train; None leaves torch's choice.
        nets: How many are trained, controls included.
        seeds: How often each.
        price_per_hour: Of this machine.
        deadline: Time for all of it, such as "8h".
        budget: Money for all of it, such as "10" in the table's currency, or "10 EUR"; "0" asks for machines
            that cost nothing.
        prices: A table of machines of your own, see `elsewhere.load`.
        measured: Files that `qnnkit measure` wrote on other machines.
        measure: Whether updates are timed here, if they are small enough (see `predict`), else estimated;
            without, there are no times for this machine, and wider ranges for the others.
        seconds: About how long updates are timed.
        largest: Whether to seek the largest batch that fits on each machine, by a trace for each size tried.

    Raises:
        ValueError: The device cannot compute here, or time or money cannot be read.
        OSError, ValueError: The table of machines or a survey cannot be used.
    """
    place, table = devices.choose(device), elsewhere.load(prices)
    wish = Wish(
        None if deadline is None else words.parse_duration(deadline, "deadline"),
        *((None, table.currency) if budget is None else words.parse_money(budget, table.currency)),
    )
    spots, told = elsewhere.spots(table, measured)
    busy = note(load()) if measure else None
    if workload.training.batch_size > workload.n_samples:
        more = f"A batch of {workload.training.batch_size:,} is more than the samples: it holds all of them."
        workload = workload.change(batch_size=workload.n_samples)
        workload = replace(workload, notes=(*workload.notes, more))
    prediction = predict(workload, place, measured=measure, seconds=seconds, n_threads=n_threads)
    others = _Others(workload, prediction, place, n_threads)
    computes = measure and (place.type, workload.training.precision) != ("cpu", "float16")
    known = figures(place, workload.training.precision, n_threads) if computes else None
    if known is not None and not elsewhere.enough(known):
        known = None
        told.append("This machine's bandwidth or products could not be measured: nothing is estimated here.")
    this = elsewhere.this_machine(place, table, price_per_hour)
    if known is not None and prediction.seconds is None:  # too large to be tried
        this = replace(this, basis="estimated", figures=[known])
        told.append("A step was too large to be timed here: its time is estimated, as for other machines.")
    updates, sized = _updates(prediction, [this, *spots], known), others.of_batch if largest else None
    places = tuple(
        _place(spot, prediction, updates.get(spot.name), nets * seeds, wish, sized) for spot in (this, *spots)
    )
    alone, chain = _remedies(places[0], others, known)
    if prediction.scaled_from is not None:
        told.append(f"Time was measured with {prediction.scaled_from} samples at a time and scaled up.")
    if prediction.seconds is not None:
        told.append("Times are of training alone: validation, tests and checkpoints come on top.")
    if nets > 1:
        told.append("Controls are taken to cost as much as the hybrid net.")
    notes = (*filter(None, [busy]), *prediction.notes, *told, *table.notes())
    return Plan(prediction, nets, seeds, places, wish, answer(places, wish, chain), tuple(alone), notes)


def _updates(
    prediction: Prediction, spots: Sequence[Spot], known: Mapping[str, Any] | None
) -> dict[str, tuple[Range, str]]:
    """Machine -> seconds of an update there, and the device that takes them, where that can be told."""
    work, precision, timed = prediction.work, prediction.training.precision, prediction.seconds
    calibrated = elsewhere.calibration(work, precision, timed and timed.median, known)
    found = {
        spot.name: elsewhere.estimate(work, precision, spot, calibrated) for spot in spots if spot.figures
    }
    here = {HERE: (Range(timed.least, timed.median, timed.most), prediction.device)} if timed else {}
    return found | here


@dataclass
class _Others:
    """The same training with other settings, as far as memory and work go: each is traced once."""

    workload: Workload
    prediction: Prediction
    place: torch.device
    n_threads: int | None
    seen: dict[str, Prediction] = field(default_factory=dict)

    def __call__(self, training: Settings) -> Prediction:
        key, own = training.model_dump_json(), self.prediction.memory
        if key not in self.seen:
            changed = replace(self.workload, training=training)
            found = predict(
                changed, self.place, measured=False, n_threads=self.n_threads,
                framework=own["framework"],  # what was timed may have left more
            )  # fmt: skip
            taken = own.get("workspace", 0) * training.batch_size / self.workload.training.batch_size
            self.seen[key] = replace(found, memory={**found.memory, "workspace": round(taken)})
        return self.seen[key]

    def of_batch(self, n: int) -> Prediction:
        return self(self.workload.training.override(batch_size=n))


def _remedies(
    here: Place, others: _Others, known: Mapping[str, Any] | None
) -> tuple[list[Remedy], list[Remedy]]:
    """Each that saves memory here, if that is tight; and what makes it fit, if it does not."""
    training = others.workload.training
    sight = Remedies(
        lambda training: needed(others(training), here.kind),
        FULL * here.usable,
        None
        if known is None
        else lambda training: elsewhere.roofline(others(training).work, known, training.precision),
        pieces=not getattr(others.workload.task, "together", False),
    )
    tight = here.needs > COMFORTABLE * here.usable
    return sight.alone(training) if tight else [], [] if here.fits else sight.chain(training)


# --- verdicts -----------------------------------------------------------------------------------------------


def needed(prediction: Prediction, kind: str) -> int:
    """Bytes that have to fit: on a GPU what it computes on, elsewhere data and framework as well."""
    return prediction.on_accelerator if kind == "cuda" else prediction.in_all


def judge(
    share: float, total: Range | None, cost: Range | None, currency: str | None, wish: Wish
) -> tuple[str, tuple[str, ...]]:
    """The verdict on a machine, and why.

    Args:
        share: Of the usable memory that is needed.
        total: Seconds of all of it; None where they are not known.
        cost: Of all of it; None where no price is known.
        currency: Of the cost. A cost above 0 in another one than the budget's counts as not known.
        wish: Deadline and budget.
    """
    if share > FULL:
        return "not here", ("memory",)
    against, doubts = [], ["memory"] if share > COMFORTABLE else []
    no_price = "price unknown"
    if cost is not None and cost.high > 0 and currency != wish.currency:
        cost, no_price = None, f"price in {currency or 'a currency of its own'}"
    limits = (("deadline", total, wish.deadline, "time unknown"), ("budget", cost, wish.budget, no_price))
    for name, range_, limit, unknown in limits:
        if limit is None:
            continue
        if range_ is None:
            doubts.append(unknown)
        elif range_.likely <= limit < range_.high:
            doubts.append(name)
        elif range_.likely > limit:
            against.append(name)
    if against:
        return "not here", tuple(against)
    return ("marginal", tuple(doubts)) if doubts else ("comfortable", ())


def _place(
    spot: Spot,
    prediction: Prediction,
    update: tuple[Range, str] | None,
    trainings: int,
    wish: Wish,
    sized: Callable[[int], Prediction] | None,
) -> Place:
    """A machine with the training on it: `update` is seconds and device of one, `sized` predicts a batch."""
    needs, found = needed(prediction, spot.kind), dict[str, Any](basis="not timed")
    if update is not None:
        (seconds, device), config = update, prediction.training
        epoch = seconds.times(prediction.n_samples / config.batch_size)
        total = epoch.times(config.epochs * trainings)
        found = {"basis": spot.basis, "device": device, "epoch": epoch, "total": total}
        rates = {"cost": spot.price_per_hour, "compute_units": spot.compute_units_per_hour}
        found |= {name: total.times(rate / 3600) for name, rate in rates.items() if rate is not None}
    elif spot.price_per_hour == 0:
        found["cost"] = Range(0, 0, 0)
    if sized is not None:
        sizes = [2**n for n in range(min(prediction.n_samples, LARGEST).bit_length())]

        def too_large(size: int) -> bool:
            return needed(sized(size), spot.kind) > FULL * spot.usable

        n = bisect.bisect_left(sizes, True, key=too_large)
        found["largest"] = sizes[n - 1] if n else 0
    share = needs / spot.usable
    verdict, why = judge(share, found.get("total"), found.get("cost"), spot.currency, wish)
    return Place(**vars(spot) | found, needs=needs, verdict=verdict, why=why)


def answer(places: Sequence[Place], wish: Wish, chain: Sequence[Remedy] = ()) -> str:
    """Where to run it, in a sentence; where nothing does it, what comes nearest.

    The cheapest goes first, of equals the comfortable, this machine, then the quickest. Costs in another
    currency than the budget's are not compared: they come last.

    Args:
        places: Every machine, this one among them.
        wish: Deadline and budget.
        chain: Remedies that make it fit here.
    """

    def worth(place: Place) -> tuple[Any, ...]:
        alike = place.cost is not None and (place.cost.high == 0 or place.currency == wish.currency)
        price = place.cost.likely if place.cost is not None and alike else math.inf
        seconds = math.inf if place.total is None else place.total.likely
        return price, place.verdict != "comfortable", place.name != HERE, seconds

    able = sorted((each for each in places if each.verdict != "not here"), key=worth)
    if able:
        best = able[0]
        told = f"Run it {'here' if best.name == HERE else f'on {best.name}'}{_owned(best)}: {_takes(best)}"
        if best.why:
            told += f"; marginal: {' and '.join(best.why)}"
    else:
        limits = [f"in {words.duration(wish.deadline)}"] if wish.deadline is not None else []
        limits += [f"for {words.figure(wish.budget)} {wish.currency}"] if wish.budget is not None else []
        best = min(places, key=lambda each: (each.needs > FULL * each.usable, len(each.why), worth(each)))
        told = f"No machine of the table does it{''.join(f' {each}' for each in limits)}"
        if best.fits:
            over = " and ".join(best.why)
            told += f"; nearest is {best.name}{_owned(best)}: {_takes(best)}, over the {over}"
        else:
            best = max(places, key=lambda each: each.usable)
            told += f": it needs {words.size(best.needs)}, and {best.name} has {words.size(best.usable)}"
    if chain:
        before, after = words.size(chain[0].before), words.size(chain[-1].after)
        told += f"; it fits here with {' '.join(each.command for each in chain)} ({before} become {after})"
    return f"{told}."


def _owned(place: Place) -> str:
    return " (if you have one)" if place.kind == "mac" and place.name != HERE else ""


def _takes(place: Place) -> str:
    if place.total is None:
        return "its time is not known"
    low, likely, high = map(words.duration, place.total)
    told = f"about {likely}" if low == high else f"about {likely} ({low} to {high})"
    return f"{told}, {_cost(place)}"


def _cost(place: Place) -> str:
    if place.cost is None:
        return "price unknown"
    if place.cost.high == 0:
        return "free"
    likely = place.cost.likely
    return f"{'<0.01' if likely < 0.005 else f'{likely:.2f}'} {place.currency or '(own currency)'}"


# --- rows of text -------------------------------------------------------------------------------------------


def _row(place: Place) -> tuple[str, ...]:
    units, why = place.compute_units, f": {', '.join(place.why)}" if place.why else ""
    return (
        place.name,
        f"{words.size(place.needs)} of {words.size(place.usable)}",
        "-" if place.largest is None else f"{place.largest:,}{'+' * (place.largest == LARGEST)}",
        "?" if place.epoch is None else words.duration(place.epoch.likely),
        "?" if place.total is None else words.duration(place.total.likely),
        "?" if place.total is None and place.cost is None else _cost(place),
        "-" if units is None else words.figure(units.likely),
        place.verdict + why,
    )


def _remedy_row(remedy: Remedy) -> tuple[str, ...]:
    slower = "?" if remedy.slower is None else f"x {remedy.slower:.2f}"
    fits = "yes" if remedy.fits else "no"
    return remedy.command, words.size(remedy.after), fits, slower, REMEDIES[remedy.name]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

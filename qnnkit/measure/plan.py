"""The whole of a plan: what a training needs, how it goes here and elsewhere, and what would help."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit import checks, words
from qnnkit import device as devices
from qnnkit.measure import platforms
from qnnkit.measure.clock import load, note
from qnnkit.measure.figures import figures
from qnnkit.measure.memory import Traced, trace
from qnnkit.measure.platforms import HERE, Spot
from qnnkit.measure.predict import HOST, Prediction, predict
from qnnkit.measure.workload import Workload
from qnnkit.settings import Settings

COMFORTABLE, FULL = 0.70, 0.95
"""Shares of the usable memory: below the first there is room for what a plan does not know (fragments, other
programs); above the second a training is expected to fail. Chosen, not fitted."""
SMALLEST = 2
"""No remedy takes fewer samples at a time, as some layers normalise over them."""
ASSUMED = "Times are of training alone, without validation or tests; controls count as the hybrid net."
WIDTH = 100


@dataclass(frozen=True)
class Plan:
    """What a training will take, and where to run it."""

    prediction: Prediction
    """Of one net on this machine."""
    nets: int
    """The hybrid net and its controls, each taken to cost as much as the hybrid net."""
    seeds: int
    places: list[dict[str, Any]]
    """A row for this machine, then one for each of the table. It has `machine`, the bytes that it `needs` of
    those `usable`, seconds of an `epoch` of one net and `in_all`, and the US dollars that all `cost`. Both
    may be off by `factor`, both ways; `basis` and `device` say where they come from. The `verdict` is
    "comfortable", "marginal" or "not here", and `why`. None is what is not known."""
    answer: str
    """Where to run it, in a sentence."""
    remedies: list[dict[str, Any]]
    """What would save memory, in the order in which to try it: the `command`, bytes that it then `needs`,
    whether it `fits` here, `slow` (times as long; None: unknown) and its `effect`. Empty where it fits
    comfortably."""
    notes: list[str]

    def brief(self) -> dict[str, Any]:
        """What provenance.json records of it, to be compared with the measured training."""
        return {
            "device": self.prediction.device,
            "peak_bytes": self.prediction.peak,
            "memory": self.prediction.memory,
            "seconds_per_epoch": self.prediction.seconds_per_epoch,
            "verdict": self.places[0]["verdict"],
            "answer": self.answer,
        }

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, for JSON."""
        return {**vars(self), "prediction": self.prediction.as_dict()}

    def __str__(self) -> str:
        """Memory by part, the machines, the answer, remedies and notes, in at most 100 columns."""
        predicted, config = self.prediction, self.prediction.training
        length = config.of_kit("sequence_length")
        tokens, disk = f" of {length} tokens" if length else "", self.nets * self.seeds * predicted.disk
        head = [
            f"{predicted.name}: {predicted.n_weights:,} weights, {predicted.n_trained:,} of them trained",
            f"{config.epochs:,} epochs of {predicted.n_samples:,} samples{tokens}, batch {config.batch_size}",
            f"nets: {self.nets}, seeds: {self.seeds}, checkpoints on disk: {words.size(disk)}",
        ]
        parts = [("memory at the peak", words.size(predicted.peak), f"on {predicted.device}")]
        for part, n in sorted(predicted.memory.items(), key=lambda item: -item[1]):
            where = " in RAM" if part in HOST and predicted.device != "cpu" else ""
            parts.append((f"  {part}", words.size(n), f"{n / predicted.in_all:.0%}{where}"))
        machines = [("machine", "memory", "epoch", "in all", "cost", "within", "verdict")]
        machines += [_row(each) for each in self.places]
        rows = [("to need less", "memory", "fits here", "time", "")]
        for each in self.remedies:
            slow, fits = each["slow"], "yes" if each["fits"] else "no"
            time = "?" if slow is None else f"x {slow:.2f}"
            rows.append((each["command"], words.size(each["needs"]), fits, time, each["effect"]))
        blocks = [head, _aligned(parts), _aligned(machines), textwrap.wrap(self.answer, WIDTH)]
        blocks.append(_aligned(rows) if self.remedies else [])
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
    deadline: float | None = None,
    budget: float | None = None,
    prices: str | Path | None = None,
    measure: bool = True,
    seconds: float = 3.0,
) -> Plan:
    """Plans a training: nothing large is run, whatever it would need.

    Args:
        workload: What is to be trained.
        device: Where, on this machine.
        n_threads: CPU threads that train; None leaves torch's choice.
        nets: How many are trained, controls included.
        seeds: How often each.
        price_per_hour: Of this machine, in US dollars.
        deadline: Hours for all of it.
        budget: US dollars for all of it; 0 asks for machines that cost nothing.
        prices: A table of machines of your own, see `platforms.load`.
        measure: Whether updates are timed here, if they are small enough (see `predict`); without, there are
            no times for this machine, and wider ranges for the others.
        seconds: How long updates are timed, about.

    Raises:
        ValueError: The device cannot compute here, or `deadline` is not above 0.
        OSError, ValueError: The table of machines cannot be used.
    """
    place, table, notes = devices.choose(device), platforms.load(prices), list[str]()
    checks.positive("deadline", 1 if deadline is None else deadline, "Give hours.")
    limits = {"time": deadline and 3600 * deadline, "price": budget}
    if measure and (busy := note(load())):
        notes.append(busy)
    if workload.training.batch_size > workload.n_samples:
        asked = workload.training.batch_size
        notes.append(f"A batch of {asked:,} is more than the samples: it holds all of them.")
        workload = workload.change(batch_size=workload.n_samples)
    prediction = predict(workload, place, measured=measure, seconds=seconds, n_threads=n_threads)
    precision = workload.training.precision
    notes += prediction.notes
    computes = measure and (place.type, precision) != ("cpu", "float16")
    known = figures(place, sorted({"float32", precision}), n_threads) if computes else None
    this = platforms.this_machine(place, price_per_hour)
    if known is not None and prediction.seconds is None:  # too large to be tried
        this = replace(this, basis="estimated", figures=[known])
        notes.append("A step was too large to be timed here: its time is estimated, as for other machines.")
    calibrated = platforms.calibration(prediction.work, precision, prediction.seconds, known)
    spots = [this, *platforms.spots(table)]
    places = [place_of(spot, prediction, calibrated, nets * seeds, limits) for spot in spots]
    tight = places[0]["needs"] > COMFORTABLE * this.usable
    remedies = list(remedies_of(workload, this, places[0]["needs"], prediction, known)) if tight else []
    notes += [ASSUMED, table.note()]
    return Plan(prediction, nets, seeds, places, answer(places), remedies, notes)


def place_of(
    spot: Spot, prediction: Prediction, calibrated: float | None, trainings: int, limits: Mapping[str, Any]
) -> dict[str, Any]:
    """The row of a machine, see `Plan.places`; limits of "time" in seconds and "price" in US dollars."""
    config, price = prediction.training, spot.price_per_hour
    needs = prediction.on_accelerator if spot.kind == "cuda" else prediction.in_all
    update, factor, device = prediction.seconds, prediction.spread, prediction.device
    if spot.figures:
        update, factor, device = platforms.estimate(prediction.work, config.precision, spot, calibrated)
    epoch = update and update * prediction.n_samples / config.batch_size
    total = epoch and epoch * config.epochs * trainings
    cost = price and total and total / 3600 * price
    known = [("memory", needs / spot.usable, COMFORTABLE, FULL)]
    values = {"time": total, "price": cost}
    known += [(name, values[name], most / factor, most) for name, most in limits.items() if most is not None]
    verdict, why = judge(known)
    return {
        "machine": spot.name,
        "needs": needs,
        "usable": spot.usable,
        "epoch": epoch,
        "in_all": total,
        "cost": cost,
        "factor": factor,
        "basis": spot.basis if update else "not timed",
        "device": device if update else None,
        "verdict": verdict,
        "why": why,
    }


def judge(limits: Sequence[tuple[str, float | None, float, float]]) -> tuple[str, list[str]]:
    """The verdict on a machine, and why.

    Args:
        limits: Name, value (None: unknown), the most that is comfortable, and the most that is possible.
    """
    against = [name for name, value, _, most in limits if value is not None and value > most]
    unknown = [f"{name} unknown" for name, value, *_ in limits if value is None]
    doubts = [name for name, value, comfortable, _ in limits if value is not None and value > comfortable]
    if against:
        return "not here", against
    return ("marginal", doubts + unknown) if doubts or unknown else ("comfortable", [])


def answer(places: Sequence[Mapping[str, Any]]) -> str:
    """Where to run it, in a sentence; where nothing does it, what comes nearest.

    The cheapest machine is first; of equals the comfortable one, this machine, then the quickest.
    """

    def worth(place: Mapping[str, Any]) -> tuple[Any, ...]:
        price, seconds = (math.inf if place[name] is None else place[name] for name in ("cost", "in_all"))
        lacking = place["verdict"] == "not here", "memory" in place["why"] and place["verdict"] == "not here"
        return *lacking, price, place["verdict"] != "comfortable", place["machine"] != HERE, seconds

    best = min(places, key=worth)
    _, memory, _, total, cost, within, verdict = _row(best)
    begin = "No machine does it; nearest is" if best["verdict"] == "not here" else "Run it on"
    return f"{begin} {best['machine']}: {total} ({within}), {cost}, {memory}; {verdict}."


# --- remedies -----------------------------------------------------------------------------------------------


def changes(training: Settings) -> Iterator[tuple[dict[str, Any], str]]:
    """Settings that need less memory, and their effect on the training, in the order in which to try them."""
    micro = min(training.micro_batch or training.batch_size, training.batch_size)
    if micro > SMALLEST:
        yield {"micro_batch": max(SMALLEST, micro // 4)}, "a batch in pieces; batch norm sees them"
    if not training.gradient_checkpointing:
        yield {"gradient_checkpointing": True}, "activations computed again; same results"
    if training.precision == "float32":
        yield {"precision": "bfloat16"}, "classical layers compute in bfloat16"
    if training.batch_size > SMALLEST and training.micro_batch is None:
        yield {"batch_size": training.batch_size // 2}, "updates see fewer samples: noisier"


def remedies_of(
    workload: Workload, spot: Spot, before: int, prediction: Prediction, known: Mapping[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """A row for each change that needs less than `before`, from one more trace, see `Plan.remedies`.

    What the task refuses is left out.
    """

    def held(traced: Traced) -> int:
        return traced.held + (0 if spot.kind == "cuda" else traced.copied)  # a GPU does not hold the copy

    def seconds(traced: Traced, config: Settings) -> float:
        return platforms.roofline(traced.work, known or {}, config.precision) / config.batch_size

    for settings, effect in changes(workload.training):
        changed = workload.change(**settings)
        try:
            traced = trace(changed, foreach=prediction.device.startswith("cuda"))
        except ValueError:
            continue
        needs = before + held(traced) - held(prediction)
        slow = known and seconds(traced, changed.training) / seconds(prediction, workload.training)
        [(name, value)] = settings.items()
        row = {"command": f"--set {name}={str(value).lower()}", "needs": needs, "slow": slow}
        if needs < before:
            yield row | {"fits": needs <= FULL * spot.usable, "effect": effect}


# --- rows of text -------------------------------------------------------------------------------------------


def _row(place: Mapping[str, Any]) -> tuple[str, ...]:
    epoch, total, cost = place["epoch"], place["in_all"], place["cost"]
    price = "free" if cost == 0 else "price unknown" if cost is None else f"{max(cost, 0.01):,.2f} USD"
    return (
        place["machine"],
        f"{words.size(place['needs'])} of {words.size(place['usable'])}",
        words.duration(epoch) if epoch else "?",
        words.duration(total) if total else "?",
        price,
        f"x {place['factor']:.1f}" if total else "?",
        f"{place['verdict']}{': ' if place['why'] else ''}{', '.join(place['why'])}",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
